"""What reached this manager of attempts that run, in little memory.

A record that a worker ends with is on disk; until then, only what is here counts should its
worker be lost. Thousands of attempts report each second, so reports are kept as the bytes
they are sent in, a third of what they need as objects. All records of a manager share one
`Room`. Where it is full, the records that take the most give the oldest seconds of theirs
away: sixteen at a time become one window. Sums stay exact whatever the width; only points
in time are further apart. What is no longer needed, because it is in the log, is let go.

Pure: no clock, no input or output.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

import msgspec

from squall.stats.record import AttemptRecord
from squall.stats.record_builder import RecordBuilder
from squall.stats.report_sums import summed_health, summed_up
from squall.stats.reports import ErrorSample, HealthReport, WindowReport

ROOM_BYTES = 512 * 1024 * 1024
"""Of all reports that a manager keeps: two to three minutes of 2,000 workers second by second,
and hours of them in wider windows."""
FACTOR = 16
"""From so many on one pass adds histograms up (`squall.stats.histogram`): a fifth of what
smaller steps cost for each report."""
FINE_MAX = FACTOR * 600
"""So many windows of one width at most: a record of that length has windows of sixteen
times the width anyway, see `POINTS_MAX`."""
ENTRY_BYTES = 120
"""What an entry needs besides its bytes: a tuple, two numbers and a place in a queue."""

packed = msgspec.msgpack.Encoder().encode
window_of = msgspec.msgpack.Decoder(WindowReport).decode
_health_of = msgspec.msgpack.Decoder(HealthReport).decode

Report = TypeVar("Report", WindowReport, HealthReport)
Entry = tuple[int, int, bytes]
"""(its number, its second, the report)"""


class Room:
    """The memory that all kept records share."""

    def __init__(self, max_bytes: int = ROOM_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.records = 0

    def is_short_for(self, taken_bytes: int) -> bool:
        """Whether a record that takes so much is one that has to give way."""
        return self.used_bytes > self.max_bytes and taken_bytes * self.records >= self.used_bytes


class KeptRecord:
    """One attempt. `head` is its record without reports; errors are few and stay in it."""

    def __init__(self, head: AttemptRecord, room: Room, *, warmup_s: float = 0.0) -> None:
        self.head = head
        self._room = room
        self._warmup_s = warmup_s
        boundary = math.ceil(warmup_s)
        first_width_s = head.width_s
        self._windows = _Tiers(window_of, _one_window, boundary, first_width_s)
        self._health = _Tiers(_health_of, _one_health, boundary, 1)
        self._errors = RecordBuilder(head, sends=False)
        self._taken_bytes = 0
        self._is_closed = False
        room.records += 1

    @property
    def sequence(self) -> int:
        return self.head.sequence

    @sequence.setter
    def sequence(self, value: int) -> None:
        self.head.sequence = value

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    def add_window(self, report: WindowReport) -> bytes:
        """Counts in `sequence`, kept or not. The bytes that are kept."""
        head = self.head
        head.sequence += 1
        until_s = report.window + 1.0
        if until_s > head.silent_from_s:
            head.silent_from_s = until_s
        data = packed(report)
        if not self._is_closed:
            windows = self._windows
            self._grown(windows.put(head.sequence, report.window, data), windows)
        return data

    def add(self, report: WindowReport | HealthReport | ErrorSample) -> None:
        if type(report) is WindowReport:
            self.add_window(report)
        elif self._is_closed:
            return
        elif type(report) is HealthReport:
            second = max(round(report.at_s) - 1, 0)
            self._grown(self._health.put(0, second, packed(report)), self._health)
        else:
            self._errors.add(report)

    def since(self, sequence: int) -> list[WindowReport] | None:
        """The reports after a sequence, one by one; None when they are not apart any more."""
        missing = self.sequence - sequence
        if missing <= 0:
            return []
        newest = self._windows.newest(missing)
        found = [window_of(data) for number, _, data in newest if number > sequence]
        return found if len(found) == missing else None

    def health_after(self, at_s: float) -> list[HealthReport]:
        """What the process told of itself later than that."""
        return self._health.after(max(round(at_s) - 1, 0), lambda each: each.at_s > at_s)

    @property
    def record(self) -> AttemptRecord:
        """The whole record, made anew: for when it is needed."""
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
        """Its reports are in the log, or of no use any more. What still comes is counted in
        the sequence and not kept."""
        if not self._is_closed:
            self._is_closed = True
            self._windows.clear()
            self._health.clear()
            self._room.used_bytes -= self._taken_bytes
            self._room.records -= 1
            self._taken_bytes = 0

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _grown(self, more_bytes: int, kind: _Tiers[WindowReport] | _Tiers[HealthReport]) -> None:
        room = self._room
        self._taken_bytes += more_bytes
        room.used_bytes += more_bytes
        if kind.is_long:
            self._take(kind.merge_oldest())
        if room.used_bytes > room.max_bytes and room.is_short_for(self._taken_bytes):
            # The finest first: of both kinds points are missed alike.
            windows, health = self._windows, self._health
            merged = health if health.finest() <= windows.finest() else windows
            self._take(merged.merge_oldest())

    def _take(self, more_bytes: int) -> None:
        self._taken_bytes += more_bytes
        self._room.used_bytes += more_bytes


class _Tiers(Generic[Report]):
    """Reports of one kind; each tier has windows sixteen times as wide as the one before."""

    def __init__(
        self,
        decode: Callable[[bytes], Report],
        one: Callable[[Sequence[Report], int], Report],
        boundary: int,
        width_s: int,
    ) -> None:
        """No merged window reaches across `boundary`, the end of the warm-up."""
        self._decode = decode
        self._one = one
        self._boundary = boundary
        self._first_width_s = width_s
        self._tiers: list[deque[Entry]] = [deque()]
        self.is_long = False

    @property
    def width_s(self) -> int:
        filled = [tier for tier, entries in enumerate(self._tiers) if entries]
        return self._first_width_s * FACTOR ** (filled[-1] if filled else 0)

    def put(self, number: int, second: int, data: bytes) -> int:
        """How many bytes more it takes."""
        entries = self._tiers[0]
        entries.append((number, second, data))
        if len(entries) > FINE_MAX:
            self.is_long = True
        return len(data) + ENTRY_BYTES

    def newest(self, count: int) -> list[Entry]:
        entries = self._tiers[0]
        return [entries[place] for place in range(max(len(entries) - count, 0), len(entries))]

    def after(self, second: int, wanted: Callable[[Report], bool]) -> list[Report]:
        found: list[Report] = []
        for tier, entries in enumerate(self._tiers):
            width_s = self._first_width_s * FACTOR**tier
            for _, at, data in entries:
                if at + width_s >= second and wanted(report := self._decode(data)):
                    found.append(report)
        return found

    def all(self) -> list[Report]:
        return [self._decode(data) for tier in reversed(self._tiers) for _, _, data in tier]

    def clear(self) -> None:
        self._tiers = [deque()]
        self.is_long = False

    def finest(self) -> int:
        """The finest tier with a group that is over."""
        for tier in range(len(self._tiers)):
            if self._whole_group(tier):
                return tier
        return len(self._tiers)

    def merge_oldest(self) -> int:
        """Makes one window of the finest tier's oldest group that is over; how many bytes
        more that takes, less than nothing as a rule. 0: there is no such group."""
        tier = self.finest()
        if tier == len(self._tiers):
            return 0
        entries = self._tiers[tier]
        group = [entries.popleft() for _ in range(self._whole_group(tier))]
        freed = sum(len(data) + ENTRY_BYTES for _, _, data in group)
        reports = [self._decode(data) for _, _, data in group]
        data = packed(self._one(reports, self._first_width_s * FACTOR**tier))
        if tier + 1 == len(self._tiers):
            self._tiers.append(deque())
        self._tiers[tier + 1].append((group[-1][0], group[0][1], data))
        self.is_long = any(len(entries) > FINE_MAX for entries in self._tiers)
        return len(data) + ENTRY_BYTES - freed

    def _whole_group(self, tier: int) -> int:
        """How many of a tier's oldest entries are one group that is over."""
        entries = self._tiers[tier]
        if len(entries) < FACTOR:
            return 0
        width_s = self._first_width_s * FACTOR ** (tier + 1)
        group = (entries[0][1] - self._boundary) // width_s
        for count, (_, second, _) in enumerate(entries):
            if (second - self._boundary) // width_s != group:
                return count
        return 0


def _one_window(reports: Sequence[WindowReport], width_s: int) -> WindowReport:
    return summed_up(reports)


def _one_health(reports: Sequence[HealthReport], width_s: int) -> HealthReport:
    """Of one process, each for the time since the one before it."""
    at_s = [reports[0].at_s - min(float(width_s), reports[0].at_s)]
    at_s += [each.at_s for each in reports]
    return summed_health(reports, [max(two - one, 0.0) for one, two in pairwise(at_s)])
