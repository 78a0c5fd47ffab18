"""Central expiry. See docs/coordination/ttl.md."""
