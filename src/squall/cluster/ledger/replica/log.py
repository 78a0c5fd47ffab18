"""The log of one member in memory: a chain of entries that follows a trimmed base.

It only maintains the chain. Its owner decides which entries are committed and when the log may
be cut. Access by op number takes constant time.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.cluster.ledger.replica.types import Checksum, LogEntry
from squall.runtime.invariants import invariant

ENTRY_OVERHEAD = 96
"""Approximate bytes of an entry without its body."""


class Log:
    """The entries of one member's log, from `base_op + 1` to `last`."""

    def __init__(self, base_op: int, base_checksum: Checksum, entries: list[LogEntry]) -> None:
        """Takes ownership of `entries`, a chain that follows the base; replay has checked it."""
        self.base_op = base_op
        self.base_checksum = base_checksum
        self._entries = entries
        # Always base_op + len(_entries); stored because every commit reads it.
        self.last = base_op + len(entries)

    @property
    def newest(self) -> LogEntry | None:
        return self._entries[-1] if self._entries else None

    def entry(self, op: int) -> LogEntry:
        if not self.base_op < op <= self.last:
            invariant(False, f"op {op} is not in the log")
        return self._entries[op - self.base_op - 1]

    def checksum(self, op: int) -> Checksum | None:
        """Returns None if the op is not in this log or is below its base."""
        if op == self.base_op:
            return self.base_checksum
        if self.base_op < op <= self.last:
            return self._entries[op - self.base_op - 1].checksum
        return None

    def end(self) -> Checksum:
        return self._entries[-1].checksum if self._entries else self.base_checksum

    def follows(self, entry: LogEntry) -> bool:
        return entry.op == self.last + 1 and entry.previous == self.end()

    def append(self, entry: LogEntry) -> None:
        if not self.follows(entry):
            # Replay runs this for every entry, so the message is built only on failure.
            invariant(False, f"op {entry.op} does not follow the log at {self.last}")
        self._entries.append(entry)
        self.last += 1

    def grow(self, entries: list[LogEntry]) -> None:
        """Appends entries that the caller has made as a chain that follows `end`."""
        self._entries += entries
        self.last += len(entries)

    def extend(self, entries: Sequence[LogEntry]) -> int:
        """Appends entries up to the first that does not follow; returns how many it took."""
        held, end, op = self._entries, self.end(), self.last
        for entry in entries:
            if entry.previous != end or entry.op != op + 1:
                break
            held.append(entry)
            op += 1
            end = entry.checksum
        count, self.last = op - self.last, op
        return count

    def cut(self, keep: int) -> None:
        """Removes the entries above `keep`."""
        invariant(keep >= self.base_op, f"cut to {keep} below the base {self.base_op}")
        del self._entries[keep - self.base_op :]
        self.last = self.base_op + len(self._entries)

    def between(self, first: int, last: int) -> tuple[LogEntry, ...]:
        """Returns the entries first .. last, all of which must be in this log."""
        base = self.base_op
        if first <= base or last > self.last:
            invariant(False, "these entries are not in the log")
        return tuple(self._entries[first - base - 1 : last - base])

    def slice(self, first: int, last: int, bytes_max: int) -> tuple[LogEntry, ...]:
        """Returns entries of first .. last up to `bytes_max`, but at least one if any exists."""
        found: list[LogEntry] = []
        room = bytes_max
        for op in range(max(first, self.base_op + 1), min(last, self.last) + 1):
            entry = self._entries[op - self.base_op - 1]
            room -= len(entry.body) + ENTRY_OVERHEAD
            if found and room < 0:
                break
            found.append(entry)
        return tuple(found)

    def trim(self, op: int) -> None:
        """Drops the entries up to `op`, which a checkpoint replaces."""
        if op <= self.base_op:
            return
        checksum = self.checksum(op)
        invariant(checksum is not None, f"trim to {op}, which is not in the log")
        del self._entries[: op - self.base_op]
        self.base_op = op
        self.base_checksum = Checksum(checksum or b"")

    def restart(self, op: int, checksum: Checksum) -> None:
        """Replaces the log up to `op` by a snapshot, or the whole log if it disagrees there."""
        if self.checksum(op) == checksum:
            self.trim(op)
            return
        self._entries.clear()
        self.base_op = self.last = op
        self.base_checksum = checksum


def sized(entries: Sequence[LogEntry]) -> int:
    size = ENTRY_OVERHEAD * len(entries)
    for entry in entries:
        size += len(entry.body)
    return size
