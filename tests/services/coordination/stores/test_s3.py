"""What is special about S3: slots that are dropped, requests that are counted, its time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from email.utils import formatdate
from unittest.mock import patch

import pytest
import pytest_asyncio

from squall.coordination.store_errors import StoreUnavailableError, VersionConflict
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Append,
    Appended,
    Changed,
    Delete,
    Extend,
    Fence,
    Put,
    Remove,
    Takeable,
)
from squall.coordination.stores.s3 import objects as s3_objects
from squall.coordination.stores.s3 import store as s3
from squall.coordination.stores.s3 import streams as s3_streams
from squall.coordination.stores.s3.objects import ServiceClock, StoredObject
from squall.coordination.stores.s3.store import S3Store
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.services.coordination.lab.places import BUCKET, outlive

STREAM = "signal/a"


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultyS3]:
    server = FaultyS3(s3_endpoint)
    yield server
    server.close()


def url(proxy: FaultyS3) -> str:
    return f"s3://{BUCKET}/own?endpoint={proxy.endpoint}&region=us-east-1"


@pytest_asyncio.fixture
async def stores(proxy: FaultyS3) -> AsyncIterator[list[S3Store]]:
    prefix = f"p{random.getrandbits(48)}"
    # There are no retries around these: an answer that is late must not be a failure.
    with patch.object(s3_objects, "ANSWER_S", 30.0):
        opened = [
            S3Store(url(proxy), RealClock(), random.Random(), prefix=prefix) for _ in range(3)
        ]
        yield opened
        for store in opened:
            await store.close()


def add(name: str) -> Append:
    return Append(STREAM, name, b"", ttl_s=60.0)


@pytest.mark.asyncio
async def test_an_item_is_never_created_where_no_reader_finds_it(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer knows the end of the stream and sleeps. Meanwhile others append, read and
    drop what they read: the slot that it found free is free again, and lies in the past."""
    monkeypatch.setattr(s3_streams, "KEPT_MARKERS", 0)
    monkeypatch.setattr(s3_streams, "DROP_AT_ONCE", 1)
    slow, other, reader = stores
    await slow.write(add("first"))
    create, created = slow._objects.create, list[str]()

    async def sleeps_before(name: str, body: bytes) -> str | None:
        if not created:
            for number in range(3):
                await other.write(add(f"o{number}"))
            for item in await reader.read(STREAM):
                await reader.write(Remove(STREAM, item.cursor))
        created.append(name)
        return await create(name, body)

    monkeypatch.setattr(slow._objects, "create", sleeps_before)
    await slow.write(add("late"))
    assert [item.id for item in await reader.read(STREAM)] == ["late"]
    assert [item.id for item in await other.read(STREAM)] == ["late"]
    # It was created in the past once, and nothing of that is left.
    assert len(created) == 2
    assert not await reader._objects.exists(created[0])


@pytest.mark.asyncio
async def test_an_item_whose_reply_was_lost_is_appended_where_it_is_read(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, and the writer does not hear that it created its slot: its repeat finds it."""
    # However slow this machine is, the repeat begins at the end that it knew.
    monkeypatch.setattr(s3_streams, "RECENT_MS", 60_000)
    monkeypatch.setattr(s3_streams, "KEPT_MARKERS", 0)
    monkeypatch.setattr(s3_streams, "DROP_AT_ONCE", 1)
    slow, other, reader = stores
    await slow.write(add("first"))
    create, created = slow._objects.create, list[str]()

    async def unheard(name: str, body: bytes) -> str | None:
        if created:
            return await create(name, body)
        for number in range(3):
            await other.write(add(f"o{number}"))
        for item in await reader.read(STREAM):
            await reader.write(Remove(STREAM, item.cursor))
        created.append(name)
        await create(name, body)
        raise StoreUnavailableError("the reply was lost")

    monkeypatch.setattr(slow._objects, "create", unheard)
    with pytest.raises(StoreUnavailableError):
        await slow.write(add("late"))
    await slow.write(add("late"))
    assert [item.id for item in await reader.read(STREAM)] == ["late"]
    assert not await reader._objects.exists(created[0])


@pytest.mark.asyncio
async def test_a_sweep_makes_no_reader_skip_an_item(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_streams, "SWEPT_AFTER_MS", 0)
    writer, sweeper, _ = stores
    for number in range(3):
        await writer.write(add(f"w{number}"))
    assert len(await sweeper.read(STREAM)) == 3
    for number in range(3, 6):
        await writer.write(add(f"w{number}"))
    assert await sweeper.sweep("signal") == 0
    assert [item.id for item in await sweeper.read(STREAM)] == [f"w{n}" for n in range(6)]


@pytest.mark.asyncio
async def test_a_sweep_deletes_what_was_left_before_the_front(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_streams, "KEPT_MARKERS", 1)
    monkeypatch.setattr(s3_streams, "DROP_AT_ONCE", 2)
    reader, sweeper, _ = stores
    cursors = [(await reader.write(add(f"w{number}")))[0] for number in range(6)]

    async def never(name: str, etag: str = "") -> bool:
        raise asyncio.CancelledError

    with monkeypatch.context() as ended:
        ended.setattr(reader._objects, "delete", never)
        for cursor in cursors[:5]:
            with contextlib.suppress(asyncio.CancelledError):
                await reader.write(Remove(STREAM, cursor))
    assert await _slots(sweeper) == [1, 2, 3, 4, 5, 6]
    assert await sweeper.sweep("signal") == 0
    assert await _slots(sweeper) == [1, 2, 3, 4, 5, 6], "somebody may be dropping them"
    monkeypatch.setattr(s3_streams, "SWEPT_AFTER_MS", 0)
    assert await sweeper.sweep("signal") == 0
    assert await _slots(sweeper) == [5, 6]
    for store in stores:
        assert [item.id for item in await store.read(STREAM)] == ["w5"]


async def _slots(store: S3Store) -> list[int]:
    listing = store._objects.listing(f"{store._root}/{s3_streams.STREAMS}/")
    names = [found.name async for found in listing if "/slot/" in found.name]
    return [int(name.rpartition("/")[2]) for name in names]


@pytest.mark.asyncio
async def test_a_sweep_reads_nothing_that_cannot_have_expired(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, sweeper, _ = stores
    for number in range(3):
        await writer.write(Put(f"final/t{number}", b"1", expect=ABSENT, ttl_s=0.05))
    await outlive(sweeper, 0.05)
    looked = _noted_fetches(sweeper, monkeypatch)
    assert await sweeper.sweep("final", idle_ms=60_000) == 0
    assert looked == []
    assert await sweeper.sweep("final") == 3


@pytest.mark.asyncio
async def test_a_version_that_is_not_remembered_any_more_is_as_good_as_one_that_is(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "REMEMBERED", 1)
    store, _, _ = stores
    (version,) = await store.write(Put("state/a", b"1", expect=ABSENT, ttl_s=60.0))
    await store.write(Put("state/b", b"1", expect=ABSENT, ttl_s=60.0))
    (newer,) = await store.write(Put("state/a", b"2", expect=version, ttl_s=60.0))
    await store.write(Put("state/b", b"2", expect=ANY, ttl_s=60.0))
    with pytest.raises(VersionConflict):
        await store.write(Put("state/a", b"3", expect=version, ttl_s=60.0))
    (found,) = await store.get("state/a")
    assert found is not None and (found.value, found.version) == (b"2", newer)


@pytest.mark.asyncio
async def test_who_knew_the_end_a_moment_ago_appends_without_a_look_for_it(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is.
    monkeypatch.setattr(s3_streams, "RECENT_MS", 60_000)
    writer, other, reader = stores
    looked = _noted_fetches(writer, monkeypatch)
    for number in range(3):
        await writer.write(add(f"w{number}"))
        looked.clear()
    await writer.write(add("known"))
    assert [name.rpartition("/")[2] for name in looked] == ["meta"]
    # Others were there meanwhile: it comes behind all of them, and knows a name that they used.
    for number in range(20):
        await other.write(add(f"o{number}"))
    await writer.write(add("behind"))
    (cursor,) = await writer.write(add("o19"))
    items = await reader.read(STREAM)
    assert [item.id for item in items][-2:] == ["o19", "behind"]
    assert len(items) == 25
    assert cursor == items[-2].cursor


@pytest.mark.asyncio
async def test_what_was_read_is_removed_without_another_look(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other, reader = stores
    for number in range(2):
        await writer.write(add(f"w{number}"))
    first, second = await reader.read(STREAM)
    looked = _noted_fetches(reader, monkeypatch)
    await reader.write(Remove(STREAM, first.cursor))
    assert looked == []
    # One that another process removed meanwhile is a success, after a read.
    await other.write(Remove(STREAM, second.cursor))
    await reader.write(Remove(STREAM, second.cursor))
    assert len(looked) == 1
    assert await writer.read(STREAM) == ()


def _noted_fetches(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on, the names of the objects that it reads."""
    fetch, looked = store._objects.fetch, list[str]()

    async def noted(name: str) -> StoredObject | None:
        looked.append(name)
        return await fetch(name)

    monkeypatch.setattr(store._objects, "fetch", noted)
    return looked


@pytest.mark.asyncio
async def test_dropped_slots_are_gone_and_a_reader_that_slept_goes_on_behind_them(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_streams, "KEPT_MARKERS", 1)
    monkeypatch.setattr(s3_streams, "DROP_AT_ONCE", 2)
    writer, reader, sleeper = stores
    (old,) = await writer.write(add("s0"))
    assert len(await sleeper.read(STREAM)) == 1
    for number in range(1, 8):
        await writer.write(add(f"s{number}"))
    for item in (await reader.read(STREAM))[:7]:
        await reader.write(Remove(STREAM, item.cursor))
    slots = [
        found.name
        async for found in reader._objects.listing(reader._root)
        if "/slot/" in found.name
    ]
    assert 0 < len(slots) <= 4
    assert [item.id for item in await sleeper.read(STREAM, after=old)] == ["s7"]
    assert [item.id for item in await writer.read(STREAM)] == ["s7"]


@pytest.mark.asyncio
async def test_a_new_reader_comes_through_a_long_stream_soon(
    proxy: FaultyS3, stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a new coordinator must: one request for each item, and many of them at once."""
    writer, reader, _ = stores
    for number in range(30):
        await writer.write(add(f"s{number}"))
    fetch = reader._objects.fetch
    under_way = most = 0

    async def counted(name: str) -> StoredObject | None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await fetch(name)
        finally:
            under_way -= 1

    monkeypatch.setattr(reader._objects, "fetch", counted)
    proxy.requests.clear()
    assert [item.id for item in await reader.read(STREAM)] == [f"s{each}" for each in range(30)]
    assert len(proxy.requests) < 30 + 20 and most >= 8
    await writer.write(add("one"))
    last = f"{s3_streams.BIRTH}.30"
    proxy.requests.clear()
    assert [item.id for item in await reader.read(STREAM, after=last)] == ["one"]
    assert len(proxy.requests) == 3, "the front, the new one, and that there is no other"


@pytest.mark.asyncio
async def test_a_reader_does_not_go_past_an_item_that_it_looked_for_too_early(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for several at once: the third is created after it was asked for and the fourth
    before."""
    writer, reader, _ = stores
    for number in range(1, 6):
        await writer.write(add(f"s{number}"))
    fetch = reader._streams._fetch
    early = [3]

    async def fetched(stream: str, number: int) -> s3_streams.SeenSlot | None:
        if number in early:
            early.remove(number)
            return None
        return await fetch(stream, number)

    monkeypatch.setattr(reader._streams, "_fetch", fetched)
    first = await reader.read(STREAM)
    rest = await reader.read(STREAM, after=first[-1].cursor)
    assert [item.id for item in (*first, *rest)] == [f"s{number}" for number in range(1, 6)]


@pytest.mark.asyncio
async def test_nothing_is_listed_on_a_hot_path(proxy: FaultyS3, stores: list[S3Store]) -> None:
    store = stores[0]
    fence = Fence("leader", 1)
    (lease,) = await store.write(Put("leader", b"", expect=ABSENT, ttl_s=None), fence=fence)
    await store.write(Put("leader", b"r", expect=lease, ttl_s=None), fence=fence)
    (beat,) = await store.write(Put("heartbeat/a", b"", expect=ANY, ttl_s=60.0))
    proxy.requests.clear()
    await store.write(Put("heartbeat/a", b"", expect=beat, ttl_s=60.0, silent=True))
    assert proxy.requests == ["PUT"], "a heartbeat is one PUT"
    await store.write(Put("plan/a", b"", expect=ANY, ttl_s=60.0), fence=fence)
    await store.write(add("s1"), add("s2"))
    (first, second) = await store.read(STREAM)
    (claim,) = await store.take(STREAM, "w", lease_s=5.0)
    await store.write(Extend(STREAM, first.cursor, claim.claim, 5.0))
    await store.write(Remove(STREAM, first.cursor, claim.claim))
    await store.wait(
        Changed("never"), Appended(STREAM, second.cursor), Takeable("none/q"), timeout_s=0.6
    )
    await store.write(Delete("plan/a", ANY))
    assert "LIST" not in proxy.requests and len(proxy.requests) > 10
    await store.list("heartbeat")
    assert proxy.requests[-1] == "LIST"


class Hand:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


def test_service_time_is_narrowed_by_rounded_answers_and_follows_a_step() -> None:
    hand = Hand()
    clock = ServiceClock(hand)  # type: ignore[arg-type]
    assert not clock.is_fresh
    offset_s = 1_700_000_000.3

    def answer(at: float) -> None:
        hand.time = at + 0.02
        clock.observe(formatdate(int(at + 0.01 + offset_s), usegmt=True), at, at + 0.02)

    for step in range(40):
        answer(100.0 + step * 0.17)
    assert clock.is_fresh
    assert abs(clock.now_ms() - (hand.time + offset_s) * 1000.0) < 150.0
    offset_s += 3600.0
    answer(108.0)
    assert abs(clock.now_ms() - (hand.time + offset_s) * 1000.0) < 600.0
    hand.time += 61.0
    assert not clock.is_fresh
