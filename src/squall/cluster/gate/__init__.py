"""A gate: one member of the group that hands jobs over to datacenters. `steward` decides, `outbox`
says what datacenters have to be told; both are pure.
"""
