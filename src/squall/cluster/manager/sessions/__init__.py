"""Answers a worker's session: what to run, what to stop, how much more time. Also the time
limits of jobs. Start with `answers`.
"""
