"""The heartbeat's grid and the health report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from squall.engine.measure import loop_health as health
from squall.engine.measure.loop_health import HealthMeter, LoopHeartbeat, resident_mb
from squall.stats.reports import Blocked


class Clock:
    """Time and a loop with one timer, both moved by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.timer: tuple[float, Callable[[], None]] | None = None
        self.errors: list[dict[str, Any]] = []
        monkeypatch.setattr(health, "perf_counter", lambda: self.now)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        assert delay >= 0.0
        self.timer = (self.now + delay, callback)

        class Handle:
            def cancel(handle) -> None:
                self.timer = None

        return Handle()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def fire(self, late_s: float = 0.0) -> None:
        assert self.timer is not None
        due, callback = self.timer
        self.timer = None
        self.now = due + late_s
        callback()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def heart_of(clock: Clock, on_beat: Callable[[float, float], None] | None = None) -> LoopHeartbeat:
    heart = LoopHeartbeat(clock, 0.010, on_beat)  # type: ignore[arg-type]
    heart.start()
    return heart


def test_late_beats_do_not_move_the_grid(clock: Clock) -> None:
    expected: list[float] = []
    heart_of(clock, lambda now, due: expected.append(due))
    for late_s in [0.0, 0.004, 0.009, 0.0, 0.003]:
        clock.fire(late_s)
    assert expected == pytest.approx([100.01, 100.02, 100.03, 100.04, 100.05])


def test_a_beat_a_little_early_counts_for_its_own_point(clock: Clock) -> None:
    expected: list[float] = []
    heart_of(clock, lambda now, due: expected.append(due))
    for late_s in [-0.0005, -0.0005, 0.0]:
        clock.fire(late_s)
    assert expected == pytest.approx([100.01, 100.02, 100.03])


def test_every_beat_missed_in_a_stall_counts_with_its_own_lateness(clock: Clock) -> None:
    late: list[float] = []
    heart_of(clock, lambda now, due: late.append(now - due))
    clock.fire(0.0355)
    assert late == pytest.approx([0.0355, 0.0255, 0.0155, 0.0055])
    clock.fire()
    assert late[4:] == pytest.approx([0.0])


def test_a_stall_of_hours_counts_a_bounded_number_of_beats(clock: Clock) -> None:
    late: list[float] = []
    heart_of(clock, lambda now, due: late.append(now - due))
    clock.fire(7200.0)
    assert len(late) == health.MOST_MISSED_BEATS


def test_the_last_beat_is_there_to_be_read(clock: Clock) -> None:
    heart = heart_of(clock)
    clock.fire(0.002)
    assert heart.last_beat == clock.now


def test_periodic_callbacks_run_on_every_nth_beat(clock: Clock) -> None:
    heart = heart_of(clock)
    fast: list[float] = []
    slow: list[float] = []
    heart.every(0.03, lambda: fast.append(clock.now))
    heart.every(0.1, lambda: slow.append(clock.now))
    for _ in range(20):
        clock.fire()
    assert fast == pytest.approx([100.03, 100.06, 100.09, 100.12, 100.15, 100.18])
    assert slow == pytest.approx([100.1, 100.2])


def test_missed_turns_of_a_callback_are_made_up_once(clock: Clock) -> None:
    heart = heart_of(clock)
    turns: list[float] = []
    heart.every(0.02, lambda: turns.append(clock.now))
    clock.fire(0.095)
    assert len(turns) == 1
    for _ in range(2):
        clock.fire()
    assert len(turns) == 2


def test_a_callback_that_raises_stops_neither_the_heart_nor_the_others(clock: Clock) -> None:
    heart = heart_of(clock)
    turns: list[int] = []

    def broken() -> None:
        raise ValueError("broken")

    heart.every(0.01, broken)
    heart.every(0.01, lambda: turns.append(1))
    clock.fire()
    clock.fire()
    assert len(turns) == 2
    assert [type(error["exception"]) for error in clock.errors] == [ValueError, ValueError]


def test_a_cancelled_callback_runs_no_more(clock: Clock) -> None:
    heart = heart_of(clock)
    turns: list[int] = []
    cancel = heart.every(0.01, lambda: turns.append(1))
    clock.fire()
    cancel()
    cancel()
    clock.fire()
    assert turns == [1]


def test_a_stopped_heart_has_no_timer(clock: Clock) -> None:
    heart = heart_of(clock)
    clock.fire()
    heart.stop()
    assert clock.timer is None
    heart.stop()
    heart.start()
    assert clock.timer is not None


@pytest.mark.asyncio
async def test_the_heart_beats_on_a_real_loop() -> None:
    beaten = asyncio.Event()
    meter = HealthMeter(3)
    heart = LoopHeartbeat(asyncio.get_running_loop(), 0.001, meter.beat)
    heart.every(0.005, beaten.set)
    heart.start()
    await beaten.wait()
    heart.stop()
    report = meter.take(1.0)
    assert report.process == 3
    assert report.lag.count >= 5
    assert report.lag.min_s >= 0.0


def test_a_report_holds_its_period_only(clock: Clock) -> None:
    block = Blocked("Shop", "home", "shop.py:4", "time.sleep", 0.2)
    pauses = [0.004, 0.0]
    blocks = [[block], []]
    meter = HealthMeter(1, gc_max_s=lambda: pauses.pop(0), blocked=lambda: blocks.pop(0))
    meter.beat(1.030, 1.010)
    meter.beat(1.030, 1.040)
    clock.now += 1.0
    first = meter.take(1.0)
    assert (first.lag.count, first.lag.min_s) == (2, 0.0)
    assert first.lag.max_s == pytest.approx(0.020)
    assert (first.gc_max_s, first.blocked, first.at_s) == (0.004, [block], 1.0)
    assert 0.0 <= first.cpu <= 1.0
    clock.now += 1.0
    second = meter.take(2.0)
    assert (second.lag.count, second.gc_max_s, second.blocked) == (0, 0.0, [])


def test_cpu_is_the_share_of_one_core(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    used = [10.0, 10.5, 14.5]
    monkeypatch.setattr(health, "process_time", lambda: used.pop(0))
    meter = HealthMeter(0)
    clock.now += 2.0
    assert meter.take(2.0).cpu == pytest.approx(0.25)
    clock.now += 2.0
    assert meter.take(4.0).cpu == 1.0


def test_a_restart_forgets_what_was_before(clock: Clock) -> None:
    asked: list[str] = []

    def pauses() -> float:
        asked.append("gc")
        return 0.0

    meter = HealthMeter(0, gc_max_s=pauses)
    meter.beat(2.0, 1.0)
    meter.restart()
    assert asked == ["gc"]
    clock.now += 1.0
    assert meter.take(1.0).lag.count == 0


def test_resident_memory_is_that_of_a_python_process() -> None:
    assert 1.0 < resident_mb() < 100_000.0
