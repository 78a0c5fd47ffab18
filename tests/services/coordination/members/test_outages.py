"""Outages of a store while members run: an S3 that does not answer at all, a Redis that drops its
connections.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from lab.stores.faulty import FaultyStore, StoreFaults
from squall.coordination.coordinator import Coordinator
from squall.coordination.secrets.sources import generate_secret
from squall.coordination.store_errors import VersionConflict
from squall.coordination.stores.guarded_store import GuardedStore, RetrySettings
from squall.coordination.stores.interface import ABSENT, ANY, Append, Appended, Changed, Put
from squall.coordination.stores.memory.store import MemoryStore
from squall.coordination.stores.redis import waits as redis_waits
from squall.coordination.stores.redis.store import RedisStore
from squall.coordination.stores.redis.waits import RedisWaits
from squall.coordination.timing import PROFILES
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.services.coordination.lab.places import BUCKET, forget_redis
from tests.services.coordination.lab.processes import Lab

MEMBERS = ["a", "b"]
AWAY_S = 20.0
AT_ONCE = RetrySettings(first_delay_s=0.05)


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultyS3]:
    made = FaultyS3(s3_endpoint)
    yield made
    made.close()


@pytest.mark.nightly
def test_s3_without_any_answer_for_a_while_is_lived_through(
    proxy: FaultyS3, tmp_path: Path
) -> None:
    folder = tmp_path / "journals"
    folder.mkdir()
    prefix = f"hanging.{tmp_path.name}"
    url = f"s3://{BUCKET}/{prefix}?endpoint={proxy.endpoint}&region=us-east-1"
    lab = Lab(url, prefix, folder, MEMBERS, 3.0)
    try:
        for member in MEMBERS:
            lab.start(member)
        lab.until_acts(0.0, within_s=90.0)
        lab.until_acked(0.0)
        proxy.hang()
        time.sleep(lab.timing.lease_ttl + 2.0)
        silent = time.monotonic()
        time.sleep(AWAY_S - lab.timing.lease_ttl - 2.0)
        assert not [line for line in lab.lines("acts") if line["at"] > silent]
        proxy.answer_again()
        back = time.monotonic()
        lab.until_acts(back, within_s=3 * lab.failover_s)
        lab.until_acked(back)
        assert lab.lines("dead") == []
    finally:
        lab.close()
    lab.check()


@asynccontextmanager
async def two_clients(url: str) -> AsyncGenerator[tuple[GuardedStore, RedisStore]]:
    prefix = f"test.{uuid.uuid4().hex[:12]}"
    clock = RealClock()
    waiter = RedisStore(url, clock, random.Random(), prefix=prefix)
    writer = RedisStore(url, clock, random.Random(), prefix=prefix)
    try:
        yield GuardedStore(waiter, clock, random.Random(), retry=AT_ONCE), writer
    finally:
        await waiter.close()
        await writer.close()
        forget_redis(url, prefix)


async def drop_waiting_connections(writer: RedisStore, waiter: GuardedStore) -> None:
    """Drops the connections of this waiter only, once it sleeps in its blocking read."""
    assert isinstance(waiter.inner, RedisStore)
    waits: RedisWaits = waiter.inner._waits  # pyright: ignore[reportPrivateUsage]

    def transports() -> list[asyncio.Transport]:
        # It says that it sleeps before it is connected.
        protocols = waits._connection._open_protocols if waits._is_blocked else ()  # pyright: ignore[reportPrivateUsage]
        return [each._transport for each in protocols if each._transport is not None]  # pyright: ignore[reportPrivateUsage]

    async with asyncio.timeout(10.0):
        while not transports():
            await asyncio.sleep(0.005)
    host, port = transports()[0].get_extra_info("sockname")
    assert await writer.command("CLIENT", "KILL", "ADDR", f"{host}:{port}") == 1


@pytest.mark.asyncio
async def test_what_changed_while_a_wait_had_no_connection_ends_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The look that comes once per slice must not be what ends it.
    monkeypatch.setattr(redis_waits, "SLICE_S", 60.0)
    async with two_clients(redis_url) as (waiter, writer):
        (version,) = await writer.write(Put("kind/x", b"1", expect=ANY, ttl_s=60.0))
        watches = (Changed("kind/x", version), Appended("inbox/x"))
        waiting = asyncio.ensure_future(waiter.wait(*watches, timeout_s=60.0))
        await drop_waiting_connections(writer, waiter)
        # No listener waits on the bell of this write.
        await writer.write(Append("inbox/x", "i1", b"", ttl_s=60.0))
        assert watches[1] in await asyncio.wait_for(waiting, 20.0)


@pytest.mark.asyncio
async def test_a_wait_without_a_change_outlives_its_connection(redis_url: str) -> None:
    async with two_clients(redis_url) as (waiter, writer):
        watch = Appended("inbox/x")
        waiting = asyncio.ensure_future(waiter.wait(watch, timeout_s=60.0))
        for _ in range(3):
            await drop_waiting_connections(writer, waiter)
            await asyncio.sleep(0.3)
        assert not waiting.done()
        await writer.write(Append("inbox/x", "i1", b"", ttl_s=60.0))
        assert await asyncio.wait_for(waiting, 20.0) == {watch}


async def create_with_a_lost_reply() -> str:
    clock = RealClock()
    faults = StoreFaults()
    memory = MemoryStore(clock)
    replies = [True]

    class LostReply(FaultyStore):
        """The first write takes effect and its reply is lost."""

        async def write(self, *writes, fence=None):  # type: ignore[no-untyped-def]
            done = await super().write(*writes, fence=fence)
            if replies.pop():
                replies.append(False)
                raise self._failure("write")
            replies.append(False)
            return done

    store = GuardedStore(
        LostReply(memory, clock, random.Random(1), faults), clock, random.Random(2), retry=AT_ONCE
    )
    (version,) = await store.write(Put("leader", b"me", expect=ABSENT, ttl_s=None))
    return version


@pytest.mark.asyncio
async def test_without_tokens_a_member_would_disown_its_own_lease() -> None:
    """The known bug: a repeat that carries no token of the first try."""
    assert await create_with_a_lost_reply()
    with (
        patch.object(GuardedStore, "_with_token", lambda self, write: write),
        pytest.raises(VersionConflict),
    ):
        await create_with_a_lost_reply()


@pytest.mark.asyncio
async def test_members_elect_on_an_s3_that_ignores_conditions_of_deletes(
    proxy: FaultyS3,
) -> None:
    """A fallback that the probe chose carries an election and a clean hand-over."""
    proxy.ignored_header, proxy.ignored_on = "if-match", "DELETE"
    url = f"s3://{BUCKET}/dialect.{uuid.uuid4().hex}?endpoint={proxy.endpoint}&region=us-east-1"
    timing = msgspec.structs.replace(PROFILES["fast"], lease_ttl=6.0, heartbeat_interval=1.0)
    timing = msgspec.structs.replace(timing, heartbeat_ttl=9.0, dead_after=10.5)
    secret = generate_secret()
    options: dict[str, Any] = {"profile": timing, "unsafe_timings": True, "secret": secret}
    async with (
        Coordinator(url, member_id="a", **options) as a,
        Coordinator(url, member_id="b", **options) as b,
    ):
        assert not a.store.capabilities.conditional_delete
        await asyncio.wait_for(b.ensure_coordinator(), 60.0)
        leader, other = (a, b) if b.current_coordinator == "a" else (b, a)
        epoch = leader.current_epoch
        await leader.stop()
        async with asyncio.timeout(30.0):
            while not other.is_coordinator:
                await asyncio.sleep(0.05)
        assert other.current_epoch == epoch + 1
