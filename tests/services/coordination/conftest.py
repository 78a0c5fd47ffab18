"""The stores that the tests of this folder run on."""

from coordination_places import empty_bucket, place, redis_url, s3_endpoint, store

__all__ = ["empty_bucket", "place", "redis_url", "s3_endpoint", "store"]
