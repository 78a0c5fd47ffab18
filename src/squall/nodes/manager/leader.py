"""Leads jobs before people: merges their telemetry, keeps their streams, judges each
second.

It has no authority. What it finds (a threshold that ends the job) it tells its owner, who
takes it to the log; the result of a job is assembled from committed records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from squall.engine.options import RunOptions
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.datacenter.records import JobRecord
from squall.nodes.datacenter.tables import Tables
from squall.nodes.identity import AttemptKey, JobId
from squall.nodes.manager.books import JobBooks
from squall.nodes.manager.kept import KeptRecord, Room
from squall.nodes.manager.silence import SILENT_S, Ear, Live, Silent, loss_lines, silence_note
from squall.nodes.manager.stream import JobStream
from squall.nodes.messages import (
    StreamEvent,
    StreamLine,
    StreamSnapshot,
    TelemetryPart,
)
from squall.reporting.format import plural
from squall.reporting.secrets import Redactor
from squall.runtime.tasks import TaskRunner
from squall.stats.record import AttemptRecord
from squall.stats.snapshot import VerdictState
from squall.stats.thresholds import ThresholdResult

ReadRecord = Callable[[str], Awaitable[AttemptRecord | None]]
"""A committed record by its digest; None when it cannot be read."""
LINES_PER_S = 200
"""Of what authors print: more than people can read."""
STREAMS_KEPT = 200


class Led:
    """One job that is led here."""

    def __init__(self, job: JobRecord, options: RunOptions, room: Room, now_ms: int) -> None:
        self.ear = Ear(now_ms)
        self.redact = Redactor(options.secrets.values())
        self.books = JobBooks(job.submission.manifest, options, room)
        self.stream = JobStream(job.created_ms - 1)
        self.events_told = 0
        self.lines = 0
        self.aborted = False
        self.second = 0
        """The last second of the job that was shown."""
        self.at_op = -1
        self.live: Live = ()
        self.lost = 0
        self.where = ""
        """Its attempts as of an op of the log: there may be thousands, and most seconds none
        of them changes."""


class JobLeader:
    """All jobs of this manager. The machine is the committed state, read only."""

    def __init__(
        self,
        machine: Datacenter,
        tasks: TaskRunner,
        *,
        group_ms: Callable[[], int],
        read_record: ReadRecord,
        options_of: Callable[[JobRecord], RunOptions],
        on_abort: Callable[[JobId, str], None],
        leads: Callable[[JobRecord], bool] = lambda job: True,
        settle_s: float = 0.3,
        silent_after_s: Callable[[], float] = lambda: SILENT_S,
    ) -> None:
        """`leads`: whether a job is this member's. After the end of a second its reports
        are on their way for `settle_s`; a share that told nothing for `silent_after_s` is
        shown as silent."""
        self._silent_after_s = silent_after_s
        self._settle_s = settle_s
        self._machine = machine
        self._tasks = tasks
        self._group_ms = group_ms
        self._read_record = read_record
        self._options_of = options_of
        self._on_abort = on_abort
        self._leads = leads
        self._led: dict[JobId, Led] = {}
        self.room = Room()
        """The memory for what running attempts reported, of all jobs."""

    @property
    def _tables(self) -> Tables:
        return self._machine.tables

    # What workers send.

    def take(self, parts: Sequence[TelemetryPart], node: str) -> list[tuple[AttemptKey, int]]:
        """Of jobs that are led here, from worker `node`; up to where each is known now."""
        acks: list[tuple[AttemptKey, int]] = []
        now_ms = self._group_ms()
        for part in parts:
            job = self._tables.jobs.get(part.key.job)
            over = job is None or job.over
            led = self._led.get(part.key.job) if job is None or over else self.led(job)
            if led is not None and part.lines:
                self._take_lines(led, part)
            if led is None or over:
                # Nobody will look at it any more; the record itself is another matter.
                acks.append((part.key, part.upto))
            else:
                led.ear.hear(part.key, now_ms)
                acks.append((part.key, led.books.take(part, node)))
        return acks

    def _take_lines(self, led: Led, part: TelemetryPart) -> None:
        if led.lines < LINES_PER_S:
            led.lines += len(part.lines)
            for line in part.lines:
                shown = StreamLine(line.prefix, led.redact(line.text))
                led.stream.put(shown, self._group_ms())

    # What others ask.

    def led(self, job: JobRecord) -> Led:
        """Opens the books of a job at its first mention; after a restart of this manager
        the attempts that are over by then are read from their records."""
        found = self._led.get(job.job)
        if found is None:
            found = self._led[job.job] = Led(
                job, self._options_of(job), self.room, self._group_ms()
            )
            # At once, by their own time: who followed it elsewhere has seen them.
            self._tell_events(job.job, found, job.created_ms)
            if job.over:
                found.stream.close()
            if job.started_ms:
                self._tasks.start(f"books of {job.job}", self._fill(job.job, found), group="leader")
            self._forget_old()
        return found

    def stream(self, job: JobRecord) -> JobStream:
        return self.led(job).stream

    def record(self, key: AttemptKey) -> AttemptRecord | None:
        """What reached this manager of an attempt."""
        led = self._led.get(key.job)
        return led.books.record(key) if led is not None else None

    def kept(self, key: AttemptKey) -> KeptRecord | None:
        """The same, with its last reports one by one."""
        led = self._led.get(key.job)
        return led.books.kept(key) if led is not None else None

    def judged(self, job: JobId) -> list[ThresholdResult]:
        led = self._led.get(job)
        return led.books.judged() if led is not None else []

    # What time brings.

    def changed(self) -> None:
        """After commands were applied: new events, jobs that are over, or led by another
        member now."""
        self._give_away()
        for job, led in self._led.items():
            record = self._tables.jobs.get(job)
            self._tell_events(job, led, record.created_ms if record is not None else 0)
            if record is None or record.over:
                led.stream.close()
                led.books.close()

    def tick(self) -> None:
        """Several times a second: a snapshot of each job whose next second is complete."""
        for job, led in self._led.items():
            record = self._tables.jobs.get(job)
            if record is None or record.over or not record.started_ms:
                continue
            now_s = (self._group_ms() - record.started_ms) / 1000.0
            second = int(now_s - self._settle_s)
            if second > led.second:
                led.second = second
                led.lines = 0
                self._show(record, led, float(second))

    def _show(self, record: JobRecord, led: Led, now_s: float) -> None:
        """One second of a job, and its thresholds."""
        for workflow in record.workflows:
            if workflow.started_ms:
                at_s = (workflow.started_ms - record.started_ms) / 1000.0
                led.books.started(workflow.name, at_s)
        if led.at_op != self._tables.op:
            self._look_at_attempts(record, led)
        silent = led.ear.silent(led.live, record, self._group_ms(), self._silent_after_s())
        snapshot, abort = led.books.second(now_s, _notes(silent, led.lost))
        snapshot = msgspec.structs.replace(
            snapshot,
            where=led.where,
            losses=loss_lines(self._tables, record, silent, is_lossy=led.lost > 0),
        )
        led.stream.put(StreamSnapshot(snapshot), self._group_ms())
        if abort and not led.aborted:
            led.aborted = True
            self._on_abort(record.job, abort)

    def _look_at_attempts(self, record: JobRecord, led: Led) -> None:
        self._let_go(led)
        attempts = list(self._tables.attempts_of(record.job))
        led.live = [each for each in attempts if each[1].state == "live"]
        led.lost = sum(facts.state == "lost" for _, facts in attempts)
        led.where = _where(record, led.live)
        led.at_op = self._tables.op

    def _let_go(self, led: Led) -> None:
        for key in led.books.running():
            attempt = self._tables.attempt(key)
            # One that this member has not heard of yet is about to be placed.
            if attempt is not None and attempt.state != "live":
                led.books.let_go(key)

    def _tell_events(self, job: JobId, led: Led, born_ms: int) -> None:
        events = self._tables.events.get(job, ())
        for event in events[led.events_told :]:
            told = StreamEvent((event.at_ms - born_ms) / 1000.0, event.text)
            led.stream.put(told, event.at_ms)
        led.events_told = max(led.events_told, len(events))

    async def _fill(self, job: JobId, led: Led) -> None:
        for key, facts in list(self._tables.attempts_of(job)):
            known = facts.facts
            if facts.state == "live" or known is None or not known.digest:
                continue
            record = await self._read_record(known.digest)
            if record is not None:
                led.books.fill(key, record)

    def _give_away(self) -> None:
        """Who waits for a stream of such a job is told by its end where to go on."""
        for job in list(self._led):
            record = self._tables.jobs.get(job)
            if record is not None and not record.over and not self._leads(record):
                led = self._led.pop(job)
                led.stream.close()
                led.books.close()

    def _forget_old(self) -> None:
        over = [job for job in self._led if self._is_over(job)]
        for job in over[: max(0, len(over) - STREAMS_KEPT)]:
            self._led.pop(job).books.close()

    def _is_over(self, job: JobId) -> bool:
        record = self._tables.jobs.get(job)
        return record is None or record.over


def _where(job: JobRecord, live: Live) -> str:
    workers = {attempt.node for _, attempt in live}
    text = plural(len(workers), "worker") if workers else ""
    return f"{text}  leader {job.leader}".strip() if job.leader else text


def _notes(silent: list[Silent], lost: int) -> list[tuple[VerdictState, str]]:
    notes: list[tuple[VerdictState, str]] = []
    if silent:
        notes.append(("DEGRADED", silence_note(silent)))
    if lost:
        notes.append(("DEGRADED", f"{plural(lost, 'share')} lost"))
    return notes
