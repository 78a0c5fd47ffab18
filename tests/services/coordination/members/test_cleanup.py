"""The cleanup job on all four stores: exact, conditional, one at a time."""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest

from squall.coordination.members.cleanup import GUARD, SWEPT, clean_up, last_report
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.records import keys
from squall.coordination.stores.interface import ABSENT, ANY, Append, Put, Store
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock
from tests.lab.machine import factor
from tests.services.coordination.lab.places import Place, forget_redis, outlive

pytestmark = pytest.mark.asyncio
STALE_S = 3.0 * factor()
"""So long a heartbeat that was just written must stay fresh on a busy machine."""
TARGET_S = 60.0
CLOCK = RealClock()


def put(key: str, ttl_s: float = 600.0) -> Put:
    return Put(key, b"{}", expect=ANY, ttl_s=ttl_s)


async def leave_behind(store: Store, member_id: str) -> None:
    await store.write(
        put(keys.heartbeat(member_id)),
        put(keys.warning(member_id)),
        put(keys.state(member_id)),
        put(keys.member(member_id)),
        put(keys.idempotency(member_id, "s1")),
        Append(keys.inbox(member_id), "s1", b"{}", ttl_s=600.0),
    )


async def pause(store: Store) -> None:
    await asyncio.sleep(STALE_S + (0.1 if store.capabilities.transactions else 1.2))


async def test_only_the_keys_of_the_stale_member_go(store: Store) -> None:
    for member_id in ("coord-1", "coord-10", "coord-1.x"):
        await leave_behind(store, member_id)
    # The age of a record on S3 is exact to a second; a busy machine adds its own.
    stale_s = STALE_S if store.capabilities.transactions else 2.0 * STALE_S
    await asyncio.sleep(stale_s - STALE_S)
    await pause(store)
    for member_id in ("coord-10", "coord-1.x"):
        await store.write(put(keys.heartbeat(member_id)))
    planned = await clean_up(store, CLOCK, stale_s=stale_s, dry_run=True)
    assert [member.member_id for member in planned.members] == ["coord-1"]
    metrics = CoordinationMetrics.of_registry()
    report = await clean_up(store, CLOCK, stale_s=stale_s, metrics=metrics)
    assert [(m.member_id, m.keys_deleted) for m in report.members] == [("coord-1", 3)]
    assert report.exit_code == 0
    gone = await store.get(*(f("coord-1") for f in (keys.heartbeat, keys.warning, keys.state)))
    assert gone == (None, None, None)
    kept = await store.get(
        *(keys.member("coord-1"), keys.idempotency("coord-1", "s1")),
        *(f("coord-10") for f in (keys.heartbeat, keys.warning, keys.state, keys.member)),
        *(f("coord-1.x") for f in (keys.heartbeat, keys.warning, keys.state, keys.member)),
    )
    assert None not in kept
    assert len(await store.read(keys.inbox("coord-1"))) == 1
    left = await last_report(store)
    assert left is not None and [m.member_id for m in left.members] == ["coord-1"]
    assert 'coordination_cleanups_total{namespace="default",result="done"} 1' in (
        metrics.families.registry.exposition()
    )


async def test_a_member_whose_record_expired_is_found_by_the_index(store: Store) -> None:
    await store.write(put(keys.heartbeat("gone"), ttl_s=0.05))
    await pause(store)
    report = await clean_up(store, CLOCK, stale_s=STALE_S)
    assert [member.member_id for member in report.members] == ["gone"]
    assert (await store.list(keys.HEARTBEAT)).entries == ()


async def test_a_member_that_comes_back_loses_nothing(store: Store) -> None:
    await leave_behind(store, "slow")
    await pause(store)

    class Returning:
        """Beats between the decision and the deletion."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def write(self, *writes: object, **rest: object) -> object:
            if getattr(writes[0], "key", "") == keys.heartbeat("slow"):
                await store.write(put(keys.heartbeat("slow")))
            return await store.write(*writes, **rest)  # type: ignore[arg-type]

    report = await clean_up(Returning(), CLOCK, stale_s=STALE_S)  # type: ignore[arg-type]
    assert report.came_back == ("slow",) and report.members == ()
    kept = await store.get(*(f("slow") for f in (keys.heartbeat, keys.warning, keys.state)))
    assert None not in kept


async def test_two_runs_do_not_overlap(place: Place) -> None:
    one, two = await place.open(), await place.open()
    await one.write(Put(GUARD, b"{}", expect=ABSENT, ttl_s=60.0))
    report = await clean_up(two, CLOCK)
    assert report.already_running and report.exit_code == 0


async def test_ten_thousand_stale_members_go_well_within_the_limit(redis_url: str) -> None:
    """On Redis; the live ones stay."""
    number = 10_000
    prefix = f"test.{uuid.uuid4().hex[:12]}"
    store = make_store(redis_url, CLOCK, random.Random(), prefix=prefix)
    try:
        ids = [f"gone-{index:05d}" for index in range(number)]
        for start in range(0, number, 500):
            await store.write(*(put(keys.heartbeat(each)) for each in ids[start : start + 500]))
        await pause(store)
        live = [f"live-{index}" for index in range(5)]
        await store.write(*(put(keys.heartbeat(each)) for each in live))
        begun = CLOCK.now()
        # The live ones beat on.
        report, _ = await asyncio.gather(
            clean_up(store, CLOCK, stale_s=STALE_S), beat_on(store, live, begun)
        )
        assert report.exit_code == 0 and len(report.members) == number
        assert report.duration_s < TARGET_S
        left = await store.list(keys.HEARTBEAT)
        assert {keys.member_id_of(entry.key) for entry in left.entries} == set(live)
    finally:
        await store.close()
        forget_redis(redis_url, prefix)


async def beat_on(store: Store, live: list[str], begun: float) -> None:
    """Until the guard of the run is gone."""
    while CLOCK.now() - begun < TARGET_S:
        await store.write(*(put(keys.heartbeat(each)) for each in live))
        await asyncio.sleep(0.2)
        if await store.get(GUARD) == (None,):
            return


@pytest.mark.parametrize("place", ["redis"], indirect=True)
async def test_a_cleanup_forgets_expired_records_of_the_application(place: Place) -> None:
    """Redis removes them itself, but their places in the index would be counted for ever."""
    store = await place.open()
    await store.write(put("report/today", ttl_s=0.2), put("report/tomorrow"))
    await outlive(store, 0.2)
    await clean_up(store, CLOCK)
    assert (await store.count())["report"] == 1


async def test_expired_runs_of_jobs_are_swept() -> None:
    assert {"run", "runs", "sweeps", "archive", "ack", "signal"} <= set(SWEPT)
    assert keys.HEARTBEAT not in SWEPT
