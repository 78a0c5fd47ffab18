"""The wall clocks of the managers: which one is wrong, and the time that people see."""

from __future__ import annotations

from typing import Any, cast

from squall.cluster.group.wall_clocks import SAMPLE_S, WallClocks
from squall.runtime.log import Log, MemorySink


class Clock:
    def wall(self) -> float:
        return 0.0

    def now(self) -> float:
        return 0.0


def clocks(sink: MemorySink | None = None) -> WallClocks:
    return WallClocks("m1", Log(sink or MemorySink(), cast(Any, Clock())))


def test_one_wrong_clock_of_three_is_the_one_that_is_named() -> None:
    made = clocks()
    made.heard("m2", 3600.0, 1.0)
    made.heard("m3", 0.1, 1.0)
    assert list(made.off(1.0)) == ["m2"]
    assert made.corrected(50.0, 1.0) == 50.0, "a clock that is right is not corrected"


def test_a_manager_whose_own_clock_is_wrong_shows_the_time_of_the_others() -> None:
    made = clocks()
    made.heard("m2", -3600.0, 1.0)
    made.heard("m3", -3600.2, 1.0)
    assert list(made.off(1.0)) == ["m1"]
    assert made.corrected(7200.0, 1.0) == 3600.0


def test_a_note_that_waited_does_not_make_a_clock_wrong() -> None:
    made = clocks()
    for at, ahead_s in ((1.0, -0.002), (1.5, -4.0), (2.0, -3.5)):
        made.heard("m2", ahead_s, at)
        made.heard("m3", -0.001, at)
    assert made.off(2.0) == {}


def test_of_two_clocks_both_are_reported_and_one_that_is_silent_is_forgotten() -> None:
    made = clocks()
    made.heard("m2", 10.0, 1.0)
    assert made.off(1.0) == {"m1": -5.0, "m2": 5.0}
    assert made.off(1.0 + 2 * SAMPLE_S) == {}


def test_each_change_is_logged_once() -> None:
    sink = MemorySink()
    made = clocks(sink)
    for at in (1.0, 1.5):
        made.heard("m2", 2.0, at)
        made.heard("m3", 0.0, at)
        made.report(at)
    for at in (10.0, 10.5):
        made.heard("m2", 0.0, at)
        made.heard("m3", 0.0, at)
        made.report(at)
    assert sink.events() == ["clock_off", "clock_on_time"]
    assert sink.records[0].fields == {"manager": "m2", "ahead_s": 2.0}
