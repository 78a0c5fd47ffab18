"""Bit rot in the files of one member.

A bit is flipped only where the member must notice: in a record that other records follow, or in
a checkpoint. A damaged last record of a log looks like a torn write (docs/ledger.md).
"""

from __future__ import annotations

import random
from contextlib import suppress

from lab.sim.disk.disk import SimDisk
from squall.cluster.ledger.wal.format import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    FILE_HEADER_BYTES,
    Invalid,
    decode_block_header,
    decode_file_header,
    seed_of,
)

WAL = "ledger/wal/segment_"
CHECKPOINT = "ledger/checkpoints/checkpoint_"


def rot_log(disk: SimDisk, draw: random.Random) -> str:
    """Flips a bit of the log; returns the file, or "" if no record has a successor."""
    places: list[tuple[str, int, int]] = []
    for path, inode in sorted(disk.tree.names.files.items()):
        if path.startswith(WAL) and path.endswith(".wal"):
            places += [(path, start, end) for start, end in record_blocks(bytes(inode.durable))]
    if len(places) < 2:
        return ""
    path, start, end = draw.choice(places[:-1])
    return _flip(disk, draw, path, start, end)


def rot_checkpoint(disk: SimDisk, draw: random.Random, *, newest: bool = False) -> str:
    paths = sorted(
        path
        for path in disk.tree.names.files
        if path.startswith(CHECKPOINT) and path.endswith(".ckpt")
    )
    if not paths:
        return ""
    path = paths[-1] if newest else draw.choice(paths)
    return _flip(disk, draw, path, 0, len(disk.tree.names.files[path].durable))


def record_blocks(content: bytes) -> list[tuple[int, int]]:
    """Returns the start and end of each block that holds records."""
    found: list[tuple[int, int]] = []
    with suppress(Invalid):
        head = decode_file_header(content)
        seed = seed_of(head.identity, head.segment)
        offset = FILE_HEADER_BYTES
        while content[offset : offset + len(BLOCK_MAGIC)] == BLOCK_MAGIC:
            header = decode_block_header(content, offset, seed)
            end = offset + BLOCK_HEADER_BYTES + header.size
            if header.records:
                found.append((offset, end))
            offset = end
    return found


def _flip(disk: SimDisk, draw: random.Random, path: str, start: int, end: int) -> str:
    inode = disk.tree.names.files[path]
    place = draw.randrange(start, end)
    bit = 1 << draw.randrange(8)
    inode.durable[place] ^= bit
    if place < len(inode.content):
        inode.content[place] ^= bit
    disk.note(f"bit rot in {path} at {place}")
    return path
