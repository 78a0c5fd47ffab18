"""The records of the attempts that run here, and what the job's leader still lacks of them.

Every report goes into the attempt's cumulative record; the counters of the session come
from the same reports. Telemetry is what the receiver has not acknowledged; a receiver
that has nothing takes the whole record. Lines are best effort, and bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from squall.engine.protocol import Line
from squall.nodes.identity import AttemptKey
from squall.nodes.messages import Counters, TelemetryPart
from squall.nodes.worker.host import HostReport
from squall.stats.record import AttemptRecord, RecordEnd
from squall.stats.record_builder import RecordBuilder, encode_record
from squall.stats.reports import HealthReport, WindowReport

LINES_MAX = 500
PART_MAX_BYTES = 2 * 1024 * 1024
"""Of the reports in one message; a bulk message may have 4 MiB."""

_size = msgspec.msgpack.Encoder().encode


class AttemptBook:
    """One attempt of this worker."""

    def __init__(self, key: AttemptKey, worker: str, warmup_s: float) -> None:
        self.key = key
        self.builder = RecordBuilder(
            AttemptRecord(
                workflow=key.workflow, share=key.share, attempt=key.attempt, worker=worker
            ),
            warmup_s=warmup_s,
        )
        self.counters = Counters()
        self.began: float | None = None
        """The clock's reading at which the workflow's clock was zero."""
        self.acked = 0
        self._health: deque[tuple[int, HealthReport]] = deque(maxlen=600)
        self._errors_sent = 0
        self._lines: deque[Line] = deque(maxlen=LINES_MAX)

    def elapsed_s(self, now: float) -> float:
        return 0.0 if self.began is None else max(now - self.began, 0.0)

    def begin(self, now: float, elapsed_s: float) -> None:
        self.began = now - elapsed_s
        self.builder.record.joined_s = max(elapsed_s, 0.0)
        self.builder.record.silent_from_s = self.builder.record.joined_s

    def add(self, report: HostReport) -> None:
        if isinstance(report, Line):
            self._lines.append(report)
            return
        self.builder.add(report)
        if isinstance(report, WindowReport):
            self.counters = counted(self.counters, report)
        elif isinstance(report, HealthReport):
            self._health.append((self.builder.sequence + 1, report))

    def close(self, end: RecordEnd) -> bytes:
        self.builder.close(end)
        return encode_record(self.builder.record)

    def part(self) -> TelemetryPart | None:
        """What the receiver lacks, in as many reports as fit; None: it has everything."""
        builder = self.builder
        if builder.sequence <= self.acked and not self._lines:
            return None
        missing = builder.since(self.acked)
        lines = list(self._lines)
        self._lines.clear()
        if missing is None:
            # The receiver lacks more than is kept apart.
            reports, width_s = fitting(builder)
            return TelemetryPart(
                key=self.key,
                after=0,
                upto=builder.sequence,
                joined_s=builder.record.joined_s,
                width_s=width_s,
                silent_from_s=builder.record.silent_from_s,
                reports=reports,
                health=builder.record.health,
                errors=builder.record.errors,
                lines=lines,
            )
        chosen = _first_bytes(missing)
        upto = self.acked + len(chosen)
        return TelemetryPart(
            key=self.key,
            after=self.acked,
            upto=upto,
            joined_s=builder.record.joined_s,
            reports=chosen,
            health=[each for number, each in self._health if self.acked < number <= upto + 1],
            errors=builder.record.errors,
            lines=lines,
        )

    @property
    def has_lines(self) -> bool:
        """The author printed something that has not left yet."""
        return bool(self._lines)

    def keep_lines(self, lines: Sequence[Line]) -> None:
        """They were in a part that never left; older ones give way, as ever."""
        kept = [*lines, *self._lines]
        self._lines.clear()
        self._lines.extend(kept)

    def on_ack(self, sequence: int) -> None:
        """Everything up to it was added; 0: the receiver has nothing of this attempt."""
        self.acked = min(sequence, self.builder.sequence)


def counted(before: Counters, report: WindowReport) -> Counters:
    iteration = report.iteration
    ended = sum(outcome.count for outcome in iteration.outcomes) + iteration.interrupted
    return Counters(
        planned=before.planned + report.starts.planned,
        made=before.made + report.starts.made,
        finished=before.finished + ended,
        sent=before.sent + report.requests.sent,
        answered=before.answered + report.requests.answered,
        failed=before.failed + report.requests.failed,
        users=report.users,
        actions=before.actions + sum(row.started for row in report.rows),
    )


def fitting(builder: RecordBuilder) -> tuple[list[WindowReport], int]:
    """The record's reports in one message: wider windows until they fit; and how wide."""
    reports, width_s = builder.record.reports, builder.record.width_s
    while len(reports) > 1 and sum(len(_size(r)) for r in reports) > PART_MAX_BYTES:
        width_s *= 2
        reports = builder.widened(reports, width_s)
    return reports, width_s


def _first_bytes(reports: list[WindowReport]) -> list[WindowReport]:
    total = 0
    for number, report in enumerate(reports):
        total += len(_size(report))
        if total > PART_MAX_BYTES and number:
            return reports[:number]
    return reports
