"""When the generator's own numbers make a run DEGRADED or INVALID."""

from __future__ import annotations

import pytest

from squall.stats.manifest import Profile
from squall.stats.reports import ErrorSample
from squall.stats.short_numbers import brief_duration
from squall.stats.totals.run import RunStats
from squall.stats.verdict import judge, judge_live
from squall.stats.verdict_settings import VerdictSettings
from tests.unit.stats.lab.reports import (
    Blocked,
    StartsDelta,
    data,
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
    ("seconds", "late_beats", "percentile"),
    [
        # One hiccup of a shared machine, however long: each beat that it delayed counts.
        (1, 4, ""),
        (2, 5, ""),
        (4, 15, ""),
        # Late often enough to be no accident.
        (1, 10, "p95"),
        (2, 20, "p95"),
        (5, 10, "p99"),
    ],
)
def test_the_loop_lag_of_a_short_run_needs_samples(
    seconds: int, late_beats: int, percentile: str
) -> None:
    stats = RunStats(file_manifest())
    for second in range(seconds):
        late = late_beats if second == 0 else 0
        stats.add(health(second + 1.0, cpu=0.9, lag_s=[0.03] * late + [0.001] * (100 - late)))
    verdict = judge(stats)
    assert verdict.state == ("DEGRADED" if percentile else "VALID")
    if percentile:
        shown = brief_duration(stats.health.lag.quantile(float(percentile[1:]) / 100))
        assert verdict.reasons[0].startswith(f"loop lag {percentile} {shown} at 90 % CPU: ")


@pytest.mark.parametrize(
    ("cpu", "users", "blocked_s", "advice"),
    [
        (0.9, 50, 0.0, "start again with fewer VUs or more processes"),
        (0.9, 1, 0.0, "its steps compute too much"),
        (0.1, 50, 0.0, "the machine was busy with other programs; start again on an idle one"),
        (0.1, 1, 0.0, "the machine was busy with other programs; start again on an idle one"),
        (0.1, 1, 0.2, "lines of your file blocked its loop"),
    ],
)
def test_the_advice_on_loop_lag_fits_its_cause(
    cpu: float, users: int, blocked_s: float, advice: str
) -> None:
    stats = RunStats(file_manifest())
    stats.add(window(0, users=users))
    blocked = [Blocked("Shop", "home", "shop.py:14", "time.sleep", blocked_s)]
    for second in range(1, 11):
        stats.add(health(float(second), cpu=cpu, lag_s=[0.03] * 100, blocked=blocked))
    (reason,) = [each for each in judge(stats).reasons if each.startswith("loop lag")]
    assert reason.endswith(f" CPU: the generator was late to see answers; {advice}")


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


def with_lateness(service_s: float, late_s: float, late: int, planned: int = 1000) -> RunStats:
    """An open run in which some starts were late, and nothing else was odd."""
    stats = healthy_run(is_open=True)
    spread = [service_s * (0.9 + 0.2 * n / planned) for n in range(planned)]
    report = window(
        9,
        busy=7,
        iterations=spread,
        starts=StartsDelta(planned=planned, made=planned, late=late, late_max_s=late_s),
    )
    report.iteration.response = data(
        [took_s + (late_s if n < late else 0.0) for n, took_s in enumerate(spread)]
    )
    stats.add(report)
    return stats


@pytest.mark.parametrize(
    ("service_s", "late_s", "late", "planned", "state"),
    [
        # Seven of 400 starts 8 ms late on a shared machine: what its scheduler takes.
        (0.005, 0.008, 7, 400, "VALID"),
        (0.0005, 0.009, 100, 1000, "VALID"),
        # Late, and small against what was measured.
        (0.400, 0.030, 500, 1000, "VALID"),
        # Too few starts to move a percentile that the number of samples allows to judge.
        (0.020, 0.500, 5, 1000, "VALID"),
        (0.020, 0.300, 1, 50, "VALID"),
        # The tail, or the middle, is that of the generator.
        (0.020, 0.050, 30, 1000, "DEGRADED"),
        (0.020, 0.300, 20, 100, "DEGRADED"),
        (0.400, 0.090, 500, 1000, "DEGRADED"),
    ],
)
def test_late_starts_count_by_what_they_do_to_the_numbers(
    service_s: float, late_s: float, late: int, planned: int, state: str
) -> None:
    assert judge(with_lateness(service_s, late_s, late, planned)).state == state


def test_late_starts_say_which_percentile_they_raised() -> None:
    (reason,) = judge(with_lateness(0.020, 0.350, 30)).reasons
    assert reason.startswith(
        "Shop made 30 of 1000 starts late (3 %, at most 350 ms), which raised its p99 from 21.9 ms "
    )
    assert reason.endswith("; lower the rate or use more processes")


def test_late_starts_of_seconds_are_said_in_seconds() -> None:
    (reason,) = judge(with_lateness(0.200, 1.3, 30)).reasons
    assert "(3 %, at most 1.3 s), which raised its p99 from 220 ms to 1.4" in reason
    assert "e+" not in reason


@pytest.mark.parametrize(
    ("latency_s", "lag_s", "state"),
    [
        (0.050, 0.019, "VALID"),
        (0.050, 0.030, "DEGRADED"),
        (0.500, 0.030, "VALID"),
        (0.500, 0.060, "DEGRADED"),
        (30.0, 0.090, "VALID"),
        (30.0, 0.110, "INVALID"),
    ],
)
def test_a_loop_lag_counts_against_the_latency_up_to_its_limit(
    latency_s: float, lag_s: float, state: str
) -> None:
    stats = RunStats(file_manifest())
    for second in range(1, 11):
        stats.add(health(float(second), lag_s=[lag_s] * 10))
    stats.add(window(9, iterations=[latency_s] * 100))
    assert judge(stats).state == state


@pytest.mark.parametrize(
    ("opened", "unopened", "state"), [(100, 0, "VALID"), (95, 5, "DEGRADED"), (94, 6, "INVALID")]
)
def test_users_that_did_not_start(opened: int, unopened: int, state: str) -> None:
    stats = RunStats(file_manifest(), warmup_s=5.0)
    report = window(0)
    report.opened, report.unopened = opened, unopened
    stats.add(report)
    stats.add(ErrorSample("Shop", "start", "401 Unauthorized", 0.0))
    for verdict in (judge(stats), judge_live(stats)):
        assert verdict.state == state
        if unopened:
            assert verdict.reasons == [
                f"{unopened} of 100 users of Shop did not start: 401 Unauthorized"
            ]


@pytest.mark.parametrize(
    ("made", "lost", "stopped", "state"),
    [
        (100, 0, False, "VALID"),
        (99, 0, False, "INVALID"),
        (99, 0, True, "VALID"),
        (90, 10, False, "VALID"),
        (89, 10, False, "INVALID"),
    ],
)
def test_a_number_of_iterations_is_made_or_the_run_is_invalid(
    made: int, lost: int, stopped: bool, state: str
) -> None:
    profile = Profile(model="iterations", iterations=100, duration_s=30.0)
    stats = RunStats(file_manifest(workflow_manifest(profile=profile)), warmup_s=5.0)
    stats.add(window(2, iterations=40, starts=StartsDelta(planned=40, made=40)))
    stats.add(window(8, iterations=made - 40, starts=StartsDelta(planned=9, made=made - 40)))
    stats.workflows["Shop"].elapsed_s = 30.2
    verdict = judge(stats, completed={} if stopped else {"Shop": lost})
    assert verdict.state == state
    if state == "INVALID":
        assert verdict.reasons == [
            f"Shop made {made} of 100 iterations: its duration of 30 s ended first; "
            "give it a longer one"
        ]


def test_starts_that_are_gone_with_a_worker_need_no_other_rate() -> None:
    stats = started(healthy_run(is_open=True), planned=1000, made=700, dropped=2)
    assert judge(stats).reasons == ["Shop made 700 of 1000 planned starts (70 %), 2 dropped"]


def test_a_finding_of_several_processes_is_one_reason() -> None:
    note = ("DEGRADED", "Shop ended early: no rows left in users.csv")
    assert judge(healthy_run(), [note, note]).reasons == [note[1]]


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


def test_the_same_finding_in_many_workflows_is_listed_for_the_first_few() -> None:
    names = [f"W{number}" for number in range(200)]
    profile = open_profile(max_vus=100)
    stats = RunStats(file_manifest(*(workflow_manifest(name, profile=profile) for name in names)))
    for second in range(1, 11):
        stats.add(health(float(second)))
    for name in names:
        starts = StartsDelta(planned=1000, made=999, dropped=1)
        stats.add(window(9, workflow=name, busy=7, starts=starts))
    verdict = judge(stats)
    assert [reason.split()[0] for reason in verdict.reasons[:5]] == names[:5]
    assert verdict.reasons[5:] == [f"{verdict.headline}: 195 more like these"]
