"""Records, conditions, fences, index and waits on the four stores."""

import pytest

from tests.services.coordination.stores.contract import contract_tests, records

pytestmark = pytest.mark.asyncio

globals().update(contract_tests(records))
