"""The contract of stores on a real S3 server, beside the one that simulates S3."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from squall.coordination.store_errors import VersionConflict
from squall.coordination.stores.interface import ABSENT
from tests.services.coordination.lab.places import BUCKET, Place, missing
from tests.services.coordination.lab.s3_servers import SEAWEEDFS, seaweedfs_server
from tests.services.coordination.stores.contract import contract_tests, records, streams
from tests.services.coordination.stores.contract.records import put, value_of

pytestmark = [pytest.mark.asyncio, pytest.mark.nightly]

CROWDED = {"test_of_many_creators_one_wins", "test_appends_of_many_writers_are_all_there"}
"""More writers of one object at a time than this server serves before a request is given up."""

globals().update(contract_tests(records, but=CROWDED) | contract_tests(streams, but=CROWDED))


@pytest.fixture(scope="module")
def seaweedfs() -> Iterator[str]:
    if not SEAWEEDFS.exists():
        missing(f"no SeaweedFS at {SEAWEEDFS}")
    with seaweedfs_server() as endpoint:
        yield endpoint


@pytest_asyncio.fixture
async def place(seaweedfs: str) -> AsyncIterator[Place]:
    prefix = f"test.{uuid.uuid4().hex[:12]}"
    url = f"s3://{BUCKET}/{prefix}?endpoint={seaweedfs}&region=us-east-1"
    place = Place("s3", url, prefix)
    yield place
    await place.close()


async def test_of_three_creators_one_wins(place: Place) -> None:
    stores = [await place.open() for _ in range(3)]

    async def create(number: int) -> bool:
        with contextlib.suppress(VersionConflict):
            await stores[number].write(put("state/race", str(number).encode(), ABSENT))
            return True
        return False

    wins = await asyncio.gather(*map(create, range(3)))
    assert sum(wins) == 1
    assert await value_of(stores[0], "state/race") == str(wins.index(True)).encode()
