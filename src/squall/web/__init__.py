"""The web page of a run: live charts, controls, and the report at the end.

`server` serves an application in a thread of its own, `run_app` has the routes of one run and
`jobs_app` those of `squall web`. `feed` holds what viewers get; nothing here touches the engine: a
run arrives as snapshots and leaves as a results document. `access` decides who may do what. The
libraries (extra `web`) are imported only by a command that serves a page.
"""
