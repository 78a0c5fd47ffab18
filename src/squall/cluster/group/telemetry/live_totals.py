"""The live totals of a job: the record of every attempt so far, the sums, the thresholds (R14).

Parts of telemetry may come late, twice or not at all. A part is added only if it begins where
the last one ended; any other part is answered with the sequence that is known, and the worker
sends what is missing. So no report counts twice, and totals never fall. All of this is
volatile: a restarted manager asks for whole records, and the result of a job is assembled from
committed records, never from here.
"""

from __future__ import annotations

import msgspec

from squall.cluster.group.telemetry.report_store import ReportMemory, RunningRecord
from squall.cluster.group.telemetry.summed_reports import SummedReports
from squall.cluster.protocol.encoded_reports import (
    TimedReport,
    decode_windows,
    encode_report,
    healths_in,
    windows_in,
)
from squall.cluster.protocol.gates.job_reports import JobReports, ReportCursor
from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.protocol.messages import TelemetryPart
from squall.engine.run.live_stats import LiveStats, Notes
from squall.engine.run_options import RunOptions
from squall.stats.attempt_record import AttemptRecord
from squall.stats.manifest import FileManifest
from squall.stats.report_sums import over_shares, summed_up
from squall.stats.reports import WindowReport
from squall.stats.snapshot import Snapshot
from squall.stats.thresholds.binding import bind_all
from squall.stats.thresholds.judge import ThresholdResult

TOGETHER = 128
"""The number of reports that are decoded and summed together, while they are in the CPU's caches.
Decoding all of them on arrival is slower: reading thousands of objects again at the end of their
second costs more than decoding."""
EARLY_S = 0.25
"""The last second of a workflow is shorter, and the clocks of two machines differ a little."""


class LiveTotals:
    """The totals of one job. Its records share `memory` with those of the other jobs."""

    def __init__(
        self,
        manifest: FileManifest,
        options: RunOptions,
        memory: ReportMemory | None = None,
        stream: str = "",
    ) -> None:
        """With `stream`, the summed reports are also kept for a receiver above this datacenter,
        under this name."""
        self._memory = memory if memory is not None else ReportMemory()
        self._warmup_s = options.warmup_s
        self._live_stats = LiveStats(
            manifest, bind_all(manifest, options.thresholds), options.warmup_s
        )
        self._sums = SummedReports(stream, self._memory, options.warmup_s) if stream else None
        self._records: dict[AttemptKey, RunningRecord] = {}
        self._health_at: dict[int, float] = {}
        # Reports whose second is not shown yet, with their workflow. The bytes are those that
        # the record stores.
        self._waiting: list[tuple[str, TimedReport]] = []
        # Users, and busy users, that each share of a workflow reported last: a share that is
        # late keeps its former level in the sum.
        self._levels: dict[str, dict[int, tuple[int, int]]] = {}

    def take(self, part: TelemetryPart, worker: str) -> int:
        """Adds what is new in a part; returns the sequence up to which the attempt is known.
        Raises `msgspec.ValidationError`, and adds nothing, if it holds something that is no
        report."""
        builder = self._records.get(part.key)
        taken = builder.sequence if builder is not None else 0
        if part.after > taken or part.upto <= taken:
            return taken
        one_by_one = part.upto - part.after == len(part.reports)
        if taken and not one_by_one and part.after:
            return taken
        if taken and not one_by_one:
            # So much was missing that the worker sent the whole record, in wider windows. The
            # live sums cannot take it without counting twice and stay as they are; the record,
            # which counts if the attempt is lost, is complete again.
            self._replace(part, worker)
            return part.upto
        # Both before anything is added: a part is added as a whole or not at all.
        reports = windows_in(part.reports[taken - part.after :] if one_by_one else part.reports)
        healths = healths_in(part.health)
        if builder is None:
            builder = self._records[part.key] = self._begun(part, worker)
        workflow = part.key.workflow
        for report in reports:
            builder.add_window(report)
            self._waiting.append((workflow, report))
        builder.sequence = part.upto
        for health, data in healths:
            if health.at_s > self._health_at.get(health.process, -1.0):
                self._health_at[health.process] = health.at_s
                builder.add_health(health, data)
                self._live_stats.add(health)
        for error in part.errors:
            builder.add_error(error)
            self._live_stats.add(error)
        return part.upto

    def _replace(self, part: TelemetryPart, worker: str) -> None:
        reports, healths = windows_in(part.reports), healths_in(part.health)
        former = self._records[part.key]
        if former.is_closed:
            former.sequence = part.upto
            return
        former.close()
        builder = self._records[part.key] = self._begun(part, worker)
        for report in reports:
            builder.add_window(report)
        for health, data in healths:
            builder.add_health(health, data)
        for error in part.errors:
            builder.add_error(error)
        builder.sequence = part.upto

    def _begun(self, part: TelemetryPart, worker: str) -> RunningRecord:
        key = part.key
        head = AttemptRecord(
            workflow=key.workflow,
            share=key.share,
            attempt=key.attempt,
            worker=worker,
            joined_s=part.joined_s,
            silent_from_s=part.silent_from_s,
            width_s=part.width_s,
        )
        return RunningRecord(head, self._memory, warmup_s=self._warmup_s)

    def judged(self) -> list[ThresholdResult]:
        """The results of the thresholds, judged second by second up to now."""
        return self._live_stats.close(())[0]

    def fill(self, key: AttemptKey, record: AttemptRecord) -> None:
        """Adds the committed record of an attempt that was over before this member led the job."""
        if key in self._records:
            return
        head = msgspec.structs.replace(record, reports=[], health=[], errors=[])
        known = self._records[key] = RunningRecord(head, self._memory)
        known.close()
        self._waiting += [
            (each.workflow, TimedReport(each.window, encode_report(each)))
            for each in record.reports
        ]
        for report in (*record.health, *record.errors):
            self._live_stats.add(report)

    def knows(self, key: AttemptKey) -> bool:
        return key in self._records

    def record(self, key: AttemptKey) -> AttemptRecord | None:
        """The attempt's record as far as it reached this manager; None also when the log has
        the record by now."""
        found = self.running_record(key)
        return found.record if found is not None else None

    def running_record(self, key: AttemptKey) -> RunningRecord | None:
        """The same as it is stored, with its last reports one by one."""
        found = self._records.get(key)
        return found if found is not None and not found.is_closed else None

    def running(self) -> list[AttemptKey]:
        """The attempts of which a record is stored."""
        return [key for key, record in self._records.items() if not record.is_closed]

    def close_record(self, key: AttemptKey) -> None:
        """The log has the attempt's record. Reports that still come are shown, but not stored."""
        self._records[key].close()

    def close(self) -> None:
        """The job is over, or another member leads it."""
        for record in self._records.values():
            record.close()
        if self._sums is not None:
            self._sums.close()

    def reports(self, cursor: ReportCursor, *, elapsed_s: float, workers: int) -> JobReports | None:
        """What a receiver above this datacenter lacks; None if this job has none."""
        if self._sums is None:
            return None
        stats = self._live_stats.stats
        return self._sums.after(cursor, stats, elapsed_s=elapsed_s, workers=workers)

    def started(self, workflow: str, at_s: float) -> None:
        """Sets when a workflow began, on the clock of the job."""
        self._live_stats.stats.workflows[workflow].started_at_s = at_s

    def adjusted(self, workflow: str, rate_per_s: float | None, *, paused: bool) -> None:
        """Sets the rate that an operator asked for; None: the plan's."""
        stats = self._live_stats.stats.workflows[workflow]
        stats.adjusted_per_s = 0.0 if paused else rate_per_s
        stats.paused = paused

    def ended(self, workflow: str, elapsed_s: float) -> None:
        """The workflow is over: its present second is empty."""
        # A set-up may take less than the millisecond that the log counts in.
        self._live_stats.stats.workflows[workflow].elapsed_s = max(elapsed_s, 0.001)

    def second(
        self, now_s: float, notes: Notes, *, histograms: bool = False
    ) -> tuple[Snapshot, str]:
        """Returns the snapshot, and the threshold that ends the job now, "" if none does."""
        self._live_stats.stats.shows_histograms = histograms
        self._add_up(now_s)
        return self._live_stats.second(now_s, notes)

    def _add_up(self, now_s: float) -> None:
        """Sums the reports of all shares into one for each workflow and window before adding
        them: with thousands of shares that is most of a manager's work. Reports of a second
        that is not over yet wait."""
        ready: dict[tuple[str, int], list[bytes]] = {}
        later: list[tuple[str, TimedReport]] = []
        for workflow, report in self._waiting:
            began_s = self._live_stats.stats.workflows[workflow].started_at_s
            if began_s + report.second + 1 <= now_s + EARLY_S:
                ready.setdefault((workflow, report.second), []).append(report.data)
            else:
                later.append((workflow, report))
        self._waiting = later
        for workflow, window in sorted(ready):
            levels = self._levels.setdefault(workflow, {})
            merged = _sum_of(ready[workflow, window], levels)
            if merged is None:
                continue
            merged.users = sum(users for users, _ in levels.values())
            merged.busy = sum(busy for _, busy in levels.values())
            self._live_stats.add(merged)
            if self._sums is not None:
                self._sums.add(merged)


def _sum_of(parts: list[bytes], levels: dict[int, tuple[int, int]]) -> WindowReport | None:
    """One window over all shares; `levels` gets the users of each share. None: none of the
    reports could be read."""
    sums: list[WindowReport] = []
    for at in range(0, len(parts), TOGETHER):
        reports = decode_windows(parts[at : at + TOGETHER])
        for report in reports:
            levels[report.share] = (report.users, report.busy)
        sums += over_shares(reports)
    if len(sums) < 2:
        return sums[0] if sums else None
    return summed_up(sums)
