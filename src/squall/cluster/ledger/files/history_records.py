"""Decodes the records of the write-ahead log as steps of a member's history (`replica.types`).

Groups of every size write the same bytes: a `StepRecord` in MessagePack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from squall.cluster.ledger.interface import LedgerFailed
from squall.cluster.ledger.replica.types import LogEntry, StepRecord
from squall.cluster.ledger.wal.format import WalRecord

STEP = 1
"""The kind number of a log record that holds a step."""
_decoder = msgspec.msgpack.Decoder(StepRecord)


def step_of(record: WalRecord) -> StepRecord:
    """Decodes one step. The log has verified the checksum, so a record that cannot be decoded
    was written by another version of Squall."""
    lsn, kind, body = record
    if kind != STEP:
        raise LedgerFailed(
            f"record {lsn} has the unknown kind {kind}: a newer Squall wrote it; start that version"
        )
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise LedgerFailed(f"record {lsn} cannot be decoded: {error}") from None


def entries_of(records: Iterable[WalRecord]) -> Iterator[LogEntry]:
    for record in records:
        yield from step_of(record).entries
