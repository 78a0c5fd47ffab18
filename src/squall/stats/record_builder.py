"""Builds the cumulative record of one attempt from its reports, and keeps it small.

The builder adds reports one by one and uses `sequence` to count each once. Beyond `POINTS_MAX`
windows it joins neighbours, doubling the width each time, but never across the end of the
warm-up: excluding the warm-up then excludes the same reports at any width. It keeps reports that a
receiver has not acknowledged apart for a while, so that the sender can send only those.

Pure: no clock, no input or output.
"""

from __future__ import annotations

import math
import zlib
from collections import deque

import msgspec

from squall.api.errors import SquallError
from squall.stats.attempt_record import (
    ERRORS_MAX,
    POINTS_MAX,
    AttemptRecord,
    RecordEnd,
    SurvivingCounters,
)
from squall.stats.report_sums import joined, joined_health
from squall.stats.reports import (
    NOT_KNOWN,
    ErrorSample,
    HealthReport,
    ProtocolDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
)

RECENT_MAX = 900
"""Reports that are also kept singly; a receiver that lacks more takes the whole record."""
RECORD_MAX_BYTES = 64 * 1024 * 1024

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(AttemptRecord)


class RecordBroken(SquallError):
    """The bytes are not a record."""


class RecordBuilder:
    """Adds reports to a record. Reports that `record` already holds count as one sequence. With
    `sends` it also keeps the last reports singly, for receivers that have the earlier ones."""

    def __init__(self, record: AttemptRecord, *, warmup_s: float = 0.0, sends: bool = True) -> None:
        self.record = record
        self._boundary = math.ceil(warmup_s)
        kept = RECENT_MAX if sends else 0
        self._recent: deque[tuple[int, WindowReport]] = deque(maxlen=kept)
        self._known = {(error.row, error.reason, error.location) for error in record.errors}
        self._health_at: dict[int, float] = {}
        self._health_width = 1

    @property
    def sequence(self) -> int:
        return self.record.sequence

    @sequence.setter
    def sequence(self, value: int) -> None:
        self.record.sequence = value

    def add(self, report: WindowReport | HealthReport | ErrorSample) -> None:
        if isinstance(report, WindowReport):
            self._add_window(report)
        elif isinstance(report, HealthReport):
            self._add_health(report)
        else:
            self._add_error(report)

    def add_counters(self, counters: SurvivingCounters) -> None:
        """Adds what a dead process did after its last report, as far as its counters know. They
        have no latencies and no outcomes of steps, so no row gets anything. Receivers of single
        reports do not get this: it belongs to the record that the dead process leaves."""
        record = self.record
        record.counters = counters
        if counters.at_s <= record.silent_from_s:
            return
        sums, starts = RequestsDelta(), StartsDelta()
        for report in record.reports:
            sums.sent += report.requests.sent
            sums.answered += report.requests.answered
            sums.failed += report.requests.failed
            starts.planned += report.starts.planned
            starts.made += report.starts.made
            starts.dropped += report.starts.dropped
        # The last report may have been made after the last fold, and know more.
        requests = RequestsDelta(
            sent=max(counters.sent - sums.sent, 0),
            answered=max(counters.answered - sums.answered, 0),
            failed=max(counters.failed - sums.failed, 0),
        )
        rest = WindowReport(
            workflow=record.workflow,
            share=record.share,
            window=int(counters.at_s),
            rows=[],
            iteration=RowDelta("iteration", "iteration"),
            starts=StartsDelta(
                planned=max(counters.planned - starts.planned, 0),
                made=max(counters.made - starts.made, 0),
                dropped=max(counters.dropped - starts.dropped, 0),
            ),
            requests=requests,
            users=counters.users,
            busy=counters.busy,
            unmeasured=requests.sent,
            protocols=[ProtocolDelta(NOT_KNOWN, requests)]
            if any(report.protocols for report in record.reports)
            else [],
        )
        record.silent_from_s = counters.at_s
        self._insert(rest)

    def close(self, end: RecordEnd) -> None:
        """Sets the end. If it lies after the last report, the process died without reporting."""
        self.record.end = end

    def since(self, sequence: int) -> list[WindowReport] | None:
        """The single reports after a sequence; None if they are no longer kept singly, so that
        the receiver has to take the whole record."""
        missing = self.sequence - sequence
        if missing <= 0:
            return []
        if missing > len(self._recent):
            return None
        return [report for number, report in self._recent if number > sequence]

    def _add_window(self, report: WindowReport) -> None:
        record = self.record
        record.sequence += 1
        record.silent_from_s = max(record.silent_from_s, float(report.window + 1))
        self._recent.append((record.sequence, report))
        self._insert(report)

    def _insert(self, report: WindowReport) -> None:
        record = self.record
        group = self._group(report.window, record.width_s)
        reports = record.reports
        place = len(reports)
        while place and self._group(reports[place - 1].window, record.width_s) > group:
            place -= 1
        if place and self._group(reports[place - 1].window, record.width_s) == group:
            reports[place - 1] = joined(reports[place - 1], report)
        else:
            reports.insert(place, report)
        while len(reports) > POINTS_MAX:
            record.width_s *= 2
            reports[:] = self.widened(reports, record.width_s)

    def widened(self, reports: list[WindowReport], width_s: int) -> list[WindowReport]:
        """Adds neighbouring reports into windows of this width."""
        merged: list[WindowReport] = []
        last: int | None = None
        for report in reports:
            group = self._group(report.window, width_s)
            if merged and group == last:
                merged[-1] = joined(merged[-1], report)
            else:
                merged.append(report)
            last = group
        return merged

    def _group(self, window: int, width_s: int) -> int:
        """Counts groups from the end of the warm-up, so that no group spans it."""
        return (window - self._boundary) // width_s

    def _add_health(self, report: HealthReport) -> None:
        health = self.record.health
        before_s = self._health_at.get(report.process)
        if before_s is not None and report.at_s <= before_s:
            return
        self._health_at[report.process] = report.at_s
        health.append(report)
        if len(health) > POINTS_MAX:
            self._health_width *= 2
            health[:] = self._health_widened(health)

    def _health_widened(self, reports: list[HealthReport]) -> list[HealthReport]:
        merged: list[HealthReport] = []
        spans: list[float] = []
        last_at: dict[int, float] = {}
        for report in reports:
            before_s = last_at.get(report.process)
            start_s = max(report.at_s - 1.0, 0.0) if before_s is None else before_s
            last_at[report.process] = report.at_s
            span_s = max(report.at_s - start_s, 0.0)
            if merged and self._health_joins(merged[-1], report):
                merged[-1] = joined_health(merged[-1], spans[-1], report, span_s)
                spans[-1] += span_s
            else:
                merged.append(report)
                spans.append(span_s)
        return merged

    def _health_joins(self, one: HealthReport, two: HealthReport) -> bool:
        first, second = (max(round(each.at_s) - 1, 0) for each in (one, two))
        width = self._health_width
        same = self._group(first, width) == self._group(second, width)
        return one.process == two.process and same

    def _add_error(self, error: ErrorSample) -> None:
        kind = (error.row, error.reason, error.location)
        if kind not in self._known and len(self.record.errors) < ERRORS_MAX:
            self._known.add(kind)
            self.record.errors.append(error)


def encode_record(record: AttemptRecord) -> bytes:
    return zlib.compress(_encode(record), 6)


def decode_record(data: bytes) -> AttemptRecord:
    """Decodes a record. Raises `RecordBroken` for any other bytes."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, RECORD_MAX_BYTES)
        if not unpacker.eof:
            raise RecordBroken("a record is cut off, or larger than a record may be")
        return _decoder.decode(plain)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordBroken(f"a record cannot be read: {error}") from None
