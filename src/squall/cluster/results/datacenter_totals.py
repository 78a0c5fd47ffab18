"""The live totals of a job that several datacenters run: merged, by datacenter, and judged.

Each datacenter's leader of the job sends the reports of its part, summed over its shares
(`JobReports`). A report is added once:

- within a stream the cursor says what was added, and the leader sends only what comes after;
- another leader of the part starts another stream. Of that, the seconds that were added before are
  left out, so that no total falls and nothing counts twice. Reports that were late for such a
  second may be missing here; the result, which is made from committed records, has them.

Seconds are those of the first datacenter that started: the parts of another, which began later, are
shown at the time at which the target saw them.

Pure: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from squall.cluster.protocol.encoded_reports import decode_windows
from squall.cluster.protocol.gates.job_reports import JobReports, ReportCursor
from squall.engine.run.live_stats import LiveStats
from squall.engine.run_options import RunOptions
from squall.reporting.number_format import plural
from squall.stats.attempt_record import AttemptRecord
from squall.stats.histogram import Packed, merged
from squall.stats.manifest import FileManifest
from squall.stats.record_builder import RecordBuilder
from squall.stats.reports import WindowReport
from squall.stats.snapshot import DatacenterSnapshot, Snapshot, VerdictState
from squall.stats.thresholds.binding import bind_all
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.totals.run import RunStats
from squall.stats.verdict import judge_live

SILENT_S = 3.0
"""A datacenter that sends nothing for longer is shown as silent: reports come once a second, and a
leader of its job may be replaced within two."""


class DatacenterTotals:
    """What is known of one datacenter's part."""

    def __init__(self, name: str, part: float, manifest: FileManifest, warmup_s: float) -> None:
        self.name = name
        self.part = part
        self.tries = 1
        self.state = "queued"
        self.reason = ""
        self.workers = 0
        self.stats = RunStats(manifest, warmup_s)
        self.cursor = ReportCursor()
        # All that its leader had was read once. Before that, its totals are still rising to what
        # a former receiver has shown.
        self.is_caught_up = False
        self.heard_at: float | None = None
        # When its job started, on the clock of the caller.
        self.began_at: float | None = None
        # The last snapshot of its own leader, for the health of its processes.
        self.shown: Snapshot | None = None
        # The reports of each workflow in few windows: they count if the datacenter is lost.
        self.records: dict[str, RecordBuilder] = {}
        self.started_at_s: dict[str, float] = {}
        self.elapsed_s: dict[str, float] = {}
        # The newest second of each workflow that was added, over all streams.
        self.newest: dict[str, int] = {}
        # The newest second that former streams had added.
        self._covered: dict[str, int] = {}

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "partial", "failed", "cancelled", "timeout", "lost")

    def silent_s(self, now: float) -> float:
        """How long nothing was heard, if that is too long. A part that has not begun has nothing
        to say."""
        if self.is_over or self.heard_at is None or self.began_at is None:
            return 0.0
        silent_s = now - self.heard_at
        return silent_s if silent_s > SILENT_S else 0.0

    def follow_stream(self, stream: str) -> None:
        """Another leader numbers its reports from the start."""
        if stream != self.cursor.stream:
            self._covered = dict(self.newest)
            self.cursor = ReportCursor(stream=stream)

    def is_new(self, workflow: str, window: int) -> bool:
        return window > self._covered.get(workflow, -1)


class MergedTotals:
    """The totals of one job over all its datacenters, in the order of their parts."""

    def __init__(
        self,
        manifest: FileManifest,
        options: RunOptions,
        parts: Sequence[tuple[str, float, FileManifest]],
    ) -> None:
        """`manifest` and `options` are those of the whole job; `parts` has the name, the share of
        the load and the manifest of each datacenter."""
        self._warmup_s = options.warmup_s
        self.parts = [
            DatacenterTotals(name, part, own, options.warmup_s) for name, part, own in parts
        ]
        scopes = {each.name: each.stats for each in self.parts}
        bound = bind_all(manifest, options.thresholds, list(scopes))
        self._live = LiveStats(manifest, bound, options.warmup_s, scopes)
        self._no_load = RunStats(FileManifest(path="", workflows=[]))
        self._began_at: float | None = None
        # When the first report was read.
        self._read_from: float | None = None
        # By how many seconds the clock of a part's workflow is behind the merged one.
        self._later_s: dict[tuple[int, str], int] = {}
        self._aborted = False

    @property
    def stats(self) -> RunStats:
        return self._live.stats

    def elapsed_s(self, now: float) -> float:
        """Since the first datacenter started; 0 before."""
        return max(now - self._began_at, 0.0) if self._began_at is not None else 0.0

    def is_caught_up(self, now: float) -> bool:
        """False while a receiver that began late still reads what the datacenters have: its totals
        would be below those that its follower has seen. A datacenter that does not answer is
        waited for only so long."""
        if self._began_at is None or self._read_from is None:
            return False
        if all(part.is_caught_up or part.is_over for part in self.parts):
            return True
        return now - self._read_from > SILENT_S

    def take(self, index: int, reports: JobReports, now: float) -> None:
        """Adds what a datacenter's leader sent."""
        part = self.parts[index]
        if self._read_from is None:
            self._read_from = now
        part.is_caught_up = part.is_caught_up or not reports.more
        part.heard_at = now
        part.workers = reports.workers
        part.follow_stream(reports.stream)
        if part.began_at is None:
            part.began_at = now - reports.elapsed_s
        if self._began_at is None:
            self._began_at = part.began_at
        windows = dict(part.cursor.windows)
        for each in reports.workflows:
            if each.name not in part.stats.workflows:
                continue
            self._start(index, each.name, each.started_at_s)
            for report in decode_windows([bytes(data) for data in each.reports]):
                if report.workflow == each.name and part.is_new(each.name, report.window):
                    self._add(index, msgspec.structs.replace(report, share=index))
            if each.elapsed_s:
                self._end(index, each.name, each.elapsed_s)
            part.stats.workflows[each.name].adjusted_per_s = each.adjusted_per_s
            part.stats.workflows[each.name].paused = each.paused
            windows[each.name] = max(each.upto, windows.get(each.name, 0))
        for error in reports.errors:
            if error.workflow in part.stats.workflows:
                part.stats.add(error)
                self._live.add(error)
        part.cursor = ReportCursor(
            stream=reports.stream, windows=windows, errors=reports.errors_upto
        )

    def observe(self, index: int, now: float, *, state: str, reason: str = "") -> None:
        """The datacenter answered, with this state of its job."""
        part = self.parts[index]
        part.heard_at = now
        part.state, part.reason = state, reason
        if part.is_over:
            self._end_users(index)

    def lose(self, index: int, reason: str) -> None:
        """The datacenter is given up: its part ends with what is known of it."""
        part = self.parts[index]
        part.state, part.reason = "lost", reason
        self._end_users(index)

    def judged(self) -> list[ThresholdResult]:
        """The results of the thresholds, judged second by second up to now."""
        return self._live.close(())[0]

    def second(self, now: float) -> tuple[Snapshot, str]:
        """The snapshot of this moment, and the threshold that ends the job, once."""
        notes: list[tuple[VerdictState, str]] = []
        for part in self.parts:
            notes += _notes(part, now)
        now_s = self.elapsed_s(now)
        for name in self.stats.workflows:
            self._set_target(name, now)
        snapshot, abort = self._live.second(now_s, ())
        # Each datacenter's leader judges its own generator.
        verdict = judge_live(self._no_load, notes)
        if self._aborted:
            abort = ""
        self._aborted = self._aborted or bool(abort)
        shown = [part.shown for part in self.parts if part.shown is not None]
        running = [part for part in self.parts if part.workers and not part.is_over]
        processes = sum(each.processes for each in shown)
        workers = plural(sum(part.workers for part in running), "worker")
        return (
            msgspec.structs.replace(
                snapshot,
                verdict=verdict.state,
                reasons=tuple(verdict.reasons),
                headline=verdict.headline,
                cpu=sum(each.cpu * each.processes for each in shown) / max(processes, 1),
                processes=processes,
                lag_p99_s=max((each.lag_p99_s for each in shown), default=0.0),
                gc_max_s=max((each.gc_max_s for each in shown), default=0.0),
                where=f"{len(self.parts)} dc  {workers}",
                losses=tuple(_losses(self.parts, now)),
                datacenters=tuple(_line(part, now) for part in self.parts),
            ),
            abort,
        )

    def _end_users(self, index: int) -> None:
        for workflow in self.stats.workflows.values():
            workflow.end_share(index)

    def _set_target(self, workflow: str, now: float) -> None:
        """The planned rate of the whole, if an operator changed that of a datacenter."""
        own = [(part, part.stats.workflows[workflow]) for part in self.parts]
        self.stats.workflows[workflow].paused = any(stats.paused for _, stats in own)
        if all(stats.adjusted_per_s is None for _, stats in own):
            self.stats.workflows[workflow].adjusted_per_s = None
            return
        targets = [
            stats.target_per_s(now - part.began_at - stats.started_at_s)
            for part, stats in own
            if part.began_at is not None and not part.is_over
        ]
        self.stats.workflows[workflow].adjusted_per_s = sum(each or 0.0 for each in targets)

    def _start(self, index: int, workflow: str, at_s: float) -> None:
        part = self.parts[index]
        if workflow in part.started_at_s:
            return
        part.started_at_s[workflow] = at_s
        part.stats.workflows[workflow].started_at_s = at_s
        whole = self.stats.workflows[workflow]
        # It may have been over in all datacenters that had begun it.
        whole.elapsed_s = 0.0
        began_s = (part.began_at or 0.0) - (self._began_at or 0.0) + at_s
        if not any(workflow in other.started_at_s for other in self.parts if other is not part):
            whole.started_at_s = max(began_s, 0.0)
        self._later_s[index, workflow] = max(round(began_s - whole.started_at_s), 0)

    def _add(self, index: int, report: WindowReport) -> None:
        part, workflow = self.parts[index], report.workflow
        part.newest[workflow] = max(part.newest.get(workflow, -1), report.window)
        part.stats.add(report)
        self.stats.workflows[workflow].add(report, self._later_s[index, workflow])
        builder = part.records.get(workflow)
        if builder is None:
            head = AttemptRecord(workflow=workflow, share=0, attempt=1, worker=part.name)
            builder = RecordBuilder(head, warmup_s=self._warmup_s, sends=False)
            part.records[workflow] = builder
        builder.add(report)

    def _end(self, index: int, workflow: str, elapsed_s: float) -> None:
        part = self.parts[index]
        part.elapsed_s[workflow] = elapsed_s
        part.stats.workflows[workflow].elapsed_s = elapsed_s
        ends = [
            self._later_s[place, workflow] + other.elapsed_s[workflow]
            for place, other in enumerate(self.parts)
            if workflow in other.elapsed_s
        ]
        begun = [each for each in self.parts if workflow in each.started_at_s and not each.is_over]
        if all(workflow in other.elapsed_s for other in begun):
            self.stats.workflows[workflow].elapsed_s = max(ends)


def _notes(part: DatacenterTotals, now: float) -> list[tuple[VerdictState, str]]:
    """What the verdict on the whole run must say about one datacenter."""
    if part.state == "lost":
        return [("INVALID", f"{part.name} lost: {part.reason}")]
    silent_s = part.silent_s(now)
    if silent_s:
        return [("DEGRADED", f"{part.name} silent for {silent_s:.0f} s")]
    if part.shown is None or part.shown.verdict == "VALID":
        return []
    return [(part.shown.verdict, f"{part.name}: {reason}") for reason in part.shown.reasons]


def _losses(parts: Sequence[DatacenterTotals], now: float) -> list[str]:
    lines: list[str] = []
    for part in parts:
        if part.state == "lost":
            lines.append(f"{part.name} lost: {part.reason}")
        elif part.silent_s(now):
            lines.append(f"{part.name} silent for {part.silent_s(now):.0f} s")
        lines += [f"{part.name}/{line}" for line in (part.shown.losses if part.shown else ())]
    return lines


def _line(part: DatacenterTotals, now: float) -> DatacenterSnapshot:
    """The numbers of one datacenter in its last complete second."""
    silent_s = part.silent_s(now)
    is_quiet = bool(silent_s) or part.is_over
    elapsed_s = max(now - part.began_at, 0.0) if part.began_at is not None else 0.0
    executions = failed = users = count = bad = iterations = 0
    target: float | None = None
    latencies: list[Packed] = []
    for workflow in part.stats.workflows.values():
        executions += workflow.count
        failed += workflow.failed
        if is_quiet or workflow.elapsed_s or workflow.last_second < 0:
            continue
        users += workflow.users.now
        own_s = elapsed_s - workflow.started_at_s
        if own_s <= workflow.manifest.profile.duration_s:
            planned = workflow.target_per_s(own_s)
            target = target if planned is None else (target or 0.0) + planned
        for second in workflow.latest(1):
            iterations += second.iteration.count
            rows = list(second.rows.values()) or [second.iteration]
            for row in rows:
                count += row.count
                bad += row.failed
                latencies += row.latency
    latency = merged(latencies)
    p50_s, p95_s, p99_s = latency.quantiles((0.5, 0.95, 0.99))
    return DatacenterSnapshot(
        name=part.name,
        part=part.part,
        tries=part.tries,
        state=part.state,
        workers=0 if part.is_over else part.workers,
        users=users,
        executions=executions,
        executions_now_per_s=float(count),
        iterations_now_per_s=float(iterations),
        target_per_s=target,
        failed=failed,
        failed_now_share=bad / count if count else 0.0,
        p50_now_s=p50_s,
        p95_now_s=p95_s,
        p99_now_s=p99_s,
        samples_now=latency.count,
        verdict=part.shown.verdict if part.shown is not None else "VALID",
        silent_s=silent_s,
        note=part.reason,
    )
