from __future__ import annotations

import math

from squall.cluster.gate.routing.reachability import CorrelationGuard, Reach, Reachability
from squall.cluster.gate.routing.settings import RoutingSettings

SETTINGS = RoutingSettings()


class Probes:
    """Probes some datacenters every two seconds; misses count when their timeout is over."""

    def __init__(self, *names: str) -> None:
        self.reaches = {name: Reach() for name in names}
        self.guard = CorrelationGuard(SETTINGS)
        self.now = 0.0
        self._pending: list[tuple[float, str]] = []

    def run(self, until: float, silent: tuple[str, ...] = ()) -> None:
        while self.now < until:
            for name, reach in self.reaches.items():
                if name in silent:
                    self._pending.append((self.now, name))
                else:
                    reach.answered(self.now)
            due = [each for each in self._pending if each[0] + 5.0 <= self.now]
            for asked_at, name in due:
                self._pending.remove((asked_at, name))
                self.reaches[name].missed(asked_at, self.now, SETTINGS)
            self.guard.check(self.reaches, self.now)
            self.now += 1.0

    def states(self) -> dict[str, str]:
        return {name: reach.state.value for name, reach in self.reaches.items()}


def test_a_datacenter_is_unknown_until_its_first_answer() -> None:
    reach = Reach()
    reach.missed(0.0, 5.0, SETTINGS)
    assert reach.state is Reachability.UNKNOWN
    reach.answered(6.0)
    assert reach.state is Reachability.REACHABLE
    assert reach.misses == 0


def test_four_misses_are_nothing_and_five_are_a_suspicion() -> None:
    reach = Reach()
    reach.answered(0.0)
    for number in range(4):
        reach.missed(1.0 + number, 6.0 + number, SETTINGS)
    assert reach.state is Reachability.REACHABLE
    reach.missed(5.0, 10.0, SETTINGS)
    assert reach.state is Reachability.SUSPECTED
    assert reach.suspected_at == 10.0


def test_an_answer_in_between_starts_the_count_again() -> None:
    reach = Reach()
    for number in range(4):
        reach.missed(1.0 + number, 6.0 + number, SETTINGS)
    reach.answered(10.0)
    for number in range(4):
        reach.missed(11.0 + number, 16.0 + number, SETTINGS)
    assert reach.state is Reachability.REACHABLE


def test_a_miss_of_a_probe_before_the_last_answer_does_not_count() -> None:
    reach = Reach()
    reach.answered(10.0)
    for _ in range(9):
        reach.missed(8.0, 13.0, SETTINGS)
    assert reach.misses == 0


def test_a_cut_datacenter_is_suspected_within_15_s_and_unreachable_within_45_s() -> None:
    probes = Probes("eu", "us", "ap")
    probes.run(20.0)
    probes.run(35.0, silent=("ap",))
    assert probes.states() == {"eu": "reachable", "us": "reachable", "ap": "suspected"}
    probes.run(66.0, silent=("ap",))
    assert probes.states()["ap"] == "unreachable"
    probes.run(68.0)
    assert probes.states()["ap"] == "reachable"
    assert math.isinf(probes.reaches["ap"].suspected_at)


def test_datacenters_that_fall_silent_together_are_held_back_for_a_minute() -> None:
    probes = Probes("eu", "us", "ap")
    probes.run(20.0)
    probes.run(70.0, silent=("eu", "us", "ap"))
    assert set(probes.states().values()) == {"suspected"}
    assert probes.guard.held == {"eu", "us", "ap"}
    probes.run(110.0, silent=("eu", "us", "ap"))
    assert set(probes.states().values()) == {"unreachable"}
    assert not probes.guard.holds


def test_one_of_three_is_not_held_back() -> None:
    probes = Probes("eu", "us", "ap")
    probes.run(20.0)
    probes.run(60.0, silent=("eu",))
    assert not probes.guard.holds


def test_the_only_datacenter_is_not_held_back() -> None:
    probes = Probes("eu")
    probes.run(20.0)
    probes.run(66.0, silent=("eu",))
    assert probes.states() == {"eu": "unreachable"}


def test_the_guard_ends_when_the_network_is_back_for_most() -> None:
    probes = Probes("eu", "us", "ap")
    probes.run(20.0)
    probes.run(40.0, silent=("eu", "us", "ap"))
    assert probes.guard.holds
    probes.run(44.0, silent=("ap",))
    assert not probes.guard.holds
    probes.run(80.0, silent=("ap",))
    assert probes.states() == {"eu": "reachable", "us": "reachable", "ap": "unreachable"}


def test_a_standstill_of_the_gate_is_no_miss_and_no_suspicion() -> None:
    probes = Probes("eu", "us")
    probes.run(20.0)
    probes.run(35.0, silent=("eu",))
    assert probes.states()["eu"] == "suspected"
    # The gate was stopped for a minute; then its pending probes are over.
    probes.now += 60.0
    probes.reaches["us"].missed(35.0, probes.now, SETTINGS)
    probes.guard.check(probes.reaches, probes.now)
    assert probes.states() == {"eu": "suspected", "us": "reachable"}
    assert probes.reaches["us"].misses == 0


def test_silence_is_counted_from_the_first_probe_or_the_last_answer() -> None:
    reach = Reach()
    assert reach.silent_s(5.0) == 0.0
    reach.asked_at = 2.0
    assert reach.silent_s(5.0) == 3.0
    reach.answered(6.0)
    assert reach.silent_s(10.0) == 4.0
