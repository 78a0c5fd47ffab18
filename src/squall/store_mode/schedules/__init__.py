"""Load tests that run on a schedule: records, the client, and the coordinator's runner.

Start with `runner`. `next_state` decides what becomes of a due time; the times come from
`coordination.scheduler.due_times`.
"""
