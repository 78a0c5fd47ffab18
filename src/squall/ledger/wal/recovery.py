"""Opens the directory of a log: finds its segments, judges them, begins a new one.

Every start begins a new segment. Records for which no later block vouches may exist only
in the cache of the operating system, or not even be written because a sync failed before
the restart; they are written anew, synced, and only then does the new segment get its
name. The torn remains behind them stay where they are and count for nothing.

It must never drop a record that could have been acknowledged: damage raises and changes
nothing on disk.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from dataclasses import dataclass

from squall.ledger.settings import WalSettings
from squall.ledger.wal.errors import Damage, WalDamaged
from squall.ledger.wal.format import RESET, FileHeader, decode_records, encode_block
from squall.ledger.wal.format import encode_file_header as encode_header
from squall.ledger.wal.scan import Scan, read_file_header, scan_segment
from squall.ledger.wal.segments import (
    PARTIAL,
    Segment,
    SegmentTable,
    make_segment,
    segment_number,
)
from squall.runtime.interfaces import Disk, File


@dataclass(slots=True)
class Recovered:
    """What was found, for the log and for the one that goes on writing."""

    table: SegmentTable
    first_lsn: int
    next_lsn: int
    next_block: int
    segments: int = 0
    records: int = 0
    """In the segments that were looked at."""
    rewritten: int = 0
    torn_bytes: int = 0
    torn: str = ""
    clean: bool = False
    """The log had been closed in order."""


async def find_segments(disk: Disk, directory: str) -> list[tuple[Segment, FileHeader]]:
    """By number. Raises `WalDamaged` when a header is wrong."""
    found: list[tuple[Segment, FileHeader]] = []
    names = await disk.list(directory)
    for number, name in sorted((segment_number(name) or 0, name) for name in names):
        if number == 0:
            continue
        path = f"{directory}/{name}"
        header = await read_file_header(disk, path)
        if header.segment != number:
            text = f"its header says that it is segment {header.segment}"
            raise WalDamaged(Damage.FOREIGN, path, 0, text)
        segment = make_segment(
            directory, header.identity, number, header.first_lsn, header.first_block
        )
        found.append((segment, header))
    return found


async def recover(
    disk: Disk, directory: str, identity: bytes, needed_from: int
) -> tuple[Recovered, Scan] | None:
    """None when there are no segments. Only reads. Segments that lie wholly below
    `needed_from` are not looked at: a checkpoint stands for them."""
    found = await find_segments(disk, directory)
    if not found:
        return None
    table = SegmentTable([])
    for segment, header in found:
        if header.identity != identity:
            raise WalDamaged(Damage.FOREIGN, segment.path, 0, "it belongs to another log")
        if table.segments and not header.flags & RESET:
            _check_joint(table.active, segment)
        table.add(segment, reset=bool(header.flags & RESET))
    total = Recovered(table, table.first_lsn, 0, 0, segments=len(table.segments))
    scan = Scan(0, 0, 0)
    for index, segment in enumerate(table.segments):
        end_lsn = table.end_of(index)
        if end_lsn is not None and end_lsn <= needed_from:
            segment.readable = await disk.size(segment.path)
            continue
        scan = await scan_segment(disk, segment, end_lsn)
        total.records += min(scan.next_lsn, end_lsn or scan.next_lsn) - segment.first_lsn
    total.next_lsn, total.next_block = scan.next_lsn, scan.next_block
    total.torn_bytes, total.torn, total.clean = scan.torn_bytes, scan.torn, scan.clean
    return total, scan


def _check_joint(before: Segment, after: Segment) -> None:
    """Cheap; that the records between them are all there is the scan's to find out."""
    if after.first_block < before.first_block:
        text = f"block {after.first_block} follows block {before.first_block}"
        raise WalDamaged(Damage.GAP, after.path, 0, text)


async def begin(
    disk: Disk,
    directory: str,
    header: FileHeader,
    settings: WalSettings | None,
    blocks: bytes = b"",
) -> tuple[Segment, File]:
    """Makes a segment with its first content, durable before it has its name. Without
    settings nothing is reserved: for one that is not written to."""
    segment = make_segment(
        directory, header.identity, header.segment, header.first_lsn, header.first_block
    )
    partial = segment.path + PARTIAL
    reserve, ahead = (0, 0) if settings is None else (settings.segment_bytes, settings.ahead_bytes)
    file = await disk.open(partial, preallocate=reserve, ahead=ahead)
    try:
        if file.size:
            await file.truncate(0)
        await file.append_and_sync(encode_header(header) + blocks)
        await disk.rename(partial, segment.path)
        try:
            await disk.sync_directory(directory)
        except OSError as error:
            # It has its name and would count at the next start: no way back from here.
            text = f"a new segment may or may not be durable: {error}"
            raise OSError(errno.EIO, text, segment.path) from None
    except (Exception, asyncio.CancelledError):
        await file.close()
        raise
    segment.readable = file.size
    return segment, file


async def release(file: File, size: int | None = None) -> None:
    """Closes it and gives back the space behind its end that was reserved for it. `size`:
    behind that are only zeros, which a process that was killed could not cut off."""
    with suppress(OSError):
        await file.truncate(file.size if size is None else size)
    await file.close()


def rewrite(scan: Scan, segment: Segment, first_block: int) -> tuple[bytes, int, int]:
    """The blocks that nothing vouches for, for the new segment; how many blocks and
    records they are. Each one still says only what was known to be durable."""
    written: list[bytes] = []
    records = 0
    sequence = first_block
    for block in scan.unsynced:
        rows = decode_records(block.header, block.payload)
        kinds = [row.kind for row in rows]
        bodies = [row.body for row in rows]
        lsn = block.header.first_lsn
        written.append(encode_block(segment.seed, sequence, lsn, scan.synced_lsn, kinds, bodies))
        sequence += 1
        records += len(rows)
    return b"".join(written), sequence - first_block, records


async def remove_leftovers(disk: Disk, directory: str, table: SegmentTable | None) -> None:
    """Unfinished segments, and those that a cut left without records."""
    kept = {segment.path for segment in table.segments} if table else set[str]()
    for name in await disk.list(directory):
        path = f"{directory}/{name}"
        stray = segment_number(name) is not None and table is not None and path not in kept
        if name.endswith(PARTIAL) or stray:
            await disk.remove(path)
