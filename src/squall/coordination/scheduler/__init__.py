"""Jobs at their times, each due time at most once. See docs/coordination/scheduler.md."""
