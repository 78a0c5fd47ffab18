"""Reads the valid blocks of a damaged log and writes a new log from the records it is given.

Only members of a larger group use it, because the other members hold what is lost here (R2).
It finds every block that validates, at any offset, and separates the records before the first
hole from those after it. The caller decides which of them to use. Salvage never reads from a
block whose checksums are wrong.

The new log is one segment that voids all earlier ones. It gets its final name once it is
durable; then salvage renames the damaged files, and the next opening deletes the other old
ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from squall.cluster.ledger.wal.errors import Damage, WalDamaged
from squall.cluster.ledger.wal.format import (
    FILE_HEADER_BYTES,
    RESET,
    FileHeader,
    Invalid,
    WalRecord,
    decode_records,
    encode_block,
    seed_of,
)
from squall.cluster.ledger.wal.recovery import begin
from squall.cluster.ledger.wal.scan import Block, BlockStream, find_block, read_file_header
from squall.cluster.ledger.wal.segments import Segment, make_segment, segment_number
from squall.runtime.interfaces import Disk

DAMAGED_SUFFIX = ".damaged"
READ_BYTES = 256 * 1024
BLOCK_BYTES = 1 << 20
"""Most bytes of records in one block of the new log."""


@dataclass(slots=True)
class Salvaged:
    """The readable part of a damaged log."""

    records: list[WalRecord] = field(default_factory=list[WalRecord])
    """The records from the first needed one up to the first hole."""
    behind: list[WalRecord] = field(default_factory=list[WalRecord])
    """The readable records after the first hole."""
    end_is_known: bool = False
    """True if the last record that any block proves durable was found."""
    next_block: int = 1
    next_segment: int = 1
    damaged: list[str] = field(default_factory=list[str])
    proven_lsn: int = 0
    """The highest LSN that some block proves durable."""

    @property
    def has_hole(self) -> bool:
        return bool(self.behind)


async def salvage(disk: Disk, directory: str, identity: bytes, needed_from: int) -> Salvaged:
    """Collects the readable records without changing a file. Raises `WalDamaged` for files of
    another log."""
    found = Salvaged()
    found.proven_lsn = needed_from - 1
    known: dict[int, WalRecord] = {}
    names = await disk.list(directory)
    for number, name in sorted((segment_number(name) or 0, name) for name in names):
        if number == 0:
            continue
        path = f"{directory}/{name}"
        segment, flags = await _segment(disk, directory, path, identity, number, found)
        blocks = await _blocks(disk, segment, found)
        first = segment.first_lsn or (blocks[0].header.first_lsn if blocks else 0)
        if flags & RESET:
            known = {}
        elif first:
            # This segment cut off the records that older segments hold at these LSNs.
            known = {lsn: record for lsn, record in known.items() if lsn < first}
        found.proven_lsn = max(found.proven_lsn, first - 1)
        for block in blocks:
            found.proven_lsn = max(found.proven_lsn, block.header.synced_lsn)
            found.next_block = max(found.next_block, block.header.sequence + 1)
            with suppress(Invalid):
                records = decode_records(block.header, block.payload)
                known.update((each.lsn, each) for each in records)
        found.next_block = max(found.next_block, segment.first_block)
        found.next_segment = number + 1
    lsn = needed_from
    while lsn in known:
        found.records.append(known[lsn])
        lsn += 1
    found.behind = [known[each] for each in sorted(known) if each > lsn]
    found.end_is_known = max(known, default=0) >= found.proven_lsn
    return found


async def write_whole(
    disk: Disk, directory: str, identity: bytes, found: Salvaged, first_lsn: int,
    records: Sequence[tuple[int, bytes]],
) -> None:  # fmt: skip
    """Replaces the log by one segment that holds exactly these (kind, body) records, numbered
    from `first_lsn`."""
    seed = seed_of(identity, found.next_segment)
    blocks: list[bytes] = []
    sequence, lsn = found.next_block, first_lsn
    rest = list(records)
    while rest:
        count, size = 0, 0
        while count < len(rest) and (count == 0 or size + len(rest[count][1]) <= BLOCK_BYTES):
            size += len(rest[count][1])
            count += 1
        kinds = [kind for kind, _ in rest[:count]]
        bodies = [body for _, body in rest[:count]]
        blocks.append(encode_block(seed, sequence, lsn, first_lsn - 1, kinds, bodies))
        sequence, lsn, rest = sequence + 1, lsn + count, rest[count:]
    header = FileHeader(identity, found.next_segment, first_lsn, found.next_block, RESET)
    _, file = await begin(disk, directory, header, None, b"".join(blocks))
    await file.close()
    for path in found.damaged:
        await disk.rename(path, path + DAMAGED_SUFFIX)
    await disk.sync_directory(directory)


async def _segment(
    disk: Disk, directory: str, path: str, identity: bytes, number: int, found: Salvaged
) -> tuple[Segment, int]:
    try:
        header = await read_file_header(disk, path)
    except WalDamaged as damage:
        if damage.damage is Damage.FOREIGN:
            raise
        found.damaged.append(path)
        return make_segment(directory, identity, number, 0, 0), 0
    if header.identity != identity or header.segment != number:
        raise WalDamaged(Damage.FOREIGN, path, 0, "it belongs to another log")
    made = make_segment(directory, identity, number, header.first_lsn, header.first_block)
    return made, header.flags


async def _blocks(disk: Disk, segment: Segment, found: Salvaged) -> list[Block]:
    """All valid blocks of the segment, in file order."""
    blocks: list[Block] = []
    size = await disk.size(segment.path)
    offset = FILE_HEADER_BYTES
    while offset < size:
        stream = BlockStream(disk, segment, offset, READ_BYTES)
        try:
            while (block := await stream.next()) is not None:
                blocks.append(block)
            break
        except Invalid:
            behind = await _next(disk, segment, stream.offset, size, found)
            if behind is None:
                break
            if segment.path not in found.damaged:
                found.damaged.append(segment.path)
            offset = behind
    return blocks


async def _next(
    disk: Disk, segment: Segment, offset: int, size: int, found: Salvaged
) -> int | None:
    """The offset of the next valid header after `offset`. A block with a valid header and a
    damaged payload still counts as proof of what was durable."""
    here = await find_block(disk, segment, offset, size, lambda _: True)
    if here is not None and here[0] == offset:
        found.proven_lsn = max(found.proven_lsn, here[1].synced_lsn)
        found.next_block = max(found.next_block, here[1].sequence + 1)
        here = await find_block(disk, segment, offset + 1, size, lambda _: True)
    return None if here is None else here[0]
