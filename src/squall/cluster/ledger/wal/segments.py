"""The table of segment files, and the position of a record in them.

A segment holds the records from its `first_lsn` up to the lowest `first_lsn` of any later
segment. A later segment that begins lower therefore cuts off the records above it. A cut, and
the tail that recovery rewrites, are both just new segments: the log never changes bytes on
disk in place, so a crash cannot leave half of a change.

The module does no I/O.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from squall.cluster.ledger.wal.format import FILE_HEADER_BYTES, seed_of

MARK_BYTES = 64 * 1024
"""Bytes between two remembered positions in a segment."""
PARTIAL = ".new"
_NAME = re.compile(r"segment_(\d{8,})\.wal")


def segment_name(number: int) -> str:
    return f"segment_{number:08d}.wal"


def segment_number(name: str) -> int | None:
    """The number in a segment's file name; None for any other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


@dataclass(slots=True)
class Segment:
    """One segment file and the positions that are known in it."""

    number: int
    first_lsn: int
    first_block: int
    path: str
    seed: int
    readable: int = FILE_HEADER_BYTES
    """End of the bytes that are known to be durable and valid. Readers stop here."""
    marks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(first LSN, offset) of some blocks, in ascending order."""

    def mark(self, lsn: int, offset: int) -> None:
        if not self.marks or offset - self.marks[-1][1] >= MARK_BYTES:
            self.marks.append((lsn, offset))

    def before(self, lsn: int) -> int:
        """Offset of a block at or before the block that holds `lsn`."""
        place = bisect_right(self.marks, lsn, key=lambda mark: mark[0]) - 1
        return self.marks[place][1] if place >= 0 else FILE_HEADER_BYTES


def make_segment(
    directory: str, identity: bytes, number: int, first_lsn: int, first_block: int
) -> Segment:
    path = f"{directory}/{segment_name(number)}"
    return Segment(number, first_lsn, first_block, path, seed_of(identity, number))


class Hold:
    """Prevents compaction from deleting the records from `lsn` on until it is released."""

    def __init__(self, holds: dict[Hold, None], lsn: int) -> None:
        self.lsn = lsn
        self._holds = holds
        holds[self] = None

    def release(self) -> None:
        self._holds.pop(self, None)


class SegmentTable:
    """Lists a log's segments by number; the log writes to the last one."""

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.holds: dict[Hold, None] = {}

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def first_lsn(self) -> int:
        return self.segments[0].first_lsn

    def end_of(self, index: int) -> int | None:
        """The LSN after that segment's last record; None for the active segment."""
        later = self.segments[index + 1 :]
        return min(segment.first_lsn for segment in later) if later else None

    def locate(self, lsn: int) -> tuple[Segment, int | None]:
        """The segment that holds `lsn`, and its end; `lsn` must be at least `first_lsn`."""
        # `add` removes void segments at once, so the first LSNs ascend and bisect works.
        place = bisect_right(self.segments, lsn, key=lambda segment: segment.first_lsn) - 1
        return self.segments[place], self.end_of(place)

    def add(self, segment: Segment, *, reset: bool = False) -> list[Segment]:
        """Makes `segment` the active one; returns the segments that no longer hold records."""
        void = [other for other in self.segments if reset or other.first_lsn >= segment.first_lsn]
        self.segments = [other for other in self.segments if other not in void]
        self.segments.append(segment)
        return void

    def obsolete(self, below_lsn: int) -> list[Segment]:
        """Removes from the table, and returns, the segments that lie entirely below
        `below_lsn` and below every hold."""
        limit = min((below_lsn, *(hold.lsn for hold in self.holds)))
        count = 0
        # The active segment always stays.
        while count < len(self.segments) - 1 and self.segments[count + 1].first_lsn <= limit:
            count += 1
        gone, self.segments = self.segments[:count], self.segments[count:]
        return gone
