"""The worker: runs shares in core processes under a lease and keeps their records until they
are committed. Start with `node`; `session` decides, `attempts` and `deliveries` act.
"""
