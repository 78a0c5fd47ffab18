"""The metrics of a member: elections that it saw, the leader, refused signals."""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination import ANY, Put, StaleEpochError, events
from squall.coordination.coordinator import Coordinator
from squall.coordination.stores.interface import Fence
from tests.unit.coordination.lab.world import FAST, FIRST_EPOCH, Lab, play


def seen_elections(member: Coordinator) -> int:
    metrics = member.parts.metrics
    return sum(metrics.histogram(metrics.families.election_s).counts)


def knows_a_leader(member: Coordinator) -> bool:
    metrics = member.parts.metrics
    return metrics.gauge(metrics.families.leader_seen).value == 1.0


def test_every_election_is_measured_and_joining_is_none() -> None:
    """Also those after the first, whose order of succession is in the lease."""

    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        await lab.ready("a", "b")
        leader = await lab.led()
        follower = "b" if leader == "a" else "a"
        await asyncio.sleep(3.0)
        before = seen_elections(lab.members[follower])
        lab.world.kill(leader)
        await lab.led(but=leader)
        member = lab.members[follower]
        assert seen_elections(member) == before + 1
        figures = member.get_metrics()
        assert figures.elections_seen == before + 1
        assert 0.0 < figures.election_p99_s < FAST.failover
        assert figures.promotions == 1 and figures.heartbeats_sent > 0
        assert figures.elections_stood >= 1
        lab.start("c")
        await lab.ready("c")
        assert seen_elections(lab.members["c"]) == 0

    play(script)


def test_a_member_says_whether_it_knows_a_coordinator() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        lab.start("b", eligible=False)
        await lab.ready("b")
        assert knows_a_leader(lab.members["a"]) and knows_a_leader(lab.members["b"])
        lab.world.kill("a")
        await asyncio.sleep(FAST.lease_ttl + 2.0 * FAST.heartbeat_interval)
        assert not knows_a_leader(lab.members["b"])

    play(script)


def test_each_refused_write_is_counted() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        member = lab.members["a"]
        term = member.term
        assert term is not None
        (lease,) = await lab.store.get("leader")
        assert lease is not None
        lab.faults["a"].delay_s = 0.05  # All of them are on their way before one is answered.
        usurped = Put("leader", lease.value, expect=ANY, ttl_s=None)
        await lab.store.write(usurped, fence=Fence("leader", FIRST_EPOCH + 8))
        writes = [term.write(Put(f"effect/{n}", b"", expect=ANY, ttl_s=9.0)) for n in range(3)]

        async def all_of_them() -> list[object]:
            return list(await asyncio.gather(*writes, return_exceptions=True))

        refused = await lab.run_on("a", all_of_them())
        assert [type(each) for each in refused] == [StaleEpochError] * 3
        assert member.get_metrics().fencing_rejections == 3
        assert member.get_metrics().demotions == {"fenced": 1}

    play(script)


def test_all_contention_is_counted_and_a_late_renewal_has_an_honest_ratio() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        member = lab.members["a"]
        told: list[events.ContentionDetected] = []
        member.on(events.ContentionDetected, told.append)
        # Renewals are answered with less than a third of the lease left, heartbeats before they
        # are long.
        lab.faults["a"].delay_s = 0.45 * FAST.lease_ttl
        await asyncio.sleep(20.0)
        lab.faults["a"].delay_s = 0.0
        metrics = member.parts.metrics
        exported = metrics.counter(metrics.families.contention).value
        assert exported == member.get_metrics().contention_events
        assert exported > len(told) == 1
        (event,) = told
        assert event.ratio == pytest.approx(event.duration / event.expected) and event.ratio > 1.0

    play(script)


def test_the_circuit_says_its_failures_and_when_it_opened() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", eligible=False)
        await lab.world.eventually(lambda: "a" in lab.members, within_s=5.0, what="it runs")
        await asyncio.sleep(0.1)
        parts = lab.members["a"].parts
        families, breaker = parts.metrics.families, parts.patient.breaker

        def shown() -> tuple[float, float]:
            failures = parts.metrics.gauge(families.breaker_failures)
            return failures.value, parts.metrics.gauge(families.breaker_opened_at).value

        assert shown() == (0.0, 0.0)
        for number in range(breaker.settings.failures_to_open):
            assert shown() == (number, 0.0)
            breaker.failed(parts.clock.now() + number)
            opened = parts.clock.wall() + number
        assert shown() == (breaker.settings.failures_to_open, pytest.approx(opened))
        text = families.registry.exposition()
        assert 'coordination_breaker_failures{namespace="default"} 10' in text
        assert "coordination_breaker_opened_timestamp_seconds{" in text
        breaker.succeeded()
        assert shown() == (0.0, 0.0)

    play(script)


@pytest.mark.parametrize("name", ["heartbeat_p99_s", "contention_events", "renewals"])
def test_figures_begin_at_nothing(name: str) -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", eligible=False)
        await lab.world.eventually(lambda: "a" in lab.members, within_s=5.0, what="it runs")
        await asyncio.sleep(0.1)
        assert getattr(lab.members["a"].get_metrics(), name) == 0

    play(script)
