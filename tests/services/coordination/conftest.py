"""The stores that the tests of this folder run on, and that none of them shows a secret."""

from coordination_places import empty_bucket, place, redis_url, s3_endpoint, store
from process_secrets import processes_tell_nothing

from secret_watch import nothing_secret_is_told

__all__ = [
    "empty_bucket",
    "nothing_secret_is_told",
    "place",
    "processes_tell_nothing",
    "redis_url",
    "s3_endpoint",
    "store",
]
