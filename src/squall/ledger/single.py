"""The ledger of a group with one member: what is durable here is committed.

States: opening -> leads <-> stepped down -> closed, and from anywhere -> failed. A start
takes a view above every one that was led before, and leads when the first entry of that
view is durable and everything before it is applied. A disk that holds a sync for over
two seconds costs the lead: what is submitted then is refused, what waits has an unknown
outcome. When the disk is back a higher view begins. A failed log ends it for good.

The bytes in the log are those of larger groups (`replica.types.Record`), so that a group
can grow from one to three.

It must never answer `Committed` for what is not durable, and never say that a command is
not in the log when it may be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from squall.ledger.apply import Answer, Applier
from squall.ledger.blobs import BlobStore
from squall.ledger.checkpoint import CheckpointHead, Checkpoints
from squall.ledger.clock import GroupClock
from squall.ledger.interface import (
    Applied,
    Committed,
    Digest,
    Entry,
    Fence,
    GroupMs,
    LedgerFailed,
    NotPrimary,
    OpNumber,
    OutcomeUnknown,
    ReadLevel,
    RoleChanged,
    TryLater,
)
from squall.ledger.replica.types import Base, Config, GroupId, Kind, LogEntry, Record, make_entry
from squall.ledger.settings import LedgerSettings
from squall.ledger.steps import STEP, entries_of
from squall.ledger.wal.errors import DiskFull, TooLarge, WalBusy, WalError, WalFailed
from squall.ledger.wal.log import Wal
from squall.ledger.wal.reader import WalReader
from squall.runtime.interfaces import Clock, DirectoryLock, NodeId, Runtime
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner, TaskToken

TICK_S = 0.25
COLLECT_EVERY_S = 60.0
ANY_OP = OpNumber(0)

References = Callable[[], Iterable[Digest]]
"""The blobs that the state machine refers to now."""


@dataclass(slots=True)
class _Waiting:
    lsn: int
    entry: LogEntry
    answer: Answer | None


@dataclass(slots=True)
class Parts:
    """What `open_ledger` puts together."""

    wal: Wal
    applier: Applier
    checkpoints: Checkpoints
    blobs: BlobStore
    group_clock: GroupClock
    storage_id: str
    group: GroupId
    config: Config
    fence: Fence
    references: References | None
    log: Log
    lock: DirectoryLock | None
    own_tasks: bool


class OneMemberLedger:
    """Made by `open_ledger`."""

    def __init__(
        self, runtime: Runtime, tasks: TaskRunner, settings: LedgerSettings, parts: Parts
    ) -> None:
        self.parts = parts
        self.settings = settings
        self._node: NodeId = runtime.node
        self._clock: Clock = runtime.clock
        self._tasks = tasks
        self._log = parts.log
        self._wal = parts.wal
        self._applier = parts.applier
        self._group_clock = parts.group_clock
        self._fence = parts.fence
        self._leads = False
        self._closed = False
        self.failure: LedgerFailed | None = None
        self._op = int(parts.applier.applied)
        self._checksum = parts.applier.checksum
        self._waiting: deque[_Waiting] = deque()
        self._roles: list[RoleChanged] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._lsn_ahead = parts.wal.next_lsn - 1 - self._op
        """Every record here holds one entry, so that numbers differ by a constant."""
        self._checkpoint_op = parts.applier.applied
        self._checkpoint_at = self._clock.now()
        self._checkpoint_bytes = 0
        self._checkpointing: TaskToken | None = None
        self._collect_at = self._clock.now() + COLLECT_EVERY_S
        self._returning: TaskToken | None = None
        self.checkpoint_failures = 0
        self._one_checkpoint = asyncio.Lock()
        parts.wal.listen(self)

    async def start(self, first: LogEntry | None) -> None:
        """Begins the view; `first` is op 1 of a new group."""
        self._applier.start(self._tasks)
        if first is not None:
            answer = self._answer()
            self._append_entry(first, answer)
            await answer
            self._lead()
        else:
            await self._begin_view()
        if self._applier.machine.version > self._applier.active_version:
            await self._commit(Kind.ACTIVATE, self._applier.machine.version)
        self._tick_token = self._tasks.every("ledger tick", TICK_S, self._tick, group="ledger")

    # The facade.

    @property
    def fence(self) -> Fence:
        return self._fence

    @property
    def is_primary(self) -> bool:
        return self._leads

    @property
    def primary(self) -> NodeId | None:
        return self._node if self._leads else None

    @property
    def applied(self) -> OpNumber:
        return self._applier.applied

    @property
    def active_version(self) -> int:
        return self._applier.active_version

    @property
    def group(self) -> str:
        """The name of the group, for the ids of what is made in it."""
        return self.parts.group

    @property
    def blobs(self) -> BlobStore:
        return self.parts.blobs

    def group_ms(self) -> GroupMs:
        return self._group_clock.read(self._clock.boot_time())

    async def submit(self, body: bytes, *, version: int = 1) -> Committed:
        self._check_leads()
        if len(body) > self.settings.max_command_bytes:
            limit = self.settings.max_command_bytes
            raise TooLarge(f"a command of {len(body)} bytes is over the limit of {limit}")
        if version > self._applier.active_version:
            active = self._applier.active_version
            raise TryLater(self._node, f"version {version} is not active, {active} is")
        if len(self._waiting) >= self.settings.max_in_flight:
            raise TryLater(self._node, f"{len(self._waiting)} commands wait for the disk")
        answer = self._answer()
        try:
            self._append(Kind.COMMAND, version, body, answer)
        except WalBusy as error:
            raise TryLater(self._node, str(error)) from None
        except WalError as error:
            raise LedgerFailed(str(error)) from None
        return await answer

    async def read(self, level: ReadLevel, minimum_op: OpNumber = ANY_OP) -> OpNumber:
        if level is ReadLevel.STRONG:
            self._check_leads()
            # All that was answered is applied; what is durable and not yet applied may
            # have been seen by nobody, and is waited for all the same.
            await self._applier.wait(max(self._durable_op(), minimum_op))
            self._check_leads()
        elif level is ReadLevel.SESSION:
            if self.failure is not None and self._applier.applied < minimum_op:
                raise self.failure
            await self._applier.wait(minimum_op)
        return self._applier.applied

    async def confirm(self) -> Fence:
        self._check_leads()
        await asyncio.sleep(0)
        self._check_leads()
        return self._fence

    def on_applied(self, callback: Applied) -> None:
        self._applier.on_applied(callback)

    def on_role(self, callback: RoleChanged) -> None:
        self._roles.append(callback)
        if self._leads:
            asyncio.get_running_loop().call_soon(self._tell_late, callback)

    async def close(self) -> None:
        """Writes what was submitted, gives up the lead, leaves the directory to others."""
        if self._closed:
            return
        self._closed = True
        self._tasks.cancel(self._tick_token)
        if self._checkpointing is not None:
            self._tasks.cancel(self._checkpointing)
            await self._tasks.stopped(self._checkpointing)
        with contextlib.suppress(WalError, LedgerFailed):
            await self._wal.close()
            await self._applier.wait(self._op)
        self._step_down("the ledger was closed")
        self._applier.abandon(LedgerFailed("the ledger was closed"))
        if self.parts.lock is not None:
            self.parts.lock.release()
        if self.parts.own_tasks:
            await self._tasks.shutdown(5.0)

    # Writing.

    def _append(self, kind: Kind, version: int, body: bytes, answer: Answer | None) -> LogEntry:
        entry = make_entry(
            self._op + 1,
            self._fence,
            self.group_ms(),
            kind,
            body,
            previous=self._checksum,
            version=version,
        )
        self._append_entry(entry, answer)
        return entry

    def _append_entry(self, entry: LogEntry, answer: Answer | None) -> None:
        record = Record(
            self._fence,
            self._fence,
            -1,
            (entry,),
            self._applier.applied,
            entry.group_ms,
            int(self._clock.wall() * 1000.0),
        )
        lsn = self._wal.accept(STEP, self._encoder.encode(record))
        self._op = entry.op
        self._checksum = entry.checksum
        self._waiting.append(_Waiting(lsn, entry, answer))

    async def _commit(self, kind: Kind, version: int = 0) -> None:
        """An entry of the ledger itself."""
        answer = self._answer()
        try:
            self._append(kind, version, b"", answer)
        except WalError as error:
            raise LedgerFailed(str(error)) from None
        await answer

    def _answer(self) -> Answer:
        return asyncio.get_running_loop().create_future()

    # What the log tells.

    def on_durable(self, lsn: int) -> None:
        waiting = self._waiting
        done: list[tuple[LogEntry, Answer | None]] = []
        while waiting and waiting[0].lsn <= lsn:
            item = waiting.popleft()
            done.append((item.entry, item.answer))
            self._checkpoint_bytes += len(item.entry.body) + 128
        self._applier.commit(done)

    def on_refused(self, from_lsn: int, error: DiskFull) -> None:
        refused = [item for item in self._waiting if item.lsn >= from_lsn]
        self._waiting = deque(item for item in self._waiting if item.lsn < from_lsn)
        if refused:
            self._op = refused[0].entry.op - 1
            self._checksum = refused[0].entry.previous
        for item in refused:
            if item.answer is not None and not item.answer.done():
                item.answer.set_exception(TryLater(self._node, str(error)))

    def on_failed(self, error: WalFailed) -> None:
        self._fail(LedgerFailed(str(error)))

    # The role.

    async def _begin_view(self) -> None:
        self._fence = Fence(self._fence.epoch, self._fence.view + 1)
        await self._commit(Kind.VIEW)
        self._lead()

    async def _return(self) -> None:
        """Leads again after the disk was slow."""
        with contextlib.suppress(TryLater, OutcomeUnknown, LedgerFailed):
            await self._begin_view()

    def _lead(self) -> None:
        if not self._closed and self.failure is None:
            self._leads = True
            self._log.info("ledger_leads", view=self._fence.view, op=self._op)
            self._tell(self._fence)

    def _step_down(self, reason: str) -> None:
        was, self._leads = self._leads, False
        for item in self._waiting:
            if item.answer is not None and not item.answer.done():
                item.answer.set_exception(OutcomeUnknown(reason))
        if was:
            self._log.warning("ledger_stepped_down", view=self._fence.view, reason=reason)
            self._tell(None)

    def _fail(self, error: LedgerFailed) -> None:
        if self.failure is None:
            self.failure = error
            self._log.error("ledger_failed", reason=str(error))
            self._applier.abandon(error)
            self._step_down(str(error))

    def _tell(self, fence: Fence | None) -> None:
        for callback in self._roles:
            callback(fence)

    def _tell_late(self, callback: RoleChanged) -> None:
        if self._leads:
            callback(self._fence)

    def _check_leads(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise LedgerFailed("the ledger was closed")
        if not self._leads:
            raise NotPrimary(None)

    def _durable_op(self) -> int:
        return self._waiting[0].entry.op - 1 if self._waiting else self._op

    async def history(self, first: OpNumber, last: OpNumber) -> list[Entry]:
        """The commands in that range, both inclusive, from the log. Raises `Compacted`
        when it begins later; a job's own history is a blob by then."""
        ahead = self._lsn_ahead
        found: list[Entry] = []
        last = OpNumber(min(last, self._applier.applied))
        async with WalReader(self._wal, first + ahead, last + ahead) as reader:
            async for records in reader:
                found.extend(
                    Entry(entry.op, entry.group_ms, entry.version, entry.body)
                    for entry in entries_of(records)
                    if entry.kind == Kind.COMMAND
                )
        return found

    # What happens by itself.

    async def _tick(self) -> None:
        if self.failure is not None:
            return
        if self._wal.sync_age_s() > self.settings.sync_limit_s:
            self._step_down("the disk did not answer in time")
        elif not self._leads and not self._is_running(self._returning):
            self._returning = self._tasks.start("ledger view", self._return(), group="ledger")
        if self._checkpoint_due() and not self._is_running(self._checkpointing):
            self._checkpointing = self._tasks.start(
                "checkpoint", self._checkpoint_if_possible(), group="ledger"
            )
        if self._clock.now() >= self._collect_at:
            self._collect_at = self._clock.now() + COLLECT_EVERY_S
            # A blob that could not be deleted is tried again in a minute.
            with contextlib.suppress(OSError):
                await self.collect_blobs()

    def _is_running(self, token: TaskToken | None) -> bool:
        return token is not None and token.task is not None and not token.task.done()

    def broke(self, error: Exception) -> None:
        self._fail(LedgerFailed(str(error)))

    async def collect_blobs(self) -> int:
        """Deletes blobs that the machine has not referred to for long enough."""
        if self.parts.references is None:
            return 0
        return await self.parts.blobs.collect(self.parts.references())

    # Checkpoints.

    def _checkpoint_due(self) -> bool:
        entries = self._applier.applied - self._checkpoint_op
        settings = self.settings
        limit = max(settings.checkpoint_bytes, self.parts.checkpoints.last_bytes // 2)
        return entries > 0 and (
            entries >= settings.checkpoint_entries
            or self._checkpoint_bytes >= limit
            or self._clock.now() - self._checkpoint_at >= settings.checkpoint_interval_s
        )

    async def checkpoint(self) -> OpNumber:
        """Makes the state as of now durable, then drops the log that no kept checkpoint
        needs."""
        async with self._one_checkpoint:
            return await self._checkpoint()

    async def _checkpoint(self) -> OpNumber:
        parts, applier = self.parts, self._applier
        # Nothing can be applied between these lines.
        op = applier.applied
        base = Base(
            op,
            applier.checksum,
            GroupMs(applier.group_ms),
            parts.group,
            parts.config,
            applier.active_version,
        )
        lsn = op + 1 + self._lsn_ahead
        # The wall clock when the group clock read `base.group_ms`, not now: the time
        # between counts as well, should everything end here.
        since_ms = self.group_ms() - applier.group_ms
        wall_ms = int(self._clock.wall() * 1000.0) - since_ms
        head = CheckpointHead(parts.storage_id, base, lsn, self._fence, self._fence, wall_ms)
        capture = applier.machine.capture()
        self._checkpoint_at = self._clock.now()
        self._checkpoint_op, self._checkpoint_bytes = op, 0
        await parts.checkpoints.write(head, capture)
        await parts.checkpoints.prune(self.settings.checkpoints_kept)
        heads = parts.checkpoints.heads
        if len(heads) > 1:
            # With one alone, damage to it would leave nothing to go on from.
            await self._wal.compact(heads[0].first_lsn)
        self._log.info("checkpoint_written", op=op, bytes=parts.checkpoints.last_bytes)
        return op

    async def _checkpoint_if_possible(self) -> None:
        """Without one the log keeps everything, and the next interval tries again."""
        try:
            await self.checkpoint()
        except OSError as error:
            self.checkpoint_failures += 1
            self._log.warning("checkpoint_failed", reason=str(error))
