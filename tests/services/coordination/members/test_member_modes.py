"""Members on each store: driven heartbeats, one instance only, a profile that is shared."""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination import ConfigurationError, events
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, HeartbeatRecord, LeaseRecord
from squall.coordination.timing import PROFILES
from tests.services.coordination.lab.places import Place
from tests.services.coordination.lab.queues import member


@pytest.mark.asyncio
async def test_a_driven_member_is_watched_on_every_store(place: Place) -> None:
    told: list[events.ContinuityViolation] = []
    async with member(place) as coordinator:
        coordinator.on(events.ContinuityViolation, told.append)
        for number in (1, 2, 3, 6):
            await coordinator.register_heartbeat("sensor-7", number)
        first = await coordinator.register_heartbeat("sensor-7", 7)
        assert await coordinator.register_heartbeat("sensor-7", 1, {"phase": "warm"}) > first
        assert "sensor-7" in await coordinator.active_workers()
        (found,) = await coordinator.store.get(keys.heartbeat("sensor-7"))
        assert found is not None
        record = Codec(None).read(HeartbeatRecord, found.value, signed=False)
        assert record is not None
        assert (record.sequence, record.metadata, record.eligible) == (1, {"phase": "warm"}, False)
        async with asyncio.timeout(10.0):
            while not told:
                await asyncio.sleep(0.01)
        assert [(each.gap, each.missed) for each in told] == [(3, 2)]
        await coordinator.unregister_heartbeat("sensor-7")
        assert "sensor-7" not in await coordinator.active_workers()


@pytest.mark.asyncio
async def test_a_single_instance_is_refused_beside_a_live_member(place: Place) -> None:
    if place.kind == "memory":
        pytest.skip("a memory store has one process")
    async with member(place):
        with pytest.raises(ConfigurationError, match="enable_coordinator is False"):
            async with member(place, enable_coordinator=False):
                pass


@pytest.mark.asyncio
async def test_the_coordinator_publishes_the_profile_of_the_group(place: Place) -> None:
    options = {"profile": "auto", "unsafe_timings": False, "skip_cold_start": True}
    async with member(place, **options) as first:
        await first.ensure_coordinator(timeout_s=60.0)
        (record,) = await first.store.get(keys.LEADER)
        assert record is not None
        lease = Codec(None).read(LeaseRecord, record.value, signed=False)
        assert lease is not None
        if place.kind == "s3":
            assert lease.pace is None and first.timing == PROFILES["s3"]
            return
        assert lease.pace is not None and lease.pace.profile == "small"
        assert first.timing == PROFILES["small"] and lease.lease_ttl == 9.0
        async with member(place, member_id="second", **options) as second:
            assert second.timing == PROFILES["small"]
