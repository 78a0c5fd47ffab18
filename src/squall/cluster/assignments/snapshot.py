"""Writes the gates' state in pieces of bounded size, and reads it back.

A capture copies the tables but not the records, which never change. A piece is a MessagePack array
of rows; a row names its table. Rows come in the order of the tables, which is the same on every
member that applied the same entries, and which loading preserves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from squall.cluster.assignments.records import DatacenterRecord, GateJobRecord
from squall.cluster.assignments.tables import AssignmentTables
from squall.cluster.protocol.job_records import EventsRow, KeyRow, slices_of


class GatesHead(msgspec.Struct, frozen=True, tag="head"):
    group: str
    former: tuple[str, ...]
    group_ms: int
    op: int
    alarms: tuple[str, ...]
    wall_s: float = 0.0


class DatacenterRow(msgspec.Struct, frozen=True, array_like=True, tag="datacenter"):
    row: DatacenterRecord


class GateJobRow(msgspec.Struct, frozen=True, array_like=True, tag="job"):
    row: GateJobRecord


GateRow = DatacenterRow | GateJobRow | KeyRow | EventsRow

_head = msgspec.msgpack.Decoder(GatesHead)
_rows = msgspec.msgpack.Decoder(list[GateRow])


class AssignmentsCapture:
    """A `squall.cluster.ledger.interface.Capture`."""

    def __init__(self, tables: AssignmentTables) -> None:
        self._head = GatesHead(
            tables.group,
            tables.former,
            tables.group_ms,
            tables.op,
            tables.alarms,
            tables.wall_s,
        )
        self._datacenters = dict(tables.datacenters)
        self._jobs = dict(tables.jobs)
        self._keys = dict(tables.keys)
        self._events = dict(tables.events)

    def slices(self) -> Iterator[bytes]:
        return slices_of(self._head, self._rows(), GateJobRow)

    def _rows(self) -> Iterator[GateRow]:
        yield from (DatacenterRow(each) for each in self._datacenters.values())
        yield from (GateJobRow(each) for each in self._jobs.values())
        yield from (KeyRow(who, key, each) for (who, key), each in self._keys.items())
        yield from (EventsRow(job, each) for job, each in self._events.items())


def load_tables(slices: Iterable[bytes]) -> AssignmentTables:
    """Raises msgspec's ValueError for pieces that no capture made."""
    tables = AssignmentTables()
    pieces = iter(slices)
    head = _head.decode(next(pieces))
    tables.group, tables.former = head.group, head.former
    tables.group_ms, tables.op, tables.alarms = head.group_ms, head.op, head.alarms
    tables.wall_s = head.wall_s
    for piece in pieces:
        for row in _rows.decode(piece):
            match row:
                case DatacenterRow():
                    tables.datacenters[row.row.name] = row.row
                case GateJobRow():
                    tables.jobs[row.row.job] = row.row
                case KeyRow():
                    tables.keys[(row.principal, row.key)] = row.row
                case EventsRow():
                    tables.events[row.job] = row.row
    tables.rebuild()
    return tables
