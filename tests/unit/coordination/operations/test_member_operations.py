"""The operator's calls on members, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from squall.coordination import Coordinator, events
from squall.coordination.errors import (
    BlockingTimeoutError,
    ConfigurationError,
    NotRunningError,
)
from squall.coordination.options import Options, with_environment
from squall.coordination.records import keys
from tests.unit.coordination.lab.groups import group, one_dies
from tests.unit.coordination.lab.world import FAST, Lab, play


async def is_there(lab: Lab, key: str) -> bool:
    return (await lab.store.get(key))[0] is not None


def test_cleanup_waits_for_its_delay() -> None:
    async def script(lab: Lab) -> None:
        leader, victim = await one_dies(lab, cleanup_delay=5.0)
        await asyncio.sleep(3.0)
        assert await is_there(lab, keys.heartbeat(victim))
        assert lab.members[leader].get_statistics().cleanups_performed == 0
        await asyncio.sleep(4.0)
        assert not await is_there(lab, keys.heartbeat(victim))
        assert lab.members[leader].get_statistics().cleanups_performed == 1

    play(script)


def test_the_statistics_name_the_last_hundred_of_the_dead() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a")
        coordinator = lab.members[leader]
        names = [f"device-{number:03d}" for number in range(120)]
        for name in names:
            await lab.run_on(leader, coordinator.register_heartbeat(name, 1))
        await lab.world.eventually(
            lambda: len(heard.of(events.CoordinatorDead)) == 120, within_s=30.0, what="all are dead"
        )
        found = coordinator.get_statistics()
        assert found.coordinators_marked_dead == 120
        assert len(found.dead_coordinators) == 100
        assert set(found.dead_coordinators) <= set(names)

    play(script)


def test_the_dead_are_cleaned_up_by_hand_and_the_living_only_by_force() -> None:
    async def script(lab: Lab) -> None:
        leader, victim = await one_dies(lab, auto_cleanup=False)
        coordinator = lab.members[leader]
        (alive,) = set(lab.members) - {leader, victim}
        await asyncio.sleep(2.0)
        assert await is_there(lab, keys.heartbeat(victim))
        with pytest.raises(ConfigurationError, match="not dead"):
            await coordinator.cleanup_dead_coordinator(alive)
        with pytest.raises(NotRunningError, match="does not lead"):
            await lab.members[alive].cleanup_dead_coordinator(victim)
        assert await coordinator.cleanup_dead_coordinator(victim)
        assert not await is_there(lab, keys.heartbeat(victim))
        assert await coordinator.cleanup_dead_coordinator(alive, force=True)
        # A live member is back with its next beat, as the same incarnation.
        await asyncio.sleep(2.0)
        assert await is_there(lab, keys.heartbeat(alive))
        assert await is_there(lab, keys.inbox(alive)) is False

    play(script)


def test_several_waits_at_once_and_an_inbox_that_is_adopted() -> None:
    async def script(lab: Lab) -> None:
        leader, victim = await one_dies(lab)
        a = lab.members[leader]
        (name,) = set(lab.members) - {leader, victim}
        b = lab.members[name]
        for number in (1, 2):
            await a.send_signal(name, "completion", correlation_id=f"job-{number}")
        found = await b.signals.wait_all(["job-1", "job-2"], 5.0)
        assert sorted(found) == ["job-1", "job-2"]
        await a.send_signal(name, "completion", correlation_id="job-3")
        assert list(await b.signals.wait_any(["job-3", "job-4"], 5.0)) == ["job-3"]
        await a.send_signal(name, "completion", correlation_id="job-5")
        with pytest.raises(BlockingTimeoutError) as late:
            await b.signals.wait_all(["job-5", "job-6"], 1.0)
        assert list(late.value.partial) == ["job-5"]
        await a.send_signal(victim, "wake", payload="left behind")
        got: list[object] = []
        b.on_signal("wake", lambda delivery: got.append(delivery.signal.payload))
        with pytest.raises(ConfigurationError, match="dead_id"):
            await b.signals.adopt_inbox(leader)
        await b.signals.adopt_inbox(victim)
        await lab.world.eventually(lambda: got == ["left behind"], within_s=5.0, what="adopted")

    play(script)


def test_a_slow_store_is_reported_as_contention() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", profile=FAST)
        slow = next(name for name in lab.members if name != leader)
        lab.faults[slow].delay_s = 2.0
        await lab.world.eventually(
            lambda: heard.of(events.ContentionDetected), within_s=60.0, what="contention"
        )
        told = heard.of(events.ContentionDetected)[0]
        assert told.observer_id == slow and told.ratio > 2.0

    play(script)


def test_the_environment_of_the_process_counts_unless_one_is_given() -> None:
    assert with_environment(Options(), "production").environment == "production"
    assert with_environment(Options(environment="staging"), "production").environment == "staging"
    assert with_environment(Options(), None).environment is None


@pytest.mark.asyncio
async def test_prometheus_is_served_where_it_was_asked_for(tmp_path: Path) -> None:
    options = {"profile": "fast", "unsafe_timings": True, "metrics_port": 0}
    async with Coordinator("memory:", **options) as member:
        assert member.metrics_address is not None
        reader, writer = await asyncio.open_connection(*member.metrics_address)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith("HTTP/1.1 200") and "coordination_is_leader" in answer
        assert "coordination_is_leader" in member.metrics_text()
