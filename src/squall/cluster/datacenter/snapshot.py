"""Writes a datacenter's state in pieces of bounded size, and reads it back.

A capture copies the tables but not the records, which never change. A piece is a MessagePack
array of rows; a row names its table. Rows come in the order of the tables, which is the same on
every member that applied the same entries, and which loading preserves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from squall.cluster.datacenter.gated_records import GatedRecord, KnownGates
from squall.cluster.datacenter.records import (
    AttemptFacts,
    JobRecord,
    SlotUse,
    WorkerRecord,
)
from squall.cluster.datacenter.tables import Tables
from squall.cluster.protocol.job_keys import ShareKey
from squall.cluster.protocol.job_records import EventsRow, KeyRow, slices_of


class SnapshotHead(msgspec.Struct, frozen=True, tag="head"):
    group: str
    lease_ms: int
    group_ms: int
    op: int
    alarms: tuple[str, ...]
    wall_s: float = 0.0
    # Unset in other groups, whose digest must not depend on the version that knows this field.
    attempt_floor: int | msgspec.UnsetType = msgspec.UNSET


class WorkerRow(msgspec.Struct, frozen=True, array_like=True, tag="worker"):
    row: WorkerRecord


class JobRow(msgspec.Struct, frozen=True, array_like=True, tag="job"):
    row: JobRecord


class AttemptsRow(msgspec.Struct, frozen=True, array_like=True, tag="attempts"):
    share: ShareKey
    row: tuple[AttemptFacts, ...]


class SlotRow(msgspec.Struct, frozen=True, array_like=True, tag="slot"):
    node: str
    slot: int
    row: SlotUse


class GatedRow(msgspec.Struct, frozen=True, array_like=True, tag="gated"):
    row: GatedRecord


class GatesRow(msgspec.Struct, frozen=True, array_like=True, tag="gates"):
    row: KnownGates


Row = WorkerRow | JobRow | AttemptsRow | SlotRow | KeyRow | EventsRow | GatedRow | GatesRow

_head = msgspec.msgpack.Decoder(SnapshotHead)
_rows = msgspec.msgpack.Decoder(list[Row])


class TablesCapture:
    """A `squall.cluster.ledger.interface.Capture`."""

    def __init__(self, tables: Tables) -> None:
        self._head = SnapshotHead(
            tables.group,
            tables.lease_ms,
            tables.group_ms,
            tables.op,
            tables.alarms,
            tables.wall_s,
            tables.attempt_floor or msgspec.UNSET,
        )
        self._workers = dict(tables.workers)
        self._jobs = dict(tables.jobs)
        self._attempts = dict(tables.attempts)
        self._slots = dict(tables.slots)
        self._keys = dict(tables.keys)
        self._events = dict(tables.events)
        self._gated = dict(tables.gated)
        self._gates = dict(tables.gates)

    def slices(self) -> Iterator[bytes]:
        return slices_of(self._head, self._rows(), JobRow)

    def _rows(self) -> Iterator[Row]:
        yield from (WorkerRow(each) for each in self._workers.values())
        yield from (JobRow(each) for each in self._jobs.values())
        yield from (AttemptsRow(share, each) for share, each in self._attempts.items())
        yield from (SlotRow(node, slot, each) for (node, slot), each in self._slots.items())
        yield from (KeyRow(who, key, each) for (who, key), each in self._keys.items())
        yield from (EventsRow(job, each) for job, each in self._events.items())
        yield from (GatedRow(each) for each in self._gated.values())
        yield from (GatesRow(each) for each in self._gates.values())


def load_tables(slices: Iterable[bytes]) -> Tables:
    """Raises msgspec's ValueError for pieces that no capture made."""
    tables = Tables()
    pieces = iter(slices)
    head = _head.decode(next(pieces))
    tables.group, tables.lease_ms = head.group, head.lease_ms
    tables.group_ms, tables.op, tables.alarms = head.group_ms, head.op, head.alarms
    tables.wall_s = head.wall_s
    tables.attempt_floor = head.attempt_floor or 0
    for piece in pieces:
        for row in _rows.decode(piece):
            _add(tables, row)
    tables.rebuild()
    return tables


def _add(tables: Tables, row: Row) -> Any:
    match row:
        case WorkerRow():
            tables.workers[row.row.node] = row.row
        case JobRow():
            tables.jobs[row.row.job] = row.row
        case AttemptsRow():
            tables.attempts[row.share] = row.row
        case SlotRow():
            tables.slots[(row.node, row.slot)] = row.row
        case KeyRow():
            tables.keys[(row.principal, row.key)] = row.row
        case EventsRow():
            tables.events[row.job] = row.row
        case GatedRow():
            tables.gated[row.row.job] = row.row
        case GatesRow():
            tables.gates[row.row.group] = row.row
