"""Reports as core processes would send them, made from plain numbers."""

from __future__ import annotations

from collections.abc import Sequence

from squall.stats.histogram import Histogram
from squall.stats.manifest import (
    FileManifest,
    MetricManifest,
    Profile,
    StepManifest,
    WorkflowManifest,
)
from squall.stats.reports import (
    Blocked,
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


def data(values: Sequence[float]) -> HistogramData:
    return Histogram.from_seconds(values).to_data()


def outcome(key: str, ok: bool, values: Sequence[float], *, unsampled: int = 0) -> OutcomeDelta:
    return OutcomeDelta(key, ok, len(values) + unsampled, len(values), data(values))


def row(
    name: str,
    ok: Sequence[float] = (),
    failed: Sequence[float] = (),
    *,
    response: Sequence[float] | None = None,
    first_byte: Sequence[float] | None = None,
    interrupted: int = 0,
    status: str = "503",
) -> RowDelta:
    outcomes = [outcome("200", True, ok)] if ok else []
    outcomes += [outcome(status, False, failed)] if failed else []
    return RowDelta(
        name=name,
        started=len(ok) + len(failed) + interrupted,
        interrupted=interrupted,
        outcomes=outcomes,
        response=None if response is None else data(response),
        first_byte=None if first_byte is None else data(first_byte),
    )


def window(
    second: int,
    rows: Sequence[RowDelta] = (),
    *,
    workflow: str = "Shop",
    share: int = 0,
    iterations: Sequence[float] | int = (),
    starts: StartsDelta | None = None,
    checks: Sequence[CheckDelta] = (),
    metrics: Sequence[MetricDelta] = (),
    requests: RequestsDelta | None = None,
    connect: Sequence[float] | None = None,
    users: int = 0,
    busy: int = 0,
) -> WindowReport:
    if isinstance(iterations, int):
        iterations = [0.1] * iterations
    return WindowReport(
        workflow=workflow,
        share=share,
        window=second,
        rows=list(rows),
        iteration=RowDelta(
            name="iteration",
            protocol="iteration",
            started=len(iterations),
            outcomes=[outcome("ok", True, iterations)] if iterations else [],
        ),
        checks=list(checks),
        metrics=list(metrics),
        starts=starts if starts is not None else StartsDelta(),
        requests=requests if requests is not None else RequestsDelta(),
        connect=None if connect is None else data(connect),
        users=users,
        busy=busy,
    )


def counter(name: str, amount: float, count: int = 1) -> MetricDelta:
    return MetricDelta(name, "counter", "", count, sum=amount)


def gauge(name: str, *values: float) -> MetricDelta:
    return MetricDelta(
        name,
        "gauge",
        "",
        len(values),
        last=values[-1],
        minimum=min(values),
        maximum=max(values),
    )


def rate(name: str, hits: int, count: int) -> MetricDelta:
    return MetricDelta(name, "rate", "", count, hits=hits)


def sample(name: str, unit: str, *values: float) -> MetricDelta:
    return MetricDelta(
        name,
        "sample",
        unit,
        len(values),
        sum=sum(values),
        last=values[-1],
        minimum=min(values),
        maximum=max(values),
        values=data([value / 1e3 for value in values]),
    )


def health(
    at_s: float,
    *,
    process: int = 0,
    cpu: float = 0.5,
    lag_s: Sequence[float] = (0.001,) * 10,
    blocked: Sequence[Blocked] = (),
    gc_max_s: float = 0.0,
    rss_mb: float = 0.0,
) -> HealthReport:
    return HealthReport(process, at_s, cpu, data(lag_s), gc_max_s, rss_mb, list(blocked))


def workflow_manifest(
    name: str = "Shop",
    steps: Sequence[str] = ("login", "pay"),
    *,
    actions: Sequence[str] = (),
    metrics: Sequence[MetricManifest] = (),
    profile: Profile | None = None,
    is_test: bool = True,
    thresholds: Sequence[str] = (),
) -> WorkflowManifest:
    measured = [StepManifest(name=step, protocol="http") for step in steps]
    return WorkflowManifest(
        name=name,
        is_test=is_test,
        steps=[*measured, *(StepManifest(name=action) for action in actions)],
        metrics=list(metrics),
        profile=profile if profile is not None else Profile(model="closed", duration_s=3600),
        thresholds=list(thresholds),
    )


def file_manifest(*workflows: WorkflowManifest) -> FileManifest:
    return FileManifest(path="shop.py", workflows=list(workflows) or [workflow_manifest()])


def open_profile(**changes: float) -> Profile:
    settings: dict[str, float] = {"rate_per_s": 100.0, "duration_s": 3600.0, "max_vus": 1000}
    settings |= changes
    return Profile(
        model="open",
        rate_per_s=settings["rate_per_s"],
        duration_s=settings["duration_s"],
        max_vus=int(settings["max_vus"]),
    )
