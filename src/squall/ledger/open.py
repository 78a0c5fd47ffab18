"""Opens the ledger of a group of one: `open_ledger(runtime, machine, settings)`.

Order: lock, storage record, newest whole checkpoint, log, the entries behind the
checkpoint, a new view. A new directory gets its storage record last, so that one without
it never held anything that was acknowledged.

It must never start from less than what was acknowledged: damage, a missing file or a
newer format is one line (`LedgerFailed`), and every file stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import msgspec

from squall.api.errors import ConfigError
from squall.ledger.apply import Applier
from squall.ledger.blobs import BlobStore
from squall.ledger.checkpoint import CheckpointHead, Checkpoints
from squall.ledger.clock import GroupClock, after_restart
from squall.ledger.fresh import own_storage
from squall.ledger.interface import (
    Fence,
    LedgerDamaged,
    LedgerFailed,
    NotPrimary,
    OutcomeUnknown,
    StateMachine,
)
from squall.ledger.replica.types import (
    NO_CHECKSUM,
    Config,
    Formation,
    GroupId,
    Kind,
    LogEntry,
    Member,
    StorageId,
    formed_config,
    make_entry,
)
from squall.ledger.settings import Durability, LedgerSettings
from squall.ledger.single import OneMemberLedger, Parts, References
from squall.ledger.steps import step_of
from squall.ledger.storage import Storage
from squall.ledger.wal.errors import WalDamaged, WalError
from squall.ledger.wal.format import Record as WalRecord
from squall.ledger.wal.log import Wal
from squall.ledger.wal.open import open_wal
from squall.ledger.wal.reader import WalReader
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner

NO_GROUP = GroupId("")
GROUP_ID_BYTES = 4
YIELD_EVERY = 256
"""Entries replayed between two turns of the loop."""


async def open_ledger(
    runtime: Runtime,
    machine: StateMachine,
    settings: LedgerSettings | None = None,
    *,
    tasks: TaskRunner | None = None,
    group: str = "",
    references: References | None = None,
    log: Log | None = None,
) -> OneMemberLedger:
    """Returns when this member leads and serves. `group` names a new group; without it
    the name is random. `references` says which blobs the machine refers to; without it
    none is ever deleted. `log` hears of starts, roles and failures. Raises
    `LedgerFailed`, `ConfigError` or OSError."""
    settings = settings or LedgerSettings()
    if settings.wal.durability < Durability.FSYNC:
        raise ConfigError("wal.durability: a ledger needs FSYNC or FSYNC_BATCH")
    try:
        lock = runtime.disk.lock() if settings.lock else None
    except BlockingIOError as error:
        raise LedgerFailed(f"{error.strerror}: {error.filename or runtime.node}") from None
    own_tasks = tasks is None
    tasks = tasks or TaskRunner(runtime.clock, runtime.random)
    log = log or Log(MemorySink(capacity=100), runtime.clock)
    opening = _Opening(runtime, machine, settings, tasks, log)
    try:
        parts, first = await opening.run(group)
        parts.lock, parts.own_tasks, parts.references = lock, own_tasks, references
        ledger = OneMemberLedger(runtime, tasks, settings, parts)
        opening.ledger = ledger
        await ledger.start(first)
    except (Exception, asyncio.CancelledError) as error:
        if opening.wal is not None:
            with contextlib.suppress(WalError):
                await opening.wal.close()
        if lock is not None:
            lock.release()
        if own_tasks:
            await tasks.shutdown(5.0)
        if isinstance(error, WalDamaged):
            raise LedgerDamaged(str(error)) from None
        if isinstance(error, WalError | NotPrimary | OutcomeUnknown):
            raise LedgerFailed(str(error)) from None
        raise
    return ledger


@dataclass(slots=True)
class _Replayed:
    """Where the log ends."""

    fence: Fence
    group_ms: int = 0
    wall_ms: int = 0
    group: GroupId = NO_GROUP
    config: Config | None = None


class _Opening:
    def __init__(
        self,
        runtime: Runtime,
        machine: StateMachine,
        settings: LedgerSettings,
        tasks: TaskRunner,
        log: Log,
    ) -> None:
        self._log = log
        self.ledger: OneMemberLedger | None = None
        self.wal: Wal | None = None
        self._runtime = runtime
        self._machine = machine
        self._settings = settings
        self._tasks = tasks
        self._applier = Applier(machine, settings.apply_slice, self._broken)

    async def run(self, group: str) -> tuple[Parts, LogEntry | None]:
        """The parts, and op 1 when the directory is new."""
        disk, directory = self._runtime.disk, self._settings.directory
        storage = await own_storage(self._runtime, directory)
        first: LogEntry | None = None
        checkpoints = Checkpoints(disk, f"{directory}/checkpoints", storage.storage_id)
        head = await self._load(checkpoints)
        wal = await self._open_wal(storage, head)
        began = self._runtime.clock.now()
        end = await self._replay(wal, head)
        self._tell(wal, checkpoints, self._runtime.clock.now() - began)
        wall_ms = int(self._runtime.clock.wall() * 1000.0)
        if end.config is None:
            end, first = self._form(storage, group)
        else:
            self._check_config(end.config, storage)
            end.group_ms = after_restart(end.group_ms, end.wall_ms, wall_ms)
        assert end.config is not None
        clock = self._runtime.clock
        group_clock = GroupClock(end.group_ms, clock.boot_time())
        settings = self._settings
        blobs = BlobStore(
            disk,
            f"{directory}/blobs",
            lambda: group_clock.read(clock.boot_time()),
            max_bytes=settings.blob_max_bytes,
            keep_ms=int(settings.blob_keep_s * 1000.0),
            fetches=settings.blob_fetches,
        )
        await blobs.open()
        parts = Parts(
            wal,
            self._applier,
            checkpoints,
            blobs,
            group_clock,
            storage.storage_id,
            end.group,
            end.config,
            end.fence,
            None,
            self._log,
            None,
            False,
        )
        return parts, first

    async def _load(self, checkpoints: Checkpoints) -> CheckpointHead | None:
        newest = await checkpoints.newest()
        if newest is None:
            return None
        head, slices = newest
        self._check_version(head.base.active_version)
        self._machine.load(slices)
        self._applier.restore(head.base)
        return head

    async def _open_wal(self, storage: Storage, head: CheckpointHead | None) -> Wal:
        needed = 1 if head is None else head.first_lsn
        runtime = self._runtime
        wal = self.wal = await open_wal(
            runtime.disk,
            runtime.clock,
            self._tasks,
            self._wal_directory(),
            storage.wal_identity,
            self._settings.wal,
            needed_from=needed,
            must_exist=True,
        )
        if wal.first_lsn > needed or wal.next_lsn < needed:
            raise LedgerDamaged(
                f"the log in {wal.directory} holds records {wal.first_lsn} to "
                f"{wal.next_lsn - 1}, but the newest whole checkpoint goes on at {needed}"
            )
        return wal

    def _wal_directory(self) -> str:
        return f"{self._settings.directory}/wal"

    def _tell(self, wal: Wal, checkpoints: Checkpoints, took_s: float) -> None:
        for text in checkpoints.skipped:
            self._log.error("checkpoint_skipped", reason=text)
        found = wal.recovered
        self._log.info(
            "ledger_recovered",
            directory=wal.directory,
            first=found.first_lsn,
            last=wal.next_lsn - 1,
            op=self._applier.applied,
            torn_bytes=found.torn_bytes,
            closed_in_order=found.clean,
            took_s=round(took_s, 3),
        )

    async def _replay(self, wal: Wal, head: CheckpointHead | None) -> _Replayed:
        end = _Replayed(Fence(0, -1))
        if head is not None:
            end.fence, end.wall_ms = head.fence, head.wall_ms
            end.group_ms = head.base.group_ms
            end.group, end.config = head.base.group, head.base.config
        first = wal.first_lsn if head is None else head.first_lsn
        async with WalReader(wal, first) as reader:
            async for records in reader:
                for start in range(0, len(records), YIELD_EVERY):
                    self._take_all(records[start : start + YIELD_EVERY], end)
                    await asyncio.sleep(0)
        return end

    def _take_all(self, records: list[WalRecord], end: _Replayed) -> None:
        applier, step = self._applier, None
        apply, known = applier.apply, self._machine.version
        for record in records:
            step = step_of(record)
            if 0 <= step.keep < applier.applied:
                raise LedgerFailed(f"record {record.lsn} takes back applied entries")
            for entry in step.entries:
                if entry.kind is not Kind.COMMAND or entry.version > known:
                    self._look_at(entry, end)
                apply(entry)
        if step is not None:
            end.fence, end.group_ms, end.wall_ms = step.fence, step.group_ms, step.wall_ms

    def _look_at(self, entry: LogEntry, end: _Replayed) -> None:
        if entry.kind == Kind.FORM:
            formation = msgspec.msgpack.decode(entry.body, type=Formation)
            end.group, end.config = formation.group, formation.config
        elif entry.kind != Kind.VIEW:
            self._check_version(entry.version)

    def _form(self, storage: Storage, group: str) -> tuple[_Replayed, LogEntry]:
        runtime = self._runtime
        config = formed_config((Member(runtime.node, StorageId(storage.storage_id)),))
        name = GroupId(group or runtime.entropy(GROUP_ID_BYTES).hex())
        fence = Fence(config.epoch, 0)
        body = msgspec.msgpack.encode(Formation(name, config))
        entry = make_entry(1, fence, 0, Kind.FORM, body, previous=NO_CHECKSUM)
        return _Replayed(fence, group=name, config=config), entry

    def _check_config(self, config: Config, storage: Storage) -> None:
        me = Member(self._runtime.node, StorageId(storage.storage_id))
        if config.members != (me,):
            members = ", ".join(config.nodes)
            raise LedgerFailed(
                f"this data directory belongs to the group {members}, not to {me.node} alone"
            )

    def _check_version(self, version: int) -> None:
        if version > self._machine.version:
            raise LedgerFailed(
                f"the log holds commands of version {version}, this Squall applies up to "
                f"{self._machine.version}; start the newer one"
            )

    def _broken(self, error: Exception) -> None:
        if self.ledger is not None:
            self.ledger.broke(error)
