"""The ledger of one member of a group of one, three or five: it drives the core.

The ledger performs the core's effects in order and decides nothing about the protocol: it
writes records to the write-ahead log, holds sends that reveal a promise until their record
is durable (R11), and hands committed entries to the state machine. If the log fails, or its
state differs from a quorum's, the ledger stops: the node gives up its role, the files stay.

A full disk stops a member of a larger group, so that another one leads. The only member of a
group refuses what it could not store (`TryLater`) and continues: no other node has seen it.

States: opening -> follows <-> leads -> closed, and from anywhere -> failed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from squall.cluster.ledger.apply import Applier
from squall.cluster.ledger.group_member.bulk_messages import Message, Transport
from squall.cluster.ledger.group_member.durable_state import STEP, DurableState, clock_stamp
from squall.cluster.ledger.group_member.member_changes import MemberChanges
from squall.cluster.ledger.group_member.quorum_blobs import GroupBlobs
from squall.cluster.ledger.group_member.recovery_report import RecoveryReport
from squall.cluster.ledger.group_member.scrub import Scrub
from squall.cluster.ledger.group_member.snapshots import Snapshots
from squall.cluster.ledger.group_member.state_digests import Digests
from squall.cluster.ledger.group_member.submissions import Submissions
from squall.cluster.ledger.group_member.waiting import refuse, settle
from squall.cluster.ledger.interface import (
    Applied,
    Committed,
    Fence,
    GroupMs,
    LedgerFailed,
    NotPrimary,
    OpNumber,
    ReadLevel,
    RoleChanged,
    Standing,
    TryLater,
)
from squall.cluster.ledger.replica.effects import (
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
from squall.cluster.ledger.replica.messages import Packet
from squall.cluster.ledger.replica.replica import Replica
from squall.cluster.ledger.replica.types import LogEntry, Member, StepRecord
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.ledger.wal.errors import DiskFull, TooLarge, WalError, WalFailed
from squall.cluster.ledger.wal.metrics import observe_wal
from squall.runtime.interfaces import DirectoryLock, NodeId, Runtime
from squall.runtime.log import Log
from squall.runtime.metrics import Registry
from squall.runtime.tasks import TaskRunner, TaskToken

GROUP = "ledger"
START = OpNumber(0)
COLLECT_EVERY_S = 60.0
HELD_MAX = 4096
"""Most sends that wait for the disk. Beyond it the ledger drops the oldest: the core resends
everything from its state."""
COPY_BYTES = 1 << 20
"""Bytes of entries per record when `copy_log` writes the log again."""
SOONEST_S = 0.001
"""Shortest wait between two ticks, so that a deadline in the past does not cause a busy loop."""


class GroupLedger:
    """Implements `interface.Ledger` for one member; `open_group_ledger` creates it."""

    # See `replica.state.Core`.
    __slots__ = (
        "__dict__", "_announced", "_applier", "_changes", "_clock", "_closed", "_decoder",
        "_encoder", "_has_served", "_held", "_kernel", "_lock", "_log", "_numbers", "_observe",
        "_on_alarm", "_roles", "_rounds", "_running", "_serves", "_tasks", "_tokens",
        "_transport", "blobs", "digests", "durable_state", "failure", "now", "recovery",
        "replica", "scrub", "settings", "snapshots", "submissions", "wal",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskRunner,
        settings: LedgerSettings,
        durable_state: DurableState,
        replica: Replica,
        applier: Applier,
        transport: Transport | None,
        log: Log,
        *,
        recovery: RecoveryReport,
        lock: DirectoryLock | None = None,
        observe: Callable[[Effect], None] | None = None,
        on_alarm: Callable[[str], None] | None = None,
        digest_every: int = 4096,
    ) -> None:
        self.replica = replica
        self.settings = settings
        self.durable_state = durable_state
        self.wal = durable_state.wal
        self.failure: LedgerFailed | None = None
        self._clock = runtime.clock
        # A clock that includes suspended time, so that the group clock continues (R10) and the
        # replica notices that it was suspended.
        self.now = runtime.clock.boot_time
        self._tasks = tasks
        self._applier = applier
        # None for a group of one that no other node can join.
        self._transport = transport
        self._log = log
        self.recovery = recovery
        self._lock = lock
        self._observe = observe
        self._on_alarm = on_alarm
        self._kernel = clock_stamp(self._clock).kernel
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Message)
        self._held: deque[Send] = deque(maxlen=HELD_MAX)
        # (LSN, number that the core gave the record) of each record that is not durable yet,
        # ascending in both.
        self._numbers: deque[tuple[int, int]] = deque()
        self._tokens = 0
        self._rounds: dict[int, asyncio.Future[tuple[Fence, int]]] = {}
        self.submissions = Submissions(self)
        self._changes = MemberChanges(self)
        self._roles: list[RoleChanged] = []
        # `_serves` follows the core. `_announced` becomes True when the callbacks were called,
        # which is after this member has applied everything it inherited (R2).
        self._announced = False
        self._serves = False
        self._has_served = asyncio.Event()
        self._closed = False
        self._running: list[TaskToken] = []
        self.snapshots = Snapshots(self, tasks, runtime, applier, durable_state, settings, log)
        self.scrub = Scrub(self, runtime, durable_state, settings)
        self.blobs = GroupBlobs(self, tasks, runtime, settings, transport)
        self.digests = Digests(self, applier, tasks, every=digest_every)
        durable_state.wal.listen(self)
        applier.on_broken = self.broke

    async def start(self) -> None:
        self.recovery.read(self.durable_state)
        await self.blobs.open()
        self._running.append(self._applier.start(self._tasks))
        self.perform(self.replica.start(self.now()))
        # Listen only now: a packet must not reach a core that does not know its promises yet.
        if self._transport is not None:
            self._transport.listen(self._receive)
        ticker = self._tasks.start("replica timer", self._run(), group=GROUP, on_error=self.broke)
        self._running += [ticker, self.scrub.start(self._tasks)]
        if self.replica.core.is_alone:
            # A group of one depends only on its own disk: wait until it serves.
            await self._has_served.wait()
            if self.failure is None:
                await self._applier.wait(self.replica.core.log.last)
            self._check()
            self.recovery.applied(int(self._applier.applied))

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
    def is_alone(self) -> bool:
        """True if this member is its own quorum and needs no heartbeat round. False once its log
        holds the command that ends the epoch: it must grant nothing more in this epoch (R5)."""
        core = self.replica.core
        return core.is_alone and not core.holds_members()

    @property
    def member(self) -> Member:
        return self.replica.core.me

    def group_ms(self) -> GroupMs:
        return GroupMs(max(self.replica.group_ms(self.now()), self._applier.group_ms))

    async def submit(self, body: bytes, *, version: int = 1) -> Committed:
        limit = self.settings.max_command_bytes
        if len(body) > limit:
            raise TooLarge(f"a command of {len(body)} bytes is over the limit of {limit}")
        if self.failure is not None or self._closed:
            self._check()
        active = self._applier.active_version
        if version > active:
            self._check_leads()
            raise TryLater(self.member.node, f"version {version} is not active, {active} is")
        return await self.submissions.add(version, body)

    async def read(self, level: ReadLevel, minimum_op: OpNumber = START) -> OpNumber:
        wanted = int(minimum_op)
        if level is ReadLevel.STRONG:
            self._check()
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
        if self._announced:
            asyncio.get_running_loop().call_soon(self._announce_late, callback)

    def standing(self) -> Standing:
        return self.replica.standing(self.now())

    def add_metrics(self, registry: Registry) -> None:
        observe_wal(registry, self.durable_state.wal)
        self.recovery.add_metrics(registry)
        self.snapshots.counters.add_metrics(registry, self.durable_state.checkpoints, self._clock)

    # Operations.

    async def change_members(self, members: tuple[Member, ...]) -> None:
        """Returns when the new epoch's primary has committed an entry; until then no member may
        be switched off (R2). Raises NotPrimary, TryLater, OutcomeUnknown."""
        self._check()
        self._check_leads()
        if self.blobs.next_members:
            # Blobs that are put now go to the members of one change only (R9).
            raise TryLater(self.member.node, "another change of members is under way")
        self.blobs.next_members = members
        try:
            missing = await self.blobs.missing_on(members)
            if missing:
                text = f"{missing} blobs are not on a quorum of the new members"
                raise TryLater(self.member.node, text)
            self._check_leads()
            await self._changes.change(members)
        finally:
            # The epoch may have begun before this call noticed it, and the next change too.
            if self.blobs.next_members is members:
                self.blobs.next_members = ()

    def activate(self, version: int, *, is_first: bool = False) -> None:
        """Proposes that commands of `version` may be submitted. Raises TryLater."""
        self._check()
        self._check_leads()
        refusal, effects = self.replica.activate(version, self.now(), is_first=is_first)
        self.perform(effects)
        if refusal:
            raise TryLater(self.member.node, refusal)

    async def step_aside(self, within_s: float) -> bool:
        """Hands over the lead before a stop; True if this member no longer leads."""
        until = self.now() + within_s
        while self.replica.core.leading and self.now() < until:
            if not self.replica.hand_over.is_under_way:
                self.hand_over()
            await self._clock.sleep(self.replica.core.timers.heartbeat_s / 10)
        return not self.replica.core.leading

    def hand_over(self) -> bool:
        """Asks the most up-to-date member to lead; False if the hand-over could not begin."""
        begun, effects = self.replica.begin_hand_over(self.now())
        self.perform(effects)
        return begun

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.failure is None and self.replica.core.is_alone:
            # A group of one needs no other member: store and answer what was submitted.
            with contextlib.suppress(WalError, LedgerFailed):
                self.submissions.flush_all()
                await self.durable_state.wal.flush()
                await self._applier.wait(self.replica.core.commit)
        for token in self._running:
            self._tasks.cancel(token)
        await self.snapshots.close()
        self._lose_role("the ledger was closed")
        self._applier.abandon(LedgerFailed("the ledger was closed"))
        if self.failure is None:
            # Repeat the promise after the last entries: if they are damaged later, salvage can
            # still read it.
            self._write(self._promise())
            with contextlib.suppress(WalError):
                await self.durable_state.wal.close()
        if self._lock is not None:
            self._lock.release()

    # Effects.

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self.failure is not None:
                return
            if self._observe is not None and not isinstance(effect, Send):
                self._observe(effect)
            match effect:
                case Persist():
                    lsn = self._write(effect.record)
                    if lsn:
                        self._numbers.append((lsn, effect.number))
                case Apply():
                    self._apply(effect.entries)
                case Send():
                    self._send(effect)
                case Confirmed():
                    for token in effect.tokens:
                        settle(self._rounds.pop(token, None), (effect.fence, effect.commit))
                case Unconfirmed():
                    for token in effect.tokens:
                        refuse(self._rounds.pop(token, None), NotPrimary(self.primary))
                case _:
                    self._perform_rare(effect)

    def _perform_rare(self, effect: Effect) -> None:
        match effect:
            case Serves():
                self._serves = True
                self._activate_alone()
                if self._applier.applied >= self.replica.core.commit:
                    self._announce(effect.fence)
                else:
                    self._tasks.start("serves", self._announce_applied(effect.fence), group=GROUP)
            case SteppedDown():
                self._lose_role(effect.reason)
            case MembersAnswer():
                self._changes.answered(effect.token, effect.refusal)
            case FetchSnapshot():
                self.snapshots.fetch(effect.source)
            case Diverged():
                self.alarm(effect.text)
                self.fail(LedgerFailed(f"{effect.text}; the files are kept"))
            case Mended():
                self._tasks.start("mended", self.scrub.mended(), group=GROUP, on_error=self.broke)
            case EnteredEpoch():
                self.blobs.members_changed()
            case _:
                pass

    def _send(self, send: Send) -> None:
        if send.after and send.after > self.replica.core.durable:
            # The packet reveals a promise that is not durable yet (R11).
            self._held.append(send)
            return
        if self._observe is not None:
            self._observe(send)
        self.send_message(send.to, send.packet)

    def send_message(self, to: tuple[NodeId, ...], message: Message) -> None:
        if self._transport is None or not to:
            return
        data = self._encoder.encode(message)
        for node in to:
            self._transport.send(node, data)

    def _write(self, record: StepRecord) -> int:
        """Queues the record and returns its LSN; if the log refuses it, stops and returns 0."""
        # The clocks of the machine when the core read the group clock for this record.
        record = replace(
            record,
            wall_ms=int(self._clock.wall() * 1000.0),
            boot_ms=int(self.replica.core.now * 1000.0),
            kernel=self._kernel,
        )
        try:
            lsn = self.wal.accept(STEP, self._encoder.encode(record))
        except WalError as error:
            self.fail(LedgerFailed(str(error)))
            return 0
        self.durable_state.places.note(lsn, record.keep, record.entries)
        return lsn

    def copy_log(self) -> None:
        """Writes the entries above the base again, so that no older record is needed. It does
        not await, so no other record can come between them."""
        core = self.replica.core
        first = core.log.base_op + 1
        while first <= core.log.last:
            entries = core.log.slice(first, core.log.last, COPY_BYTES)
            self._write(self._promise(entries))
            first = int(entries[-1].op) + 1

    def _promise(self, entries: tuple[LogEntry, ...] = ()) -> StepRecord:
        """A record that repeats this member's promise."""
        core = self.replica.core
        group_ms = core.clock.read(core.now)
        return StepRecord(
            core.fence, core.last_normal, -1, entries, OpNumber(core.commit), group_ms
        )

    def _apply(self, entries: tuple[LogEntry, ...]) -> None:
        core = self.replica.core
        if core.active_version > core.version:
            self.too_old(core.active_version)
            return
        self._applier.commit(self.submissions.committed(entries))
        self._changes.applied(entries)

    # Callbacks of the write-ahead log.

    def on_durable(self, lsn: int) -> None:
        number = 0
        while self._numbers and self._numbers[0][0] <= lsn:
            number = self._numbers.popleft()[1]
        if not number or self.failure is not None:
            return
        effects = self.replica.persisted(number, self.now())
        if self._held:
            held, self._held = self._held, deque(maxlen=HELD_MAX)
            for send in held:
                self._send(send)
        self.perform(effects)

    def on_refused(self, from_lsn: int, error: DiskFull) -> None:
        """Handles a full disk. Everything before `from_lsn` is durable and was reported."""
        core = self.replica.core
        if not core.is_alone or not self._has_served.is_set():
            # In a larger group the core may have sent its records to others and cannot undo
            # them, and a member with room should lead. A start needs its records too.
            self.fail(LedgerFailed(str(error)))
            return
        self._numbers.clear()
        effects = self.replica.refused(self.now())
        last = core.log.last
        self.durable_state.places.note(0, last, ())
        later = TryLater(self.member.node, str(error))
        self.submissions.taken_back(last, later)
        self._changes.taken_back(later)
        self.perform(effects)

    def on_failed(self, error: WalFailed) -> None:
        self.fail(LedgerFailed(str(error)))

    def fail(self, error: LedgerFailed) -> None:
        if self.failure is None:
            self.failure = error
            self._log.error("ledger_failed", reason=str(error))
            self._applier.abandon(error)
            self._lose_role(str(error))
            self._has_served.set()

    def too_old(self, active: int) -> None:
        """Stops because the group activated a version while this member was away: this code would
        apply its commands in another way than the others."""
        version = self.replica.core.version
        text = f"the group uses commands of version {active}, this Squall applies up to {version}"
        self.fail(LedgerFailed(f"{text}: start the newer version"))

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
            # The link authenticates the sender: a packet must not speak for another member.
            if message.sender.node == sender:
                self.perform(self.replica.handle(message, self.now()))
        elif not self.snapshots.handle(sender, message):
            self.blobs.handle(sender, message)
            self.digests.handle(message)

    async def _run(self) -> None:
        collect_at = self.now() + COLLECT_EVERY_S
        while self.failure is None:
            wait_s = self.replica.deadline() - self.now()
            await self._clock.sleep(max(wait_s, SOONEST_S))
            self.perform(self.replica.tick(self.now()))
            self.snapshots.tick()
            self.recovery.applied(int(self._applier.applied))
            if self.now() >= collect_at:
                collect_at = self.now() + COLLECT_EVERY_S
                self._tasks.start("collect blobs", self._collect(), group=GROUP)

    async def _collect(self) -> None:
        # The next collection, a minute later, tries a failed deletion again.
        with contextlib.suppress(OSError):
            await self.blobs.collect()

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
        self.submissions.lost_role(reason)
        rounds, self._rounds = self._rounds, {}
        for future in rounds.values():
            refuse(future, self.failure or NotPrimary(None))
        self._changes.lost_role(reason)
        self.blobs.next_members = ()
        if self._announced:
            self._announced = False
            self._log.warning("ledger_stepped_down", view=self.fence.view, reason=reason)
            for callback in self._roles:
                callback(None)

    def _activate_alone(self) -> None:
        """Activates this code's version in a group of one. In larger groups the leading manager
        first asks the others which version they can apply."""
        core = self.replica.core
        if core.is_alone and core.version > core.active_version:
            _, effects = self.replica.activate(core.version, self.now())
            self.perform(effects)

    def _announce(self, fence: Fence) -> None:
        self._announced = True
        self._has_served.set()
        self._log.info("ledger_leads", view=fence.view, op=self.replica.core.log.last)
        for callback in self._roles:
            callback(fence)

    def _announce_late(self, callback: RoleChanged) -> None:
        if self._announced:
            callback(self.fence)

    async def _announce_applied(self, fence: Fence) -> None:
        await self._applier.wait(self.replica.core.commit)
        if self._serves and self.fence == fence:
            self._announce(fence)

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise LedgerFailed("the ledger was closed")

    def _check_leads(self) -> None:
        if not self.replica.may_submit():
            raise self.not_primary()

    def not_primary(self) -> NotPrimary:
        # A member that leads and does not serve yet must not send its callers to itself.
        return NotPrimary(None if self.primary == self.member.node else self.primary)
