"""Makes the directory of a ledger, or finds whose it is.

The first segment of the log is durable before the storage record, which comes last: a
directory without the record never held anything that was acknowledged, and one with it
always has a log. A making that was cut short is begun again; entries or checkpoints
without their record are somebody's data and stop the start.
"""

from __future__ import annotations

from squall.ledger.directories import make_directories
from squall.ledger.interface import LedgerDamaged
from squall.ledger.storage import Storage, load_storage, save_storage
from squall.ledger.wal.format import FILE_HEADER_BYTES, IDENTITY_BYTES, FileHeader
from squall.ledger.wal.recovery import begin
from squall.ledger.wal.segments import segment_number
from squall.runtime.interfaces import Runtime

STORAGE_ID_BYTES = 8


async def own_storage(runtime: Runtime, directory: str) -> Storage:
    """The storage record of the directory, made if it is new. After it, open the log with
    `must_exist`. The caller holds the lock."""
    disk = runtime.disk
    await make_directories(disk, directory)
    storage = await load_storage(disk, directory)
    if storage is not None:
        return storage
    wal = f"{directory}/wal"
    await make_directories(disk, wal)
    leftovers = [f"{wal}/{name}" for name in await disk.list(wal) if segment_number(name)]
    for path in leftovers:
        if await disk.size(path) > FILE_HEADER_BYTES:
            raise LedgerDamaged(f"{directory}/storage is missing but there are entries in {wal}")
    if await disk.list(f"{directory}/checkpoints"):
        raise LedgerDamaged(f"{directory}/storage is missing but there are checkpoints")
    for path in leftovers:
        await disk.remove(path)
    entropy = runtime.entropy
    storage = Storage(runtime.node, entropy(STORAGE_ID_BYTES).hex(), entropy(IDENTITY_BYTES))
    _, file = await begin(disk, wal, FileHeader(storage.wal_identity, 1, 1, 1), None)
    await file.close()
    await save_storage(disk, directory, storage)
    return storage
