"""The stores that the tests of this folder run on."""

from coordination_places import place, redis_url, s3_endpoint, store

__all__ = ["place", "redis_url", "s3_endpoint", "store"]
