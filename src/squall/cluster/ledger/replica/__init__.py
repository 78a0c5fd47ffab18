"""Viewstamped Replication for one control group: the pure core of a member.

The core only decides: it has no clock, disk or network, and returns effects that a driver
carries out. Start with `replica`; `state` has the shared state and its invariants.
`docs/replication.md` lists the rules, and for each the mutant of the simulation that shows why
it is needed.
"""
