"""Replays the records of a member's write-ahead log on top of its checkpoint.

Replay restores exactly the log and the promise that were durable. If an entry does not follow the
entries before it, the log has a hole: the member came back by a peer's checkpoint, and that file
can no longer be read. Replay then keeps the entries that were committed before the hole and reads
the records behind it for their promises only, up to the record in which an earlier start dropped
what lies above the hole (`Replay.dropped`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from squall.cluster.ledger.files.checkpoints import CheckpointHead
from squall.cluster.ledger.interface import GroupMs, OpNumber
from squall.cluster.ledger.replica.group_clock import ClockStamp
from squall.cluster.ledger.replica.log import Log
from squall.cluster.ledger.replica.types import Base, LogEntry, Recovered, StepRecord, StorageId


class Places:
    """Maps each entry that is not in every kept checkpoint to the log record that holds it."""

    def __init__(self) -> None:
        # The first op of each record and the record's LSN, both ascending. A record holds the
        # entries up to the first op of the next one. `_last` is the highest op.
        self._ops: list[int] = []
        self._lsns: list[int] = []
        self._last = 0

    def note(self, lsn: int, keep: int, entries: tuple[LogEntry, ...]) -> None:
        if 0 <= keep < self._last:
            self._drop(keep + 1)
            self._last = keep
        if entries:
            first = entries[0].op
            if first <= self._last:
                # The entry was written again: the newer record replaces the older one.
                self._drop(first)
            self._ops.append(first)
            self._lsns.append(lsn)
            self._last = entries[-1].op

    def needed_from(self, op: int, otherwise: int) -> int:
        """The LSN from which replay continues a checkpoint at `op`; `otherwise` if no later
        entry exists."""
        place = bisect_right(self._ops, op + 1) - 1
        return self._lsns[place] if op < self._last and place >= 0 else otherwise

    def forget(self, op: int) -> None:
        """Drops the entries up to `op`, which every kept checkpoint contains."""
        count = max(bisect_right(self._ops, op + 1) - 1, 0)
        del self._ops[:count], self._lsns[:count]

    def _drop(self, first: int) -> None:
        count = bisect_left(self._ops, first)
        del self._ops[count:], self._lsns[count:]


class Replay:
    """Takes the records in order; `recovered` is then what the member holds."""

    def __init__(self, storage: str, head: CheckpointHead | None) -> None:
        base = head.base if head is not None else Base()
        self.recovered = Recovered(StorageId(storage), base)
        self.places = Places()
        # The clocks of the writer of the last record; zero without one.
        self.stamp = ClockStamp(0)
        # Describes the hole at which the log ends; "" while every entry follows the last one.
        self.hole = ""
        # Entries that conflict with the checkpoint are being skipped.
        self._conflicts = False
        if head is not None:
            recovered = self.recovered
            recovered.fence, recovered.last_normal = head.fence, head.last_normal
            recovered.commit, recovered.group_ms = int(base.op), int(base.group_ms)
            self.stamp = ClockStamp(head.wall_ms, head.boot_ms, head.kernel)
        self._log = Log(base.op, base.checksum, self.recovered.entries)

    def take(self, lsn: int, record: StepRecord) -> None:
        recovered, entries = self.recovered, record.entries
        if record.restart_op > self._log.base_op:
            self._restart(record)
        if not self.hole and (record.keep >= 0 or self._log.extend(entries) < len(entries)):
            self._step(record)
        if not self.hole:
            self.places.note(lsn, record.keep, entries)
            if record.commit > self._log.last:
                self._found(f"op {record.commit} was committed and is not in the log")
            elif record.commit > recovered.commit:
                recovered.commit = record.commit
        if record.fence > recovered.fence:
            recovered.fence = record.fence
        if record.last_normal > recovered.last_normal:
            recovered.last_normal = record.last_normal
        if record.group_ms > recovered.group_ms:
            recovered.group_ms = record.group_ms
        self.stamp = ClockStamp(record.wall_ms, record.boot_ms, record.kernel)

    def dropped(self, now: ClockStamp) -> StepRecord:
        """The record that ends the hole: what a later start replays follows from here."""
        recovered, op = self.recovered, self._log.last
        return StepRecord(
            recovered.fence,
            recovered.last_normal,
            op,
            (),
            OpNumber(op),
            GroupMs(recovered.group_ms),
            *now,
            restart_op=op,
            restart_checksum=self._log.end(),
        )

    def _restart(self, record: StepRecord) -> None:
        """A checkpoint of a peer replaced the log, or an earlier start ended a hole here."""
        if self._log.checksum(record.restart_op) == record.restart_checksum:
            self.hole = ""
        elif not self.hole:
            self._found(f"the checkpoint at op {record.restart_op} is missing")

    def _found(self, text: str) -> None:
        self.hole = text
        # Entries above the commit number may be those that the hole replaced.
        self._log.cut(max(min(self.recovered.commit, self._log.last), self._log.base_op))
        self.places.note(0, self._log.last, ())

    def _step(self, record: StepRecord) -> None:
        """Replays a record that cuts the log or repeats entries, instead of only appending."""
        log = self._log
        if log.last > log.base_op:
            self._conflicts = False
        if record.keep >= 0:
            log.cut(max(min(record.keep, log.last), log.base_op))
        for entry in record.entries:
            if entry.op <= log.base_op or log.checksum(entry.op) == entry.checksum:
                # The checkpoint contains the entry, or the entry was written twice.
                continue
            if log.follows(entry):
                log.append(entry)
            elif log.last == log.base_op and (self._conflicts or entry.op == log.last + 1):
                # The entry conflicts with a checkpoint installed from a peer, or follows one that
                # does, so it was never committed.
                self._conflicts = True
            else:
                self._found(f"op {entry.op} does not follow op {log.last}")
                return
