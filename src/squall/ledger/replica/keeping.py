"""What a member keeps on its disk, and how it finds it again.

The write-ahead log holds one `Record` per step of the core, in order; a checkpoint stands
for the entries up to its op. The log is needed from the record that brought the first
entry above the oldest kept checkpoint. Replay gives exactly the log and the promise that
were durable; what does not fit together stops the member.

A member of a larger group starts from a damaged log too, if the last thing that it
promised can still be read. It keeps what is certainly committed and whole, and a mark on
its disk says that it is mending: it neither votes nor acknowledges before it holds the log
of a view again. The damaged files are put aside.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from squall.ledger.checkpoint import CheckpointHead, Checkpoints
from squall.ledger.fresh import own_storage
from squall.ledger.interface import LedgerFailed, OpNumber
from squall.ledger.replica.clock import AWAY_MS_MAX
from squall.ledger.replica.log import Log
from squall.ledger.replica.types import Base, LogEntry, Record, Recovered, StorageId
from squall.ledger.settings import LedgerSettings
from squall.ledger.storage import Storage
from squall.ledger.wal.errors import Damage, WalDamaged
from squall.ledger.wal.log import Wal
from squall.ledger.wal.open import open_wal
from squall.ledger.wal.reader import WalReader
from squall.ledger.wal.salvage import Salvaged, salvage, write_whole
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner

STEP = 1
"""Kind of the log's records: one `Record`."""
MENDING = "mending"
"""File that is there as long as this member lacks what it once acknowledged."""


@dataclass(slots=True)
class Kept:
    storage: Storage
    wal: Wal
    checkpoints: Checkpoints
    recovered: Recovered
    slices: list[bytes] | None
    """The state of the newest checkpoint."""
    places: Places


class Places:
    """Which record of the log brought each entry that is not in a checkpoint yet."""

    def __init__(self) -> None:
        self._lsn: dict[int, int] = {}
        self._last = 0

    def note(self, lsn: int, keep: int, entries: tuple[LogEntry, ...]) -> None:
        if keep >= 0:
            for op in range(keep + 1, self._last + 1):
                self._lsn.pop(op, None)
        for entry in entries:
            self._lsn[entry.op] = lsn
            self._last = int(entry.op)

    def needed_from(self, op: int, otherwise: int) -> int:
        """The first record needed to go on from a checkpoint at `op`."""
        return self._lsn.get(op + 1, otherwise)

    def forget(self, op: int) -> None:
        for each in [known for known in self._lsn if known <= op]:
            del self._lsn[each]


async def open_kept(
    runtime: Runtime, tasks: TaskRunner, settings: LedgerSettings, *, mends: bool = False
) -> Kept:
    """The caller holds the lock of the directory. `mends`: others may have what is damaged
    here."""
    disk, directory = runtime.disk, settings.directory
    storage = await own_storage(runtime, directory)
    checkpoints = Checkpoints(disk, f"{directory}/checkpoints", storage.storage_id)
    newest = await checkpoints.newest()
    head, slices = newest if newest is not None else (None, None)
    needed = head.first_lsn if head is not None else 1
    try:
        wal = await _open_wal(runtime, tasks, settings, storage, needed)
    except WalDamaged as damage:
        if not mends or damage.damage is Damage.FOREIGN:
            raise
        await _salvage(runtime, settings.directory, storage, head, damage)
        # Older checkpoints need records that are no more.
        await checkpoints.prune(1)
        wal = await _open_wal(runtime, tasks, settings, storage, needed)
    if wal.first_lsn > needed or wal.next_lsn < needed:
        raise LedgerFailed(
            f"the log in {wal.directory} has records {wal.first_lsn} to {wal.next_lsn - 1}, but "
            f"{needed} is needed: keep the files, and replace this member"
        )
    places = Places()
    recovered = await _replay(wal, storage, head, places, int(runtime.clock.wall() * 1000.0))
    if MENDING in await disk.list(directory):
        recovered.mending = (await disk.read(f"{directory}/{MENDING}")).decode(errors="replace")
    return Kept(storage, wal, checkpoints, recovered, slices, places)


async def _open_wal(
    runtime: Runtime, tasks: TaskRunner, settings: LedgerSettings, storage: Storage, needed: int
) -> Wal:
    return await open_wal(
        runtime.disk,
        runtime.clock,
        tasks,
        f"{settings.directory}/wal",
        storage.wal_identity,
        settings.wal,
        needed_from=needed,
        must_exist=True,
    )


async def _salvage(
    runtime: Runtime,
    directory: str,
    storage: Storage,
    head: CheckpointHead | None,
    damage: WalDamaged,
) -> None:
    """Makes the log whole again, without what is lost. Raises the damage where that could
    make this member forget a promise, or whose member it is."""
    disk, wal = runtime.disk, f"{directory}/wal"
    first = head.first_lsn if head is not None else 1
    found = await salvage(disk, wal, storage.wal_identity, first)
    if not found.end_is_known:
        raise damage
    records = [(each.kind, each.body) for each in found.records]
    if found.has_hole:
        promise = _last_promise(found, head)
        if promise is None:
            raise damage
        await disk.write_atomic(f"{directory}/{MENDING}", str(damage).encode())
        records.append((STEP, msgspec.msgpack.encode(promise)))
    await write_whole(disk, wal, storage.wal_identity, found, first, records)


def _last_promise(found: Salvaged, head: CheckpointHead | None) -> Record | None:
    """Everything that was promised, and of the log what is committed for certain: entries
    before the hole may have been taken back in it. None: whose member it is, is lost."""
    before = [msgspec.msgpack.decode(each.body, type=Record) for each in found.records]
    behind = [msgspec.msgpack.decode(each.body, type=Record) for each in found.behind]
    commit = max((int(each.commit) for each in before), default=0)
    commit = max(commit, int(head.base.op) if head is not None else 0)
    held = max((int(e.op) for each in before for e in each.entries), default=0)
    if head is None and (commit < 1 or held < 1):
        return None
    last = max(behind, key=lambda each: each.fence)
    return Record(
        max(each.fence for each in (*before, *behind)),
        max(each.last_normal for each in (*before, *behind)),
        commit,
        (),
        OpNumber(commit),
        max(each.group_ms for each in (*before, *behind)),
        last.wall_ms,
    )


async def _replay(
    wal: Wal, storage: Storage, head: CheckpointHead | None, places: Places, wall_ms: int
) -> Recovered:
    base = head.base if head is not None else Base()
    recovered = Recovered(StorageId(storage.storage_id), base)
    stamp_ms = 0
    if head is not None:
        recovered.fence, recovered.last_normal = head.fence, head.last_normal
        recovered.commit, recovered.group_ms = int(base.op), int(base.group_ms)
        stamp_ms = head.wall_ms
    log = Log(base.op, base.checksum, ())
    first = max(head.first_lsn if head is not None else 1, wal.first_lsn)
    async with WalReader(wal, first) as reader:
        async for records in reader:
            for each in records:
                record = msgspec.msgpack.decode(each.body, type=Record)
                _step(log, record)
                places.note(each.lsn, record.keep, record.entries)
                recovered.fence = max(recovered.fence, record.fence)
                recovered.last_normal = max(recovered.last_normal, record.last_normal)
                recovered.commit = max(recovered.commit, int(record.commit))
                recovered.group_ms = max(recovered.group_ms, int(record.group_ms))
                stamp_ms = record.wall_ms
    recovered.entries = [log.entry(op) for op in range(log.base_op + 1, log.last + 1)]
    if stamp_ms:
        recovered.away_ms = min(max(wall_ms - stamp_ms, 0), AWAY_MS_MAX)
    return recovered


def _step(log: Log, record: Record) -> None:
    if record.keep >= 0:
        log.cut(max(min(record.keep, log.last), log.base_op))
    for entry in record.entries:
        if entry.op <= log.base_op or log.checksum(entry.op) == entry.checksum:
            # In the checkpoint, or written once more.
            continue
        if not log.follows(entry) and log.last == log.base_op:
            # It disagrees with a checkpoint that came from a peer: it was never committed.
            continue
        if not log.follows(entry):
            raise LedgerFailed(
                f"the log on this disk breaks at entry {entry.op}: keep the files, and replace "
                "this member"
            )
        log.append(entry)
