"""A scheduler over a store: jobs at their due times, each due time at most once.

Start with `plugin`, which applications call. `cron` and `due_times` compute when a job is due; the
leader runs `runner`, which decides and begins the runs. See docs/coordination/scheduler.md.
"""
