"""Central expiry on all four stores: an expired record is hidden at once and removed once, and no
fresh record is lost.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from squall.coordination import ANY, ConfigurationError, Coordinator, Put, Ttl
from squall.coordination.expiry.records import SweepFinished, SweepProgress
from squall.coordination.stores.interface import Record
from tests.services.coordination.lab.places import Place
from tests.services.coordination.lab.queues import member, slowness

KEPT_S = 600.0


async def put(coordinator: Coordinator, key: str, value: bytes = b"{}") -> None:
    await coordinator.store.write(Put(key, value, expect=ANY, ttl_s=KEPT_S))


async def swept(coordinator: Coordinator, times: int = 1) -> SweepFinished:
    """The end of a sweep that began after now."""
    seen = 0
    async with asyncio.timeout(60.0):
        async for event in coordinator.events(SweepFinished):
            assert isinstance(event, SweepFinished)
            seen += 1
            if seen > times:
                return event
    raise AssertionError("no sweep")


async def present(coordinator: Coordinator, *keys: str) -> list[str]:
    found = await coordinator.store.get(*keys)
    return [key for key, record in zip(keys, found, strict=True) if record is not None]


@pytest.mark.asyncio
async def test_old_records_go_fresh_and_foreign_ones_stay(place: Place) -> None:
    slow = slowness(place)
    ttl = Ttl(ttl_interval=0.2)
    ttl.register("session", expires_after=3.0 * slow)
    async with member(place, ttl) as coordinator:
        for key in ("session/a", "session/b", "sessions/x"):
            await put(coordinator, key)
        assert await ttl.get("session/a") is not None
        async with asyncio.timeout(60.0):
            while await ttl.get("session/a") is not None:
                # As old as the other, and kept by its touches.
                assert await ttl.touch("session/b")
                await asyncio.sleep(0.1 * slow)
        await put(coordinator, "session/c")
        assert not await ttl.touch("session/a")
        await swept(coordinator)
        left = await present(coordinator, "session/a", "session/c", "sessions/x")
        assert left == ["session/c", "sessions/x"]


@pytest.mark.asyncio
async def test_a_record_names_its_own_time_and_is_archived(place: Place) -> None:
    ttl = Ttl(ttl_interval=0.2)
    ttl.register("offer/shop", expires_field="until", action="archive")
    async with member(place, ttl) as coordinator:
        now = coordinator.parts.store_time()
        await put(coordinator, "offer/shop/old", json.dumps({"until": now - 1.0}).encode())
        await put(coordinator, "offer/shop/new", json.dumps({"until": now + 3600.0}).encode())
        await put(coordinator, "offer/shop/none", b"not json")
        await put(coordinator, "offer/other/old", json.dumps({"until": now - 1.0}).encode())
        assert await ttl.get("offer/shop/old") is None
        await swept(coordinator)
        left = await present(
            coordinator,
            *("offer/shop/old", "offer/shop/new", "offer/shop/none", "offer/other/old"),
            "archive/offer/shop/old",
        )
        assert left == [
            *("offer/shop/new", "offer/shop/none", "offer/other/old", "archive/offer/shop/old")
        ]


@pytest.mark.asyncio
async def test_a_record_that_is_refreshed_during_the_sweep_survives(place: Place) -> None:
    ttl = Ttl(ttl_interval=0.2)
    called: list[str] = []

    async def refresh(record: Record) -> None:
        called.append(record.key)
        if record.key == "session/bad":
            raise ValueError("cannot")
        if record.key == "session/a":
            await put(coordinator, "session/a", b'{"fresh": 1}')

    ttl.register("session", expires_field="until", callback=refresh)
    async with member(place, ttl, eligible=False) as coordinator:
        for key in ("session/a", "session/b", "session/bad"):
            await put(coordinator, key, b'{"until": 1}')
        leader = Ttl(ttl_interval=0.2)
        leader.register("session", expires_field="until", callback=refresh)
        async with member(place, leader) as other:
            await swept(other)
            left = await present(coordinator, "session/a", "session/b", "session/bad")
        assert left == ["session/a", "session/bad"]
        assert leader.failed == 1
        assert called.count("session/a") == 1


@pytest.mark.asyncio
async def test_only_the_coordinator_removes_and_a_successor_goes_on(place: Place) -> None:
    idle, leading = Ttl(ttl_interval=0.2), Ttl(ttl_interval=0.2)
    for each in (idle, leading):
        each.register("session", expires_field="until")
    async with member(place, idle, eligible=False) as follower:
        for number in range(5):
            await put(follower, f"session/{number}", b'{"until": 1}')
        codec = follower.parts.codec
        await follower.parts.patient.write(
            Put("sweeps", codec.encode(SweepProgress()), expect=ANY, ttl_s=KEPT_S)
        )
        async with member(place, leading) as coordinator:
            await swept(coordinator)
        assert idle.scanned == idle.deleted == 0
        assert await present(follower, *(f"session/{n}" for n in range(5))) == []
        (found,) = await follower.store.get("sweeps")
        assert found is not None
        read = codec.read(SweepProgress, found.value)
        assert read is not None
        assert read.finished > 0.0
        assert found.epoch >= 1


@pytest.mark.asyncio
async def test_more_than_a_page_is_removed(place: Place) -> None:
    if place.kind == "s3":
        pytest.skip("a page of S3 is a thousand")
    ttl = Ttl(ttl_interval=0.2)
    ttl.register("session", expires_field="until")
    async with member(place, ttl) as coordinator:
        names = [f"session/{number}" for number in range(250)]
        for begin in range(0, 250, 50):
            await coordinator.store.write(
                *(
                    Put(name, b'{"until": 1}', expect=ANY, ttl_s=KEPT_S)
                    for name in names[begin : begin + 50]
                )
            )
        await swept(coordinator, 2)
        assert await present(coordinator, *names) == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"expires_after": 1.0, "expires_field": "x"},
        {"expires_after": 0.0},
        {"expires_after": float("inf")},
        {"expires_after": 1.0, "action": "burn"},
        {"expires_after": 1.0, "action": "callback"},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Ttl().register("session", **options)
