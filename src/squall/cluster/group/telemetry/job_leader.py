"""Merges the telemetry of the jobs that this member leads, keeps their streams, and judges their
thresholds each second.

A job leader has no authority (R1). When a threshold ends a job it calls `on_abort`, and its
owner takes that to the log; the result of a job is assembled from committed records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Generic

import msgspec

from squall.cluster.group.job_tables import HoldsLiveJobs, Led, LiveJob, LiveTables
from squall.cluster.group.telemetry.job_stream import JobStream
from squall.cluster.group.telemetry.live_totals import LiveTotals
from squall.cluster.group.telemetry.report_store import ReportMemory, RunningRecord
from squall.cluster.group.telemetry.silent_shares import (
    SILENT_S,
    HasLink,
    LiveAttempts,
    ReportTimes,
    SilentWorker,
    loss_lines,
    silence_note,
)
from squall.cluster.protocol.gates.job_reports import JobReports, ReportCursor
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import (
    StreamEvent,
    StreamLine,
    StreamSnapshot,
    TelemetryPart,
)
from squall.engine.run_options import RunOptions
from squall.reporting.number_format import plural
from squall.reporting.redaction import Redactor
from squall.runtime.tasks import TaskRunner
from squall.stats.attempt_record import AttemptRecord
from squall.stats.snapshot import VerdictState
from squall.stats.thresholds.judge import ThresholdResult

ReadRecord = Callable[[str], Awaitable[AttemptRecord | None]]
"""Reads a committed record by its digest; None when it cannot be read."""
LINES_PER_S = 200
"""Lines that authors print, per job: more than a reader can follow."""
STREAMS_KEPT = 200
"""Streams of jobs that are over, for followers that come back."""


class LedJob:
    """One job that this member leads."""

    def __init__(
        self, job: LiveJob, options: RunOptions, memory: ReportMemory, now_ms: int
    ) -> None:
        self.report_times = ReportTimes(now_ms)
        self.redact = Redactor(options.secrets.values())
        # A leader of the job numbers its reports anew. No two begin at the same moment under the
        # same name.
        stream = f"{job.leader}/{now_ms}" if job.submission.split is not None else ""
        self.totals = LiveTotals(job.submission.manifest, options, memory, stream)
        self.stream = JobStream(job.created_ms - 1)
        self.events_shown = 0
        self.lines = 0
        self.aborted = False
        # What shows it raised: it is shown no more, and the other jobs are.
        self.is_broken = False
        # The last second of the job that was shown; never falls.
        self.second = 0
        # The attempts of the job as of op `at_op`. There may be thousands of them, and in most
        # seconds none changes, so they are only read again when the log has grown.
        self.at_op = -1
        self.live: LiveAttempts = ()
        self.lost = 0
        self.where = ""


class JobLeader(Generic[Led]):
    """Leads all jobs of this member. It only reads the committed state."""

    def __init__(
        self,
        machine: HoldsLiveJobs[Led],
        tasks: TaskRunner,
        *,
        group_ms: Callable[[], int],
        read_record: ReadRecord,
        options_of: Callable[[Led], RunOptions],
        on_abort: Callable[[JobId, str], None],
        leads: Callable[[Led], bool] = lambda job: True,
        settle_s: float = 0.3,
        silent_after_s: Callable[[], float] = lambda: SILENT_S,
        has_link: HasLink = lambda node, boot: True,
        lost_after_s: Callable[[], float] = lambda: 0.0,
        lost_lines: Callable[[Led], Iterable[str]] = lambda job: (),
        on_broken: Callable[[JobId, Exception], None] = lambda job, error: None,
    ) -> None:
        """`leads` says whether this member leads a job. A second is shown `settle_s` after its
        end, when its reports have arrived. A share that reported nothing for `silent_after_s`
        is shown as silent, and one whose worker has no link to this member sooner. The primary
        gives a silent share up after `lost_after_s`. `lost_lines` says what a job has lost.
        `on_broken` is called once for a job that
        cannot be shown."""
        self._has_link = has_link
        self._lost_after_s = lost_after_s
        self._lost_lines = lost_lines
        self._on_broken = on_broken
        self._silent_after_s = silent_after_s
        self._settle_s = settle_s
        self._machine = machine
        self._tasks = tasks
        self._group_ms = group_ms
        self._read_record = read_record
        self._options_of = options_of
        self._on_abort = on_abort
        self._leads = leads
        self._led: dict[JobId, LedJob] = {}
        # Shared by the reports of all jobs.
        self.memory = ReportMemory()

    @property
    def _tables(self) -> LiveTables[Led]:
        return self._machine.tables

    # Telemetry.

    def take(self, parts: Sequence[TelemetryPart], node: str) -> list[tuple[AttemptKey, int]]:
        """Adds parts of jobs that this member leads, from worker `node`; returns the sequence up
        to which each attempt is known."""
        acks: list[tuple[AttemptKey, int]] = []
        now_ms = self._group_ms()
        for part in parts:
            job = self._tables.jobs.get(part.key.job)
            over = job is None or job.over
            led = self._led.get(part.key.job) if job is None or over else self.led(job)
            if led is not None and part.lines:
                self._take_lines(led, part)
            if led is None or over:
                # The job is over: its reports are not shown any more. The final record of the
                # attempt does not depend on this acknowledgment.
                acks.append((part.key, part.upto))
            else:
                led.report_times.observe(part.key, now_ms)
                acks.append((part.key, led.totals.take(part, node)))
        return acks

    def _take_lines(self, led: LedJob, part: TelemetryPart) -> None:
        if led.lines < LINES_PER_S:
            led.lines += len(part.lines)
            for line in part.lines:
                shown = StreamLine(line.prefix, led.redact(line.text))
                led.stream.put(shown, self._group_ms())

    # What other parts read.

    def led(self, job: Led) -> LedJob:
        """Begins to lead a job when it is first mentioned. After a restart of this manager the
        attempts that are over are read from their records."""
        found = self._led.get(job.job)
        if found is None:
            found = self._led[job.job] = LedJob(
                job, self._options_of(job), self.memory, self._group_ms()
            )
            # With their own time stamps: a follower that comes from another member has seen
            # them under the same numbers.
            self._show_events(job, found)
            if job.over:
                found.stream.close()
            if job.started_ms:
                self._tasks.start(
                    f"totals of {job.job}", self._fill(job.job, found), group="leader"
                )
            self._forget_old()
        return found

    def stream(self, job: Led) -> JobStream:
        return self.led(job).stream

    def reports(self, job: Led, cursor: ReportCursor) -> JobReports | None:
        """The summed reports of a datacenter's part after a cursor; None before its start, after
        its end, and of other jobs."""
        if job.over or not job.started_ms:
            return None
        led = self.led(job)
        elapsed_s = (self._group_ms() - job.started_ms) / 1000.0
        workers = len({attempt.node for _, attempt in led.live})
        return led.totals.reports(cursor, elapsed_s=elapsed_s, workers=workers)

    def record(self, key: AttemptKey) -> AttemptRecord | None:
        """The record of a running attempt, as far as its reports reached this manager."""
        led = self._led.get(key.job)
        return led.totals.record(key) if led is not None else None

    def running_record(self, key: AttemptKey) -> RunningRecord | None:
        """The same as it is stored, with its last reports one by one."""
        led = self._led.get(key.job)
        return led.totals.running_record(key) if led is not None else None

    def judged(self, job: JobId) -> list[ThresholdResult]:
        led = self._led.get(job)
        return led.totals.judged() if led is not None else []

    # Callbacks of the log and of time.

    def changed(self) -> None:
        """Commands were applied: shows new events, closes jobs that are over, gives up jobs that
        another member leads now."""
        self._give_away()
        for job, led in self._led.items():
            record = self._tables.jobs.get(job)
            if record is not None and not led.is_broken:
                self._guarded(job, led, partial(self._show_events, record, led))
            if record is None or record.over:
                led.stream.close()
                led.totals.close()

    def tick(self) -> None:
        """Called several times a second: shows each job whose next second is complete."""
        for job, led in self._led.items():
            record = self._tables.jobs.get(job)
            if record is None or record.over or not record.started_ms or led.is_broken:
                continue
            now_s = (self._group_ms() - record.started_ms) / 1000.0
            second = int(now_s - self._settle_s)
            if second > led.second:
                led.second = second
                led.lines = 0
                self._guarded(job, led, partial(self._show, record, led, float(second)))

    def _guarded(self, job: JobId, led: LedJob, show: Callable[[], None]) -> None:
        """What is shown of one job ends neither the manager nor what is shown of the others."""
        try:
            show()
        except Exception as error:
            led.is_broken = True
            self._on_broken(job, error)

    def _show(self, record: Led, led: LedJob, now_s: float) -> None:
        """Shows one second of a job and judges its thresholds."""
        for workflow in record.workflows:
            if workflow.started_ms:
                at_s = (workflow.started_ms - record.started_ms) / 1000.0
                led.totals.started(workflow.name, at_s)
                change = workflow.adjustment
                led.totals.adjusted(workflow.name, change.rate_per_s, paused=change.paused)
                if workflow.over:
                    led.totals.ended(workflow.name, workflow.elapsed_s)
        if led.at_op != self._tables.op:
            self._read_attempts(record, led)
        silent = led.report_times.silent(
            led.live,
            record,
            self._group_ms(),
            self._silent_after_s(),
            self._has_link,
            max(self._lost_after_s(), record.submission.options.lease_min_s),
        )
        snapshot, abort = led.totals.second(
            now_s, _notes(silent, led.lost), histograms=led.stream.shows_histograms
        )
        snapshot = msgspec.structs.replace(
            snapshot,
            where=led.where,
            losses=loss_lines(self._lost_lines(record) if led.lost else (), silent),
        )
        led.stream.put(StreamSnapshot(snapshot), self._group_ms())
        if abort and not led.aborted:
            led.aborted = True
            self._on_abort(record.job, abort)

    def _read_attempts(self, record: Led, led: LedJob) -> None:
        self._close_records(led)
        attempts = list(self._tables.attempts_of(record.job))
        led.live = [each for each in attempts if each[1].state == "live"]
        led.lost = sum(facts.state == "lost" for _, facts in attempts)
        led.where = _where(record, led.live)
        led.at_op = self._tables.op

    def _close_records(self, led: LedJob) -> None:
        for key in led.totals.running():
            attempt = self._tables.attempt(key)
            # An attempt that the log of this member does not have yet is about to be placed.
            if attempt is not None and attempt.state != "live":
                led.totals.close_record(key)

    def _show_events(self, job: Led, led: LedJob) -> None:
        if len(self._tables.events.get(job.job, ())) <= led.events_shown:
            return
        events = self._tables.shown_events(job)
        for event in events[led.events_shown :]:
            shown = StreamEvent((event.at_ms - job.created_ms) / 1000.0, event.text)
            led.stream.put(shown, event.at_ms)
        led.events_shown = len(events)

    async def _fill(self, job: JobId, led: LedJob) -> None:
        for key, facts in list(self._tables.attempts_of(job)):
            known = facts.facts
            if facts.state == "live" or known is None or not known.digest:
                continue
            record = await self._read_record(known.digest)
            if record is not None:
                led.totals.fill(key, record)

    def _give_away(self) -> None:
        """Gives up jobs that another member leads now. A follower that waits for the stream gets
        its end, and with the next request the address of the new leader."""
        for job in list(self._led):
            record = self._tables.jobs.get(job)
            if record is not None and not record.over and not self._leads(record):
                led = self._led.pop(job)
                led.stream.close()
                led.totals.close()

    def _forget_old(self) -> None:
        over = [job for job in self._led if self._is_over(job)]
        for job in over[: max(0, len(over) - STREAMS_KEPT)]:
            self._led.pop(job).totals.close()

    def _is_over(self, job: JobId) -> bool:
        record = self._tables.jobs.get(job)
        return record is None or record.over


def _where(job: LiveJob, live: LiveAttempts) -> str:
    workers = {attempt.node for _, attempt in live}
    text = plural(len(workers), "worker") if workers else ""
    return f"{text}  leader {job.leader}".strip() if job.leader else text


def _notes(silent: list[SilentWorker], lost: int) -> list[tuple[VerdictState, str]]:
    notes: list[tuple[VerdictState, str]] = []
    if silent:
        notes.append(("DEGRADED", silence_note(silent)))
    if lost:
        notes.append(("DEGRADED", f"{plural(lost, 'share')} lost"))
    return notes
