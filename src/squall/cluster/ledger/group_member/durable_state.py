"""Opens a member's durable state: its storage record, checkpoints and write-ahead log.

The write-ahead log holds one `StepRecord` per step of the core, in order; a checkpoint replaces
the entries up to its op. The member needs the log from the record that holds the first entry
above the oldest kept checkpoint.

A member of a larger group also starts from a damaged log or checkpoint, if its last promise can
still be read. It keeps the valid entries that are certainly committed and writes a file that
marks it as mending: it neither votes nor acknowledges until it holds the log of a view again
(R2). Damaged log files are renamed and kept.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass

import msgspec

from squall.cluster.ledger.files.checkpoints import CheckpointHead, Checkpoints
from squall.cluster.ledger.files.directory_owner import Storage
from squall.cluster.ledger.files.history_records import STEP, step_of
from squall.cluster.ledger.files.new_directory import own_storage
from squall.cluster.ledger.group_member.replay import Places, Replay
from squall.cluster.ledger.interface import LedgerDamaged, OpNumber
from squall.cluster.ledger.replica.group_clock import ClockStamp, away_since
from squall.cluster.ledger.replica.state import config_of, formation_of
from squall.cluster.ledger.replica.types import Config, Kind, Recovered, StepRecord
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.ledger.wal.errors import Damage, WalDamaged
from squall.cluster.ledger.wal.log import Wal
from squall.cluster.ledger.wal.open_wal import open_wal
from squall.cluster.ledger.wal.reader import WalReader
from squall.cluster.ledger.wal.salvage import Salvaged, salvage, write_whole
from squall.runtime.interfaces import Clock, Runtime
from squall.runtime.tasks import TaskRunner

MENDING = "mending"
"""File that exists while this member lacks entries that it once acknowledged (R2)."""


@dataclass(slots=True)
class DurableState:
    """The open files of a member and the state that replay restored from them."""

    storage: Storage
    wal: Wal
    checkpoints: Checkpoints
    recovered: Recovered
    slices: list[bytes] | None
    """The state of the newest checkpoint."""
    places: Places


def clock_stamp(clock: Clock) -> ClockStamp:
    """Reads what a later boot of this member needs to know how long it was away (R10)."""
    kernel = clock.kernel_boot()
    return ClockStamp(
        int(clock.wall() * 1000.0),
        int(clock.boot_time() * 1000.0),
        zlib.crc32(kernel.encode()) if kernel else 0,
    )


async def open_durable_state(
    runtime: Runtime, tasks: TaskRunner, settings: LedgerSettings, *, mends: bool = False
) -> DurableState:
    """Opens the files and replays the log; the caller holds the lock of the directory. With
    `mends`, other members can repair damage, so a damaged log does not stop the start."""
    disk, directory = runtime.disk, settings.directory
    storage = await own_storage(runtime, directory, settings.role)
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
        # Older checkpoints need records that the new log no longer has.
        await checkpoints.prune(1)
        wal = await _open_wal(runtime, tasks, settings, storage, needed)
    if wal.first_lsn > needed or wal.next_lsn < needed:
        await wal.close()
        raise LedgerDamaged(
            f"the log in {wal.directory} holds records {wal.first_lsn} to {wal.next_lsn - 1}, but "
            f"the newest valid checkpoint needs them from {needed}: keep the files, and restore a "
            "backup or replace this member"
        )
    try:
        replay = await _replay(wal, storage, head)
        recovered = replay.recovered
        now = clock_stamp(runtime.clock)
        if replay.stamp.wall_ms:
            recovered.away_ms = away_since(replay.stamp, now)
        reason = replay.hole or checkpoints.newest_skipped
        if reason:
            await _check_lost(runtime, recovered, reason, is_hole=bool(replay.hole), mends=mends)
        if replay.hole:
            # The mark must be durable before the record that ends the hole, as in `_salvage`.
            await disk.write_atomic(f"{directory}/{MENDING}", replay.hole.encode())
            await wal.append(STEP, msgspec.msgpack.encode(replay.dropped(now)))
    except BaseException:
        await wal.close()
        raise
    if MENDING in await disk.list(directory):
        recovered.mending = (await disk.read(f"{directory}/{MENDING}")).decode(errors="replace")
    return DurableState(storage, wal, checkpoints, recovered, slices, replay.places)


async def _check_lost(
    runtime: Runtime, recovered: Recovered, reason: str, *, is_hole: bool, mends: bool
) -> None:
    """Decides what a member does that cannot read everything it stored. Other members can mend it
    (R2); without them it continues only if its log has no hole."""
    config = latest_config(recovered)
    others = config is not None and config.nodes != (runtime.node,)
    if config is None or (is_hole and not (mends and others)):
        raise LedgerDamaged(
            f"{reason}: keep the files, and restore a backup or replace this member"
        )
    if mends and others:
        recovered.mending = reason


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
    """Rewrites the log without the lost records. Raises `damage` if this could make the member
    forget a promise (R2) or the group it belongs to."""
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
        # The mark must be durable before the new log: a crash between the two must not leave a
        # log that looks complete.
        await disk.write_atomic(f"{directory}/{MENDING}", str(damage).encode())
        records.append((STEP, msgspec.msgpack.encode(promise)))
    await write_whole(disk, wal, storage.wal_identity, found, first, records)


def _last_promise(found: Salvaged, head: CheckpointHead | None) -> StepRecord | None:
    """A record that repeats every promise and keeps only entries that are certainly committed:
    a lost record may have cut off other entries before the hole. None if the group that the
    member belongs to is lost."""
    before = [msgspec.msgpack.decode(each.body, type=StepRecord) for each in found.records]
    behind = [msgspec.msgpack.decode(each.body, type=StepRecord) for each in found.behind]
    commit = max((int(each.commit) for each in before), default=0)
    commit = max(commit, int(head.base.op) if head is not None else 0)
    held = max((int(e.op) for each in before for e in each.entries), default=0)
    if head is None and (commit < 1 or held < 1):
        return None
    last = max(behind, key=lambda each: each.fence)
    return StepRecord(
        max(each.fence for each in (*before, *behind)),
        max(each.last_normal for each in (*before, *behind)),
        commit,
        (),
        OpNumber(commit),
        max(each.group_ms for each in (*before, *behind)),
        last.wall_ms,
        last.boot_ms,
        last.kernel,
    )


async def _replay(wal: Wal, storage: Storage, head: CheckpointHead | None) -> Replay:
    replay = Replay(storage.storage_id, head)
    first = max(head.first_lsn if head is not None else 1, wal.first_lsn)
    async with WalReader(wal, first) as reader:
        async for records in reader:
            for each in records:
                replay.take(each.lsn, step_of(each))
            # Let other tasks run between two blocks.
            await asyncio.sleep(0)
    return replay


def latest_config(recovered: Recovered) -> Config | None:
    """The members that the last entry on this disk names, committed or not."""
    config = recovered.base.config
    for entry in recovered.entries:
        if entry.kind is Kind.COMMAND:
            continue
        if entry.kind is Kind.FORM:
            config = formation_of(entry).config
        elif entry.kind is Kind.MEMBERS:
            config = config_of(entry)
    return config
