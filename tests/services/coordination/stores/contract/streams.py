"""One contract, four stores: streams that are read, taken and removed from."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing

import pytest
from redis import Redis

from squall.coordination.store_errors import (
    InvalidIdentifierError,
    StaleClaimError,
    StreamFullError,
    VersionConflict,
)
from squall.coordination.stores import recent_takes as takes
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Append,
    Appended,
    Check,
    Extend,
    Item,
    Put,
    Remove,
    Store,
    Takeable,
)
from squall.coordination.stores.redis import store as redis
from squall.coordination.stores.redis.store import RedisStore
from squall.coordination.stores.s3 import streams as s3_streams
from squall.coordination.stores.s3.store import S3Store
from squall.coordination.stores.sqlite import tables as sqlite_tables
from squall.coordination.stores.sqlite.store import SqliteStore
from tests.lab.machine import factor
from tests.services.coordination.lab.places import Place, outlive

INBOX = "signal/a"
QUEUE = "tickets/q"


def add(name: str, stream: str = INBOX, limit: int = 1000) -> Append:
    return Append(stream, name, b"\x00|" + name.encode(), ttl_s=3600.0, limit=limit)


def names(items: Sequence[Item]) -> list[str]:
    return [item.id for item in items]


async def test_items_are_read_in_the_order_of_their_appends(store: Store) -> None:
    assert await store.read(INBOX) == ()
    cursors = [(await store.write(add(f"s{n}")))[0] for n in range(5)]
    items = await store.read(INBOX)
    assert names(items) == [f"s{n}" for n in range(5)]
    assert [item.cursor for item in items] == cursors
    assert items[1].value == b"\x00|s1"
    assert names(await store.read(INBOX, after=cursors[2])) == ["s3", "s4"]
    assert names(await store.read(INBOX, limit=2)) == ["s0", "s1"]
    assert names(await store.read(INBOX, after="of.7")) == [f"s{n}" for n in range(5)]


async def test_an_append_with_a_known_id_changes_nothing(store: Store) -> None:
    (first,) = await store.write(add("s1"))
    assert await store.write(add("s1")) == (first,)
    await store.write(add("s2"))
    await store.write(Remove(INBOX, first))
    assert await store.write(add("s1")) == (first,)
    assert names(await store.read(INBOX)) == ["s2"]


async def test_items_are_removed_in_any_order(store: Store) -> None:
    cursors = [(await store.write(add(f"s{n}")))[0] for n in range(4)]
    await store.write(Remove(INBOX, cursors[1]), Remove(INBOX, cursors[0]))
    await store.write(Remove(INBOX, cursors[1]))
    assert names(await store.read(INBOX)) == ["s2", "s3"]
    assert (await store.depth(INBOX)).items == 2


async def test_an_effect_and_a_removal_are_one_batch(store: Store) -> None:
    (cursor,) = await store.write(add("s1"))
    done = Put("idempotency/s1", b"done", expect=ABSENT, ttl_s=60.0)
    await store.write(done, Remove(INBOX, cursor), add("reply", "signal/b"))
    assert await store.read(INBOX) == ()
    assert names(await store.read("signal/b")) == ["reply"]


async def test_a_full_stream_refuses_and_takes_again_after_a_removal(store: Store) -> None:
    (first,) = await store.write(add("s1", limit=2))
    await store.write(add("s2", limit=2))
    with pytest.raises(StreamFullError):
        await store.write(add("s3", limit=2))
    await store.write(add("s2", limit=2))
    await store.write(Remove(INBOX, first))
    await store.write(add("s3", limit=2))
    assert names(await store.read(INBOX)) == ["s2", "s3"]


async def test_an_id_that_could_break_a_key_is_refused(store: Store) -> None:
    with pytest.raises(InvalidIdentifierError):
        await store.write(add("a|b"))
    with pytest.raises(InvalidIdentifierError):
        await store.take(QUEUE, "a:b", lease_s=1.0)


async def test_appends_of_many_writers_are_all_there(place: Place) -> None:
    stores = [await place.open() for _ in range(4)]
    wanted = {f"s{n}" for n in range(24)}
    await asyncio.gather(*(stores[n % 4].write(add(f"s{n}")) for n in range(24)))
    items = await stores[0].read(INBOX)
    assert set(names(items)) == wanted and len(items) == 24


async def test_an_item_is_taken_by_one(place: Place) -> None:
    stores = [await place.open() for _ in range(4)]
    for number in range(12):
        await stores[0].write(add(f"t{number}", QUEUE))

    async def worker(number: int) -> list[str]:
        mine: list[str] = []
        while claims := await stores[number].take(QUEUE, f"w{number}", lease_s=60.0, limit=2):
            mine += names([claim.item for claim in claims])
        return mine

    taken = await asyncio.gather(*(worker(number) for number in range(4)))
    together = [name for part in taken for name in part]
    assert sorted(together) == sorted(f"t{n}" for n in range(12))
    depth = await stores[0].depth(QUEUE)
    assert (depth.items, depth.held) == (12, 12)


async def test_the_oldest_free_items_are_taken_first(store: Store) -> None:
    for number in range(4):
        await store.write(add(f"t{number}", QUEUE))
    first = await store.take(QUEUE, "w", lease_s=60.0, limit=2)
    assert names([claim.item for claim in first]) == ["t0", "t1"]
    assert [claim.attempt for claim in first] == [1, 1]
    await store.write(Extend(QUEUE, first[1].item.cursor, first[1].claim, 0.0))
    again = await store.take(QUEUE, "v", lease_s=60.0, limit=3)
    assert names([claim.item for claim in again]) == ["t1", "t2", "t3"]
    assert [claim.attempt for claim in again] == [2, 1, 1]


async def test_a_claim_that_ran_out_goes_to_another_and_is_stale_then(store: Store) -> None:
    await store.write(add("t", QUEUE))
    (late,) = await store.take(QUEUE, "slow", lease_s=0.1)
    await outlive(store, 0.1)
    (now,) = await store.take(QUEUE, "quick", lease_s=60.0)
    assert (now.attempt, now.item.cursor) == (2, late.item.cursor)
    with pytest.raises(StaleClaimError):
        await store.write(Remove(QUEUE, late.item.cursor, late.claim))
    with pytest.raises(StaleClaimError):
        await store.write(Extend(QUEUE, late.item.cursor, late.claim, 60.0))
    await store.write(Remove(QUEUE, now.item.cursor, now.claim))
    await store.write(Remove(QUEUE, now.item.cursor, now.claim))
    with pytest.raises(StaleClaimError):
        await store.write(Remove(QUEUE, late.item.cursor, late.claim))
    assert await store.read(QUEUE) == ()


async def test_an_extended_claim_stays(store: Store) -> None:
    await store.write(add("t", QUEUE))
    lease_s = (1.0 if store.capabilities.transactions else 3.0) * factor()
    while True:
        begun_ms = await store.now_ms()
        (claim,) = await store.take(QUEUE, "w", lease_s=lease_s)
        try:
            await store.write(Extend(QUEUE, claim.item.cursor, claim.claim, 60.0))
            break
        except StaleClaimError:
            # This process stood still and was late indeed.
            assert await store.now_ms() - begun_ms >= lease_s * 1000
    await outlive(store, lease_s)
    assert await store.take(QUEUE, "v", lease_s=60.0) == ()
    await store.write(Extend(QUEUE, claim.item.cursor, claim.claim, 0.0))
    with pytest.raises(StaleClaimError):
        await store.write(Remove(QUEUE, claim.item.cursor, claim.claim))


async def test_a_failed_removal_stops_the_batch_that_it_begins(store: Store) -> None:
    await store.write(add("t", QUEUE))
    (claim,) = await store.take(QUEUE, "w", lease_s=60.0)
    result = Put("result/t", b"1", expect=ANY, ttl_s=60.0)
    with pytest.raises(StaleClaimError):
        await store.write(Remove(QUEUE, claim.item.cursor, "other:1:1"), result)
    assert await store.get("result/t") == (None,)
    await store.write(Remove(QUEUE, claim.item.cursor, claim.claim), result)


async def test_a_take_whose_reply_was_lost_is_repeated(store: Store) -> None:
    for number in range(3):
        await store.write(add(f"t{number}", QUEUE))
    first = await store.take(QUEUE, "w", lease_s=60.0, limit=2, request="r1")
    again = await store.take(QUEUE, "w", lease_s=60.0, limit=2, request="r1")
    assert [claim.claim for claim in again] == [claim.claim for claim in first]
    await store.write(Remove(QUEUE, first[0].item.cursor, first[0].claim))
    rest = await store.take(QUEUE, "w", lease_s=60.0, limit=2, request="r1")
    assert [claim.claim for claim in rest] == [first[1].claim]
    other = await store.take(QUEUE, "w", lease_s=60.0, limit=2, request="r2")
    assert names([claim.item for claim in other]) == ["t2"]


async def test_what_owners_took_that_never_come_back_is_forgotten(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered_ms = 100
    for module in (takes, sqlite_tables, redis):
        monkeypatch.setattr(module, "TAKE_REMEMBERED_MS", remembered_ms)
    store = await place.open()
    for number in range(5):
        await store.write(add(f"t{number}", QUEUE))
    for number in range(3):
        await store.take(QUEUE, f"w{number}", lease_s=60.0, request="r1")
    await outlive(store, remembered_ms / 1000)
    # Long over: the same name is another request now.
    (claim,) = await store.take(QUEUE, "w0", lease_s=60.0, request="r1")
    assert claim.item.id == "t3"
    monkeypatch.undo()
    await store.take(QUEUE, "w3", lease_s=60.0, request="r1")
    await outlive(store, remembered_ms / 1000)
    assert takes_kept(store, place) <= 2


def takes_kept(store: Store, place: Place) -> int:
    if isinstance(store, SqliteStore):
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as db:
            return db.execute("SELECT count(*) FROM taken").fetchone()[0]
    if isinstance(store, RedisStore):
        with Redis.from_url(place.url) as client:
            return sum(1 for _ in client.scan_iter(f"{{{place.prefix}}}*#q:*", count=1000))
    streams = store._streams  # type: ignore[attr-defined]
    found = streams._views[QUEUE].takes if isinstance(store, S3Store) else streams[QUEUE]._takes
    return len(found)


async def test_nothing_is_given_where_the_condition_does_not_hold(store: Store) -> None:
    for number in range(3):
        await store.write(add(f"t{number}", QUEUE))
    (version,) = await store.write(Put("member/w", b"1", expect=ABSENT, ttl_s=60.0))
    first = await store.take(QUEUE, "w", lease_s=60.0, provided=Check("member/w", version))
    await store.write(Put("member/w", b"2", expect=version, ttl_s=60.0))
    for refused in (Check("member/w", version), Check("member/w", ABSENT), Check("none/w", "7")):
        with pytest.raises(VersionConflict, match=refused.key):
            await store.take(QUEUE, "w", lease_s=60.0, provided=refused)
    given = [
        *await store.take(QUEUE, "w", lease_s=60.0, provided=Check("none/w", ABSENT)),
        *await store.take(QUEUE, "w", lease_s=60.0, provided=Check("member/w", ANY)),
    ]
    assert names([claim.item for claim in (*first, *given)]) == ["t0", "t1", "t2"]
    assert [claim.attempt for claim in given] == [1, 1]


async def test_a_wait_is_woken_by_an_append(place: Place) -> None:
    reader, writer = await place.open(), await place.open()
    (cursor,) = await writer.write(add("s1"))
    watch = Appended(INBOX, cursor)
    assert await reader.wait(Appended(INBOX), timeout_s=5.0) == {Appended(INBOX)}
    waiting = asyncio.ensure_future(reader.wait(watch, timeout_s=30.0))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await writer.write(add("s2"))
    async with asyncio.timeout(10.0):
        assert await waiting == {watch}


async def test_a_wait_for_work_is_woken_by_an_append_a_return_and_an_expiry(place: Place) -> None:
    reader, writer = await place.open(), await place.open()
    watch = Takeable(QUEUE)
    waiting = asyncio.ensure_future(reader.wait(watch, timeout_s=30.0))
    await asyncio.sleep(0.1)
    await writer.write(add("t", QUEUE))
    async with asyncio.timeout(10.0):
        assert await waiting == {watch}
    (claim,) = await writer.take(QUEUE, "w", lease_s=60.0)
    assert await reader.wait(watch, timeout_s=0.2) == frozenset()
    waiting = asyncio.ensure_future(reader.wait(watch, timeout_s=30.0))
    await asyncio.sleep(0.1)
    await writer.write(Extend(QUEUE, claim.item.cursor, claim.claim, 0.0))
    async with asyncio.timeout(10.0):
        assert await waiting == {watch}
    await writer.take(QUEUE, "w", lease_s=0.3)
    async with asyncio.timeout(10.0):
        assert await reader.wait(watch, timeout_s=30.0) == {watch}


async def test_a_stream_that_expired_begins_again_and_old_cursors_read_it_from_the_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_streams, "DROPPED_AFTER_MS", 0)
    store, other = await place.open(), await place.open()
    (old,) = await store.write(Append(INBOX, "s1", b"1", ttl_s=0.05))
    await store.write(Append(QUEUE, "t1", b"1", ttl_s=0.05))
    await outlive(store, 0.05)
    assert await store.read(INBOX) == ()
    assert await store.take(QUEUE, "w", lease_s=60.0) == ()
    assert (await store.depth(QUEUE)).items == 0
    assert await store.wait(Takeable(QUEUE), Appended(INBOX), timeout_s=0.0) == frozenset()
    # The name of an item that has expired is free again.
    await other.write(add("s1"), add("s2"))
    assert names(await store.read(INBOX, after=old)) == ["s1", "s2"]
    assert names(await other.read(INBOX)) == ["s1", "s2"]


async def test_a_sweep_removes_streams_that_expired_and_nothing_else(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await place.open(), await place.open()
    for number in range(3):
        await store.write(Append(f"signal/over{number}", "s1", b"1", ttl_s=0.05))
        await store.write(Append(f"signal/over{number}", "s2", b"1", ttl_s=0.05))
    await store.write(Append("signal/kept", "s1", b"1", ttl_s=0.05), add("s2", "signal/kept"))
    await store.write(Append("signals/other", "s1", b"1", ttl_s=0.05))
    # Not sooner: an append would drop what has expired since the last append.
    monkeypatch.setattr(s3_streams, "DROPPED_AFTER_MS", 0)
    monkeypatch.setattr(s3_streams, "SWEPT_AFTER_MS", 0)
    await outlive(store, 0.05)
    natively = store.capabilities.native_expiry
    assert await other.sweep("signal") == (0 if natively else 3)
    assert await other.sweep("signal") == 0
    assert names(await store.read("signal/kept")) == ["s1", "s2"]
    await store.write(add("s1", "signal/over0"))
    assert names(await other.read("signal/over0")) == ["s1"]
