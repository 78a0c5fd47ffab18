"""Runs built by hand from the reports that core processes send."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from squall.engine.outcome import (
    DatacenterOutcome,
    Loss,
    ProcessInfo,
    RunInfo,
    RunOutcome,
    WorkflowOutcome,
)
from squall.stats.histogram import Histogram
from squall.stats.manifest import (
    FileManifest,
    MetricManifest,
    Model,
    Profile,
    StepManifest,
    WorkflowManifest,
)
from squall.stats.reports import (
    Blocked,
    CheckDelta,
    ErrorSample,
    HealthReport,
    HistogramData,
    MetricDelta,
    OutcomeDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
)
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.totals.run import RunStats
from squall.stats.verdict import Verdict

MakeOutcome = Callable[..., RunOutcome]


def ms(*values: float, times: int = 1) -> HistogramData:
    return Histogram.from_seconds([value / 1e3 for value in values] * times).to_data()


def shop_manifest() -> WorkflowManifest:
    return WorkflowManifest(
        name="Shop",
        profile=Profile(model="open", rate_per_s=50.0, duration_s=10.0, vus=10, max_vus=200),
        steps=[
            StepManifest(name="login", protocol="http"),
            StepManifest(name="pay", after=["login"], layer=1, protocol="http"),
        ],
        shape="login -> pay",
        checks=["has_price"],
        metrics=[
            MetricManifest(name="orders", kind="counter"),
            MetricManifest(name="queue", kind="gauge"),
            MetricManifest(name="cached", kind="rate"),
            MetricManifest(name="server_time", kind="sample", unit="ms"),
        ],
        host="http://127.0.0.1:8080",
    )


def shop_window(window: int) -> WindowReport:
    """One second: 50 logins, 50 payments of which one is a 503 and one a KeyError."""
    return WindowReport(
        workflow="Shop",
        share=0,
        window=window,
        rows=[
            RowDelta(
                name="login",
                started=50,
                outcomes=[OutcomeDelta("200", True, 50, 50, ms(10, 12, 14, 16, 18, times=10))],
                response=ms(11, 13, 15, 17, 120, times=10),
                first_byte=ms(9, 11, times=25),
            ),
            RowDelta(
                name="pay",
                started=50,
                outcomes=[
                    OutcomeDelta("200", True, 47, 47, ms(80, times=47)),
                    OutcomeDelta("503", False, 1, 1, ms(900)),
                    OutcomeDelta("timeout after 5 s", False, 1, 1, ms(5000)),
                    OutcomeDelta("KeyError: 'id'", False, 1, 1, ms(85)),
                ],
                first_byte=ms(70, 75, times=24),
            ),
        ],
        iteration=RowDelta(
            name="iteration",
            protocol="",
            started=50,
            outcomes=[
                OutcomeDelta("ok", True, 47, 0, ms(95, times=47)),
                OutcomeDelta("failed", False, 3, 0, ms(900, 901, 5010)),
            ],
            response=ms(96, 97, times=25),
        ),
        checks=[CheckDelta("has_price", 47, 1)],
        metrics=[
            MetricDelta("orders", "counter", "", 47, sum=47.0, minimum=1.0, maximum=1.0, last=1.0),
            MetricDelta("queue", "gauge", "", 2, sum=7, last=4.0, minimum=3.0, maximum=4.5),
            MetricDelta("cached", "rate", "", 50, hits=40),
            MetricDelta(
                "server_time",
                "sample",
                "ms",
                50,
                sum=175.0,
                last=2.0,
                minimum=2.0,
                maximum=5.0,
                values=ms(2, 5, times=25),
            ),
        ],
        starts=StartsDelta(planned=50, made=50, late=1, late_max_s=0.004),
        requests=RequestsDelta(
            sent=103,
            answered=102,
            failed=2,
            redirects=2,
            reconnects=0,
            bytes_sent=12_000,
            bytes_received=135_000,
            connections=2,
        ),
        connect=ms(0.5, 0.8),
        users=10,
        busy=7,
    )


def health(at_s: float) -> HealthReport:
    return HealthReport(
        process=0, at_s=at_s, cpu=0.61, lag=ms(0.5, 1.9), gc_max_s=0.0004, rss_mb=61.2
    )


def error_samples() -> list[ErrorSample]:
    return [
        ErrorSample(
            workflow="Shop",
            row="pay",
            reason="503 Service Unavailable",
            at_s=0.4,
            request="http://127.0.0.1:8080/pay",
            status=503,
            body="busy",
        ),
        ErrorSample(workflow="Shop", row="pay", reason="timeout after 5 s", at_s=0.5),
        ErrorSample(
            workflow="Shop",
            row="pay",
            reason="KeyError: 'id'",
            at_s=0.6,
            location="shop.py:31 in pay",
            traceback=(
                "Traceback (most recent call last):\n"
                '  File "shop.py", line 31, in pay\n'
                '    order = response.json()["id"]\n'
                "KeyError: 'id'\n"
            ),
        ),
    ]


def threshold_results() -> list[ThresholdResult]:
    return [
        ThresholdResult(
            expression="pay.p(99) < 800ms",
            passed=False,
            value=912.0,
            unit="ms",
            samples=500,
            first_failed_at_s=3.0,
            note="service time",
        ),
        ThresholdResult(expression="errors < 5%", passed=True, value=3.0, unit="%", samples=1000),
        ThresholdResult(
            expression="nothing.p(95) < 1s",
            passed=False,
            value=None,
            unit="ms",
            samples=0,
            first_failed_at_s=10.0,
            note="no samples",
        ),
        ThresholdResult(
            expression="errors < 100%", passed=True, value=3.0, unit="%", samples=1, builtin=True
        ),
    ]


def run_info() -> RunInfo:
    return RunInfo(
        id="01J9Z4",
        squall="0.1.0",
        python="3.11.7",
        command=("run", "shop.py"),
        git="a1b2c3d",
        seed=1,
        tags={"team": "shop"},
        cores=2,
        os="Linux 6.1",
        memory_mb=7900,
        started_at=datetime(2026, 11, 15, 20, 1, 24, 113_400, tzinfo=UTC),
    )


@pytest.fixture
def make_outcome() -> MakeOutcome:
    """An open run of ten seconds in one process; keywords replace fields of the outcome."""

    def make(**replaced: object) -> RunOutcome:
        manifest = FileManifest(path="shop.py", workflows=[shop_manifest()])
        stats = RunStats(manifest)
        for window in range(10):
            stats.add(shop_window(window))
            stats.add(health(window + 1.0))
        for sample in error_samples():
            stats.add(sample)
        stats.workflows["Shop"].elapsed_s = 10.0
        fields: dict[str, object] = {
            "manifest": manifest,
            "stats": stats,
            "thresholds": threshold_results(),
            "verdict": Verdict(state="VALID", reasons=[]),
            "status": "completed",
            "workflows": [
                WorkflowOutcome(name="Shop", status="completed", elapsed_s=10.0, cores=(0,))
            ],
            "processes": [ProcessInfo(index=0, pid=4711)],
            "info": run_info(),
            "elapsed_s": 10.02,
            "parent_cpu": 0.021,
        }
        return RunOutcome(**(fields | replaced))  # type: ignore[arg-type]

    return make


@pytest.fixture
def in_two_datacenters(make_outcome: MakeOutcome) -> RunOutcome:
    """The same run, half of it in eu and half in us, which was lost."""
    manifest = FileManifest(path="shop.py", workflows=[shop_manifest()])
    eu, us = RunStats(manifest), RunStats(manifest)
    for window in range(10):
        (eu if window % 2 else us).add(shop_window(window))
    for stats in (eu, us):
        stats.workflows["Shop"].elapsed_s = 10.0
    lost = Loss(
        process=0,
        workflow="Shop",
        at_s=8.0,
        reason="no manager answers",
        users=0,
        starts=40,
        below_target_s=2.0,
        is_last_heard=True,
        datacenter="us",
    )
    broken = Verdict(state="INVALID", reasons=["datacenter us lost"])
    return make_outcome(
        verdict=broken,
        losses=[lost],
        datacenters=[
            DatacenterOutcome(
                name="eu",
                part=0.6,
                tries=2,
                state="completed",
                reason="",
                stats=eu,
                verdict=Verdict(),
                losses=[],
                elapsed_s=10.0,
            ),
            DatacenterOutcome(
                name="us",
                part=0.4,
                tries=1,
                state="lost",
                reason="no manager answers",
                stats=us,
                verdict=broken,
                losses=[lost],
                elapsed_s=8.0,
                later_s=1.5,
            ),
        ],
    )


def mixed_manifest() -> FileManifest:
    def flow(name: str, model: Model, depends: list[str], is_test: bool = True) -> WorkflowManifest:
        profile = Profile(model=model, vus=5, max_vus=5, duration_s=4.0, iterations=20)
        steps = [StepManifest(name="home", protocol="http" if is_test else "")]
        return WorkflowManifest(
            name=name, profile=profile, steps=steps, depends=depends, is_test=is_test
        )

    return FileManifest(
        path="mix.py",
        workflows=[
            flow("Setup", "once", [], is_test=False),
            flow("Browse", "closed", ["Setup"]),
            flow("Buy", "iterations", ["Setup"]),
            flow("Audit", "closed", ["Buy"]),
        ],
    )


def mixed_window(name: str) -> WindowReport:
    home = OutcomeDelta("200", True, 20, 20, ms(3, 4, times=10))
    whole = OutcomeDelta("ok", True, 20, 0, ms(5, times=20))
    rows = [RowDelta(name="home", started=20, outcomes=[home])]
    return WindowReport(
        workflow=name,
        share=0,
        window=0,
        rows=[] if name == "Setup" else rows,
        iteration=RowDelta(name="iteration", protocol="", started=20, outcomes=[whole]),
        starts=StartsDelta(planned=21, made=21, interrupted=1),
        requests=RequestsDelta(sent=23, answered=23, bytes_received=4600),
        users=5,
        busy=5,
    )


@pytest.fixture
def make_mixed() -> MakeOutcome:
    """Setup ran, Browse (closed) and Buy (iterations) together, Audit was skipped."""

    def make(**replaced: object) -> RunOutcome:
        manifest = mixed_manifest()
        stats = RunStats(manifest)
        for name, starts_s in (("Setup", 0.0), ("Browse", 1.0), ("Buy", 1.0)):
            stats.workflows[name].started_at_s = starts_s
            stats.workflows[name].elapsed_s = 1.0 if name == "Setup" else 4.0
            stats.add(mixed_window(name))
        blocked = Blocked("Browse", "home", "mix.py:14", "time.sleep", 0.84)
        stats.add(HealthReport(process=1, at_s=1.0, cpu=0.2, lag=ms(1), blocked=[blocked]))
        fields: dict[str, object] = {
            "manifest": manifest,
            "stats": stats,
            "thresholds": [],
            "verdict": Verdict(
                state="INVALID",
                reasons=["Browse.home blocked the loop at mix.py:14", "process 0 died"],
            ),
            "status": "partial",
            "workflows": [
                WorkflowOutcome(name="Setup", status="completed", elapsed_s=1.0),
                WorkflowOutcome(name="Browse", status="completed", elapsed_s=4.0),
                WorkflowOutcome(name="Buy", status="failed", error="no rows left in users.csv"),
                WorkflowOutcome(name="Audit", status="skipped", error="Buy failed"),
            ],
            "processes": [
                ProcessInfo(index=0, pid=1, died="killed by signal 9"),
                ProcessInfo(index=1, pid=2),
            ],
            "info": run_info(),
            "elapsed_s": 5.1,
        }
        return RunOutcome(**(fields | replaced))  # type: ignore[arg-type]

    return make
