"""When the generator's own numbers make a run DEGRADED or INVALID."""

from __future__ import annotations

import pytest

from squall.stats.totals.run import RunStats
from squall.stats.verdict import judge, judge_live
from squall.stats.verdict_settings import VerdictSettings
from tests.unit.stats.lab.reports import (
    Blocked,
    StartsDelta,
    file_manifest,
    health,
    open_profile,
    window,
    workflow_manifest,
)

LATE_LAG = [0.015] * 10


def healthy_run(seconds: int = 10, *, is_open: bool = False) -> RunStats:
    profile = open_profile(max_vus=100) if is_open else None
    stats = RunStats(file_manifest(workflow_manifest(profile=profile)))
    for second in range(1, seconds + 1):
        stats.add(health(float(second)))
    return stats


def started(stats: RunStats, *, busy: int = 100, seconds: int = 10, **starts: float) -> RunStats:
    """Spread over windows as in a run; the numbers are those of the whole."""
    for second in range(seconds):
        stats.add(window(second, busy=busy, starts=StartsDelta()))
    delta = StartsDelta(
        planned=int(starts.get("planned", 0)),
        made=int(starts.get("made", 0)),
        late=int(starts.get("late", 0)),
        late_max_s=starts.get("late_max_s", 0.0),
        dropped=int(starts.get("dropped", 0)),
    )
    stats.add(window(seconds - 1, busy=busy, starts=delta))
    return stats


def test_a_quiet_generator_is_valid() -> None:
    verdict = judge(healthy_run())
    assert (verdict.state, verdict.reasons, verdict.headline) == ("VALID", [], "")


def test_a_run_without_any_report_is_valid() -> None:
    assert judge(RunStats(file_manifest())).state == "VALID"


def test_a_full_cpu_with_a_punctual_loop_is_healthy() -> None:
    stats = RunStats(file_manifest())
    for second in range(1, 301):
        stats.add(health(float(second), cpu=1.0))
    assert judge(stats).state == "VALID"


@pytest.mark.parametrize(("bad", "state"), [(30, "VALID"), (31, "DEGRADED"), (151, "INVALID")])
def test_saturated_seconds(bad: int, state: str) -> None:
    stats = RunStats(file_manifest())
    for second in range(1, 301):
        saturated = second <= bad
        lag_s = LATE_LAG if saturated else [0.001] * 10
        stats.add(health(float(second), cpu=0.98 if saturated else 0.5, lag_s=lag_s))
    assert judge(stats).state == state


def test_the_saturated_line_says_how_long_and_what_to_do() -> None:
    stats = RunStats(file_manifest())
    for second in range(1, 301):
        lag_s = LATE_LAG if second <= 212 else [0.001] * 10
        stats.add(health(float(second), cpu=0.98, lag_s=lag_s))
    assert judge(stats).reasons == [
        "generator at 98 % CPU for 212 of 300 s; start again with fewer VUs or more processes"
    ]
    assert judge(stats).headline == "CPU"


def test_two_saturated_seconds_are_too_few_to_be_invalid() -> None:
    stats = RunStats(file_manifest())
    for second in range(1, 4):
        stats.add(health(float(second), cpu=1.0, lag_s=LATE_LAG if second < 3 else [0.001]))
    assert judge(stats).state == "DEGRADED"


def test_one_saturated_process_of_two_is_enough_and_is_named() -> None:
    stats = healthy_run(20)
    for second in range(1, 21):
        stats.add(health(float(second), process=1, cpu=1.0, lag_s=LATE_LAG))
    verdict = judge(stats)
    assert verdict.state == "INVALID"
    assert verdict.reasons[0].startswith("process 1 of the generator at 100 % CPU for 20 of 20 s")


@pytest.mark.parametrize(
    ("lag_s", "state"), [(0.019, "VALID"), (0.021, "DEGRADED"), (0.12, "INVALID")]
)
def test_loop_lag_over_the_run(lag_s: float, state: str) -> None:
    stats = RunStats(file_manifest())
    for second in range(1, 11):
        stats.add(health(float(second), lag_s=[0.001] * 90 + [lag_s] * 10))
    verdict = judge(stats)
    assert verdict.state == state
    assert verdict.headline == ("loop lag" if state != "VALID" else "")


@pytest.mark.parametrize(
    ("seconds", "state"), [(0.009, "VALID"), (0.02, "DEGRADED"), (0.84, "INVALID")]
)
def test_code_that_blocks_the_loop(seconds: float, state: str) -> None:
    stats = RunStats(file_manifest())
    blocked = Blocked("Shop", "home", "shop.py:14", "time.sleep", seconds)
    for second in range(1, 11):
        stats.add(health(float(second), blocked=[blocked]))
        stats.add(health(float(second), process=1))
    verdict = judge(stats)
    assert verdict.state == state
    if state == "INVALID":
        assert verdict.reasons == [
            "Shop.home blocked the loop for 84 % of the run at shop.py:14 (time.sleep)"
        ]


def test_the_warm_up_is_not_held_against_the_generator() -> None:
    stats = RunStats(file_manifest(), warmup_s=3.0)
    for second in range(1, 11):
        lag_s = [0.5] * 10 if second <= 3 else [0.001] * 10
        stats.add(health(float(second), cpu=1.0, lag_s=lag_s))
    assert judge(stats).state == "VALID"
    assert stats.health.windows.at(0).lag_max_s == 0.5


def test_too_few_starts_are_invalid() -> None:
    stats = started(healthy_run(is_open=True), planned=1000, made=940, dropped=60)
    assert judge(stats).reasons == [
        "Shop made 940 of 1000 planned starts (94 %), 60 dropped; raise max_vus above 100"
    ]
    assert judge(stats).state == "INVALID"


def test_any_dropped_start_degrades_and_says_what_to_do() -> None:
    stats = started(healthy_run(is_open=True), planned=10_000, made=9_996, dropped=4)
    assert judge(stats).state == "DEGRADED"
    assert judge(stats).reasons == [
        "Shop dropped 4 of 10000 planned starts (0.04 %); raise max_vus above 100"
    ]


def test_more_users_are_not_advised_when_some_were_free() -> None:
    stats = started(healthy_run(is_open=True), busy=7, planned=1000, made=999, dropped=1)
    assert "lower the rate" in judge(stats).reasons[0]


@pytest.mark.parametrize(("late", "state"), [(10, "VALID"), (11, "DEGRADED")])
def test_late_starts(late: int, state: str) -> None:
    stats = started(healthy_run(is_open=True), planned=1000, made=1000, late=late, late_max_s=0.35)
    verdict = judge(stats)
    assert verdict.state == state
    if verdict.reasons:
        assert "made 11 of 1000 starts late (1.1 %, at most 350 ms)" in verdict.reasons[0]


def test_closed_models_have_no_planned_starts_to_miss() -> None:
    stats = started(healthy_run(), planned=1000, made=10)
    assert judge(stats).state == "VALID"


def test_in_mid_run_a_start_that_waits_is_not_lost() -> None:
    stats = started(healthy_run(is_open=True), planned=1000, made=900)
    assert judge_live(stats).state == "VALID"
    assert judge(stats).state == "INVALID"


def test_in_mid_run_the_first_seconds_are_not_judged() -> None:
    stats = RunStats(file_manifest())
    for second in (1, 2, 3):
        stats.add(health(float(second), lag_s=[0.2] * 10))
        assert judge_live(stats).state == ("INVALID" if second == 3 else "VALID")


def test_reasons_of_the_engine_are_sorted_in_by_severity() -> None:
    stats = started(healthy_run(is_open=True), planned=1000, made=999, dropped=1)
    verdict = judge(
        stats,
        [
            ("DEGRADED", "3 users of Shop could not start"),
            ("INVALID", "process 1 died: killed by signal 9"),
        ],
    )
    assert verdict.state == "INVALID"
    assert [reason.split()[0] for reason in verdict.reasons] == ["process", "Shop", "3"]
    assert verdict.headline == "process 1 died"
    assert all("\n" not in reason for reason in verdict.reasons)


def test_the_limits_are_settings() -> None:
    strict = VerdictSettings(lag_degraded_s=0.0001)
    stats = RunStats(file_manifest(), settings=strict)
    stats.add(health(1.0))
    assert judge(stats).state == "DEGRADED"
