"""Records of attempts as workers would deliver them, and the local run they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from squall.cluster.results.parts import AttemptPart, JobParts
from squall.engine.outcome import ProcessInfo, RunInfo, RunOutcome, WorkflowOutcome
from squall.engine.run.live_stats import LiveStats
from squall.engine.run_options import RunOptions
from squall.stats.attempt_record import AttemptRecord, RecordEnd
from squall.stats.histogram import Histogram
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest
from squall.stats.reports import (
    CheckDelta,
    HealthReport,
    HistogramData,
    MetricDelta,
    OutcomeDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
)
from squall.stats.thresholds.binding import bind_all

STARTED_AT = 1_700_000_000.0
CLOSED = Profile(model="closed", vus=10, max_vus=10, duration_s=10.0)
OPEN = Profile(model="open", vus=4, max_vus=50, duration_s=10.0, rate_per_s=20.0)


def manifest(profile: Profile = CLOSED, **changes: Any) -> FileManifest:
    workflow = WorkflowManifest(
        name="Shop",
        profile=profile,
        steps=[
            StepManifest(name="home", protocol="http"),
            StepManifest(name="pay", after=["home"]),
        ],
        **changes,
    )
    workflow.steps[1].protocol = "http"
    return FileManifest(path="shop.py", workflows=[workflow])


def data(values: Sequence[float]) -> HistogramData:
    return Histogram.from_seconds(values).to_data()


def row(
    name: str, ok: Sequence[float] = (), failed: Sequence[float] = (), *, flying: int = 0
) -> RowDelta:
    outcomes = [OutcomeDelta("200", True, len(ok), len(ok), data(ok))] if ok else []
    if failed:
        outcomes.append(OutcomeDelta("503", False, len(failed), len(failed), data(failed)))
    return RowDelta(name=name, started=len(ok) + len(failed) + flying, outcomes=outcomes)


def window(
    second: int,
    share: int,
    ok: Sequence[float] = (),
    failed: Sequence[float] = (),
    *,
    users: int = 0,
    busy: int = 0,
    flying: int = 0,
    planned: int | None = None,
) -> WindowReport:
    count = len(ok) + len(failed)
    return WindowReport(
        workflow="Shop",
        share=share,
        window=second,
        rows=[row("home", ok), row("pay", [], failed)] if count else [],
        iteration=row("iteration", ok, failed, flying=flying),
        checks=[CheckDelta("cheap", len(ok), len(failed))],
        metrics=[MetricDelta("orders", "counter", "", count, sum=float(count))],
        starts=StartsDelta(
            planned=count + flying if planned is None else planned, made=count + flying
        ),
        requests=RequestsDelta(sent=count + flying, answered=count, connections=1),
        connect=data(ok[:1]) if ok else None,
        users=users,
        busy=busy,
    )


def health(process: int, at_s: float, cpu: float = 0.3) -> HealthReport:
    return HealthReport(process=process, at_s=at_s, cpu=cpu, lag=data([0.001]))


def record(
    share: int,
    reports: Sequence[WindowReport],
    *,
    attempt: int = 1,
    worker: str = "w1",
    elapsed_s: float | None = 10.0,
    cut: str = "",
    joined_s: float = 0.0,
    silent_from_s: float = 0.0,
    healths: Sequence[HealthReport] = (),
    width_s: int = 1,
) -> AttemptRecord:
    return AttemptRecord(
        workflow="Shop",
        share=share,
        attempt=attempt,
        worker=worker,
        joined_s=joined_s,
        silent_from_s=silent_from_s,
        width_s=width_s,
        reports=list(reports),
        health=list(healths),
        end=None if elapsed_s is None else RecordEnd(elapsed_s=elapsed_s, cut=cut),
    )


def ended(made: AttemptRecord, **changes: Any) -> AttemptPart:
    fields: dict[str, Any] = {
        "workflow": "Shop",
        "share": made.share,
        "attempt": made.attempt,
        "shares": 2,
        "worker": made.worker,
        "fate": "ended",
        "record": made,
        "process": made.share,
        "users": 5,
        "joined_s": made.joined_s,
    }
    return AttemptPart(**(fields | changes))


def refilled(first: Sequence[WindowReport]) -> list[AttemptPart]:
    """The second of two shares is lost with w2 after the four seconds of `first`, and refilled at
    second 7."""
    steady = [window(s, 0, [0.01] * 10, users=5, busy=5) for s in range(10)]
    later = [window(s, 1, [0.01] * 10, users=5, busy=5) for s in range(7, 10)]
    return [
        ended(record(0, steady)),
        ended(
            record(1, first, worker="w2", elapsed_s=None, silent_from_s=4.0),
            fate="lost", lost_at_s=6.8, silence_end_s=6.0, reason="no sign of life for 2.8 s",
        ),
        ended(record(1, later, attempt=2, joined_s=7.0), process=2),
    ]  # fmt: skip


def parts(attempts: Sequence[AttemptPart], **changes: Any) -> JobParts:
    fields: dict[str, Any] = {
        "job": "k3f9-7",
        "state": "completed",
        "started_at": STARTED_AT,
        "elapsed_s": 10.1,
        "workflows": [WorkflowOutcome(name="Shop", status="completed", cores=(0, 1))],
        "attempts": list(attempts),
        "version": "1",
        "python": "3.11",
    }
    return JobParts(**(fields | changes))


def local_run(
    file: FileManifest,
    options: RunOptions,
    reports: Sequence[WindowReport | HealthReport],
    elapsed_s: float,
) -> RunOutcome:
    """The same reports in one process, each second when it is over."""
    books = LiveStats(file, bind_all(file, options.thresholds), options.warmup_s)
    for second in range(0, 40):
        for report in reports:
            at = report.window if isinstance(report, WindowReport) else round(report.at_s) - 1
            if at == second:
                books.add(report)
        if second < elapsed_s:
            books.second(float(second + 1), [])
    books.stats.workflows["Shop"].elapsed_s = elapsed_s
    thresholds, verdict = books.close([])
    return RunOutcome(
        manifest=file,
        stats=books.stats,
        thresholds=thresholds,
        verdict=verdict,
        status="completed",
        workflows=[
            WorkflowOutcome(name="Shop", status="completed", elapsed_s=elapsed_s, cores=(0, 1))
        ],
        processes=[ProcessInfo(index=0, pid=0), ProcessInfo(index=1, pid=0)],
        notes=books.notes([]),
        info=RunInfo(
            id="k3f9-7",
            squall="1",
            python="3.11",
            command=(),
            git="",
            seed=0,
            tags={},
            cores=2,
            os="",
            memory_mb=0,
            started_at=datetime.fromtimestamp(STARTED_AT, UTC),
            warmup_s=options.warmup_s,
        ),
        elapsed_s=10.1,
    )
