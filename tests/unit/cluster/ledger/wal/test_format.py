"""The bytes of a segment: written records are read back, and no other bytes validate."""

from __future__ import annotations

import pytest

from squall.cluster.ledger.wal.format import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FileHeader,
    Invalid,
    NewerFormat,
    WalRecord,
    check_payload,
    decode_block_header,
    decode_file_header,
    decode_records,
    encode_block,
    encode_file_header,
    seed_of,
)

IDENTITY = b"0123456789abcdef"
SEED = seed_of(IDENTITY, 7)
BLOCK = encode_block(SEED, 3, 10, 9, [1, 2, 1], [b"one", b"", b"three"])
HEADER = FileHeader(IDENTITY, 7, 10, 3, 1)


def decoded(data: bytes, seed: int = SEED) -> list[WalRecord]:
    header = decode_block_header(data, 0, seed)
    payload = data[BLOCK_HEADER_BYTES:]
    check_payload(header, payload, seed)
    return decode_records(header, payload)


def test_a_block_gives_back_its_records_with_their_numbers() -> None:
    assert decoded(BLOCK) == [
        WalRecord(10, 1, b"one"),
        WalRecord(11, 2, b""),
        WalRecord(12, 1, b"three"),
    ]
    header = decode_block_header(BLOCK, 0, SEED)
    assert (header.sequence, header.first_lsn, header.synced_lsn, header.end_lsn) == (3, 10, 9, 13)


def test_every_flipped_bit_of_a_block_is_noticed() -> None:
    for place in range(len(BLOCK)):
        for bit in range(8):
            damaged = bytearray(BLOCK)
            damaged[place] ^= 1 << bit
            with pytest.raises(Invalid):
                decoded(bytes(damaged))


def test_every_flipped_bit_of_a_file_header_is_noticed() -> None:
    data = encode_file_header(HEADER)
    assert decode_file_header(data) == HEADER
    assert len(data) == FILE_HEADER_BYTES
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(Invalid):
                decode_file_header(bytes(damaged))


def test_zeros_are_no_block_and_no_header() -> None:
    with pytest.raises(Invalid):
        decode_block_header(bytes(BLOCK_HEADER_BYTES), 0, SEED)
    with pytest.raises(Invalid):
        decode_file_header(bytes(FILE_HEADER_BYTES))


def test_a_block_of_another_log_or_another_segment_does_not_validate() -> None:
    for seed in (seed_of(IDENTITY, 8), seed_of(b"another identity", 7)):
        with pytest.raises(Invalid):
            decoded(BLOCK, seed)


def test_a_newer_format_is_refused_by_name() -> None:
    import struct
    import zlib

    data = bytearray(encode_file_header(HEADER))
    data[4:6] = struct.pack("<H", 2)
    data[-4:] = struct.pack("<I", zlib.crc32(bytes(data[:-4]), SEED))
    with pytest.raises(NewerFormat, match="version 2"):
        decode_file_header(bytes(data))
