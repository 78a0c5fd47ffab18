"""Which datacenters a gate knows, how well they are, and which of them get a job. No I/O.

Start with `known_datacenters`: one object per datacenter that takes in answers and misses of the
probes. `reachability` and `health` are what it is made of. `choice` decides for one
job from a snapshot of all of them, with `scores`; `explanation` says why. The gate's prober drives
the table, its policy reads it.
"""
