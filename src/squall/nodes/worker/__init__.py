"""The worker: runs shares in core processes under a lease and keeps results until they
are committed."""
