"""The byte format of a segment file: one header, then blocks; a block is one group commit.

    file header   magic 4, version 2, flags 2, identity 16, segment 8, first LSN 8,
                  first block 8, CRC 4
    block         magic 4, flags 4, sequence 8, first LSN 8, synced LSN 8, count 4,
                  size 4, payload CRC 4, header CRC 4; then the payload:
                  count x length 4, count x kind 1, the bodies

All numbers are little-endian. The CRCs are IEEE CRC-32, seeded with the log's identity and the
segment number, so zeros, stale bytes and bytes of another log never validate. The header
has its own CRC, so a reader can trust the length before it reads the payload.

`synced LSN` is the last LSN that was durable when the block was written. Recovery uses it to
distinguish a torn tail from damage. A record's LSN is the block's first LSN plus the record's
index in the block. The module does no I/O.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

FILE_MAGIC = b"SqWL"
BLOCK_MAGIC = b"\xb1SqB"
VERSION = 1
IDENTITY_BYTES = 16

RESET = 1
"""File flag: this segment replaces all earlier ones."""
CLEAN = 1
"""Block flag: the log was closed cleanly. Such a block holds no records."""

_FILE = struct.Struct("<4sHH16sQQQ")
_BLOCK = struct.Struct("<4sIQQQIII")
_CRC = struct.Struct("<I")
FILE_HEADER_BYTES = _FILE.size + _CRC.size
BLOCK_HEADER_BYTES = _BLOCK.size + _CRC.size
RECORD_OVERHEAD_BYTES = 5
MAX_BLOCK_BYTES = 64 << 20
"""Largest payload of a block. Readers refuse a larger one before they allocate memory for it."""


class Invalid(Exception):
    """The bytes are not a valid header or block; the text says why."""


class NewerFormat(Exception):
    """The file has a format version that this code does not know."""


class FileHeader(NamedTuple):
    """The header of a segment file."""

    identity: bytes
    segment: int
    first_lsn: int
    first_block: int
    flags: int = 0


class BlockHeader(NamedTuple):
    """The header of one block."""

    flags: int
    sequence: int
    first_lsn: int
    synced_lsn: int
    records: int
    size: int
    """Bytes of the payload."""
    payload_crc: int

    @property
    def end_lsn(self) -> int:
        """The LSN after the block's last record."""
        return self.first_lsn + self.records


class WalRecord(NamedTuple):
    """One record of the log; the log does not interpret `kind` and `body`."""

    lsn: int
    kind: int
    body: bytes


def seed_of(identity: bytes, segment: int) -> int:
    """The CRC seed of a segment. It is never zero: with seed 0 the CRC of an empty payload is
    0, so zeroed bytes could pass."""
    return zlib.crc32(identity + segment.to_bytes(8, "little")) or 1


def encode_file_header(header: FileHeader) -> bytes:
    head = _FILE.pack(
        FILE_MAGIC,
        VERSION,
        header.flags,
        header.identity,
        header.segment,
        header.first_lsn,
        header.first_block,
    )
    return head + _CRC.pack(zlib.crc32(head, seed_of(header.identity, header.segment)))


def decode_file_header(data: bytes) -> FileHeader:
    if len(data) < FILE_HEADER_BYTES:
        raise Invalid(f"{len(data)} bytes are too few for a file header")
    magic, version, flags, identity, segment, lsn, block = _FILE.unpack_from(data)
    if magic != FILE_MAGIC:
        raise Invalid("this is not a file of a write-ahead log")
    (checksum,) = _CRC.unpack_from(data, _FILE.size)
    if checksum != zlib.crc32(data[: _FILE.size], seed_of(identity, segment)):
        raise Invalid("the checksum of the file header is wrong")
    if version != VERSION:
        raise NewerFormat(f"its format is version {version}, this code knows {VERSION}")
    return FileHeader(identity, segment, lsn, block, flags)


def encode_block(
    seed: int,
    sequence: int,
    first_lsn: int,
    synced_lsn: int,
    kinds: Sequence[int],
    bodies: Sequence[bytes],
    flags: int = 0,
) -> bytes:
    count = len(bodies)
    # A block of one record, as of a lone commit, needs no format that depends on the count.
    lengths = (
        _CRC.pack(len(bodies[0])) if count == 1 else struct.pack(f"<{count}I", *map(len, bodies))
    )
    payload = b"".join((lengths, bytes(kinds), *bodies))
    head = _BLOCK.pack(
        BLOCK_MAGIC,
        flags,
        sequence,
        first_lsn,
        synced_lsn,
        count,
        len(payload),
        zlib.crc32(payload, seed),
    )
    return b"".join((head, _CRC.pack(zlib.crc32(head, seed)), payload))


def decode_block_header(data: bytes, offset: int, seed: int) -> BlockHeader:
    """Raises `Invalid` unless `offset` holds a complete, valid header."""
    if len(data) - offset < BLOCK_HEADER_BYTES:
        raise Invalid(f"{len(data) - offset} bytes are too few for a block header")
    magic, *fields = _BLOCK.unpack_from(data, offset)
    if magic != BLOCK_MAGIC:
        raise Invalid("no block begins here")
    (checksum,) = _CRC.unpack_from(data, offset + _BLOCK.size)
    if checksum != zlib.crc32(data[offset : offset + _BLOCK.size], seed):
        raise Invalid("the checksum of the block header is wrong")
    return BlockHeader(*fields)


def check_payload(header: BlockHeader, payload: bytes | memoryview, seed: int) -> None:
    if len(payload) != header.size:
        raise Invalid(f"the block has {len(payload)} of {header.size} bytes")
    if zlib.crc32(payload, seed) != header.payload_crc:
        raise Invalid("the checksum of the block is wrong")


def decode_records(header: BlockHeader, payload: bytes) -> list[WalRecord]:
    """Splits a payload into records. The caller has verified the CRC, so `Invalid` here means
    that the writer wrote a malformed block."""
    count = header.records
    place = count * RECORD_OVERHEAD_BYTES
    if place > len(payload):
        raise Invalid(f"{count} records do not fit into {len(payload)} bytes")
    lengths = struct.unpack_from(f"<{count}I", payload)
    records: list[WalRecord] = []
    lsn = header.first_lsn
    for length, kind in zip(lengths, payload[count * 4 : place], strict=True):
        records.append(WalRecord(lsn, kind, payload[place : place + length]))
        place += length
        lsn += 1
    if place != len(payload):
        raise Invalid(f"the records take {place} of {len(payload)} bytes")
    return records
