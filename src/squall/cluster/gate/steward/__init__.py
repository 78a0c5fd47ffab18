"""The policy of the primary gate: which datacenter gets which part of a job, when all parts start,
when a part is lost, when a job is over. Pure; start with `policy`.

`effects` are what it asks the driver for, `volatile_state` what it knows beyond the log. It imports
the gates' state machine and no routing: where a part may go, it asks through `Route`.
"""
