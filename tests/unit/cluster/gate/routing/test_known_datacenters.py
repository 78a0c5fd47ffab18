from __future__ import annotations

import pytest

from squall.cluster.gate.routing.choice import RoutingRequest, choose
from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.gate.routing.report_order import replaces
from squall.cluster.gate.routing.scores import load_factor
from squall.cluster.gate.routing.settings import RoutingSettings, fast
from squall.cluster.membership.round_trips import RoundTripEstimate
from tests.unit.cluster.gate.lab import report, status

SETTINGS = RoutingSettings()
GIVEN = {"eu": ["10.0.0.1:7400"], "us": ["10.1.0.1:7400"]}


class GateView:
    """The datacenters of one gate, probed every two seconds."""

    def __init__(self) -> None:
        self.known = KnownDatacenters(GIVEN, SETTINGS)
        self.now = 0.0

    def probe(self, seconds: int, **silent: bool) -> None:
        for _ in range(seconds // 2):
            for name in self.known.names:
                self.known.asked(name, self.now)
                if name in silent:
                    self.known.missed(name, self.now, self.now + 0.1)
                else:
                    self.answer(name)
            self.known.check(self.now)
            self.now += 2.0

    def answer(self, name: str, **changed: object) -> None:
        rtt_ms = 8.0 if name == "eu" else 90.0
        self.known[name].answered(report(datacenter=name, **changed), rtt_ms, self.now, self.now)

    def health(self, name: str) -> Health:
        return next(s.health for s in self.known.statuses(self.now) if s.name == name)

    def chosen(self, key: str = "k") -> str:
        decision = choose(RoutingRequest(key=key), self.known.statuses(self.now), SETTINGS)
        return decision.parts[0].datacenter if decision.parts else ""


# The order of reports.


@pytest.mark.parametrize(
    ("new", "age_s", "taken"),
    [
        ({"committed": 101}, 2.0, True),
        ({"committed": 100}, 2.0, True),
        ({"committed": 99}, 2.0, False),
        ({"epoch": 1, "committed": 5}, 2.0, True),
        ({"committed": 101, "leads": False}, 2.0, False),
        ({"committed": 101, "leads": False}, 9.0, True),
        ({"committed": 99, "leads": False}, 9.0, False),
        ({"epoch": 1, "committed": 101, "leads": False}, 2.0, True),
        ({"group": "b2", "committed": 1}, 2.0, False),
        ({"group": "b2", "committed": 1}, 9.0, True),
    ],
)
def test_reports_have_an_order(new: dict[str, object], age_s: float, taken: bool) -> None:
    assert replaces(report(**new), report(), age_s, SETTINGS.stale_s) is taken


def test_a_report_of_a_group_that_was_not_formed_yet_is_always_replaced() -> None:
    assert replaces(report(), report(group="", committed=0, leads=False), 0.5, SETTINGS.stale_s)


def test_a_late_report_of_a_former_leader_changes_nothing_but_proves_that_it_is_there() -> None:
    gate = GateView()
    gate.probe(4)
    gate.now += 6.0
    gate.answer("eu", committed=50, free=0)
    assert gate.known["eu"].report == report(datacenter="eu")
    assert gate.known["eu"].reach.heard_at == gate.now


# Managers.


def test_the_managers_are_learned_and_the_leader_is_asked_first() -> None:
    gate = GateView()
    assert gate.known["us"].managers == ["10.1.0.1:7400"]
    gate.answer("us", managers=["10.1.0.2:7400", "10.1.0.3:7400"], leader_address="10.1.0.3:7400")
    assert gate.known["us"].managers == ["10.1.0.3:7400", "10.1.0.2:7400", "10.1.0.1:7400"]


# Own jobs under way.


def test_jobs_of_one_moment_do_not_all_go_to_the_same_datacenter() -> None:
    gate = GateView()
    gate.probe(20)
    sent: list[str] = []
    for number in range(3):
        sent.append(gate.chosen(f"k{number}"))
        gate.known.dispatched(sent[-1], f"job{number}", 12, gate.now)
    assert sent[:2] == ["eu", "us"]
    assert gate.health("eu") is Health.BUSY
    assert gate.health("us") is Health.BUSY


def test_a_part_counts_until_a_report_counts_it() -> None:
    gate = GateView()
    gate.probe(10)
    gate.known.dispatched("eu", "job.eu1", 4, gate.now)
    gate.known.dispatched("eu", "job.eu1", 4, gate.now)
    assert gate.known["eu"].view(gate.now).free == 8
    gate.probe(4)
    assert gate.known["eu"].unreported.cores == 4
    gate.known.accepted("eu", "job.eu1", gate.now)
    gate.probe(2)
    assert gate.known["eu"].unreported.cores == 4
    gate.probe(2)
    assert gate.known["eu"].unreported.cores == 0


def test_a_refusal_frees_the_cores_and_cools_the_datacenter_down() -> None:
    gate = GateView()
    gate.probe(20)
    assert gate.chosen() == "eu"
    gate.known.dispatched("eu", "job.eu1", 4, gate.now)
    gate.known.refused("eu", "job.eu1", "needs 8 cores", gate.now)
    assert gate.known["eu"].unreported.cores == 0
    assert gate.chosen() == "us"
    assert gate.known["eu"].cool_down.factor(gate.now) == 3.0
    assert gate.known["eu"].cool_down.factor(gate.now + 15.0) == 2.0
    gate.probe(32)
    assert gate.chosen() == "eu"


def test_an_ended_part_takes_no_core() -> None:
    gate = GateView()
    gate.probe(4)
    gate.known.dispatched("eu", "job.eu1", 4, gate.now)
    gate.known.over("eu", "job.eu1")
    assert len(gate.known["eu"].unreported) == 0


# Loss of a datacenter.


def test_no_job_goes_to_a_lost_datacenter_after_ten_seconds() -> None:
    gate = GateView()
    gate.probe(20)
    assert gate.chosen() == "eu"
    gate.probe(10, eu=True)
    assert gate.chosen() == "us"
    gate.probe(40, eu=True)
    assert gate.health("eu") is Health.UNREACHABLE
    view = gate.known["eu"].view(gate.now)
    assert (view.managers_heard, view.managers_total) == (0, 3)
    assert view.reason.startswith("no manager heard for")
    gate.probe(2)
    assert gate.health("eu") is Health.HEALTHY


def test_a_change_of_health_is_reported_once() -> None:
    gate = GateView()
    gate.probe(4)
    assert gate.known.check(gate.now) == []
    gate.answer("eu", free=0, committed=101)
    changes = gate.known.check(gate.now)
    assert [(c.datacenter, c.before.health, c.after.health) for c in changes] == [
        ("eu", Health.HEALTHY, Health.BUSY)
    ]
    assert gate.known.check(gate.now) == []


def test_a_datacenter_that_never_answered_is_unknown_and_then_unreachable() -> None:
    gate = GateView()
    gate.probe(6, us=True)
    assert gate.health("us") is Health.UNKNOWN
    assert gate.chosen() == "eu"
    gate.probe(10, us=True)
    assert gate.health("us") is Health.UNREACHABLE
    assert gate.known["us"].view(gate.now).heard_s == -1.0


# Round trips and scores.


def test_one_late_answer_does_not_change_the_round_trip() -> None:
    rtt = RoundTripEstimate()
    for _ in range(20):
        rtt.add(80.0)
    before = rtt.upper_ms
    rtt.add(4000.0)
    assert rtt.upper_ms == pytest.approx(before, rel=0.05)
    for bad in (float("nan"), float("inf"), -1.0):
        rtt.add(bad)
    assert rtt.samples == 21


def test_a_doubled_round_trip_is_known_within_a_minute() -> None:
    rtt = RoundTripEstimate()
    for _ in range(30):
        rtt.add(40.0)
    for _ in range(30):
        rtt.add(80.0)
    assert rtt.mean_ms == pytest.approx(80.0, rel=0.05)


def test_the_load_of_a_full_datacenter_is_twice_that_of_an_empty_one() -> None:
    assert load_factor(status("a"), SETTINGS) == 1.0
    assert load_factor(status("a", free=0), SETTINGS) == 2.0
    assert load_factor(status("a", queued=16), SETTINGS) == 1.5


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="probe_s must be above 0, not 0"):
        RoutingSettings(probe_s=0)
    with pytest.raises(ValueError, match="cool_down_factor must be at least 1"):
        RoutingSettings(cool_down_factor=0.5)
    assert fast(SETTINGS).probe_s == pytest.approx(0.2)
    assert fast(SETTINGS).misses_max == 5
