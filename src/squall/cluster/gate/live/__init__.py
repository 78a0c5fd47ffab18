"""What a gate shows of the jobs that it leads: it follows the parts in their datacenters
(`part_follower`), merges their numbers, judges thresholds and keeps the stream (`job_leader`).

A job leader has no authority (R1): everything here is volatile, and the next leader asks the
datacenters again.
"""
