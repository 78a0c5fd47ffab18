"""A gate: one member of the group that runs jobs over several datacenters.

`routing/` knows the datacenters and chooses among them.
"""
