"""A member of the group scenario: the real ledger, which serves clients, an operator and workers.

It follows the lease rules of R5: it grants only after a confirmed round, declares an attempt lost
only after the longest lease that any primary may have granted, and grants nothing once it has
proposed a loss.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from lab.mutants.group import break_ledger, break_replica
from lab.scenarios.group.checks import GroupChecks
from lab.scenarios.group.machine import LEASES_MS, Dispatch, Lost, Machine, SetLease, Write
from lab.scenarios.group.messages import (
    LOST_FACTOR,
    LOST_MARGIN_S,
    MEMBER_PORT,
    SEEN_WITHIN_S,
    Answer,
    Ask,
    Datagrams,
    Grant,
    Order,
    Renew,
    Report,
    ToMember,
)
from lab.scenarios.group.wire_links import WireLinks
from lab.sim.checks import Probe, check
from squall.api.errors import SquallError
from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.group_member.open_group_ledger import open_group_ledger
from squall.cluster.ledger.interface import (
    Entry,
    Fence,
    LedgerFailed,
    NotPrimary,
    OutcomeUnknown,
    ReadLevel,
)
from squall.cluster.ledger.recover import Recovery, recover_alone
from squall.cluster.ledger.replica.effects import Apply, Effect
from squall.cluster.ledger.replica.replica import Replica
from squall.cluster.ledger.replica.state import Core
from squall.cluster.ledger.replica.types import GroupId, Kind, Member, StorageId, Timers
from squall.cluster.ledger.settings import LedgerSettings, WalSettings
from squall.cluster.ledger.wal.errors import TooLarge, WalBusy, WalError
from squall.runtime.interfaces import Address, DatagramSocket, NodeId, Runtime
from squall.runtime.tasks import TaskFailure, TaskRunner

TICK_S = 0.1
SET_LEASE = 0.05
CHECKPOINT_ENTRIES = 60
BLOB_BYTES = 80_000
"""Travels in several pieces."""
BLOBS = 8
"""Number of different blobs: each is named, forgotten and named again."""
BLOB_KEEP_S = 3.0
COLLECT_EVERY_TICKS = 5
ANSWER_S = 2.0
"""A member answers "unknown" if an operation takes longer than this."""


@dataclass
class MemberShape:
    """What a seed draws once for all members of its group."""

    scrub_s: float
    checkpoint_s: float
    """Checkpoints by time, in some seeds often, so that returning members need one of a peer."""
    apply_slice: int
    apply_s: float
    """How long a slice of entries takes to apply."""
    over_wire: bool
    """The members talk over the real wire instead of datagrams."""


class MemberNode:
    """One boot of a member: opens the ledger, serves requests and grants leases."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        peers: tuple[str, ...],
        nodes: tuple[str, ...],
        forms: bool,
        timers: Timers,
        version: int,
        probe: Probe,
        checks: GroupChecks,
        now: Any,
        mutant: str | None,
        shape: MemberShape,
        recovered: Callable[[Recovery, Machine], GroupChecks] | None = None,
    ) -> None:
        """`nodes` are all that may become members. With `recovered`, the node first makes a new
        group of one from its directory, which has checks of its own."""
        self._runtime = runtime
        self._nodes = nodes
        self._shape = shape
        self._recovered = recovered
        self._peers = tuple(NodeId(peer) for peer in peers)
        self._forms = forms
        self._timers = timers
        self._probe = probe
        self._checks = checks
        self._world_now = now
        self._mutant = mutant
        self._machine = Machine(version, mutant)
        self._tasks = TaskRunner(runtime.clock, runtime.random, on_failure=self._task_failed)
        self._decoder = msgspec.msgpack.Decoder(ToMember)
        self._encoder = msgspec.msgpack.Encoder()
        self._socket: DatagramSocket
        self.ledger: GroupLedger
        # Latest of: start of serving, last dispatch, arrival of the last granted request. No
        # lease can have been granted later, so the wait for a loss counts from here (R5).
        self._since = 0.0
        self._losing = 0
        # It serves and has applied everything that it inherited: the state tells what is granted.
        self._leads = False
        self._flag_ms = LEASES_MS[0]
        if mutant == "lease_from_flag":
            self._flag_ms = runtime.random.choice(LEASES_MS)
        self._seen: dict[str, tuple[float, str]] = {}
        self._busy = False
        self._asked: dict[str, int] = {}
        self._cores: list[Core] = []

    @property
    def is_open(self) -> bool:
        """Whether the ledger has been opened and takes part in the group."""
        return hasattr(self, "ledger")

    async def run(self) -> None:
        runtime, shape = self._runtime, self._shape
        if shape.over_wire:
            transport = WireLinks(runtime, self._tasks, self._nodes)
            await transport.bind()
        else:
            transport = Datagrams(self._tasks)
            await transport.bind(runtime)
        settings = LedgerSettings(
            checkpoint_entries=CHECKPOINT_ENTRIES,
            scrub_interval_s=shape.scrub_s,
            blob_keep_s=BLOB_KEEP_S,
            checkpoint_interval_s=shape.checkpoint_s,
            apply_slice=shape.apply_slice,
            wal=WalSettings(segment_bytes=64 * 1024, max_record_bytes=16 << 20),
        )
        if self._recovered is not None:
            machine = Machine(self._machine.version, self._mutant)
            recovery = await recover_alone(runtime, self._tasks, machine, settings)
            self._checks = self._recovered(recovery, machine)
        self.ledger = await open_group_ledger(
            runtime,
            self._tasks,
            self._machine,
            transport,
            peers=self._peers,
            timers=self._timers,
            settings=settings,
            form_group=GroupId("g") if self._forms else GroupId(""),
            prepare=self._prepare,
            observe=self._observe,
            on_alarm=lambda text: self._probe("alarm", text=text),
            digest_every=40,
        )
        transport.serve(self.ledger)
        if shape.apply_s:
            _slow_down(self.ledger, shape.apply_s)
        self._watch_log()
        break_ledger(self.ledger, self._mutant)
        self.ledger.on_role(self._role)
        self.ledger.on_applied(self._applied)
        self.ledger.blobs.references = self._machine.references
        self._socket = await runtime.network.bind_datagrams(("", MEMBER_PORT), self)
        core = self.ledger.replica.core
        self._probe(
            "opened", status=core.status.value, storage=core.me.storage[:6], op=core.log.last
        )
        ticks = 0
        while self.ledger.failure is None:
            await runtime.clock.sleep(TICK_S)
            self._decide()
            ticks += 1
            if ticks % COLLECT_EVERY_TICKS == 0:
                self._start(self._collect())
        failure = self.ledger.failure
        self._probe("failed", why=str(failure)[:120])
        if failure.__cause__ is not None and not isinstance(failure.__cause__, OSError | WalError):
            raise failure.__cause__
        raise failure

    def _watch_log(self) -> None:
        """The ledger must bound what it gives to its log: a record that the log refuses ends the
        member, whatever a caller submits."""
        wal, checks = self.ledger.durable_state.wal, self._checks
        accept = wal.accept

        def watched(kind: int, body: bytes) -> int:
            try:
                return accept(kind, body)
            except (TooLarge, WalBusy) as error:
                text = f"the log of {self._runtime.node} refuses {len(body)} bytes: {error}"
                checks.guard(lambda: check(False, text))
                raise

        setattr(wal, "accept", watched)  # noqa: B010

    def _task_failed(self, failure: TaskFailure) -> None:
        self._probe("task failed", name=failure.name, error=str(failure.error)[:100])
        if not isinstance(failure.error, OSError | SquallError):
            self._checks.guard(lambda: _raise(failure.error))

    def _prepare(self, replica: Replica) -> None:
        self._cores.append(replica.core)
        self._checks.guard(lambda: self._checks.opened(replica.core))
        break_replica(replica, self._mutant)

    # Reports to the checks.

    def _observe(self, effect: Effect) -> None:
        name = type(effect).__name__
        if name in ("Serves", "SteppedDown", "EnteredEpoch", "Diverged", "ClockTaken"):
            self._probe(name, what=str(effect)[:160])
        checks = self._checks
        if isinstance(effect, Apply) and effect.entries[-1].kind is Kind.MEMBERS:
            checks.guard(lambda: checks.members(effect.entries[-1], self._machine.state.blobs))
        core, runtime = self._cores[-1], self._runtime
        checks.guard(lambda: checks.effect(runtime.node, runtime.boot, core, effect))

    def _applied(self, entry: Entry, result: bytes) -> None:
        version, node = self._machine.version, self._runtime.node
        self._checks.guard(lambda: self._checks.version(node, version, entry))
        self._checks.state(int(entry.op), self._machine.state.blobs)
        done = self._machine.executed
        if done:
            self._checks.guard(lambda: self._checks.executed_by(self._runtime.node, done))

    # Requests.

    def on_datagram(self, data: bytes, sender: Address) -> None:
        message = self._decoder.decode(data)
        match message:
            case Ask():
                # The network repeats datagrams; the answer to a repeat must not reach the
                # client as the answer to the first.
                if message.seq > self._asked.get(message.client, 0):
                    self._asked[message.client] = message.seq
                    self._start(self._serve(message, sender))
            case Order():
                self._start(self._obey(message, sender))
            case Renew():
                self._seen[message.worker] = (self._runtime.clock.now(), message.boot)
                if self._leads:
                    self._start(self._renew(message, sender))
            case _:
                pass

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.start("request", coroutine)

    def _send(self, message: msgspec.Struct, to: Address) -> None:
        self._socket.send(self._encoder.encode(message), to)

    async def _serve(self, ask: Ask, sender: Address) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._answer(ask)
        except (NotPrimary, KeyError):
            answer = Answer(ask.seq, "refused")
        except (OutcomeUnknown, LedgerFailed, TimeoutError, OSError):
            answer = Answer(ask.seq, "unknown")
        self._send(answer, sender)

    async def _answer(self, ask: Ask) -> Answer:
        ledger = self.ledger
        if ask.value is None and not ask.junk:
            op = await ledger.read(ReadLevel.STRONG)
            return Answer(ask.seq, "done", int(op), "=" + self._machine.state.keys.get(ask.key, ""))
        if not ledger.is_primary:
            raise NotPrimary(ledger.primary)
        if ask.junk:
            count, size = ask.burst
            body = b"\xc1 no command".ljust(size)
            burst = [asyncio.ensure_future(ledger.submit(body)) for _ in range(count)]
            await asyncio.gather(*burst, return_exceptions=True)
            done = burst[0].result()
            return Answer(ask.seq, "done", int(done.op), done.result.decode())
        blob = str(await ledger.blobs.put(_content(ask.blob))) if ask.blob else ""
        write = Write(ask.client, ask.seq, ask.key, ask.value or "", ask.expected, blob)
        version = ledger.active_version
        done = await ledger.submit(self._encoder.encode(write), version=version)
        return Answer(ask.seq, "done", int(done.op), done.result.decode())

    async def _obey(self, order: Order, sender: Address) -> None:
        ledger = self.ledger
        text = ""
        try:
            if order.what == "members":
                members = tuple(Member(NodeId(n), StorageId(s)) for n, s in order.members)
                await ledger.change_members(members)
            elif order.what == "hand_over" and ledger.is_primary:
                ledger.hand_over()
            elif order.what == "activate" and ledger.is_primary:
                ledger.activate(order.version)
        except (NotPrimary, OutcomeUnknown, LedgerFailed) as error:
            text = str(error)
        core = ledger.replica.core
        config = core.config
        report = Report(
            order.number,
            self._runtime.node,
            core.me.storage,
            ledger.is_primary,
            core.status.value,
            core.fence.epoch,
            core.fence.view,
            tuple((m.node, m.storage) for m in config.members) if config else (),
            int(ledger.applied),
            text,
        )
        self._send(report, sender)

    async def _collect(self) -> None:
        own = self.ledger.blobs.own
        before = set(own.digests())
        with suppress(OSError, LedgerFailed):
            await self.ledger.blobs.collect()
        gone = {str(digest) for digest in before.difference(own.digests())}
        if gone:
            self._checks.guard(lambda: self._checks.deleted(self._runtime.node, gone))

    # The lease.

    def _role(self, fence: Fence | None) -> None:
        self._losing = 0
        self._leads = fence is not None
        no_wait = self._mutant == "new_primary_does_not_wait"
        self._since = float("-inf") if no_wait else self._runtime.clock.now()

    async def _renew(self, renew: Renew, sender: Address) -> None:
        arrival = self._runtime.clock.now()
        began = self._world_now()
        try:
            fence = await self.ledger.confirm()
        except (NotPrimary, LedgerFailed):
            return
        self._checks.guard(lambda: self._checks.confirmed(self._runtime.node, fence, began))
        share = self._machine.state.share
        # A round either grants an attempt or declares it lost, never both (R5).
        if share.boot != renew.boot or share.lost or self._losing == share.attempt:
            return
        if not self._leads or self.ledger.fence != fence:
            return
        self._since = max(self._since, arrival)
        lease_ms = self._flag_ms if self._mutant == "lease_from_flag" else share.lease_ms
        self._send(
            Grant(
                fence.epoch, fence.view, renew.boot, renew.request, share.attempt, lease_ms / 1000
            ),
            sender,
        )

    def _decide(self) -> None:
        share = self._machine.state.share
        if not self._leads or self._busy:
            return
        now = self._runtime.clock.now()
        draw = self._runtime.random
        if share.lost:
            near = [(w, b) for w, (t, b) in sorted(self._seen.items()) if now - t < SEEN_WITHIN_S]
            if near:
                worker, boot = draw.choice(near)
                self._submit(Dispatch(share.attempt + 1, worker, boot))
                self._since = max(self._since, now)
            return
        longest_ms = self._flag_ms if self._mutant == "lease_from_flag" else share.longest_ms
        if now - self._since >= LOST_FACTOR * longest_ms / 1000 + LOST_MARGIN_S:
            self._losing = share.attempt
            self._submit(Lost(share.attempt))
        elif draw.random() < SET_LEASE:
            self._flag_ms = draw.randint(*LEASES_MS)
            self._submit(SetLease(self._flag_ms))

    def _submit(self, command: Dispatch | Lost | SetLease) -> None:
        self._busy = True
        self._start(self._submitted(command))

    async def _submitted(self, command: Dispatch | Lost | SetLease) -> None:
        try:
            await self.ledger.submit(self._encoder.encode(command))
        except NotPrimary:
            # The loss will never be in the log, so the attempt may continue.
            self._losing = 0
        except (OutcomeUnknown, LedgerFailed):
            pass
        else:
            if isinstance(command, Dispatch):
                self._since = max(self._since, self._runtime.clock.now())
        finally:
            self._busy = False


def _slow_down(ledger: GroupLedger, seconds: float) -> None:
    """Makes each slice of applied entries take time, as it does on a real machine. Without this,
    applied and committed hardly ever differ in the simulation."""
    applier = ledger._applier
    drain, loop = applier._drain, asyncio.get_running_loop()
    setattr(applier, "_drain", lambda: loop.call_later(seconds, drain))  # noqa: B010


def _content(drawn: bytes) -> bytes:
    return bytes([drawn[0] % BLOBS]) * BLOB_BYTES


def _raise(error: Exception) -> None:
    raise error
