"""Opens a log for writing: recovers it, begins a new segment, starts the writer's task."""

from __future__ import annotations

from squall.cluster.ledger.durable_directories import make_directories
from squall.cluster.ledger.settings import WalSettings
from squall.cluster.ledger.wal.errors import Damage, WalDamaged
from squall.cluster.ledger.wal.format import FileHeader
from squall.cluster.ledger.wal.log import Wal
from squall.cluster.ledger.wal.recovery import (
    RecoveredLog,
    begin,
    recover,
    release,
    remove_leftovers,
    rewrite,
)
from squall.cluster.ledger.wal.segments import SegmentTable, make_segment
from squall.runtime.interfaces import Clock, Disk, File
from squall.runtime.tasks import TaskRunner


async def open_wal(
    disk: Disk,
    clock: Clock,
    tasks: TaskRunner,
    directory: str,
    identity: bytes,
    settings: WalSettings,
    *,
    needed_from: int = 1,
    must_exist: bool = False,
) -> Wal:
    """Opens the log; the caller holds the lock of the data directory. A checkpoint covers the
    records below `needed_from`. Raises OSError, or `WalDamaged` without changing a file."""
    await make_directories(disk, directory)
    found = await recover(disk, directory, identity, needed_from)
    if found is None:
        if must_exist:
            raise WalDamaged(Damage.GAP, directory, 0, "all segments are gone")
        recovered, file = await _first(disk, directory, identity, settings)
    else:
        recovered = found[0]
        last = recovered.table.active
        scan = found[1]
        number = last.number + 1
        first_lsn, first_block = scan.synced_lsn + 1, recovered.next_block
        fresh = make_segment(directory, identity, number, first_lsn, first_block)
        blocks, count, recovered.rewritten = rewrite(scan, fresh, first_block)
        header = FileHeader(identity, number, first_lsn, first_block)
        segment, file = await begin(disk, directory, header, settings, blocks)
        recovered.table.add(segment)
        recovered.next_block += count
        # Release the space that a killed process had reserved but not cut off. The records
        # stay, and so do torn bytes.
        end = None if scan.torn else last.readable
        await release(await disk.open(last.path), end)
    await remove_leftovers(disk, directory, recovered.table)
    wal = Wal(disk, clock, directory, identity, settings, recovered, file)
    wal.start(tasks)
    return wal


async def _first(
    disk: Disk, directory: str, identity: bytes, settings: WalSettings
) -> tuple[RecoveredLog, File]:
    header = FileHeader(identity, 1, 1, 1)
    segment, file = await begin(disk, directory, header, settings)
    return RecoveredLog(SegmentTable([segment]), 1, 1, 1), file
