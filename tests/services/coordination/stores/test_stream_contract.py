"""Streams that are read, taken and removed from, on the four stores."""

import pytest

from tests.services.coordination.stores.contract import contract_tests, streams

pytestmark = pytest.mark.asyncio

globals().update(contract_tests(streams))
