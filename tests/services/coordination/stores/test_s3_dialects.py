"""S3 services that deviate: one replaces an object that does not exist, one answers a write with
409 first, one loses the answer. Elections hold on all of them.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from squall.coordination import Coordinator
from squall.coordination.records import keys
from squall.coordination.secrets.sources import generate_secret
from squall.coordination.store_errors import VersionConflict
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import ANY, Delete, Put
from squall.coordination.stores.open import open_store
from squall.coordination.stores.s3.store import S3Store
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.acceptance.crash_failover import CrashLab
from tests.services.coordination.acceptance.cut_leader import running
from tests.services.coordination.acceptance.one_winner import play_rounds, promotions
from tests.services.coordination.acceptance.paused_leader import PausedLab
from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.services.coordination.lab.places import BUCKET, Place
from tests.services.coordination.programs.member import scaled

CLOCK = RealClock()
SCALE = 4.0
"""Each request passes a proxy of this process, and often two."""
LEADER_PATH = "/leader"


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultyS3]:
    made = FaultyS3(s3_endpoint)
    yield made
    made.close()


@pytest.fixture
def careless(proxy: FaultyS3) -> FaultyS3:
    """A service that takes `If-Match` on a missing object for leave to create it, and deletes
    whatever the condition says: all that a store can lack and still be used."""
    proxy.writes_missing = True
    proxy.ignored_header, proxy.ignored_on = "if-match", "DELETE"
    return proxy


@pytest_asyncio.fixture
async def place(proxy: FaultyS3) -> AsyncIterator[Place]:
    prefix = f"dialect.{uuid.uuid4().hex[:12]}"
    url = f"s3://{BUCKET}/{prefix}?endpoint={proxy.endpoint}&region=us-east-1"
    made = Place("s3", url, prefix)
    yield made
    await made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "journals"
    made.mkdir()
    return made


def put(key: str, value: bytes, expect: Any = ANY) -> Put:
    return Put(key, value, expect=expect, ttl_s=600.0)


def is_looking_first(store: GuardedStore) -> bool:
    assert isinstance(store.inner, S3Store)
    return store.inner._replaces_missing  # pyright: ignore[reportPrivateUsage]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_careless", [True, False])
async def test_a_replace_of_what_is_gone_is_a_conflict_on_every_service(
    place: Place, proxy: FaultyS3, is_careless: bool
) -> None:
    """The probe finds services that need a read before a write; only those get one."""
    proxy.writes_missing = is_careless
    store = await open_store(place.url, CLOCK, random.Random(), prefix=place.prefix)
    try:
        assert is_looking_first(store) == is_careless
        assert (proxy.written_missing > 0) == is_careless, "the probe saw it happen"
        probed = proxy.written_missing
        (version,) = await store.write(put("state/a", b"1"))
        await store.write(Delete("state/a", version))
        with pytest.raises(VersionConflict):
            await store.write(put("state/a", b"2", version))
        assert await store.get("state/a") == (None,)
        (newer,) = await store.write(put("state/a", b"3"))
        (last,) = await store.write(put("state/a", b"4", newer))
        with pytest.raises(VersionConflict):
            await store.write(put("state/a", b"5", newer))
        assert await store.write(put("state/a", b"6", last))
        assert proxy.written_missing == probed, "never after the probe"
    finally:
        await store.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("answered", [0, 1, 2])
async def test_a_careless_service_is_known_also_when_an_answer_to_the_probe_is_lost(
    place: Place, careless: FaultyS3, answered: int
) -> None:
    """The first, second or third conditional write of it is sent twice."""
    careless.lose_replies("PUT", 1, "/~probe/", after=answered)
    store = await open_store(place.url, CLOCK, random.Random(), prefix=place.prefix)
    try:
        assert careless.replies_to_lose == 0, "it has to happen"
        assert is_looking_first(store)
        assert not store.capabilities.conditional_delete
    finally:
        await store.close()


@pytest.mark.asyncio
async def test_one_leads_in_each_round_on_a_careless_service(
    place: Place, careless: FaultyS3
) -> None:
    found = await play_rounds(place, 5, 2, patience_s=90.0)
    found.check(within_s=90.0)
    assert len(found.epochs) == 2 and careless.written_missing > 0


@pytest.mark.nightly
def test_a_killed_coordinator_is_followed_on_a_careless_service(
    place: Place, careless: FaultyS3, folder: Path
) -> None:
    lab = CrashLab(place.url, place.prefix, folder, SCALE)
    lab.members = lab.members[:3]
    try:
        lab.begin()
        lab.kill_the_leader()
    finally:
        lab.close()
    lab.check()
    assert careless.written_missing > 0


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_write_after_a_pause_is_refused_on_a_careless_service(
    place: Place, careless: FaultyS3, folder: Path
) -> None:
    lab = PausedLab(place.url, place.prefix, folder, SCALE, "unaware")
    try:
        await asyncio.to_thread(lab.begin)
        lab.check_pause(await asyncio.to_thread(lab.pause_the_leader))
    finally:
        await asyncio.to_thread(lab.close)
    assert await lab.check_effects() > 1
    lab.check()


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_leader_that_is_cut_off_has_stopped_on_a_careless_service(
    place: Place, careless: FaultyS3, folder: Path
) -> None:
    with running(place.url, place.prefix, folder, SCALE) as lab:
        lab.cut_the_leader(silently=True)
        assert lab.check_leading() >= 1
        assert await lab.check_effects() > 0


async def led(members: list[Coordinator], within_s: float = 90.0) -> Coordinator:
    deadline = time.monotonic() + within_s
    while not (leaders := [each for each in members if each.is_coordinator]):
        assert time.monotonic() < deadline, "nobody leads"
        await asyncio.sleep(0.05)
    (leader,) = leaders
    return leader


def member(url: str, name: str, secret: str) -> Coordinator:
    timing = scaled(SCALE)
    return Coordinator(url, member_id=name, profile=timing, unsafe_timings=True, secret=secret)


@pytest.mark.asyncio
async def test_a_first_answer_of_409_is_no_loss_and_one_wins(place: Place, proxy: FaultyS3) -> None:
    proxy.conflicts_on = LEADER_PATH
    secret = generate_secret()
    members = [member(place.url, name, secret) for name in ("a", "b", "c")]
    with promotions() as promoted:
        await asyncio.gather(*(each.start() for each in members))
        try:
            leader = await led(members)
            assert proxy.conflicts > 0
            conflicts = proxy.conflicts
            async with asyncio.timeout(60.0):
                while proxy.conflicts < conflicts + 2:
                    await asyncio.sleep(0.1)
            assert leader.is_coordinator, "renewals live through it as well"
            assert [(each.member_id, each.epoch) for each in promoted] == [
                (leader.member_id, leader.current_epoch)
            ]
        finally:
            proxy.conflicts_on = ""
            for each in members:
                await each.stop()


@pytest.mark.asyncio
async def test_a_winner_without_an_answer_knows_its_own_epoch(
    place: Place, proxy: FaultyS3
) -> None:
    proxy.lose_replies("PUT", 2, LEADER_PATH)
    with promotions() as promoted:
        async with member(place.url, "a", generate_secret()) as alone:
            assert await led([alone]) is alone
            assert proxy.replies_to_lose < 2, "an answer was lost"
            (record,) = await alone.store.get(keys.LEADER)
            assert record is not None and record.epoch == alone.current_epoch > 0
        assert [each.epoch for each in promoted] == [record.epoch]
