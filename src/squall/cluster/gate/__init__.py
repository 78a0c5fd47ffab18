"""A gate: one member of the group that runs jobs over several datacenters (R15).

Start with `node`, which composes the parts. `steward/` decides (pure), `outbox` derives the
messages to datacenters from the log (pure) and `orders` sends them, `reports` takes what the
datacenters report, `routing/` knows the datacenters and chooses among them, `live/` merges the
live numbers, `clients/` answers clients with the same messages as a manager. The commands import
it; it imports no manager.
"""
