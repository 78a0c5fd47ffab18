"""Thresholds against the numbers of a run, in mid-run and at the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from squall.stats.manifest import MetricManifest, Profile
from squall.stats.reports import WindowReport
from squall.stats.thresholds.judge import (
    LiveJudgement,
    ThresholdJudge,
    ThresholdResult,
    bind_all,
)
from squall.stats.totals.run import RunStats
from tests.unit.stats.lab.reports import (
    CheckDelta,
    RequestsDelta,
    StartsDelta,
    counter,
    file_manifest,
    gauge,
    rate,
    row,
    sample,
    window,
    workflow_manifest,
)

METRICS = [
    MetricManifest(name="orders", kind="counter"),
    MetricManifest(name="queue", kind="gauge"),
    MetricManifest(name="cached", kind="rate"),
    MetricManifest(name="size", kind="sample", unit="kB"),
]


class Run:
    """A run that is judged each second, as the engine does it."""

    def __init__(self, *thresholds: str, warmup_s: float = 0.0, duration_s: float = 3600) -> None:
        profile = Profile(model="closed", duration_s=duration_s)
        manifest = file_manifest(workflow_manifest(metrics=METRICS, profile=profile))
        self.stats = RunStats(manifest, warmup_s)
        self.judge = ThresholdJudge(bind_all(manifest, thresholds), self.stats)
        self.lives: list[LiveJudgement] = []

    def second(self, *reports: WindowReport) -> LiveJudgement:
        for report in reports:
            self.stats.add(report)
        self.lives.append(self.judge.judge_live(len(self.lives) + 1.0))
        return self.lives[-1]

    def pays(self, seconds: Sequence[float], *, each: int = 10) -> None:
        """One second per latency, with `each` executions of it."""
        for latency_s in seconds:
            report = window(len(self.lives), [row("pay", [latency_s] * each)], iterations=each)
            self.second(report)

    def final(self, elapsed_s: float | None = None) -> list[ThresholdResult]:
        shop = self.stats.workflows["Shop"]
        shop.elapsed_s = float(len(self.lives)) if elapsed_s is None else elapsed_s
        return self.judge.final()

    def result(self, elapsed_s: float | None = None) -> ThresholdResult:
        return self.final(elapsed_s)[0]


def full_second(second: int = 0) -> WindowReport:
    return window(
        second,
        [
            row("login", [0.010] * 20, response=[0.050] * 20, first_byte=[0.004] * 20),
            row("pay", [0.1] * 15, [0.5] * 5),
        ],
        iterations=[0.6] * 20,
        starts=StartsDelta(planned=25, made=20, late=5, dropped=5),
        checks=[CheckDelta("has_price", 18, 2)],
        metrics=[
            counter("orders", 50, count=20),
            gauge("queue", 3.0, 9.0, 4.0),
            rate("cached", 3, 4),
            sample("size", "kB", *[20.0] * 99, 80.0),
        ],
        requests=RequestsDelta(sent=60),
        connect=[0.002] * 3,
    )


@pytest.mark.parametrize(
    ("text", "value", "unit", "samples", "note"),
    [
        ("login.p(95) < 60ms", 50, "ms", 20, "response time, n=20"),
        ("login.service.p(95) < 20ms", 10, "ms", 20, "service time, n=20"),
        ("login.first_byte.max < 20ms", 4, "ms", 20, ""),
        ("pay.avg < 300ms", 200, "ms", 20, "service time"),
        ("pay.min < 300ms", 100, "ms", 20, "service time"),
        ("pay.max < 600ms", 500, "ms", 20, "service time"),
        ("pay.med < 300ms", 100, "ms", 20, "service time"),
        ("pay.count == 20", 20, "", 20, ""),
        ("pay.rps > 5/s", 10, "/s", 20, ""),
        ("pay.errors < 30%", 25, "%", 20, ""),
        ("connect.max < 20ms", 2, "ms", 3, "all connections of Shop"),
        ("errors < 20%", 12.5, "%", 40, ""),
        ("errors.count < 6", 5, "", 5, ""),
        ("checks >= 90%", 90, "%", 20, ""),
        ("dropped <= 20%", 20, "%", 25, ""),
        ("late.count < 6", 5, "", 5, ""),
        ("rps > 19", 20, "/s", 40, ""),
        ("iterations > 19", 20, "", 20, ""),
        ("iterations > 9/s", 10, "/s", 20, ""),
        ("iteration.max < 1s", 600, "ms", 20, "service time"),
        ("orders > 24/s", 25, "/s", 50, ""),
        ("orders > 49", 50, "", 50, ""),
        ("queue < 5", 4, "", 3, ""),
        ("queue.max < 10", 9, "", 3, ""),
        ("queue.min > 2", 3, "", 3, ""),
        ("cached > 70%", 75, "%", 4, ""),
        ("size.p(95) < 21", 20, "kB", 100, ""),
        ("size.p(99) < 21", 20, "kB", 100, "n=100"),
        ("size.max < 81", 80, "kB", 100, ""),
        ("size.avg < 21", 20.6, "kB", 100, ""),
        ("size.count > 99", 100, "", 100, ""),
        ("http_req_duration: max<501", 500, "ms", 40, "service time"),
        ("http_req_duration{step:login}: max<11", 10, "ms", 20, "service time"),
        ("http_req_failed: rate<0.2", 12.5, "%", 40, ""),
        ("http_reqs: rate>29", 30, "/s", 60, ""),
        ("http_req_waiting: max<5", 4, "ms", 20, ""),
    ],
)
def test_the_value_of_every_subject(
    text: str, value: float, unit: str, samples: int, note: str
) -> None:
    run = Run(text)
    run.second(full_second())
    run.second()
    result = run.result()
    assert result.passed
    assert result.first_failed_at_s is None
    assert result.value == pytest.approx(value, rel=0.01)
    assert (result.unit, result.samples, result.note) == (unit, samples, note)


@pytest.mark.parametrize(
    ("op", "passes"),
    [
        ("<", (True, False, False)),
        ("<=", (True, True, False)),
        (">", (False, False, True)),
        (">=", (False, True, True)),
        ("==", (False, True, False)),
        ("!=", (True, False, True)),
    ],
)
def test_comparisons_at_below_and_above_the_limit(op: str, passes: tuple[bool, ...]) -> None:
    for count, passed in zip((9, 10, 11), passes, strict=True):
        run = Run(f"pay.count {op} 10")
        run.pays([0.1], each=count)
        assert run.result().passed is passed


def test_no_samples_fails() -> None:
    run = Run("login.p(95) < 5s", "checks > 1%", "size.p(95) < 5", "queue < 5")
    run.pays([0.1] * 3)
    results = run.final()
    assert [(each.passed, each.note, each.value) for each in results] == [
        (False, "no samples", None)
    ] * 4
    assert all(each.first_failed_at_s == 3.0 for each in results)
    assert run.lives[-1].states[0].condition == "pending"


def test_a_counter_that_never_counted_is_zero_when_iterations_ran() -> None:
    run = Run("orders == 0", "dropped.count == 0", "login.count == 0")
    run.pays([0.1])
    assert [each.passed for each in run.final()] == [True, True, True]
    idle = Run("orders == 0")
    idle.second(window(0))
    assert idle.result().note == "no samples"


@pytest.mark.parametrize(
    ("text", "passed"), [("orders < 5", True), ("orders < 5/s", True), ("orders > 0", False)]
)
def test_a_counter_of_what_never_happened_is_zero_and_says_so(text: str, passed: bool) -> None:
    run = Run(text)
    run.pays([0.1])
    result = run.result()
    assert (result.passed, result.value, result.note) == (passed, 0.0, "nothing was counted")
    counted = Run(text)
    counted.second(window(0, metrics=[counter("orders", 1)], iterations=1))
    assert counted.result().note == ""


def test_a_count_of_a_step_that_never_ran_is_no_sample() -> None:
    run = Run("login.count < 5", "login.count >= 0", "login.rps < 5")
    run.pays([0.1])
    assert [(each.passed, each.note) for each in run.final()] == [
        (False, "no samples"),
        (True, ""),
        (False, "no samples"),
    ]


def test_the_value_at_the_end_decides_without_over() -> None:
    run = Run("pay.avg < 150ms")
    run.pays([0.3, 0.01, 0.01, 0.01])
    assert [live.states[0].condition for live in run.lives] == [
        "failing",
        "failing",
        "passing",
        "passing",
    ]
    assert run.lives[0].newly_failing[0].value == pytest.approx(300)
    assert run.lives[1].newly_failing == ()
    assert run.result().passed


def test_the_failure_that_lasts_is_dated() -> None:
    run = Run("pay.avg < 150ms")
    run.pays([0.3, 0.01, 0.01, 0.01, 5.0, 5.0])
    result = run.result()
    assert (result.passed, result.first_failed_at_s) == (False, 5.0)


def test_over_fails_for_good_on_one_bad_stretch() -> None:
    run = Run("pay.avg < 200ms over 3s")
    run.pays([0.1] * 4 + [0.35, 0.35] + [0.1] * 10)
    conditions = [live.states[0].condition for live in run.lives]
    assert conditions == ["pending"] * 2 + ["passing"] * 3 + ["failing"] * 11
    result = run.result()
    assert (result.passed, result.first_failed_at_s) == (False, 6.0)
    assert result.value == pytest.approx(800 / 3), "the worst stretch"
    assert result.samples == 160


def test_over_passes_where_single_seconds_would_fail() -> None:
    run = Run("pay.avg < 200ms over 3s")
    run.pays([0.1, 0.1, 0.35, 0.1, 0.1, 0.35, 0.1])
    result = run.result()
    assert result.passed
    assert result.value == pytest.approx(550 / 3)


def test_over_judges_seconds_that_a_held_up_parent_missed() -> None:
    run = Run("pay.avg < 200ms over 2s")
    for second, latency_s in enumerate([0.1, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1]):
        run.stats.add(window(second, [row("pay", [latency_s])], iterations=1))
    assert run.judge.judge_live(7.0).states[0].condition == "failing"
    assert run.result(7.0).first_failed_at_s == 2.0


def test_over_leaves_out_the_last_partial_second_and_the_run_down() -> None:
    run = Run("rps >= 10 over 2s", duration_s=5.0)
    run.pays([0.1] * 5)
    run.second(window(5, [row("pay", [0.1])], iterations=1))
    run.second(window(6, [row("pay", [0.1])], iterations=1))
    assert run.result(6.4).passed


def test_over_counts_a_second_that_is_a_hair_too_short_as_whole() -> None:
    run = Run("pay.avg < 200ms over 4s")
    run.pays([0.1] * 4)
    assert run.result(3.99).note == "service time"


def test_over_in_a_run_that_is_too_short_judges_what_there_is() -> None:
    run = Run("pay.avg < 50ms over 10s")
    run.pays([0.1] * 4)
    result = run.result()
    assert (result.passed, result.first_failed_at_s) == (False, 4.0)
    assert result.note == "service time, the run was shorter than 10 s"


def test_over_does_not_reach_into_the_warm_up() -> None:
    run = Run("pay.max < 1s over 2s", warmup_s=3.0)
    run.pays([9.0, 9.0, 9.0, 0.1, 0.1, 0.1])
    assert run.result().passed
    assert [live.states[0].condition for live in run.lives[:4]] == ["pending"] * 4


def test_over_works_on_a_workflow_that_started_later() -> None:
    manifest = file_manifest(
        workflow_manifest("Setup", ["tenant"], is_test=False), workflow_manifest("Shop")
    )
    stats = RunStats(manifest)
    judge = ThresholdJudge(bind_all(manifest, ["pay.max < 1s over 2s"]), stats)
    stats.workflows["Shop"].started_at_s = 5.02
    for second, latency_s in enumerate([0.1, 0.1, 3.0, 0.1, 0.1]):
        stats.add(window(second, [row("pay", [latency_s])], iterations=1))
        judge.judge_live(second + 6.03)
    stats.workflows["Shop"].elapsed_s = 5.0
    (result,) = judge.final()
    assert (result.passed, result.first_failed_at_s) == (False, 8.0)


def test_abort_is_due_at_once_or_after_its_delay() -> None:
    now = Run("pay.max < 1s, abort")
    now.pays([0.1, 2.0])
    assert [live.abort for live in now.lives] == ["", "pay.max < 1s, abort"]
    later = Run("pay.max < 1s, abort after 3s")
    later.pays([0.1] + [2.0] * 5)
    assert [bool(live.abort) for live in later.lives] == [False] * 4 + [True] * 2


def test_a_recovery_resets_the_delay_of_an_abort() -> None:
    run = Run("pay.max < 1s over 1s, abort after 2s")
    run.pays([2.0, 2.0, 0.1, 2.0, 2.0, 2.0])
    assert [bool(live.abort) for live in run.lives] == [False] * 5 + [True]


def test_a_threshold_without_abort_never_ends_a_run() -> None:
    run = Run("pay.max < 1s")
    run.pays([5.0] * 3)
    assert not any(live.abort for live in run.lives)


def test_a_count_that_still_grows_is_pending_and_not_failing() -> None:
    run = Run("orders > 100, abort", "pay.count < 15, abort")
    run.pays([0.1])
    assert [state.condition for state in run.lives[-1].states] == ["pending", "passing"]
    run.pays([0.1])
    assert run.lives[-1].abort == "pay.count < 15, abort"
    assert [each.passed for each in run.final()] == [False, False]


def test_the_built_in_threshold_is_listed_when_it_failed_or_stands_alone() -> None:
    alone = Run()
    alone.pays([0.1])
    assert [(each.expression, each.builtin) for each in alone.final()] == [("errors < 100%", True)]
    accompanied = Run("pay.max < 1s")
    accompanied.pays([0.1])
    assert [each.builtin for each in accompanied.final()] == [False]
    broken = Run("pay.max < 1s")
    broken.second(window(0, [row("pay", [], [0.1])], iterations=1))
    assert [(each.builtin, each.passed) for each in broken.final()] == [
        (False, True),
        (True, False),
    ]
    assert len(broken.lives[-1].states) == 1


def test_a_run_that_finished_nothing_fails_the_built_in_threshold() -> None:
    run = Run()
    run.second(window(0))
    assert [(each.passed, each.note) for each in run.final()] == [(False, "no samples")]


def test_a_workflow_of_actions_is_judged_by_its_iterations() -> None:
    manifest = file_manifest(workflow_manifest(steps=[], actions=["work"]))
    stats = RunStats(manifest)
    judge = ThresholdJudge(bind_all(manifest), stats)
    failure = row("work", [], [0.1])
    failure.protocol = ""
    stats.add(window(0, [failure], iterations=9))
    (result,) = judge.final()
    assert (result.passed, result.value) == (True, 0.0)


def test_a_rate_over_several_workflows_counts_their_common_time_once() -> None:
    manifest = file_manifest(workflow_manifest("A", ["a"]), workflow_manifest("B", ["b"]))
    stats = RunStats(manifest)
    judge = ThresholdJudge(bind_all(manifest, ["rps >= 10"]), stats)
    for second in range(4):
        for name in ("A", "B"):
            report = window(second, [row(name.lower(), [0.1] * 5)], workflow=name, iterations=5)
            stats.add(report)
    for workflow in stats.workflows.values():
        workflow.elapsed_s = 4.0
    (result,) = judge.final()
    assert (result.passed, result.value, result.workflow) == (True, 10.0, "")


def test_a_threshold_of_a_class_names_its_workflow_where_there_are_several() -> None:
    texts = ["errors < 1%", "iterations > 1, abort", "http_req_failed: rate<0.01", "B.rps > 1"]
    one = file_manifest(workflow_manifest("B", thresholds=texts))
    assert [str(each) for each in bind_all(one)] == [*texts, "errors < 100%"]
    two = file_manifest(
        workflow_manifest("A", thresholds=texts[:1]), workflow_manifest("B", thresholds=texts)
    )
    stats = RunStats(two)
    results = ThresholdJudge(bind_all(two, ["errors < 2%"]), stats).final()
    assert [(each.expression, each.workflow) for each in results] == [
        ("A.errors < 1%", "A"),
        ("B.errors < 1%", "B"),
        ("B.iterations > 1, abort", "B"),
        ("B.http_req_failed: rate<0.01", "B"),
        ("B.rps > 1", "B"),
        ("errors < 2%", ""),
        ("errors < 100%", ""),
    ]
