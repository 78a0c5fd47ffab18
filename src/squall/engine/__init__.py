"""Executes workflows: plan, load, virtual users, measurement, core processes, runs.

Stands on `api`, `clients`, `stats` and `runtime`; the cluster, store mode, reports and the
command line import it. Start with `run.local_run` for a run on one machine, or with
`users.share` for the users of one core process.
"""
