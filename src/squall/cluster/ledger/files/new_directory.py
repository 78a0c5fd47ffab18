"""Creates the directory of a ledger, or reads the storage record of an existing one.

The first segment of the log is durable before the storage record, which is written last. So a
directory without the record never held anything that was acknowledged, and a directory with
it always has a log. If a crash interrupts the creation, the next start repeats it. Entries
or checkpoints without a storage record are data that Squall did not leave this way, and
stop the start.
"""

from __future__ import annotations

from squall.cluster.ledger.durable_directories import make_directories
from squall.cluster.ledger.files.directory_owner import Storage, load_storage, save_storage
from squall.cluster.ledger.interface import LedgerDamaged, LedgerFailed
from squall.cluster.ledger.wal.format import FILE_HEADER_BYTES, IDENTITY_BYTES, FileHeader
from squall.cluster.ledger.wal.recovery import begin
from squall.cluster.ledger.wal.segments import segment_number
from squall.runtime.interfaces import Runtime

STORAGE_ID_BYTES = 8


async def own_storage(runtime: Runtime, directory: str, role: str = "manager") -> Storage:
    """Returns the directory's storage record, and creates the directory for `role` if it is new.
    The caller holds the lock, and then opens the log with `must_exist`. Raises LedgerFailed if the
    directory belongs to a node of another role."""
    disk = runtime.disk
    await make_directories(disk, directory)
    storage = await load_storage(disk, directory)
    if storage is not None:
        if storage.role != role:
            raise LedgerFailed(
                f"this data directory belongs to the {storage.role} {storage.node}: a {role} needs "
                "another --data"
            )
        return storage
    wal = f"{directory}/wal"
    await make_directories(disk, wal)
    leftovers = [f"{wal}/{name}" for name in await disk.list(wal) if segment_number(name)]
    for path in leftovers:
        if await disk.size(path) > FILE_HEADER_BYTES:
            raise LedgerDamaged(
                f"{directory}/storage is missing but there are entries in {wal}: restore the "
                "data directory from a backup"
            )
    if await disk.list(f"{directory}/checkpoints"):
        raise LedgerDamaged(
            f"{directory}/storage is missing but there are checkpoints: restore the data "
            "directory from a backup"
        )
    for path in leftovers:
        await disk.remove(path)
    entropy = runtime.entropy
    storage = Storage(
        runtime.node, entropy(STORAGE_ID_BYTES).hex(), entropy(IDENTITY_BYTES), role=role
    )
    _, file = await begin(disk, wal, FileHeader(storage.wal_identity, 1, 1, 1), None)
    await file.close()
    await save_storage(disk, directory, storage)
    return storage
