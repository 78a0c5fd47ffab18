"""Viewstamped Replication for one control group: a pure core and the driver around it.

The pure part decides and does nothing else; `docs/replication.md` has its states, its
rules and the invariants that the simulation checks.
"""
