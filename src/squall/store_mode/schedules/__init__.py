"""Load tests that run on a schedule: records, the client, and the coordinator's runner.

Start with `runner`.
"""
