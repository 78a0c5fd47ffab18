"""What the leader of a job knows of it while it runs: reports, live totals, its stream.
Start with `job_leader`.
"""
