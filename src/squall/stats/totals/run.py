"""The statistics of one run: adds up every report of every share and process.

`RunStats` only adds. It judges nothing (`thresholds`, `verdict.py`), formats nothing and reads
no clock: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.stats.histogram import Histogram, merged
from squall.stats.manifest import ITERATION, FileManifest
from squall.stats.reports import (
    ErrorSample,
    HealthReport,
    ProtocolDelta,
    RequestsDelta,
    WindowReport,
)
from squall.stats.snapshot import (
    ErrorLine,
    NewError,
    ProtocolSnapshot,
    RowSnapshot,
    Snapshot,
    ThresholdState,
    VerdictState,
    WorkflowSnapshot,
)
from squall.stats.totals.generator_health import HealthStats
from squall.stats.totals.protocols import are_shown
from squall.stats.totals.step_rows import RowSlice, RowStats, reason_text
from squall.stats.totals.workflow import RECENT_S, WorkflowStats
from squall.stats.verdict_settings import VerdictSettings

MAX_ERROR_SAMPLES = 500
"""First failures that are stored; each may have a traceback and the start of a body."""
_ERROR_LINES = 12
_PERCENTILES = (0.5, 0.95, 0.99)
# How late reports may be: two seconds for a late share, plus the time to send them.
_SILENT_S = 6.0
_SILENT_PAST_END_S = 2.0

ErrorKey = tuple[str, str, str, str]
"""Workflow, row, reason, location."""


class RunStats:
    """All workflows of a file, the generator's health and the first failure of each kind."""

    def __init__(
        self,
        manifest: FileManifest,
        warmup_s: float = 0.0,
        *,
        settings: VerdictSettings | None = None,
    ) -> None:
        self.manifest = manifest
        self.warmup_s = warmup_s
        self.settings = settings if settings is not None else VerdictSettings()
        self.workflows: dict[str, WorkflowStats] = {
            workflow.name: WorkflowStats(workflow, warmup_s) for workflow in manifest.workflows
        }
        self.health = HealthStats(self.settings, warmup_s)
        self.errors: dict[ErrorKey, ErrorSample] = {}
        self.errors_not_kept = 0
        self._new_errors: list[NewError] = []
        # A live output sends histograms: each snapshot has those of all rows.
        self.shows_histograms = False

    def add(self, report: WindowReport | HealthReport | ErrorSample) -> None:
        if isinstance(report, WindowReport):
            self.workflows[report.workflow].add(report)
        elif isinstance(report, HealthReport):
            self.health.add(report)
        else:
            self._add_error(report)

    def keep_seconds(self, seconds: int) -> None:
        """Keeps at least this many single seconds of every workflow, for sliding thresholds."""
        for workflow in self.workflows.values():
            # The slack covers shares that report late, and a parent that was held up.
            workflow.keep_s = max(workflow.keep_s, seconds + RECENT_S)

    def recent(self, workflow: str, row: str, seconds: int) -> tuple[float, Histogram]:
        """Executions per second and latencies of a row in the last complete seconds.

        `row` is a step's name or `iteration`. Less than the given time is used while
        the workflow is younger than that.
        """
        stats = self.workflows[workflow]
        slices = stats.latest(seconds)
        found = [part.iteration if row == ITERATION else part.rows.get(row) for part in slices]
        whole = RowSlice()
        for part in found:
            if part is not None:
                whole.merge(part)
        return whole.count / max(len(slices), 1), merged(whole.latency)

    def error_samples(self, workflow: str, row: str) -> list[ErrorSample]:
        """First failures of a row, the earliest first."""
        found = [s for s in self.errors.values() if s.workflow == workflow and s.row == row]
        return sorted(found, key=lambda sample: sample.at_s)

    def snapshot(
        self,
        now_s: float,
        *,
        verdict: VerdictState = "VALID",
        reasons: Sequence[str] = (),
        headline: str = "",
        thresholds: Sequence[ThresholdState] = (),
    ) -> Snapshot:
        """Takes a snapshot. A new error is in one snapshot only, the first after it."""
        new_errors, self._new_errors = self._new_errors, []
        started = [stats for stats in self.workflows.values() if stats.last_second >= 0]
        return Snapshot(
            elapsed_s=now_s,
            workflows=tuple(
                _workflow_snapshot(stats, now_s, histograms=self.shows_histograms)
                for stats in started
            ),
            cpu=self.health.cpu_now,
            processes=len(self.health.processes),
            lag_p99_s=self.health.lag_p99_now_s,
            gc_max_s=self.health.gc_max_s,
            verdict=verdict,
            reasons=tuple(reasons),
            headline=headline,
            thresholds=tuple(thresholds),
            new_errors=tuple(new_errors),
        )

    def _add_error(self, sample: ErrorSample) -> None:
        key = (sample.workflow, sample.row, sample.reason, sample.location)
        known = self.errors.get(key)
        if known is not None:
            # Every process reports its own first failure; the earliest is the run's first.
            if sample.at_s < known.at_s:
                self.errors[key] = sample
            return
        if len(self.errors) >= MAX_ERROR_SAMPLES:
            self.errors_not_kept += 1
            return
        self.errors[key] = sample
        self._new_errors.append(
            NewError(
                workflow=sample.workflow,
                row=sample.row,
                reason=reason_text(sample.reason),
                location=sample.location,
                at_s=sample.at_s,
            )
        )


def _workflow_snapshot(stats: WorkflowStats, now_s: float, *, histograms: bool) -> WorkflowSnapshot:
    ended = stats.elapsed_s > 0.0
    elapsed_s = stats.elapsed_s or max(now_s - stats.started_at_s, 0.0)
    # Without recent reports nothing is known about the present second, and after the end nothing
    # happens in it. Past its planned end a workflow that is silent is most likely over.
    is_past = elapsed_s > stats.manifest.profile.duration_s
    silent_s = elapsed_s - (stats.complete_second + 1)
    is_stale = ended or silent_s > (_SILENT_PAST_END_S if is_past else _SILENT_S)
    second = [] if is_stale else stats.latest(1)
    rows = second[0].rows if second else {}
    iteration = second[0].iteration if second else RowSlice()
    whole = RowSlice()
    for row in rows.values():
        whole.merge(row)
    # A workflow whose steps are all actions has no rows; its iterations still take time.
    parts = [part for row in rows.values() for part in row.latency] or iteration.latency
    latency = merged(parts)
    p50_s, p95_s, p99_s = latency.quantiles(_PERCENTILES)
    counted = stats.count
    slices = rows | {ITERATION: iteration}
    return WorkflowSnapshot(
        name=stats.name,
        elapsed_s=elapsed_s,
        iterations=stats.iteration.count,
        rate_now_per_s=float(iteration.count),
        target_per_s=None if ended or is_past else stats.target_per_s(elapsed_s),
        executions_now_per_s=float(whole.count),
        users=0 if ended else stats.users.now,
        users_max=stats.users.max,
        busy_max=stats.busy_max,
        failed_share=stats.failed / counted if counted else 0.0,
        failed_now_share=whole.failed / whole.count if whole.count else 0.0,
        p50_now_s=p50_s,
        p95_now_s=p95_s,
        p99_now_s=p99_s,
        samples_now=latency.count,
        planned=stats.starts.planned,
        made=stats.starts.made,
        late=stats.starts.late,
        late_max_s=stats.starts.late_max_s,
        dropped=stats.starts.dropped,
        checks_passed=sum(check.passed for check in stats.checks.values()),
        checks_failed=sum(check.failed for check in stats.checks.values()),
        bytes_sent=stats.requests.bytes_sent,
        bytes_received=stats.requests.bytes_received,
        busy=sum(second[0].busy.values()) if second else 0,
        connect_p99_s=stats.connect.quantile(0.99),
        connections=stats.requests.connections,
        sent=stats.requests.sent,
        answered=stats.requests.answered,
        ended=ended,
        paused=stats.paused and not ended,
        rows=tuple(
            _row_snapshot(row, slices.get(row.name), histograms=histograms)
            for row in (*stats.rows.values(), stats.iteration)
        ),
        errors=_error_lines(stats),
        protocols=_protocol_snapshots(stats, second[0].protocols if second else {}),
    )


def _protocol_snapshots(
    stats: WorkflowStats, now: dict[str, ProtocolDelta]
) -> tuple[ProtocolSnapshot, ...]:
    if not are_shown(stats.protocols):
        return ()
    nothing = ProtocolDelta("", RequestsDelta())
    return tuple(
        ProtocolSnapshot(
            name=each.name,
            answered_now_per_s=float(second.requests.answered),
            messages_now_per_s=float(second.messages_sent + second.messages_received),
            failed=each.requests.failed,
            connections=each.requests.connections,
        )
        for each in stats.protocols.values()
        if each.requests.connections
        for second in (now.get(each.name, nothing),)
    )


def _row_snapshot(row: RowStats, second: RowSlice | None, *, histograms: bool) -> RowSnapshot:
    latency = row.latency
    p50_s, p95_s, p99_s, p999_s = latency.quantiles((*_PERCENTILES, 0.999))
    now = merged(second.latency) if second is not None else Histogram()
    p50_now_s, p95_now_s, p99_now_s = now.quantiles(_PERCENTILES)
    return RowSnapshot(
        name=row.name,
        count=row.count,
        failed=row.failed,
        rate_now_per_s=float(second.count) if second is not None else 0.0,
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        max_s=latency.max_s,
        p999_s=p999_s,
        first_byte_p99_s=None if row.first_byte is None else row.first_byte.quantile(0.99),
        failed_now=second.failed if second is not None else 0,
        samples_now=now.count,
        p50_now_s=p50_now_s,
        p95_now_s=p95_now_s,
        p99_now_s=p99_now_s,
        latency=latency.to_data() if histograms else None,
        bands_now=now.bands(),
    )


def _error_lines(stats: WorkflowStats) -> tuple[ErrorLine, ...]:
    lines = [
        ErrorLine(count, row.name, reason)
        for row in stats.rows.values()
        for reason, count in row.reasons.items()
    ]
    lines.sort(key=lambda line: -line.count)
    return tuple(lines[:_ERROR_LINES])
