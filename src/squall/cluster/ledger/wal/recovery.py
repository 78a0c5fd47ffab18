"""Recovers a log's directory: finds the segments, checks them, begins a new one.

Every start begins a new segment. Records that no later block proves durable may exist only in
the operating system's cache, or may be lost with a sync that failed before the restart.
Recovery copies them to the new segment and syncs it before it gets its final name. Torn bytes
after those records stay in the old file and are ignored.

Recovery never drops a record that could have been acknowledged (R11): on damage it raises
and changes nothing on disk.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from dataclasses import dataclass

from squall.cluster.ledger.settings import WalSettings
from squall.cluster.ledger.wal.errors import Damage, WalDamaged
from squall.cluster.ledger.wal.format import RESET, FileHeader, decode_records, encode_block
from squall.cluster.ledger.wal.format import encode_file_header as encode_header
from squall.cluster.ledger.wal.scan import Scan, read_file_header, scan_segment
from squall.cluster.ledger.wal.segments import (
    PARTIAL,
    Segment,
    SegmentTable,
    make_segment,
    segment_number,
)
from squall.runtime.interfaces import Disk, File


@dataclass(slots=True)
class RecoveredLog:
    """The result of recovery: the segments, the next positions, and figures for the log line."""

    table: SegmentTable
    first_lsn: int
    next_lsn: int
    next_block: int
    segments: int = 0
    records: int = 0
    """Records in the segments that were scanned."""
    rewritten: int = 0
    torn_bytes: int = 0
    torn: str = ""
    clean: bool = False
    """The log had been closed cleanly."""


async def find_segments(disk: Disk, directory: str) -> list[tuple[Segment, FileHeader]]:
    """The segments and their headers, by number. Raises `WalDamaged` for an invalid header."""
    found: list[tuple[Segment, FileHeader]] = []
    names = await disk.list(directory)
    for number, name in sorted((segment_number(name) or 0, name) for name in names):
        if number == 0:
            continue
        path = f"{directory}/{name}"
        header = await read_file_header(disk, path)
        if header.segment != number:
            text = f"its header names segment {header.segment}"
            raise WalDamaged(Damage.FOREIGN, path, 0, text)
        segment = make_segment(
            directory, header.identity, number, header.first_lsn, header.first_block
        )
        found.append((segment, header))
    return found


async def recover(
    disk: Disk, directory: str, identity: bytes, needed_from: int
) -> tuple[RecoveredLog, Scan] | None:
    """Scans the log without changing it; None if there are no segments. It skips segments that
    lie entirely below `needed_from`, because a checkpoint covers them."""
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
    total = RecoveredLog(table, table.first_lsn, 0, 0, segments=len(table.segments))
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
    """Checks the block order of two neighbours. The scan checks that no record is missing."""
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
    """Creates a segment with its first content, which is durable before the file gets its
    final name. Without `settings` it reserves no space: the caller will not write to it."""
    segment = make_segment(
        directory, header.identity, header.segment, header.first_lsn, header.first_block
    )
    partial = segment.path + PARTIAL
    reserve, ahead = (0, 0) if settings is None else (settings.segment_bytes, settings.ahead_bytes)
    file = await disk.open(partial, preallocate=reserve, ahead=ahead)
    try:
        if file.size:
            # A crash left an unfinished segment under this name.
            await file.truncate(0)
        await file.append_and_sync(encode_header(header) + blocks)
        await disk.rename(partial, segment.path)
        try:
            await disk.sync_directory(directory)
        except OSError as error:
            # The file has its final name, so the next start may count it. EIO instead of the
            # original error makes the log stop even if the disk was only full.
            text = f"a new segment may or may not be durable: {error}"
            raise OSError(errno.EIO, text, segment.path) from None
    except (Exception, asyncio.CancelledError):
        await file.close()
        raise
    segment.readable = file.size
    return segment, file


async def release(file: File, size: int | None = None) -> None:
    """Closes the file and frees the space reserved after its end. `size` is the end to use
    after a crash, when a killed process left reserved zeros after it."""
    with suppress(OSError):
        await file.truncate(file.size if size is None else size)
    await file.close()


def rewrite(scan: Scan, segment: Segment, first_block: int) -> tuple[bytes, int, int]:
    """Encodes the blocks that are not proven durable for the new segment; returns the bytes,
    the number of blocks and of records. Their `synced_lsn` stays at what the scan proved: a
    higher one would prove records durable that were never synced."""
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
    """Deletes unfinished segments, and segments that a cut left without records."""
    kept = {segment.path for segment in table.segments} if table else set[str]()
    for name in await disk.list(directory):
        path = f"{directory}/{name}"
        stray = segment_number(name) is not None and table is not None and path not in kept
        if name.endswith(PARTIAL) or stray:
            await disk.remove(path)
