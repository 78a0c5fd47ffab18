"""The log of one member in memory: a chain of entries above a base that is gone.

It keeps the chain and nothing else: which entries are committed, and who may cut the
log, is decided by its owner. Access by op number takes constant time.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from squall.ledger.replica.types import Checksum, Kind, LogEntry
from squall.runtime.invariants import invariant

ENTRY_OVERHEAD = 96
"""Bytes of an entry beside its body, about."""


class Log:
    def __init__(self, base_op: int, base_checksum: Checksum, entries: Iterable[LogEntry]) -> None:
        self.base_op = base_op
        self.base_checksum = base_checksum
        self._entries: list[LogEntry] = []
        for entry in entries:
            self.append(entry)

    @property
    def last(self) -> int:
        return self.base_op + len(self._entries)

    @property
    def newest(self) -> LogEntry | None:
        return self._entries[-1] if self._entries else None

    def entry(self, op: int) -> LogEntry:
        invariant(self.base_op < op <= self.last, f"op {op} is not in the log")
        return self._entries[op - self.base_op - 1]

    def checksum(self, op: int) -> Checksum | None:
        """None: not in this log, or below its base."""
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
        invariant(self.follows(entry), f"op {entry.op} does not follow the log at {self.last}")
        self._entries.append(entry)

    def cut(self, keep: int) -> None:
        """Entries above `keep` go."""
        invariant(keep >= self.base_op, f"cut to {keep} below the base {self.base_op}")
        del self._entries[keep - self.base_op :]

    def slice(self, first: int, last: int, bytes_max: int) -> tuple[LogEntry, ...]:
        """At least one entry if there is one in first .. last."""
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
        """Forgets entries up to `op`: a checkpoint stands for them."""
        if op <= self.base_op:
            return
        checksum = self.checksum(op)
        invariant(checksum is not None, f"trim to {op}, which is not in the log")
        del self._entries[: op - self.base_op]
        self.base_op = op
        self.base_checksum = Checksum(checksum or b"")

    def restart(self, op: int, checksum: Checksum) -> None:
        """A snapshot replaces everything up to `op`, and all if the log disagrees with it."""
        if self.checksum(op) == checksum:
            self.trim(op)
            return
        self._entries.clear()
        self.base_op = op
        self.base_checksum = checksum

    def holds_members(self) -> bool:
        return bool(self._entries) and self._entries[-1].kind is Kind.MEMBERS


def sized(entries: Iterable[LogEntry]) -> int:
    return sum(len(entry.body) + ENTRY_OVERHEAD for entry in entries)


ENCODER = msgspec.msgpack.Encoder()
