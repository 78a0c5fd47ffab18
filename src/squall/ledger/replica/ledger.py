"""One member of a group behind the facade of every ledger: drives the replica's core.

It does what the core's effects say, in their order, and decides nothing about the
protocol: records go to the write-ahead log, sends that reveal a promise wait for it, and
committed entries go to the state machine. A log that fails, or a state that differs from
that of a quorum, ends it: the node gives up its role and the files stay as they are.

States: opening -> follows <-> leads -> closed, and from anywhere -> failed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from squall.ledger.apply import Answer, Applier
from squall.ledger.interface import (
    Applied,
    Blobs,
    Committed,
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
from squall.ledger.replica.core import Replica
from squall.ledger.replica.digests import Digests
from squall.ledger.replica.effects import (
    Apply,
    Confirmed,
    Diverged,
    Effect,
    EnteredEpoch,
    FetchSnapshot,
    MembersAnswer,
    Mended,
    Persist,
    Send,
    Serves,
    SteppedDown,
    Unconfirmed,
)
from squall.ledger.replica.exchange import Message, Transport
from squall.ledger.replica.group_blobs import GroupBlobs
from squall.ledger.replica.keeping import STEP, Kept
from squall.ledger.replica.log import ENTRY_OVERHEAD
from squall.ledger.replica.messages import Packet
from squall.ledger.replica.scrub import Scrub
from squall.ledger.replica.snapshots import Snapshots
from squall.ledger.replica.types import Kind, LogEntry, Member, Record, Status
from squall.ledger.settings import LedgerSettings
from squall.ledger.wal.errors import DiskFull, TooLarge, WalError, WalFailed
from squall.runtime.interfaces import DirectoryLock, NodeId, Runtime
from squall.runtime.tasks import TaskRunner, TaskToken

GROUP = "ledger"
START = OpNumber(0)
COLLECT_EVERY_S = 60.0
HELD_MAX = 4096
"""Sends that wait for the disk; beyond it the oldest go: all are sent again from state."""
EPOCH_WITHIN_S = 30.0
"""A change of members that takes longer has an unknown outcome."""
COPY_BYTES = 1 << 20
"""Of entries in one record, when the log is written once more."""
SOONEST_S = 0.001
"""Between two ticks, so that a deadline in the past does not spin."""


class GroupLedger:
    """Made by `open_group.open_group_ledger`."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskRunner,
        settings: LedgerSettings,
        kept: Kept,
        replica: Replica,
        applier: Applier,
        transport: Transport,
        *,
        lock: DirectoryLock | None = None,
        observe: Callable[[Effect], None] | None = None,
        on_alarm: Callable[[str], None] | None = None,
        digest_every: int = 4096,
    ) -> None:
        self.replica = replica
        self.settings = settings
        self.kept = kept
        self.failure: LedgerFailed | None = None
        self._runtime = runtime
        self._clock = runtime.clock
        self._tasks = tasks
        self._applier = applier
        self._transport = transport
        self._lock = lock
        self._observe = observe
        self._on_alarm = on_alarm
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Message)
        self._held: deque[Send] = deque(maxlen=HELD_MAX)
        self._numbers: deque[tuple[int, int]] = deque()
        """(record of the log, number of the core) that are not durable yet."""
        self._batch: list[tuple[int, bytes, Answer]] = []
        self._answers: dict[int, Answer] = {}
        self._tokens = 0
        self._rounds: dict[int, asyncio.Future[tuple[Fence, int]]] = {}
        self._changes: dict[int, asyncio.Future[str]] = {}
        self._epochs: list[tuple[int, asyncio.Future[None]]] = []
        self._roles: list[RoleChanged] = []
        self._told = False
        self._serves = False
        self._closed = False
        self._ticker: TaskToken | None = None
        self.snapshots = Snapshots(self, tasks, runtime, applier, kept, settings)
        self.scrub = Scrub(self, runtime, kept, settings)
        self._blobs = GroupBlobs(self, tasks, runtime, settings)
        self.digests = Digests(self, applier, tasks, every=digest_every)
        kept.wal.listen(self)
        applier.on_applied(self._was_applied)

    async def start(self) -> None:
        await self._blobs.open()
        self._applier.start(self._tasks)
        self.perform(self.replica.start(self.now()))
        # Not before: what arrives must meet a member that knows what it promised.
        self._transport.listen(self._receive)
        self._ticker = self._tasks.start(
            "replica timer", self._run(), group=GROUP, on_error=self.broke
        )
        self.scrub.start(self._tasks)

    # The facade.

    @property
    def fence(self) -> Fence:
        return self.replica.fence

    @property
    def is_primary(self) -> bool:
        return self._serves

    @property
    def primary(self) -> NodeId | None:
        return self.replica.primary

    @property
    def applied(self) -> OpNumber:
        return self._applier.applied

    @property
    def active_version(self) -> int:
        return self._applier.active_version

    @property
    def blobs(self) -> Blobs:
        return self._blobs

    @property
    def group_blobs(self) -> GroupBlobs:
        return self._blobs

    @property
    def member(self) -> Member:
        return self.replica.core.me

    def group_ms(self) -> GroupMs:
        return GroupMs(max(self.replica.group_ms(self.now()), self._applier.group_ms))

    async def submit(self, body: bytes, *, version: int = 1) -> Committed:
        self._check()
        if len(body) > self.settings.max_command_bytes:
            limit = self.settings.max_command_bytes
            raise TooLarge(f"a command of {len(body)} bytes is over the limit of {limit}")
        self._check_leads()
        if version > self._applier.active_version:
            active = self._applier.active_version
            raise TryLater(self.member.node, f"version {version} is not active, {active} is")
        if not self.replica.has_room() or not self.kept.wal.has_room(len(body)):
            raise TryLater(self.member.node, "too much waits for the disk or the group")
        answer: Answer = asyncio.get_running_loop().create_future()
        if not self._batch:
            asyncio.get_running_loop().call_soon(self._flush)
        self._batch.append((version, body, answer))
        return await answer

    async def read(self, level: ReadLevel, minimum_op: OpNumber = START) -> OpNumber:
        self._check()
        wanted = int(minimum_op)
        if level is ReadLevel.STRONG:
            _, commit = await self._round()
            wanted = max(wanted, commit)
        if level is not ReadLevel.STALE:
            await self._applier.wait(wanted)
        return self._applier.applied

    async def confirm(self) -> Fence:
        self._check()
        fence, _ = await self._round()
        return fence

    def on_applied(self, callback: Applied) -> None:
        self._applier.on_applied(callback)

    def on_role(self, callback: RoleChanged) -> None:
        self._roles.append(callback)
        if self._told:
            asyncio.get_running_loop().call_soon(self._tell_late, callback)

    def staleness_s(self) -> float:
        """How old a STALE read may be: since a primary was last heard. 0 where it leads."""
        core = self.replica.core
        return 0.0 if core.leading else self.now() - core.heard_at

    # Operations.

    async def change_members(self, members: tuple[Member, ...]) -> None:
        """Returns when the new epoch's primary committed something, as far as this member
        knows; until then nobody may be switched off. Raises NotPrimary, TryLater,
        OutcomeUnknown."""
        self._check()
        self._check_leads()
        self._blobs.next_members = members
        try:
            await self._change_members(members)
        finally:
            self._blobs.next_members = ()

    async def _change_members(self, members: tuple[Member, ...]) -> None:
        missing = await self._blobs.missing_on(members)
        if missing:
            raise TryLater(self.member.node, f"{missing} blobs are not on a quorum of the new")
        self._check_leads()
        epoch = self.replica.fence.epoch + 1
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tokens += 1
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._changes[self._tokens] = answer
        self.perform(self.replica.change_members(self._tokens, members, self.now()))
        refusal = await answer
        if refusal:
            raise TryLater(self.member.node, refusal)
        if self.replica.core.commit and self._first_of(epoch):
            return
        self._epochs.append((epoch, entered))
        try:
            async with asyncio.timeout(EPOCH_WITHIN_S):
                await entered
        except TimeoutError:
            raise OutcomeUnknown("the members may have changed; ask for the status") from None

    def activate(self, version: int) -> None:
        """Proposes that commands of `version` may be submitted. Raises TryLater."""
        self._check()
        self._check_leads()
        refusal, effects = self.replica.activate(version, self.now())
        self.perform(effects)
        if refusal:
            raise TryLater(self.member.node, refusal)

    async def step_aside(self, within_s: float) -> bool:
        """What a primary does before it stops: another one leads when this is True."""
        until = self.now() + within_s
        while self.replica.core.leading and self.now() < until:
            if not self.replica.hand_over.is_under_way:
                self.hand_over()
            await self._clock.sleep(self.replica.core.timers.heartbeat_s / 10)
        return not self.replica.core.leading

    def hand_over(self) -> bool:
        """Asks the most caught-up member to lead; whether that was begun."""
        begun, effects = self.replica.begin_hand_over(self.now())
        self.perform(effects)
        return begun

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._ticker is not None:
            self._tasks.cancel(self._ticker)
        self._lose_role("the ledger was closed")
        self._applier.abandon(LedgerFailed("the ledger was closed"))
        if self.failure is None:
            # Behind the last entries, so that their loss would not hide what was promised.
            self._write(self._promise())
            with contextlib.suppress(WalError):
                await self.kept.wal.close()
        if self._lock is not None:
            self._lock.release()

    # Effects.

    def now(self) -> float:
        """Counts suspended time too: the group's clock goes on with it, and the replica
        sees that it stood still."""
        return self._clock.boot_time()

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self.failure is not None:
                return
            if self._observe is not None and not isinstance(effect, Send):
                self._observe(effect)
            match effect:
                case Send():
                    self._send(effect)
                case Persist():
                    self._persist(effect)
                case Apply():
                    self._apply(effect.entries)
                case Confirmed():
                    for token in effect.tokens:
                        _set(self._rounds.pop(token, None), (effect.fence, effect.commit))
                case Unconfirmed():
                    for token in effect.tokens:
                        _refuse(self._rounds.pop(token, None), NotPrimary(self.primary))
                case _:
                    self._perform_rare(effect)

    def _perform_rare(self, effect: Effect) -> None:
        match effect:
            case Serves():
                self._serves = True
                self._activate_alone()
                if self._applier.applied >= self.replica.core.commit:
                    self._tell(effect.fence)
                else:
                    self._tasks.start("serves", self._tell_applied(effect.fence), group=GROUP)
            case SteppedDown():
                self._lose_role(effect.reason)
            case MembersAnswer():
                _set(self._changes.pop(effect.token, None), effect.refusal)
            case FetchSnapshot():
                self.snapshots.fetch(effect.source)
            case Diverged():
                self.alarm(effect.text)
                self.fail(LedgerFailed(f"{effect.text}; the files are kept"))
            case Mended():
                self._tasks.start("mended", self.scrub.mended(), group=GROUP, on_error=self.broke)
            case EnteredEpoch():
                self._blobs.members_changed()
            case _:
                pass

    def _send(self, send: Send) -> None:
        if send.after and send.after > self.replica.core.durable:
            self._held.append(send)
            return
        if self._observe is not None:
            self._observe(send)
        self.tell(send.to, send.packet)

    def tell(self, to: tuple[NodeId, ...], message: Message) -> None:
        data = self._encoder.encode(message)
        for node in to:
            self._transport.send(node, data)

    def _persist(self, effect: Persist) -> None:
        lsn = self._write(effect.record)
        if lsn:
            self._numbers.append((lsn, effect.number))

    def _write(self, record: Record) -> int:
        """Its number in the write-ahead log; 0 when that took it no more."""
        record = msgspec.structs.replace(record, wall_ms=int(self._clock.wall() * 1000.0))
        try:
            lsn = self.kept.wal.accept(STEP, self._encoder.encode(record))
        except WalError as error:
            self.fail(LedgerFailed(str(error)))
            return 0
        self.kept.places.note(lsn, record.keep, record.entries)
        return lsn

    def copy_log(self) -> None:
        """Writes the log above its base once more: what is older on disk is not needed then.
        In one turn, so that nothing comes between."""
        core = self.replica.core
        first = core.log.base_op + 1
        while first <= core.log.last:
            entries = core.log.slice(first, core.log.last, COPY_BYTES)
            self._write(self._promise(entries))
            first = int(entries[-1].op) + 1

    def _promise(self, entries: tuple[LogEntry, ...] = ()) -> Record:
        """What this member promised, once more."""
        core = self.replica.core
        group_ms = GroupMs(core.clock.read(core.now))
        return Record(core.fence, core.last_normal, -1, entries, OpNumber(core.commit), group_ms)

    def _apply(self, entries: tuple[LogEntry, ...]) -> None:
        answers = self._answers
        self._applier.commit((entry, answers.pop(int(entry.op), None)) for entry in entries)
        if self._epochs:
            self._look_for_epochs(entries)

    # What the log tells.

    def on_durable(self, lsn: int) -> None:
        number = 0
        while self._numbers and self._numbers[0][0] <= lsn:
            number = self._numbers.popleft()[1]
        if not number or self.failure is not None:
            return
        effects = self.replica.persisted(number, self.now())
        held, self._held = self._held, deque(maxlen=HELD_MAX)
        for send in held:
            self._send(send)
        self.perform(effects)

    def on_refused(self, from_lsn: int, error: DiskFull) -> None:
        # The core counts on its records; without room this member cannot go on.
        self.fail(LedgerFailed(str(error)))

    def on_failed(self, error: WalFailed) -> None:
        self.fail(LedgerFailed(str(error)))

    def fail(self, error: LedgerFailed) -> None:
        if self.failure is None:
            self.failure = error
            self._applier.abandon(error)
            self._lose_role(str(error))

    def broke(self, error: Exception) -> None:
        failure = LedgerFailed(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        self.fail(failure)

    def alarm(self, text: str) -> None:
        if self._on_alarm is not None:
            self._on_alarm(text)

    # Messages.

    def _receive(self, sender: NodeId, data: bytes) -> None:
        if self.failure is not None or self._closed:
            return
        try:
            message = self._decoder.decode(data)
        except msgspec.DecodeError:
            return
        if isinstance(message, Packet):
            if message.sender.node == sender:
                self.perform(self.replica.handle(message, self.now()))
        elif not self.snapshots.handle(sender, message):
            self._blobs.handle(sender, message)
            self.digests.handle(message)

    async def _run(self) -> None:
        collect_at = self.now() + COLLECT_EVERY_S
        while self.failure is None:
            wait_s = self.replica.deadline() - self.now()
            await self._clock.sleep(max(wait_s, SOONEST_S))
            self.perform(self.replica.tick(self.now()))
            self.snapshots.tick()
            if self.now() >= collect_at:
                collect_at = self.now() + COLLECT_EVERY_S
                self._tasks.start("collect blobs", self._blobs.collect(), group=GROUP)

    # Submissions.

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        batch = [item for item in batch if not item[2].done()]
        if not batch:
            return
        if self.failure is not None or not self.replica.may_submit():
            for _, _, answer in batch:
                _refuse(answer, self.failure or NotPrimary(self.primary))
            return
        commands = [(version, body) for version, body, _ in batch]
        ops, effects = self.replica.submit(commands, self.now())
        for op, (_, _, answer) in zip(ops, batch, strict=True):
            self._answers[op] = answer
        self.perform(effects)

    async def _round(self) -> tuple[Fence, int]:
        self._tokens += 1
        token = self._tokens
        future: asyncio.Future[tuple[Fence, int]] = asyncio.get_running_loop().create_future()
        self._rounds[token] = future
        self.perform(self.replica.confirm(token, self.now()))
        try:
            return await future
        finally:
            self._rounds.pop(token, None)

    # The role.

    def _lose_role(self, reason: str) -> None:
        self._serves = False
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            _refuse(answer, OutcomeUnknown(f"the primary stopped: {reason}"))
        rounds, self._rounds = self._rounds, {}
        for future in rounds.values():
            _refuse(future, self.failure or NotPrimary(None))
        changes, self._changes = self._changes, {}
        for change in changes.values():
            _refuse(change, OutcomeUnknown(f"the primary stopped: {reason}"))
        if self._told:
            self._told = False
            for callback in self._roles:
                callback(None)

    def _activate_alone(self) -> None:
        """A group of one needs nobody's word; in larger ones the manager that leads asks for it."""
        core = self.replica.core
        if not core.others() and core.version > core.active_version:
            _, effects = self.replica.activate(core.version, self.now())
            self.perform(effects)

    def _tell(self, fence: Fence) -> None:
        self._told = True
        for callback in self._roles:
            callback(fence)

    def _tell_late(self, callback: RoleChanged) -> None:
        if self._told:
            callback(self.fence)

    async def _tell_applied(self, fence: Fence) -> None:
        await self._applier.wait(self.replica.core.commit)
        if self._serves and self.fence == fence:
            self._tell(fence)

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise LedgerFailed("the ledger was closed")

    def _check_leads(self) -> None:
        if not self.replica.may_submit():
            raise NotPrimary(None if self.primary == self.member.node else self.primary)

    # Epochs and checkpoints.

    def _look_for_epochs(self, entries: tuple[LogEntry, ...]) -> None:
        for entry in entries:
            if entry.kind is not Kind.MEMBERS:
                self._epochs = [
                    (epoch, future)
                    for epoch, future in self._epochs
                    if not (entry.fence.epoch >= epoch and _set(future, None))
                ]

    def _first_of(self, epoch: int) -> bool:
        core = self.replica.core
        newest = core.log.checksum(core.commit) is not None and core.commit > core.log.base_op
        return newest and core.log.entry(core.commit).fence.epoch >= epoch

    def _was_applied(self, entry: Entry, result: bytes) -> None:
        self.snapshots.applied(len(entry.body) + ENTRY_OVERHEAD)

    @property
    def is_member(self) -> bool:
        return self.replica.core.status in (Status.NORMAL, Status.VIEW_CHANGE)


def _set(future: asyncio.Future[Any] | None, value: object) -> bool:
    if future is not None and not future.done():
        future.set_result(value)
    return True


def _refuse(future: asyncio.Future[Any] | None, error: Exception) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        # Whoever waits hears it; nobody waiting is no error.
        future.exception()
