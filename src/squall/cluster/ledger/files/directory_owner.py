"""The storage record: names the node that owns a data directory.

The node writes it once, when it creates the directory. A directory without the record holds
no ledger. The record is a small file with a checksum, written atomically; if it is damaged,
the node refuses to start.
"""

from __future__ import annotations

import zlib

import msgspec

from squall.cluster.ledger.interface import LedgerDamaged, LedgerFailed
from squall.runtime.interfaces import Disk

FORMAT = 1
NAME = "storage"
_MAGIC = b"SqST"
_SEED = zlib.crc32(_MAGIC)


class Storage(msgspec.Struct, frozen=True):
    """Identifies a data directory: its node, its storage id and its log."""

    node: str
    storage_id: str
    """Random, created with the directory. Every vote and acknowledgment carries it, so a
    member that lost its disk does not count as its former self (R2)."""
    wal_identity: bytes
    format: int = FORMAT
    role: str = "manager"
    """Whose log it is, "manager" or "gate": the two have different commands."""


async def load_storage(disk: Disk, directory: str) -> Storage | None:
    path = f"{directory}/{NAME}"
    try:
        content = await disk.read(path)
    except FileNotFoundError:
        return None
    data = content[8:]
    checksum = zlib.crc32(data, _SEED).to_bytes(4, "little")
    if content[:4] != _MAGIC or content[4:8] != checksum:
        raise LedgerDamaged(f"{path} is damaged: restore the data directory from a backup")
    try:
        storage = msgspec.msgpack.decode(data, type=Storage)
    except msgspec.DecodeError as error:
        raise LedgerFailed(f"{path} cannot be decoded: {error}") from None
    if storage.format > FORMAT:
        raise LedgerFailed(f"{path} was written by a newer Squall; start that version")
    return storage


async def save_storage(disk: Disk, directory: str, storage: Storage) -> None:
    data = msgspec.msgpack.encode(storage)
    checksum = zlib.crc32(data, _SEED).to_bytes(4, "little")
    await disk.write_atomic(f"{directory}/{NAME}", _MAGIC + checksum + data)
