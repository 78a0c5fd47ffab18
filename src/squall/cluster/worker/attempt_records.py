"""The cumulative records of running attempts, and what the leader of their job still lacks (R14).

Every report goes into the attempt's cumulative record; the counters of the session come from
the same reports. Telemetry is what the receiver has not acknowledged; a receiver that has
nothing gets the whole record. Printed lines are best effort, and bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from squall.cluster.protocol.encoded_reports import raw
from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.protocol.messages import Counters, TelemetryPart
from squall.cluster.results.counters import counted
from squall.engine.core_protocol import OutputLine
from squall.engine.process.attempt_events import HostReport
from squall.stats.attempt_record import AttemptRecord, RecordEnd, SurvivingCounters
from squall.stats.record_builder import RecordBuilder, encode_record
from squall.stats.reports import HealthReport, WindowReport

LINES_MAX = 500
PART_MAX_BYTES = 2 * 1024 * 1024
"""Of the reports in one message, which may have 4 MiB with all the rest."""


class AttemptRecorder:
    """Records one attempt, and cuts its telemetry into messages."""

    def __init__(self, key: AttemptKey, worker: str, warmup_s: float) -> None:
        self.key = key
        self.builder = RecordBuilder(
            AttemptRecord(
                workflow=key.workflow, share=key.share, attempt=key.attempt, worker=worker
            ),
            warmup_s=warmup_s,
        )
        self.counters = Counters()
        # The reading of the runtime's clock at which the workflow's clock was zero.
        self.began: float | None = None
        # The sequence up to which the receiver has everything.
        self.acked = 0
        # Health reports with the sequence of the window that follows them.
        self._health: deque[tuple[int, HealthReport]] = deque(maxlen=600)
        self._errors_sent = 0
        self._lines: deque[OutputLine] = deque(maxlen=LINES_MAX)

    def elapsed_s(self, now: float) -> float:
        return 0.0 if self.began is None else max(now - self.began, 0.0)

    def begin(self, now: float, elapsed_s: float) -> None:
        self.began = now - elapsed_s
        self.builder.record.joined_s = max(elapsed_s, 0.0)
        self.builder.record.silent_from_s = self.builder.record.joined_s

    def add(self, report: HostReport) -> None:
        if isinstance(report, OutputLine):
            self._lines.append(report)
            return
        if isinstance(report, SurvivingCounters):
            self.builder.add_counters(report)
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
        """What the receiver lacks, as many reports as fit; None: it lacks nothing."""
        builder = self.builder
        if builder.sequence <= self.acked and not self._lines:
            return None
        missing = builder.since(self.acked)
        lines = list(self._lines)
        self._lines.clear()
        if missing is None:
            # The receiver lacks more reports than the builder keeps one by one.
            reports, width_s = fitting(builder)
            return TelemetryPart(
                key=self.key,
                after=0,
                upto=builder.sequence,
                joined_s=builder.record.joined_s,
                width_s=width_s,
                silent_from_s=builder.record.silent_from_s,
                reports=reports,
                health=[raw(each) for each in builder.record.health],
                errors=builder.record.errors,
                lines=lines,
            )
        chosen = _encoded_up_to_limit(missing)
        upto = self.acked + len(chosen)
        return TelemetryPart(
            key=self.key,
            after=self.acked,
            upto=upto,
            joined_s=builder.record.joined_s,
            reports=chosen,
            health=[raw(each) for number, each in self._health if self.acked < number <= upto + 1],
            errors=builder.record.errors,
            lines=lines,
        )

    @property
    def has_lines(self) -> bool:
        """The author printed lines that were not sent yet."""
        return bool(self._lines)

    def keep_lines(self, lines: Sequence[OutputLine]) -> None:
        """Takes back lines of a part that was not sent. Beyond the limit the oldest are dropped."""
        kept = [*lines, *self._lines]
        self._lines.clear()
        self._lines.extend(kept)

    def on_ack(self, sequence: int) -> None:
        """The receiver has everything up to this sequence; 0: nothing."""
        self.acked = min(sequence, self.builder.sequence)


def fitting(builder: RecordBuilder) -> tuple[list[msgspec.Raw], int]:
    """The record's reports for one message, in windows that are wide enough to fit; and how
    wide they are."""
    reports, width_s = builder.record.reports, builder.record.width_s
    encoded = [raw(report) for report in reports]
    while len(reports) > 1 and sum(map(len, encoded)) > PART_MAX_BYTES:
        width_s *= 2
        reports = builder.widened(reports, width_s)
        encoded = [raw(report) for report in reports]
    return encoded, width_s


def _encoded_up_to_limit(reports: list[WindowReport]) -> list[msgspec.Raw]:
    """Encodes reports up to the limit, but at least one: a larger one would never be sent."""
    encoded: list[msgspec.Raw] = []
    total = 0
    for report in reports:
        data = raw(report)
        total += len(data)
        if total > PART_MAX_BYTES and encoded:
            break
        encoded.append(data)
    return encoded
