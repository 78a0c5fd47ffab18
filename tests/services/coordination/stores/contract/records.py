"""One contract, four stores: records, conditions, fences, index and waits."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from squall.api.errors import ConfigError
from squall.coordination.store_errors import (
    InvalidIdentifierError,
    StaleEpochError,
    VersionConflict,
)
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Append,
    Changed,
    Check,
    Delete,
    Extend,
    Fence,
    Put,
    Remove,
    Store,
)
from squall.runtime.real.runtime import RealClock
from tests.lab.machine import factor
from tests.services.coordination.lab.places import Place, outlive

LEASE = "leader"


def put(key: str, value: bytes, expect: object = ANY, ttl_s: float | None = 60.0) -> Put:
    return Put(key, value, expect=expect, ttl_s=ttl_s)  # type: ignore[arg-type]


async def value_of(store: Store, key: str) -> bytes | None:
    (record,) = await store.get(key)
    return None if record is None else record.value


async def test_a_store_passes_its_own_probe(store: Store) -> None:
    await store.probe()


async def test_what_was_written_is_read_with_its_version_and_age(store: Store) -> None:
    (version,) = await store.write(put("state/a", b"\x00\xffbytes"))
    record, nothing = await store.get("state/a", "state/b")
    assert record is not None and nothing is None
    assert (record.value, record.version, record.epoch) == (b"\x00\xffbytes", version, 0)
    assert 0.0 <= record.age_s < 10.0
    assert record.expires_ms is not None
    assert abs(record.expires_ms - record.modified_ms - 60_000) <= 1500


async def test_every_write_gives_a_new_version(store: Store) -> None:
    versions = [(await store.write(put("state/a", b"same")))[0] for _ in range(3)]
    assert len(set(versions)) == 3


async def test_create_succeeds_once(store: Store) -> None:
    await store.write(put("state/a", b"1", ABSENT))
    with pytest.raises(VersionConflict):
        await store.write(put("state/a", b"2", ABSENT))
    assert await value_of(store, "state/a") == b"1"


async def test_replace_needs_the_present_version(store: Store) -> None:
    (first,) = await store.write(put("state/a", b"1"))
    (second,) = await store.write(put("state/a", b"2", first))
    with pytest.raises(VersionConflict):
        await store.write(put("state/a", b"3", first))
    with pytest.raises(VersionConflict):
        await store.write(put("state/missing", b"3", second))
    assert await value_of(store, "state/a") == b"2"
    assert await value_of(store, "state/missing") is None


async def test_delete_needs_the_present_version_and_may_be_repeated(store: Store) -> None:
    (first,) = await store.write(put("state/a", b"1"))
    (second,) = await store.write(put("state/a", b"2"))
    with pytest.raises(VersionConflict):
        await store.write(Delete("state/a", first))
    assert await value_of(store, "state/a") == b"2"
    await store.write(Delete("state/a", second))
    await store.write(Delete("state/a", second))
    assert await value_of(store, "state/a") is None
    await store.write(put("state/a", b"again", ABSENT))


async def test_of_many_creators_one_wins(place: Place) -> None:
    stores = [await place.open() for _ in range(4)]

    async def create(number: int) -> bool:
        with contextlib.suppress(VersionConflict):
            await stores[number % 4].write(put("state/race", str(number).encode(), ABSENT))
            return True
        return False

    wins = await asyncio.gather(*(create(number) for number in range(20)))
    assert sum(wins) == 1
    assert await value_of(stores[0], "state/race") == str(wins.index(True)).encode()


async def test_of_many_replacers_one_wins_each_round(place: Place) -> None:
    stores = [await place.open() for _ in range(3)]
    (version,) = await stores[0].write(put("state/race", b"-"))
    for _ in range(3):

        async def replace(store: Store, seen: str) -> str | None:
            with contextlib.suppress(VersionConflict):
                return (await store.write(put("state/race", b"x", seen)))[0]
            return None

        results = await asyncio.gather(*(replace(stores[n % 3], version) for n in range(9)))
        (version,) = [found for found in results if found is not None]
        (record,) = await stores[0].get("state/race")
        assert record is not None and record.version == version


async def test_a_repeat_with_its_token_is_a_success_not_a_conflict(store: Store) -> None:
    create = Put("state/a", b"1", expect=ABSENT, ttl_s=60.0, token="t1")
    (first,) = await store.write(create)
    assert await store.write(create) == (first,)
    replace = Put("state/a", b"2", expect=first, ttl_s=60.0, token="t2")
    (second,) = await store.write(replace)
    assert await store.write(replace) == (second,)
    with pytest.raises(VersionConflict):
        await store.write(create)


async def test_a_repeated_batch_has_its_results_also_when_others_went_on(store: Store) -> None:
    batch = (
        Put("state/a", b"1", expect=ABSENT, ttl_s=60.0, token="t1"),
        Put("state/gone", b"1", expect=ABSENT, ttl_s=60.0, token="t2"),
        Put("state/newer", b"1", expect=ANY, ttl_s=60.0, token="t3"),
        Append("signal/over", "s", b"", ttl_s=0.05),
    )
    first = await store.write(*batch)
    await store.write(Delete("state/gone", ANY))
    await store.write(put("state/newer", b"2"))
    await outlive(store, 0.05)
    again = await store.write(*batch)
    assert again[0] == first[0]
    if store.capabilities.transactions:
        assert again[1:3] == first[1:3]
        assert await value_of(store, "state/gone") is None
        assert await value_of(store, "state/newer") == b"2"
        assert await store.read("signal/over", after=again[3]) == ()


async def test_an_expired_record_is_absent_at_once_and_can_be_created(store: Store) -> None:
    await store.write(put("state/a", b"old", ttl_s=0.05))
    await outlive(store, 0.05)
    assert await value_of(store, "state/a") is None
    await store.write(put("state/a", b"new", ABSENT))
    assert await value_of(store, "state/a") == b"new"


async def test_a_batch_is_all_or_nothing_where_the_store_says_so(store: Store) -> None:
    await store.write(put("state/b", b"there"))
    with pytest.raises(VersionConflict) as caught:
        await store.write(put("state/a", b"1"), put("state/b", b"2", ABSENT))
    assert caught.value.key == "state/b"
    expected = None if store.capabilities.transactions else b"1"
    assert await value_of(store, "state/a") == expected
    assert caught.value.applied == (0 if store.capabilities.transactions else 1)
    assert await value_of(store, "state/b") == b"there"


async def test_the_first_failed_condition_stops_a_batch(store: Store) -> None:
    with pytest.raises(VersionConflict):
        await store.write(Check("state/gate", "no such version"), put("state/a", b"1"))
    assert await value_of(store, "state/a") is None


async def elect(store: Store, epoch: int) -> Fence:
    (lease,) = await store.get(LEASE)
    fence = Fence(LEASE, epoch)
    expect = ABSENT if lease is None else lease.version
    await store.write(put(LEASE, b"lease", expect, None), fence=fence)
    return fence


async def test_a_fence_passes_only_the_present_epoch(store: Store) -> None:
    with pytest.raises(StaleEpochError) as lost:
        await store.write(put("plan/x", b"0"), fence=Fence(LEASE, 1))
    assert lost.value.current is None
    old = await elect(store, 1)
    await store.write(put("plan/x", b"1"), fence=old)
    new = await elect(store, 2)
    with pytest.raises(StaleEpochError) as caught:
        await store.write(put("plan/x", b"stale"), fence=old)
    assert caught.value.current == 2
    await store.write(put("plan/x", b"2"), fence=new)
    (record,) = await store.get("plan/x")
    assert record is not None and (record.value, record.epoch) == (b"2", 2)


async def test_a_lease_never_goes_back_to_a_lower_epoch(store: Store) -> None:
    await elect(store, 5)
    (lease,) = await store.get(LEASE)
    assert lease is not None
    with pytest.raises(StaleEpochError):
        await store.write(put(LEASE, b"old", lease.version, None), fence=Fence(LEASE, 4))
    await store.write(put(LEASE, b"renewed", lease.version, None), fence=Fence(LEASE, 5))


async def test_a_head_that_was_adopted_refuses_the_write_of_a_paused_predecessor(
    store: Store,
) -> None:
    old = await elect(store, 1)
    (version,) = await store.write(put("head/queue", b"by 1"), fence=old)
    new = await elect(store, 2)
    await store.write(put("head/queue", b"by 2", version), fence=new)
    with pytest.raises((StaleEpochError, VersionConflict)):
        await store.write(put("head/queue", b"late", version), fence=old)
    # A record written without a fence keeps the epoch that protects it.
    await store.write(put("head/queue", b"by a worker"))
    (record,) = await store.get("head/queue")
    assert record is not None and record.epoch == 2


async def test_the_index_names_what_was_not_written_for_long(store: Store) -> None:
    await store.write(put("heartbeat/old", b"1"))
    await store.write(put("heartbeat/fresh", b"1"))
    idle_s = (1.0 if store.capabilities.transactions else 3.0) * factor()
    await outlive(store, idle_s)
    while True:
        begun_ms = await store.now_ms()
        await store.write(put("heartbeat/fresh", b"2"))
        page = await store.list("heartbeat", idle_ms=round(idle_s * 1000))
        # Otherwise this process stood still, and what it wrote is not fresh any more.
        if await store.now_ms() - begun_ms < idle_s * 1000:
            break
    assert [entry.key for entry in page.entries] == ["heartbeat/old"]
    assert page.entries[0].idle_ms >= idle_s * 1000
    every = await store.list("heartbeat")
    assert {entry.key for entry in every.entries} == {"heartbeat/old", "heartbeat/fresh"}


async def test_the_index_comes_in_pages_that_miss_nothing(store: Store) -> None:
    keys = {f"member/m{number:02d}" for number in range(25)}
    await asyncio.gather(*(store.write(put(key, b"x")) for key in keys))
    found: list[str] = []
    after = ""
    while True:
        page = await store.list("member", after=after, limit=10)
        assert len(page.entries) <= 10
        found += [entry.key for entry in page.entries]
        after = page.after
        if not after:
            break
    assert sorted(found) == sorted(keys)
    assert (await store.count())["member"] == 25


async def test_the_index_keeps_an_expired_record_until_it_is_deleted(store: Store) -> None:
    await store.write(put("heartbeat/gone", b"1", ttl_s=0.05))
    await store.write(put("heartbeat/gone1", b"1"))
    await outlive(store, 0.05)
    assert await value_of(store, "heartbeat/gone") is None
    listed = {entry.key for entry in (await store.list("heartbeat")).entries}
    assert listed == {"heartbeat/gone", "heartbeat/gone1"}
    await store.write(Delete("heartbeat/gone", ABSENT))
    with pytest.raises(VersionConflict):
        await store.write(Delete("heartbeat/gone1", ABSENT))
    assert [e.key for e in (await store.list("heartbeat")).entries] == ["heartbeat/gone1"]


async def test_a_sweep_removes_what_expired_and_nothing_else(store: Store) -> None:
    for number in range(5):
        await store.write(put(f"ack/a{number}", b"1", ttl_s=0.05))
    await store.write(put("ack/kept", b"1"), put("acks/other", b"1", ttl_s=0.05))
    await outlive(store, 0.05)
    assert await store.sweep("ack") == 5
    assert await store.sweep("ack") == 0
    assert [entry.key for entry in (await store.list("ack")).entries] == ["ack/kept"]
    assert (await store.count()).get("acks") == 1


async def test_a_wait_sees_a_change_that_came_before_it(store: Store) -> None:
    (version,) = await store.write(put("state/a", b"1"))
    assert await store.wait(Changed("state/a"), timeout_s=5.0) == {Changed("state/a")}
    await store.write(put("state/a", b"2"))
    watch = Changed("state/a", version)
    assert await store.wait(watch, timeout_s=5.0) == {watch}


async def test_a_wait_ends_when_another_client_writes(place: Place) -> None:
    reader, writer = await place.open(), await place.open()
    (version,) = await writer.write(put("state/a", b"1"))
    watch, other = Changed("state/a", version), Changed("state/other")
    waiting = asyncio.ensure_future(reader.wait(watch, other, timeout_s=30.0))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await writer.write(put("state/a", b"2"))
    async with asyncio.timeout(10.0):
        assert watch in await waiting


async def test_a_wait_ends_with_nothing_at_its_timeout(store: Store) -> None:
    assert await store.wait(Changed("state/never"), timeout_s=0.2) == frozenset()


async def test_many_waits_are_all_woken(place: Place) -> None:
    reader, writer = await place.open(), await place.open()
    watches = [Changed(f"state/w{number}") for number in range(20)]
    waits = [asyncio.ensure_future(reader.wait(watch, timeout_s=30.0)) for watch in watches]
    await asyncio.sleep(0.2)
    for watch in watches:
        await writer.write(put(watch.key, b"x"))
    async with asyncio.timeout(20.0):
        assert await asyncio.gather(*waits) == [frozenset({watch}) for watch in watches]


async def test_a_cancelled_wait_leaves_the_others_alone(place: Place) -> None:
    reader, writer = await place.open(), await place.open()
    watch = Changed("state/a")
    first = asyncio.ensure_future(reader.wait(watch, timeout_s=30.0))
    second = asyncio.ensure_future(reader.wait(watch, timeout_s=30.0))
    await asyncio.sleep(0.1)
    first.cancel()
    await asyncio.sleep(0)
    await writer.write(put("state/a", b"x"))
    async with asyncio.timeout(10.0):
        assert await second == {watch}
    assert first.cancelled()


async def test_store_time_moves_and_is_shared(place: Place) -> None:
    one, two = await place.open(), await place.open()
    first = await one.now_ms()
    await asyncio.sleep(0.05)
    second = await two.now_ms()
    slack_ms = 0 if one.capabilities.transactions else 2000
    assert first - slack_ms <= second < first + 10_000


async def test_prefixes_do_not_see_each_other(place: Place) -> None:
    if place.kind == "memory":
        pytest.skip("a memory store is one prefix")
    mine = await place.open()
    theirs = await Place(place.kind, place.url, place.prefix + "x").open()
    try:
        await mine.write(put("state/a", b"1"))
        assert await value_of(theirs, "state/a") is None
        assert (await theirs.list("state")).entries == ()
    finally:
        await theirs.close()


@pytest.mark.parametrize(
    "key",
    ["", "a:b", "a/*", "a//b", "/a", "a/", "..", "a/../b", "a/.", "a b", "a/é", "a\n", "a" * 129],
)
async def test_an_unknown_key_is_refused(store: Store, key: str) -> None:
    """`a:b` would be `a/b` on Redis, and `../a` another namespace on S3."""
    await store.write(put("a/b", b"1"))
    for write in (
        put(key, b"2"),
        Delete(key, ANY),
        Check(key, ANY),
        Append(key, "i", b"", ttl_s=60.0),
        Remove(key, "1"),
        Extend(key, "1", "c", 1.0),
    ):
        with pytest.raises(InvalidIdentifierError):
            await store.write(write)
    assert await value_of(store, "a/b") == b"1"
    patient = GuardedStore(store, RealClock(), random.Random())
    with pytest.raises(InvalidIdentifierError):
        await patient.get(key)


@pytest.mark.parametrize("kind", ["heartbeat", "ack", "tombstone", "final"])
async def test_a_record_that_must_end_is_not_put_for_ever(store: Store, kind: str) -> None:
    with pytest.raises(ConfigError, match="ttl_s is None: a record of kind"):
        await store.write(put(f"{kind}/x", b"1", ttl_s=None))
    await store.write(put("leader", b"1", ttl_s=None))
