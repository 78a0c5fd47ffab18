"""The `Ttl` plugin: the leader removes records by the rules of the application. See
docs/coordination/expiry.md.
"""
