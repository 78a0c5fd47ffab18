"""Stores the reports of running attempts in little memory.

The final record of an attempt is on the worker's disk; until then only what is stored here
counts if the worker is lost (R8). Thousands of attempts report each second, so reports stay
the bytes that were sent, a third of what they need as objects. All records of a manager share
one `ReportMemory`. When it is full, the records that take the most merge their oldest seconds,
sixteen at a time, into one window. Sums stay exact whatever the width; only the points in time
are further apart. Records that the log has are dropped.

Pure: no clock, no input or output.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

import msgspec

from squall.cluster.protocol.encoded_reports import (
    TimedReport,
    decode_health,
    decode_windows,
    encode_report,
)
from squall.stats.attempt_record import AttemptRecord
from squall.stats.record_builder import RecordBuilder
from squall.stats.report_sums import summed_health, summed_up
from squall.stats.reports import ErrorSample, HealthReport, WindowReport

REPORTS_MAX_BYTES = 512 * 1024 * 1024
"""Holds two to three minutes of 2,000 workers second by second, and hours of them in wider
windows."""
FACTOR = 16
"""From this many reports on, one pass sums the histograms (`squall.stats.histogram`), at a fifth of
the cost per report of smaller steps."""
FINE_MAX = FACTOR * 600
"""The most windows of one width: a record of that length has windows of sixteen times the
width anyway, see `POINTS_MAX`."""
ENTRY_BYTES = 120
"""What an entry takes besides its bytes: a tuple, two numbers and a place in a deque."""

Report = TypeVar("Report", WindowReport, HealthReport)
StoredReport = tuple[int, int, bytes]
"""(sequence number, second, encoded report)"""


class ReportMemory:
    """Counts the memory that all running records share."""

    def __init__(self, max_bytes: int = REPORTS_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.records = 0

    def is_short_for(self, taken_bytes: int) -> bool:
        """Whether a record of this size must merge: the memory is full and the record is not below
        average."""
        return self.used_bytes > self.max_bytes and taken_bytes * self.records >= self.used_bytes


class RunningRecord:
    """The reports of one running attempt. `head` is its record without reports; errors are few
    and stay in it."""

    def __init__(self, head: AttemptRecord, memory: ReportMemory, *, warmup_s: float = 0.0) -> None:
        self.head = head
        self._memory = memory
        self._warmup_s = warmup_s
        boundary = math.ceil(warmup_s)
        first_width_s = head.width_s
        self._windows = _Tiers(decode_windows, _one_window, boundary, first_width_s)
        self._health = _Tiers(_decode_healths, _one_health, boundary, 1)
        self._errors = RecordBuilder(head, sends=False)
        self._taken_bytes = 0
        self._is_closed = False
        memory.records += 1

    @property
    def sequence(self) -> int:
        return self.head.sequence

    @sequence.setter
    def sequence(self, value: int) -> None:
        self.head.sequence = value

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    def add_window(self, report: TimedReport) -> None:
        """It counts in `sequence`, stored or not."""
        head = self.head
        head.sequence += 1
        until_s = report.second + 1.0
        if until_s > head.silent_from_s:
            head.silent_from_s = until_s
        if not self._is_closed:
            windows = self._windows
            self._grown(windows.put(head.sequence, report.second, report.data), windows)

    def add_health(self, report: HealthReport, data: bytes) -> None:
        """`data` is the same report, encoded."""
        if not self._is_closed:
            second = max(round(report.at_s) - 1, 0)
            self._grown(self._health.put(0, second, data), self._health)

    def add_error(self, error: ErrorSample) -> None:
        if not self._is_closed:
            self._errors.add(error)

    def since(self, sequence: int) -> list[bytes] | None:
        """The encoded reports after a sequence, one by one; None when some of them were
        merged already."""
        missing = self.sequence - sequence
        if missing <= 0:
            return []
        newest = self._windows.newest(missing)
        found = [data for number, _, data in newest if number > sequence]
        return found if len(found) == missing else None

    def after(self, sequence: int, max_bytes: int) -> tuple[int, list[bytes]]:
        """The encoded reports after a sequence, oldest first, as many as fit, and the sequence of
        the last one. A window that holds reports from before `sequence` as well is left out: a
        receiver that was so late lacks some seconds and counts none twice."""
        upto, found, taken = sequence, list[bytes](), 0
        before = 0
        for number, _, data in self._windows.entries():
            if number > sequence:
                if found and taken + len(data) > max_bytes:
                    break
                if before >= sequence:
                    found.append(data)
                    taken += len(data)
                upto = number
            before = number
        return upto, found

    def health_after(self, at_s: float) -> list[tuple[float, bytes]]:
        """The health reports later than that: the time of each, and the encoded report."""
        found: list[tuple[float, bytes]] = []
        for data in self._health.after(max(round(at_s) - 1, 0)):
            report = decode_health(data)
            if report.at_s > at_s:
                found.append((report.at_s, data))
        return found

    @property
    def record(self) -> AttemptRecord:
        """The whole record, built at each call."""
        head = self.head
        made = msgspec.structs.replace(
            head, width_s=self._windows.width_s, reports=[], health=[], errors=list(head.errors)
        )
        builder = RecordBuilder(made, warmup_s=self._warmup_s, sends=False)
        for report in sorted(self._windows.all(), key=lambda each: each.window):
            builder.add(report)
        for report in sorted(self._health.all(), key=lambda each: each.at_s):
            builder.add(report)
        made.sequence, made.silent_from_s = head.sequence, head.silent_from_s
        return made

    def widened(self, reports: list[WindowReport], width_s: int) -> list[WindowReport]:
        builder = RecordBuilder(self.head, warmup_s=self._warmup_s, sends=False)
        return builder.widened(reports, width_s)

    def close(self) -> None:
        """Drops the reports: the log has them, or they are of no use. Reports that still come
        count in `sequence` but are not stored."""
        if not self._is_closed:
            self._is_closed = True
            self._windows.clear()
            self._health.clear()
            self._memory.used_bytes -= self._taken_bytes
            self._memory.records -= 1
            self._taken_bytes = 0

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _grown(self, more_bytes: int, kind: _Tiers[WindowReport] | _Tiers[HealthReport]) -> None:
        memory = self._memory
        self._taken_bytes += more_bytes
        memory.used_bytes += more_bytes
        if kind.is_long:
            self._take(kind.merge_oldest())
        if memory.used_bytes > memory.max_bytes and memory.is_short_for(self._taken_bytes):
            # The finest tier first, so that both kinds lose resolution alike.
            windows, health = self._windows, self._health
            merged = health if health.finest() <= windows.finest() else windows
            self._take(merged.merge_oldest())

    def _take(self, more_bytes: int) -> None:
        self._taken_bytes += more_bytes
        self._memory.used_bytes += more_bytes


class _Tiers(Generic[Report]):
    """The reports of one kind; each tier has windows sixteen times as wide as the one before."""

    def __init__(
        self,
        decode: Callable[[Iterable[bytes]], list[Report]],
        one: Callable[[Sequence[Report], int], Report],
        boundary: int,
        width_s: int,
    ) -> None:
        """No merged window reaches across `boundary`, the end of the warm-up."""
        self._decode = decode
        self._one = one
        self._boundary = boundary
        self._first_width_s = width_s
        self._tiers: list[deque[StoredReport]] = [deque()]
        self.is_long = False

    @property
    def width_s(self) -> int:
        filled = [tier for tier, entries in enumerate(self._tiers) if entries]
        return self._first_width_s * FACTOR ** (filled[-1] if filled else 0)

    def put(self, number: int, second: int, data: bytes) -> int:
        """Adds a report; returns the bytes that it takes."""
        entries = self._tiers[0]
        entries.append((number, second, data))
        if len(entries) > FINE_MAX:
            self.is_long = True
        return len(data) + ENTRY_BYTES

    def newest(self, count: int) -> list[StoredReport]:
        entries = self._tiers[0]
        return [entries[place] for place in range(max(len(entries) - count, 0), len(entries))]

    def entries(self) -> Iterator[StoredReport]:
        """All entries, the oldest first."""
        return (entry for tier in reversed(self._tiers) for entry in tier)

    def after(self, second: int) -> list[bytes]:
        """Everything that may reach beyond that second."""
        found: list[bytes] = []
        for tier, entries in enumerate(self._tiers):
            width_s = self._first_width_s * FACTOR**tier
            found += [data for _, at, data in entries if at + width_s >= second]
        return found

    def all(self) -> list[Report]:
        return self._decode(data for tier in reversed(self._tiers) for _, _, data in tier)

    def clear(self) -> None:
        self._tiers = [deque()]
        self.is_long = False

    def finest(self) -> int:
        """The finest tier that has a complete group."""
        for tier in range(len(self._tiers)):
            if self._whole_group(tier):
                return tier
        return len(self._tiers)

    def merge_oldest(self) -> int:
        """Merges the oldest complete group of the finest tier into one window. Returns by how
        many bytes the memory grew, which is negative as a rule; 0 if there is no such group."""
        tier = self.finest()
        if tier == len(self._tiers):
            return 0
        entries = self._tiers[tier]
        group = [entries.popleft() for _ in range(self._whole_group(tier))]
        freed = sum(len(data) + ENTRY_BYTES for _, _, data in group)
        reports = self._decode(data for _, _, data in group)
        if not reports:
            return -freed
        data = encode_report(self._one(reports, self._first_width_s * FACTOR**tier))
        if tier + 1 == len(self._tiers):
            self._tiers.append(deque())
        self._tiers[tier + 1].append((group[-1][0], group[0][1], data))
        self.is_long = any(len(entries) > FINE_MAX for entries in self._tiers)
        return len(data) + ENTRY_BYTES - freed

    def _whole_group(self, tier: int) -> int:
        """How many of a tier's oldest entries form a group that is complete; 0 if none does."""
        entries = self._tiers[tier]
        if len(entries) < FACTOR:
            return 0
        width_s = self._first_width_s * FACTOR ** (tier + 1)
        group = (entries[0][1] - self._boundary) // width_s
        for count, (_, second, _) in enumerate(entries):
            if (second - self._boundary) // width_s != group:
                return count
        return 0


def _decode_healths(encoded: Iterable[bytes]) -> list[HealthReport]:
    return [decode_health(data) for data in encoded]


def _one_window(reports: Sequence[WindowReport], width_s: int) -> WindowReport:
    return summed_up(reports)


def _one_health(reports: Sequence[HealthReport], width_s: int) -> HealthReport:
    """Sums health reports of one process; each counts for the time since the one before it."""
    at_s = [reports[0].at_s - min(float(width_s), reports[0].at_s)]
    at_s += [each.at_s for each in reports]
    return summed_health(reports, [max(two - one, 0.0) for one, two in pairwise(at_s)])
