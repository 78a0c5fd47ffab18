"""A member that falls silent and beats again in time: warned about, recovered, never dead."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.coordination import Coordinator, events
from tests.services.coordination.lab.groups import Group, group_on
from tests.services.coordination.lab.places import Place


@pytest.mark.asyncio
@pytest.mark.parametrize("place", ["memory", "redis"], indirect=True)
async def test_silence_of_one_and_a_half_checks_is_no_death(place: Place) -> None:
    async with group_on(place) as group:
        member = await patient_member(group)
        await group.until(lambda: member.is_coordinator, "it leads")
        warned: list[str] = []
        back: list[events.CoordinatorRecovered] = []
        dead: list[str] = []
        member.on(events.HeartbeatWarning, lambda event: warned.append(event.health))
        member.on(events.CoordinatorRecovered, back.append)
        member.on(events.CoordinatorDead, lambda event: dead.append(event.member_id))
        for sequence in (1, 2, 3):
            await member.register_heartbeat("sensor", sequence)
        await group.until(lambda: warned == ["warning", "critical"], "it is warned about twice")
        await member.register_heartbeat("sensor", 4)
        await group.until(lambda: back, "it recovered")
        assert (back[0].member_id, back[0].previous_health) == ("sensor", "critical")
        assert not back[0].was_dead
        for sequence in range(5, 20):
            await asyncio.sleep(0.1)
            await member.register_heartbeat("sensor", sequence)
        assert warned == ["warning", "critical"] and dead == []
        statistics = member.get_statistics()
        assert (statistics.warnings_issued, statistics.coordinators_marked_dead) == (2, 0)


async def patient_member(group: Group) -> Coordinator:
    """Checks far enough apart that a beat fits between two of them on a busy machine."""
    timing = msgspec.structs.replace(group.timing, monitor_interval=2.5 * group.scale)
    ends = timing.heartbeat_ttl + timing.max_warnings * timing.monitor_interval
    retention = max(timing.retention, 3.0 * ends)
    timing = msgspec.structs.replace(timing, dead_after=ends, retention=retention)
    return await group.member("a", profile=timing)
