"""Core processes, which make the load, and the processes that start and watch them.

Start with `core` (one core process) and `lease` (how long it may make load). `core_pool` starts
core processes for a run on one machine; `attempt_host` starts them for a worker and reports through
`attempt_events`. (`cluster.manager.director.core_pool` starts nothing: it assigns the free cores of
a datacenter to jobs.)
"""
