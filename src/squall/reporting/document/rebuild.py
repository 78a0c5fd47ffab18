"""Rebuilds the outcome of a run from its results document.

The summary, the merge and every output work on a `RunOutcome`, so a document is turned into one,
and the same code prints the same text from a file. A document does not hold the single seconds of
sliding thresholds, nor latencies by outcome: all latencies of a row are kept under its first
outcome, and readers may use only their sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from squall.engine.outcome import ProcessInfo, RunInfo, RunOutcome, WorkflowOutcome
from squall.reporting.document.datacenters import datacenter_outcome
from squall.reporting.document.model import (
    Buckets,
    CheckDoc,
    ErrorDoc,
    HistogramDoc,
    MetricDoc,
    ProcessDoc,
    ProfileDoc,
    ProtocolDoc,
    RequestsDoc,
    ResultsDoc,
    RowDoc,
    RowWindowsDoc,
    ThresholdDoc,
    WorkflowDoc,
    typed,
)
from squall.stats.histogram import Histogram, Packed, bucket_middle_s, make_data
from squall.stats.manifest import (
    FileManifest,
    MetricManifest,
    Profile,
    Stage,
    StepManifest,
    WorkflowManifest,
)
from squall.stats.reports import ErrorSample, HistogramData, HookDelta, RequestsDelta, StartsDelta
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.totals.generator_health import ProcessStats
from squall.stats.totals.protocols import ProtocolStats
from squall.stats.totals.run import RunStats
from squall.stats.totals.step_rows import CheckStats, MetricStats, OutcomeStats, RowStats
from squall.stats.totals.windows import HealthWindow, LoadWindow, RowWindow, Series
from squall.stats.totals.workflow import WorkflowStats
from squall.stats.verdict import Verdict


def rebuild(document: dict[str, Any]) -> RunOutcome:
    return rebuild_outcome(typed(document))


def rebuild_outcome(results: ResultsDoc) -> RunOutcome:
    run = results.run
    manifest = FileManifest(path=run.file, workflows=[_manifest(w) for w in results.workflows])
    return RunOutcome(
        manifest=manifest,
        stats=_stats(results, manifest),
        thresholds=[_threshold(each) for each in results.thresholds],
        verdict=Verdict(state=results.verdict.state, reasons=list(results.verdict.reasons)),
        status=results.status,
        workflows=[
            WorkflowOutcome(
                name=each.name,
                status=each.status,
                error=each.error or "",
                started_at_s=each.started_at_s,
                elapsed_s=each.elapsed_s,
                cores=tuple(each.cores),
            )
            for each in results.workflows
        ],
        processes=[
            ProcessInfo(index=each.index, pid=each.pid, died=each.died or "", worker=each.worker)
            for each in results.generator.processes
        ],
        info=RunInfo(
            id=run.id,
            squall=run.squall,
            python=run.python,
            command=tuple(run.command),
            git=run.git or "",
            seed=run.seed,
            tags=dict(run.tags),
            cores=run.host.cores,
            os=run.host.os,
            memory_mb=run.host.memory_mb,
            started_at=_moment(results.started_at),
            warmup_s=run.warmup_s,
        ),
        elapsed_s=results.elapsed_s,
        parent_cpu=results.generator.parent_cpu,
        interrupted=results.status == "interrupted",
        aborted_by=results.aborted_by or "",
        losses=list(results.losses),
        notes=list(results.notes),
        datacenters=[
            datacenter_outcome(each, manifest, run.warmup_s, _fill_row)
            for each in results.datacenters
        ],
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def _manifest(workflow: WorkflowDoc) -> WorkflowManifest:
    return WorkflowManifest(
        name=workflow.name,
        is_test=workflow.is_test,
        profile=rebuild_profile(workflow.profile),
        steps=[
            StepManifest(name=step.name, protocol=step.protocol or "http")
            for step in workflow.steps
        ],
        shape=workflow.shape,
    )


def rebuild_profile(profile: ProfileDoc) -> Profile:
    return Profile(
        model=profile.model,
        vus=profile.vus,
        max_vus=profile.max_vus,
        duration_s=profile.duration_s,
        iterations=profile.iterations or 0,
        rate_per_s=profile.rate_per_s or 0.0,
        stages=tuple(Stage(stage.duration_s, stage.target) for stage in profile.stages),
        think_s=profile.think_s,
        pacing_s=profile.pacing_s,
        grace_s=profile.grace_s,
        iterations_per_vu=profile.iterations_per_vu,
        start_after_s=profile.start_after_s,
    )


def _stats(results: ResultsDoc, manifest: FileManifest) -> RunStats:
    for metric in results.metrics:
        owner = manifest.workflow(metric.workflow)
        owner.metrics.append(MetricManifest(name=metric.name, kind=metric.kind, unit=metric.unit))
    for check in results.checks:
        manifest.workflow(check.workflow).checks.append(check.name)
    stats = RunStats(manifest, results.run.warmup_s)
    for workflow in results.workflows:
        _fill_workflow(stats, stats.workflows[workflow.name], workflow)
    for check in results.checks:
        stats.workflows[check.workflow].checks[check.name] = _check(check.name, check)
    for metric in results.metrics:
        stats.workflows[metric.workflow].metrics[metric.name] = _metric(metric)
    _fill_health(stats, results)
    return stats


def _check(name: str, counts: CheckDoc) -> CheckStats:
    check = CheckStats(name)
    check.passed, check.failed = counts.passed, counts.failed
    return check


def _metric(entry: MetricDoc) -> MetricStats:
    metric = MetricStats(entry.name, entry.kind, entry.unit)
    metric.count = entry.count
    metric.sum = entry.sum if entry.kind != "sample" else entry.mean * entry.count
    metric.last, metric.hits = entry.last, entry.hits
    metric.minimum, metric.maximum = entry.min, entry.max
    if entry.histogram is not None:
        metric.values = histogram_of(entry.histogram)
    return metric


def _fill_workflow(run: RunStats, stats: WorkflowStats, entry: WorkflowDoc) -> None:
    for step in entry.steps:
        _fill_row(stats.rows[step.name], step)
        for error in step.errors:
            _add_error(run, stats.name, step.name, error)
    _fill_row(stats.iteration, entry.iteration)
    stats.hooks = {
        each.name: HookDelta(each.name, each.executions, each.raised) for each in entry.hooks
    }
    for hook in entry.hook_errors:
        error = ErrorDoc(
            reason=hook.reason,
            count=None,
            first_at_s=hook.first_at_s,
            location=hook.location,
            locations=hook.locations,
            traceback=hook.traceback,
        )
        _add_error(run, stats.name, hook.hook, error)
    starts, requests = entry.starts, entry.requests
    stats.starts = StartsDelta(
        planned=starts.planned,
        made=starts.made,
        late=starts.late,
        late_max_s=starts.late_max_ms / 1e3,
        dropped=starts.dropped,
        interrupted=starts.interrupted,
    )
    stats.requests = _requests(requests)
    stats.statuses = Counter({int(key): count for key, count in requests.statuses.items()})
    stats.dns = histogram_of(entry.dns_histogram)
    stats.connect = histogram_of(entry.connect_histogram)
    stats.tls = histogram_of(entry.tls_histogram)
    stats.protocols = {each.name: _protocol(each) for each in entry.protocols}
    stats.users.max = entry.vus
    stats.busy_max = entry.busy_max
    stats.windows = _load_windows(entry)
    stats.started_at_s = entry.started_at_s
    stats.last_second = len(stats.windows) * stats.windows.width_s - 1
    if stats.last_second >= 0:
        stats.elapsed_s = entry.measured_s + stats.warmup_s


def _protocol(entry: ProtocolDoc) -> ProtocolStats:
    stats = ProtocolStats(entry.name)
    stats.requests = _requests(entry)
    stats.messages_sent = entry.messages_sent
    stats.messages_received = entry.messages_received
    stats.connect = histogram_of(entry.connect_histogram)
    stats.tls = histogram_of(entry.tls_histogram)
    return stats


def _requests(entry: RequestsDoc | ProtocolDoc) -> RequestsDelta:
    return RequestsDelta(**{name: getattr(entry, name) for name in RequestsDelta.__struct_fields__})


def _fill_row(row: RowStats, entry: RowDoc) -> None:
    row.started, row.count, row.interrupted = entry.started, entry.count, entry.interrupted
    row.ok, row.failed = entry.ok, entry.failed
    for each in entry.outcomes:
        outcome = row.outcomes[each.key] = OutcomeStats(each.key, ok=each.ok, raised=each.raised)
        outcome.count, outcome.exchanges = each.count, each.exchanges
        outcome.statuses.update({int(key): count for key, count in each.statuses.items()})
    service = entry.service_histogram or entry.histogram
    if service.count:
        if not row.outcomes:
            row.outcomes["ok"] = OutcomeStats("ok", ok=True)
            row.outcomes["ok"].count = row.count
        next(iter(row.outcomes.values())).service = histogram_of(service)
    if entry.service_histogram is not None:
        row.response = histogram_of(entry.histogram)
    if entry.first_byte_histogram is not None:
        row.first_byte = histogram_of(entry.first_byte_histogram)
    row.windows = _row_windows(entry.windows)


def _add_error(run: RunStats, workflow: str, row: str, error: ErrorDoc) -> None:
    if error.first_at_s is None:
        return
    sample = error.sample
    first = ErrorSample(
        workflow=workflow,
        row=row,
        reason=error.reason,
        at_s=error.first_at_s,
        location=error.location or "",
        traceback=error.traceback,
        request=sample.request if sample else "",
        status=(sample.status or 0) if sample else 0,
        body=sample.body if sample else "",
    )
    run.add(first)
    for location in error.locations:
        if location != first.location:
            # The document has only the lines of the later failures.
            run.add(ErrorSample(workflow, row, error.reason, error.first_at_s, location))


def _row_windows(entry: RowWindowsDoc) -> Series[RowWindow]:
    series = Series(RowWindow)
    series.width_s = entry.every_s
    for count, failed, buckets in zip(entry.count, entry.failed, entry.buckets, strict=True):
        window = RowWindow()
        window.count, window.failed = count, failed
        window.latency = Packed.from_data(_window_data(buckets))
        series.windows.append(window)
    return series


def _window_data(buckets: Buckets) -> HistogramData:
    """A document has no minimum and maximum per window; the outermost buckets replace them."""
    if not buckets:
        return HistogramData()
    index = [pair[0] for pair in buckets]
    counts = [pair[1] for pair in buckets]
    return make_data(
        sum(counts), 0.0, bucket_middle_s(index[0]), bucket_middle_s(index[-1]), index, counts
    )


def _load_windows(entry: WorkflowDoc) -> Series[LoadWindow]:
    windows = entry.windows
    series = Series(LoadWindow)
    series.width_s = windows.every_s
    for index in range(len(windows.users)):
        window = LoadWindow()
        for name in LoadWindow.__slots__:
            setattr(window, name, _at(getattr(windows, name), index))
        series.windows.append(window)
    return series


def _at(values: Sequence[int], index: int) -> int:
    return values[index] if index < len(values) else 0


def _fill_health(stats: RunStats, results: ResultsDoc) -> None:
    generator = results.generator
    for entry in generator.processes:
        if entry.cpu is not None:
            stats.health.processes[entry.index] = _process(entry, entry.cpu)
    windows = generator.windows
    series = stats.health.windows
    series.width_s = windows.every_s
    rows = zip(windows.cpu, windows.cpu_max, windows.loop_lag_p99_ms, strict=False)
    for cpu, cpu_max, lag_ms in rows:
        window = HealthWindow()
        # One report for each process: merging documents then gives the mean over processes.
        window.reports = max(len(stats.health.processes), 1)
        window.cpu_sum = cpu * window.reports
        window.cpu_max = cpu_max
        window.lag_p99_s = window.lag_max_s = lag_ms / 1e3
        series.windows.append(window)


def _process(entry: ProcessDoc, cpu: float) -> ProcessStats:
    process = ProcessStats(entry.index)
    process.seconds = entry.seconds
    process.cpu_seconds = cpu * entry.seconds
    process.cpu_max = entry.cpu_max
    process.lag = histogram_of(entry.lag_histogram)
    process.gc_max_s = entry.gc_ms_max / 1e3
    process.rss_max_mb = entry.rss_mb
    process.blocked_s = {
        (each.workflow, each.step, each.location, each.call): each.seconds for each in entry.blocked
    }
    return process


def _threshold(entry: ThresholdDoc) -> ThresholdResult:
    return ThresholdResult(
        expression=entry.expression,
        passed=entry.passed,
        value=entry.value,
        unit=entry.unit,
        samples=entry.samples,
        limit=entry.limit,
        first_failed_at_s=entry.first_failed_at_s,
        note=entry.note,
        workflow=entry.workflow or "",
        row=entry.row or "",
        builtin=entry.builtin,
    )


def histogram_of(entry: HistogramDoc | None) -> Histogram:
    """The histogram of an entry; an empty one for None."""
    if entry is None:
        return Histogram()
    return Histogram.from_data(
        make_data(
            entry.count,
            entry.sum_ms / 1e3,
            entry.min_ms / 1e3,
            entry.max_ms / 1e3,
            [pair[0] for pair in entry.buckets],
            [pair[1] for pair in entry.buckets],
        )
    )
