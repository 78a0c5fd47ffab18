"""Listeners, rolling figures and contention."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from squall.coordination import events
from squall.coordination.events import QUEUE_MAX, EventBus
from squall.coordination.member_stats import ChangeRate, ContentionDetector, RecentValues
from squall.runtime.real.runtime import RealClock
from squall.runtime.tasks import TaskRunner


class Bench:
    def __init__(self) -> None:
        self.tasks = TaskRunner(RealClock(), random.Random(1))
        self.failures: list[str] = []
        self.bus = EventBus(
            self.tasks.group("handlers"),
            lambda event: msgspec.structs.replace(event, namespace="n", observer_id="me"),
            lambda what, error: self.failures.append(f"{what}: {error}"),
        )

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def changed(epoch: int) -> events.LeaderChanged:
    return events.LeaderChanged(old="a", new="b", epoch=epoch)


@pytest.mark.asyncio
async def test_handlers_get_their_events_in_order_and_a_failing_one_goes_on() -> None:
    bench, got = Bench(), []

    async def handle(event: events.LeaderChanged) -> None:
        await asyncio.sleep(0)
        got.append(event.epoch)
        if event.epoch == 1:
            raise RuntimeError("oops")

    bench.bus.on(events.LeaderChanged, handle)
    for epoch in range(3):
        bench.bus.emit(changed(epoch))
    bench.bus.emit(events.EpochRenewed(member_id="a", epoch=9, new_term_ends_at=1.0))
    for _ in range(5):
        await bench.settle()
    assert got == [0, 1, 2]
    assert bench.failures == ["event_handler_failed: oops"]
    bench.bus.off(events.LeaderChanged, handle)
    bench.bus.emit(changed(4))
    await bench.settle()
    assert got == [0, 1, 2]
    assert await bench.tasks.shutdown(1.0) == ()


@pytest.mark.asyncio
async def test_once_is_once_and_a_name_is_as_good_as_a_type() -> None:
    bench, got = Bench(), []
    bench.bus.once("leader:changed", got.append)
    for epoch in range(3):
        bench.bus.emit(changed(epoch))
    await bench.settle()
    assert [event.epoch for event in got] == [0]
    assert (got[0].namespace, got[0].observer_id) == ("n", "me")
    await bench.tasks.shutdown(1.0)


@pytest.mark.asyncio
async def test_a_slow_listener_loses_its_oldest_events_and_they_are_counted() -> None:
    bench, got = Bench(), []
    stream = bench.bus.iterate(events.LeaderChanged)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    for epoch in range(QUEUE_MAX + 10):
        bench.bus.emit(changed(epoch))
    assert bench.bus.dropped == 10
    got.append((await first).epoch)  # type: ignore[attr-defined]
    assert got == [10]
    await stream.aclose()  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_an_error_without_a_listener_is_reported_and_not_raised() -> None:
    bench = Bench()
    bench.bus.emit(events.ErrorEvent(error=RuntimeError("dead")))
    assert bench.failures == ["error_without_listener: dead"]
    heard: list[object] = []
    bench.bus.on("error", heard.append)
    bench.bus.emit(events.ErrorEvent(error=RuntimeError("dead")))
    await bench.settle()
    assert len(heard) == 1
    assert len(bench.failures) == 1
    await bench.tasks.shutdown(1.0)


def test_the_99th_percentile_is_the_nearest_rank_of_the_last_hundred() -> None:
    ring = RecentValues()
    assert ring.percentile(0.99) == 0.0
    for value in range(1000):
        ring.add(float(value))
    assert ring.percentile(0.99) == 998.0
    assert ring.percentile(0.5) == 949.0


def test_six_changes_in_ten_minutes_are_flapping_and_reported_once() -> None:
    changes = ChangeRate()
    told = [changes.note(float(at)) for at in range(0, 700, 100)]
    assert told == [None, None, None, None, None, 6, None]
    slow = ChangeRate()
    assert [slow.note(at * 130.0) for at in range(20)] == [None] * 20


def test_contention_is_reported_once_in_thirty_seconds() -> None:
    contention = ContentionDetector(2.0, 5.0)
    assert contention.cycle(9.9, 0.0, None, 0.0) is None
    assert contention.cycle(12.5, 0.0, None, 1.0) == 2.5
    assert contention.cycle(12.5, 0.0, None, 20.0) is None
    assert contention.suppressed == 1
    assert contention.cycle(0.0, 15.0, None, 32.0) == 3.0
    assert contention.cycle(0.1, 0.0, 0.4, 170.0) is None


def test_a_late_renewal_reports_the_part_of_the_lease_that_it_took() -> None:
    """Three renewals fit into a lease, of which its holder uses four fifths."""
    contention = ContentionDetector(2.0, 5.0)
    assert contention.cycle(0.0, 0.0, 0.2, 0.0) == pytest.approx(1.8)
    assert contention.cycle(0.0, 0.0, 0.0, 40.0) == pytest.approx(2.4)
    assert contention.cycle(15.0, 0.0, 0.3, 80.0) == 3.0


def test_contention_that_is_not_reported_is_counted_with_the_rest() -> None:
    contention, counted = ContentionDetector(2.0, 5.0), list[int]()
    contention.on_event = lambda: counted.append(1)
    for at in range(10):
        contention.cycle(12.5, 0.0, None, float(at))
    assert (len(counted), contention.events, contention.suppressed) == (10, 10, 9)
