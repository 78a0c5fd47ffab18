"""The stores that the tests of this folder run on, and that none of them shows a secret."""

import pytest

from tests.lab.secret_watch import nothing_secret_is_told
from tests.services.coordination.lab.places import (
    empty_bucket,
    place,
    redis_url,
    s3_endpoint,
    store,
)
from tests.services.coordination.lab.process_secrets import processes_tell_nothing

__all__ = [
    "empty_bucket",
    "nothing_secret_is_told",
    "place",
    "processes_tell_nothing",
    "redis_url",
    "s3_endpoint",
    "store",
]

# So that a failed assertion of the contract shows its values, as one in a test module does.
pytest.register_assert_rewrite("tests.services.coordination.stores.contract")
