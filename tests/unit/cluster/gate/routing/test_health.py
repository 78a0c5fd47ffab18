from __future__ import annotations

import pytest

from squall.cluster.gate.routing.health import Health, HealthState, classify
from squall.cluster.gate.routing.reachability import Reach
from squall.cluster.gate.routing.settings import RoutingSettings
from tests.unit.cluster.gate.lab import report

SETTINGS = RoutingSettings()


@pytest.mark.parametrize(
    ("changed", "health", "reason"),
    [
        ({}, Health.HEALTHY, ""),
        ({"managers_heard": 0}, Health.UNHEALTHY, "no manager is heard"),
        ({"workers": 0, "healthy": 0}, Health.UNHEALTHY, "it has no worker"),
        ({"healthy": 0}, Health.UNHEALTHY, "none of its 4 workers is heard"),
        ({"healthy": 2}, Health.DEGRADED, "2 of 4 workers are heard"),
        ({"healthy": 3}, Health.HEALTHY, ""),
        ({"managers_heard": 1}, Health.DEGRADED, "1 of 3 managers are heard"),
        ({"managers_heard": 2}, Health.HEALTHY, ""),
        ({"managers_heard": 1, "managers_total": 1}, Health.HEALTHY, ""),
        ({"leader": ""}, Health.DEGRADED, "no manager leads"),
        ({"free": 0}, Health.BUSY, "no core free"),
        ({"free": 1}, Health.HEALTHY, ""),
        # The worse rule comes first.
        ({"free": 0, "healthy": 2}, Health.DEGRADED, "2 of 4 workers are heard"),
    ],
)
def test_a_report_has_one_health(changed: dict[str, object], health: Health, reason: str) -> None:
    found = classify(report(**changed), own_cores=0)
    assert (found.health, found.reason) == (health, reason)


def test_own_jobs_under_way_take_free_cores() -> None:
    assert classify(report(free=8), own_cores=7).health is Health.HEALTHY
    found = classify(report(free=8), own_cores=8)
    assert found.health is Health.BUSY
    assert "just sent" in found.reason


class Reports:
    """Feeds the health of one datacenter that answers every probe."""

    def __init__(self) -> None:
        self.state = HealthState(SETTINGS)
        self.reach = Reach()
        self.now = 0.0

    def feed(self, seconds: int, **changed: object) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.reach.answered(self.now)
            self.state.reported(report(**changed), 0, self.now)

    @property
    def health(self) -> Health:
        return self.state.now(self.reach, 0.0, self.now).health


def test_the_first_report_counts_at_once() -> None:
    reports = Reports()
    assert reports.health is Health.UNKNOWN
    reports.feed(1)
    assert reports.health is Health.HEALTHY


def test_a_datacenter_that_starts_is_usable_at_once() -> None:
    reports = Reports()
    reports.feed(3, workers=0, healthy=0)
    reports.feed(1)
    assert reports.health is Health.HEALTHY


def test_a_worse_state_counts_at_once_and_a_better_one_after_three_seconds() -> None:
    reports = Reports()
    reports.feed(1)
    reports.feed(1, healthy=0)
    assert reports.health is Health.UNHEALTHY
    reports.feed(3)
    assert reports.health is Health.UNHEALTHY
    reports.feed(1)
    assert reports.health is Health.HEALTHY


def test_a_core_that_is_free_for_a_moment_does_not_end_busy() -> None:
    reports = Reports()
    reports.feed(1, free=0)
    for _ in range(20):
        reports.feed(2, free=8)
        reports.feed(1, free=0)
        assert reports.health is Health.BUSY


def test_busy_ends_when_a_share_of_the_cores_stays_free() -> None:
    reports = Reports()
    reports.feed(1, free=0)
    # 5 % of 32 cores are 1.6: one is not enough.
    reports.feed(10, free=1)
    assert reports.health is Health.BUSY
    reports.feed(4, free=2)
    assert reports.health is Health.HEALTHY


def test_busy_says_for_how_long() -> None:
    reports = Reports()
    reports.feed(15, free=0)
    assert reports.state.now(reports.reach, 0.0, reports.now).reason == "no core free for 14 s"


def test_an_old_report_degrades() -> None:
    reports = Reports()
    reports.feed(1)
    found = reports.state.now(reports.reach, 9.0, reports.now + 9.0)
    assert (found.health, found.reason) == (Health.DEGRADED, "no report for 9 s")


def test_an_old_report_does_not_improve_an_unhealthy_datacenter() -> None:
    reports = Reports()
    reports.feed(1, workers=0, healthy=0)
    assert reports.state.now(reports.reach, 9.0, reports.now + 9.0).health is Health.UNHEALTHY


def test_health_after_an_outage_is_that_of_the_first_report() -> None:
    reports = Reports()
    reports.feed(1, free=0)
    reports.state.forget()
    reports.feed(1)
    assert reports.health is Health.HEALTHY


def test_a_datacenter_that_was_just_asked_has_not_failed_to_answer() -> None:
    state, reach = HealthState(SETTINGS), Reach(asked_at=10.0)
    assert state.now(reach, 0.0, 10.1).reason == "no manager has answered yet"
    assert state.now(reach, 0.0, 13.0).reason == "no manager answered in 3 s"
