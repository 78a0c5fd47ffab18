"""A node that falls behind notices it, and nothing else passes for it."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from squall.cluster.control.overload import Overload, OverloadDetector, OverloadSettings


class Fed:
    def __init__(self) -> None:
        self.detector = OverloadDetector()
        self.now = 100.0

    def __call__(self, *lags_ms: float) -> list[Overload]:
        states: list[Overload] = []
        for lag_ms in lags_ms:
            self.now += 1.0
            states.append(self.detector.feed(lag_ms / 1000.0, self.now))
        return states


@pytest.fixture
def fed() -> Fed:
    return Fed()


@pytest.mark.parametrize(("factor", "least"), [(2, Overload.BUSY), (10, Overload.STRESSED)])
def test_a_lasting_step_is_seen_until_it_ends(fed: Fed, factor: int, least: Overload) -> None:
    fed(*[15.0] * 60)
    states = fed(*[15.0 * factor] * 300)
    assert min(states[10:]) >= least and max(states) <= Overload.STRESSED
    assert fed(*[15.0] * 60)[-1] is Overload.HEALTHY


def test_what_is_hopelessly_late_is_overloaded_from_the_beginning(fed: Fed) -> None:
    states = fed(*[2500.0] * 10)
    assert states[0] is Overload.HEALTHY, "one second alone says nothing"
    assert set(states[2:]) == {Overload.OVERLOADED}


@pytest.mark.parametrize("before", [0, 1, 5, 50])
def test_a_single_spike_is_nothing(fed: Fed, before: int) -> None:
    states = fed(*[5.0] * before, 60_000.0, *[5.0] * 30)
    assert max(states) <= Overload.BUSY


def test_below_twenty_milliseconds_nothing_is_relative(fed: Fed) -> None:
    fed(*[0.1] * 60)
    assert max(fed(*[19.0] * 100)) is Overload.HEALTHY


def test_noise_is_busy_at_worst(fed: Fed) -> None:
    random = Random(3)
    assert max(fed(*[random.uniform(5.0, 80.0) for _ in range(600)])) <= Overload.BUSY


def test_a_slow_ramp_meets_the_absolute_bounds(fed: Fed) -> None:
    states = fed(*[float(step * 10) for step in range(300)])
    assert states[-1] is Overload.OVERLOADED
    assert states == sorted(states), "no sample was better in between"


def test_better_comes_one_by_one_and_not_at_the_first_good_second(fed: Fed) -> None:
    fed(*[2500.0] * 20)
    states = fed(*[1.0] * 40)
    assert states[4] is Overload.OVERLOADED and states[-1] is Overload.HEALTHY
    changes = [b - a for a, b in pairwise(states) if a != b]
    assert changes == [-1, -1, -1]


def test_silence_is_healthy(fed: Fed) -> None:
    fed(*[2500.0] * 20)
    assert fed.detector.state(fed.now + 5.0) is Overload.OVERLOADED
    assert fed.detector.state(fed.now + 11.0) is Overload.HEALTHY


def test_load_never_becomes_usual(fed: Fed) -> None:
    fed(*[10.0] * 60)
    usual_s = fed.detector.baseline_s
    fed(*[150.0] * 2000)
    assert fed.detector.baseline_s == pytest.approx(usual_s, rel=0.5)


def test_bounds_are_settings() -> None:
    detector = OverloadDetector(OverloadSettings(absolute_s=(1.0, 2.0, 3.0), samples_least=1))
    assert detector.feed(0.9, 1.0) is Overload.HEALTHY
