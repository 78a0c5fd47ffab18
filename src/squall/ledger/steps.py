"""The records of the write-ahead log as steps of a member's history (`replica.types`).

Groups of one and of five write the same bytes: a `Record` in MessagePack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from squall.ledger.interface import LedgerFailed
from squall.ledger.replica.types import LogEntry, Record
from squall.ledger.wal.format import Record as WalRecord

STEP = 1
"""Kind of a log record that is a step."""
_decoder = msgspec.msgpack.Decoder(Record)


def step_of(record: WalRecord) -> Record:
    """Its checksum was right, so what cannot be understood was written by other code."""
    lsn, kind, body = record
    if kind != STEP:
        raise LedgerFailed(f"record {lsn} is of kind {kind}, written by a newer Squall")
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise LedgerFailed(f"record {lsn} cannot be understood: {error}") from None


def entries_of(records: Iterable[WalRecord]) -> Iterator[LogEntry]:
    for record in records:
        yield from step_of(record).entries
