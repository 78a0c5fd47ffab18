"""The moment that a live line or a screen draws."""

from __future__ import annotations

import msgspec
import pytest

from squall.stats.manifest import Profile, Stage
from squall.stats.snapshot import Snapshot, ThresholdState, target_rate_per_s
from squall.stats.totals.run import RunStats
from tests.unit.stats.lab.reports import (
    StartsDelta,
    file_manifest,
    health,
    open_profile,
    row,
    window,
    workflow_manifest,
)


def open_run() -> RunStats:
    return RunStats(file_manifest(workflow_manifest(profile=open_profile(rate_per_s=20))))


def test_it_shows_the_last_second_and_the_totals() -> None:
    stats = open_run()
    starts = StartsDelta(planned=20, made=19, late=1, late_max_s=0.004, dropped=1)
    stats.add(window(0, [row("pay", [0.1] * 10)], iterations=10, users=4, starts=starts))
    stats.add(window(1, [row("pay", [0.2] * 15, [0.9] * 5)], iterations=20, users=6))
    stats.add(health(1.0, cpu=0.4))
    stats.add(health(2.0, cpu=0.6))
    shot = stats.snapshot(2.1)
    (shop,) = shot.workflows
    assert (shop.rate_now_per_s, shop.target_per_s, shop.executions_now_per_s) == (20, 20, 20)
    assert (shop.users, shop.iterations) == (6, 30)
    assert shop.failed_share == pytest.approx(5 / 30)
    assert shop.failed_now_share == 0.25
    assert (shop.p50_now_s, shop.p99_now_s) == (pytest.approx(0.2, rel=0.01), 0.9)
    assert shop.samples_now == 20
    assert (shop.planned, shop.late, shop.dropped) == (20, 1, 1)
    assert [each.name for each in shop.rows] == ["login", "pay", "iteration"]
    assert shop.rows[1].rate_now_per_s == 20
    assert [(line.count, line.reason) for line in shop.errors] == [(5, "503 Service Unavailable")]
    assert (shot.cpu, shot.processes) == (0.6, 1)


def test_it_is_frozen_plain_data_that_can_travel() -> None:
    stats = open_run()
    stats.add(window(0, [row("pay", [0.1])], iterations=1))
    state = ThresholdState(expression="errors < 1%", condition="passing", value=0.0, unit="%")
    shot = stats.snapshot(1.0, verdict="DEGRADED", reasons=["loop lag"], thresholds=[state])
    stats.add(window(0, [row("pay", [0.1] * 100)], iterations=100))
    assert shot.workflows[0].iterations == 1
    assert msgspec.json.decode(msgspec.json.encode(shot), type=Snapshot) == shot
    with pytest.raises(AttributeError):
        shot.cpu = 1.0  # type: ignore[misc]
    hash(shot)


def test_workflows_that_have_not_started_are_not_shown() -> None:
    stats = open_run()
    assert stats.snapshot(0.0).workflows == ()


def test_a_workflow_of_actions_shows_its_iterations() -> None:
    stats = RunStats(file_manifest(workflow_manifest(steps=[], actions=["work"])))
    stats.add(window(0, iterations=[0.25] * 4))
    assert stats.snapshot(1.0).workflows[0].p50_now_s == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize(
    ("at_s", "wanted"), [(0, 0), (30, 25), (60, 50), (90, 50), (125, 25), (400, 0)]
)
def test_the_target_of_a_ramp_follows_its_stages(at_s: float, wanted: float) -> None:
    stages = (Stage(60, 50), Stage(60, 50), Stage(10, 0))
    profile = Profile(model="open-ramp", stages=stages, duration_s=130)
    assert target_rate_per_s(profile, at_s) == pytest.approx(wanted)


def test_a_stage_of_no_length_jumps() -> None:
    profile = Profile(model="open-ramp", stages=(Stage(0, 50), Stage(10, 100)), duration_s=10)
    assert target_rate_per_s(profile, 0) == 50


def test_closed_models_have_no_target_rate() -> None:
    assert target_rate_per_s(Profile(model="closed", vus=5), 1.0) is None


def test_a_workflow_that_ended_has_no_present() -> None:
    stats = open_run()
    stats.add(window(0, [row("pay", [0.1] * 20)], iterations=20, users=4, busy=4))
    stats.workflows["Shop"].elapsed_s = 1.02
    (shop,) = stats.snapshot(4.0).workflows
    assert shop.ended
    assert (shop.rate_now_per_s, shop.executions_now_per_s, shop.samples_now) == (0, 0, 0)
    assert (shop.users, shop.busy, shop.target_per_s) == (0, 0, None)
    assert (shop.iterations, shop.elapsed_s) == (20, 1.02)


def test_a_silent_workflow_past_its_planned_end_is_not_shown_as_alive() -> None:
    profile = open_profile(rate_per_s=20, duration_s=3.0)
    stats = RunStats(file_manifest(workflow_manifest(profile=profile)))
    for second in range(3):
        stats.add(window(second, [row("pay", [0.1] * 20)], iterations=20))
    shown = [stats.snapshot(at_s).workflows[0] for at_s in (3.0, 4.0, 6.0)]
    assert [shop.rate_now_per_s for shop in shown] == [20, 20, 0]
    assert [shop.target_per_s for shop in shown] == [20, None, None]


def test_an_adjusted_rate_is_the_one_that_is_shown() -> None:
    stats = open_run()
    stats.add(window(0, [row("pay", [0.1])], iterations=1))
    shop = stats.workflows["Shop"]
    shop.adjusted_per_s = 60.0
    assert stats.snapshot(1.0).workflows[0].target_per_s == 60.0
    shop.adjusted_per_s = None
    assert stats.snapshot(1.0).workflows[0].target_per_s == 20.0
