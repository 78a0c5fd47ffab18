"""`squall wal`: shows or verifies the write-ahead log of a stopped node.

It only reads. `verify` exits with 1 if anything durable cannot be read back; a torn tail is no
damage, because a start cuts it off. `inspect` shows every segment, even after damage, and on
request the records.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

from squall.api.errors import ExitCode, UsageError
from squall.cluster.ledger.files.checkpoints import CheckpointDamaged, Checkpoints
from squall.cluster.ledger.files.directory_owner import load_storage
from squall.cluster.ledger.files.history_records import STEP, step_of
from squall.cluster.ledger.interface import LedgerFailed
from squall.cluster.ledger.replica.types import Kind
from squall.cluster.ledger.wal.errors import WalDamaged
from squall.cluster.ledger.wal.format import (
    FILE_HEADER_BYTES,
    RESET,
    Invalid,
    WalRecord,
    decode_records,
)
from squall.cluster.ledger.wal.recovery import find_segments, recover
from squall.cluster.ledger.wal.scan import SCAN_BYTES, BlockStream, find_block, scan_segment
from squall.cluster.ledger.wal.segments import SegmentTable, segment_number
from squall.runtime.real.disk import RealDisk

PLACES = ("ledger/wal", "wal", "")
"""Where the segments may be below the given directory."""


def execute(arguments: Namespace) -> int:
    root = Path(arguments.directory)
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory")
    log = _log(root.resolve())
    if log is None:
        raise UsageError(f"there is no write-ahead log in {root}")
    return asyncio.run(_execute(log, arguments))


async def _execute(log: Path, arguments: Namespace) -> int:
    # The lock is not taken: a log in use shows a torn tail at worst.
    disk = RealDisk(log.parent.parent)
    ledger = log.parent.name
    directory = f"{ledger}/{log.name}"
    try:
        if arguments.wal_command == "verify":
            return await _verify(disk, ledger, directory)
        return await _inspect(disk, directory, _range(arguments.records))
    except LedgerFailed as error:
        return _damaged(str(error))
    finally:
        await disk.close()


async def _verify(disk: RealDisk, ledger: str, directory: str) -> int:
    """Reads every segment, including those that a start would skip, and every checkpoint."""
    needed = await _checkpoints(disk, ledger)
    try:
        found = await find_segments(disk, directory)
        outcome = await recover(disk, directory, found[0][1].identity, 1)
    except WalDamaged as error:
        return _damaged(str(error))
    assert outcome is not None
    recovered, _ = outcome
    last = recovered.next_lsn - 1
    print(
        f"sound: records {recovered.first_lsn} to {last} in {recovered.segments} segments, "
        f"{'closed in order' if recovered.clean else 'not closed in order'}"
    )
    if recovered.torn:
        print(f"torn tail: {recovered.torn_bytes} bytes that a start will cut off")
    if recovered.first_lsn > needed or last + 1 < needed:
        return _damaged(
            f"the newest whole checkpoint continues at record {needed}, which the log lacks"
        )
    return 0


async def _checkpoints(disk: RealDisk, ledger: str) -> int:
    """Prints the checkpoints; returns the record at which the newest whole one continues, or 1."""
    needed = 1
    storage = await load_storage(disk, ledger)
    if storage is None:
        return needed
    directory = f"{ledger}/checkpoints"
    store = Checkpoints(disk, directory, storage.storage_id)
    for name in await disk.list(directory):
        try:
            head, _ = await store.read(f"{directory}/{name}", keep=False)
        except CheckpointDamaged as error:
            print(f"checkpoint {name}: damaged: {error}")
            continue
        print(f"checkpoint {name}: whole, continues at record {head.first_lsn}")
        needed = max(needed, head.first_lsn)
    return needed


async def _inspect(disk: RealDisk, directory: str, chosen: range | None) -> int:
    table = SegmentTable([])
    try:
        found = await find_segments(disk, directory)
    except WalDamaged as error:
        return _damaged(str(error))
    for segment, header in found:
        table.add(segment, reset=bool(header.flags & RESET))
    code = 0
    print("  segment     first      last    blocks        bytes")
    for index, segment in enumerate(table.segments):
        size = await disk.size(segment.path)
        try:
            scan = await scan_segment(disk, segment, table.end_of(index))
        except WalDamaged as error:
            print(f"{segment.number:>9}{segment.first_lsn:>10}         ?         ?{size:>13,}")
            code = _damaged(str(error))
            continue
        last = (table.end_of(index) or scan.next_lsn) - 1
        note = f"  torn tail of {scan.torn_bytes} bytes" if scan.torn else ""
        note = "  closed in order" if scan.clean else note
        print(
            f"{segment.number:>9}{segment.first_lsn:>10}{last:>10}{scan.blocks:>10}{size:>13,}{note}"
        )
    if chosen is not None:
        async for line in _records(disk, table, chosen):
            print(line)
    return code


async def _records(disk: RealDisk, table: SegmentTable, chosen: range) -> AsyncIterator[str]:
    """Continues after damage, which a start would not do, and reports what it skipped."""
    for index, segment in enumerate(table.segments):
        end = table.end_of(index)
        size = await disk.size(segment.path)
        offset = FILE_HEADER_BYTES
        while offset < size:
            stream = BlockStream(disk, segment, offset, SCAN_BYTES)
            try:
                while (block := await stream.next()) is not None:
                    for record in decode_records(block.header, block.payload):
                        if record.lsn in chosen and (end is None or record.lsn < end):
                            yield _shown(record)
                break
            except Invalid as error:
                after = await find_block(disk, segment, stream.offset + 1, size, lambda _: True)
                offset = size if after is None else after[0]
                skipped = f"bytes {stream.offset} to {offset - 1} of {segment.path}"
                yield f"   skipped: {skipped}: {error}"


def _shown(record: WalRecord) -> str:
    if record.kind != STEP:
        return f"{record.lsn:>10}  kind {record.kind}, {len(record.body)} bytes"
    step = step_of(record)
    entries = ", ".join(
        f"op {entry.op} {Kind(entry.kind).name.lower()} v{entry.version} "
        f"{len(entry.body)} bytes at {entry.group_ms} ms"
        for entry in step.entries
    )
    cut = f"  cut after {step.keep}" if step.keep >= 0 else ""
    return f"{record.lsn:>10}  {step.fence.epoch}.{step.fence.view}{cut}  {entries}"


def _damaged(text: str) -> int:
    print(f"DAMAGED {text}")
    return int(ExitCode.INTERNAL)


def _log(root: Path) -> Path | None:
    for place in PLACES:
        folder = root / place
        if folder.is_dir() and any(segment_number(path.name) for path in folder.iterdir()):
            return folder
    return None


def _range(text: str | None) -> range | None:
    if text is None:
        return None
    first, dots, last = text.partition("..")
    try:
        return range(int(first), int(last if dots else first) + 1)
    except ValueError:
        raise UsageError(f"--records {text}: give one number, or two as 10..20") from None
