"""A member of the group scenario: the real ledger, asked by clients, operators, workers.

The lease duty follows rule for rule: grants only after a confirmed round, losses only
after the longest lease that anybody may have granted, nothing granted once a loss is
proposed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from squall.api.errors import SquallError
from squall.ledger.interface import (
    Fence,
    LedgerFailed,
    NotPrimary,
    OutcomeUnknown,
    ReadLevel,
)
from squall.ledger.replica.core import Replica
from squall.ledger.replica.effects import Apply, Effect
from squall.ledger.replica.ledger import GroupLedger
from squall.ledger.replica.open_group import open_group_ledger
from squall.ledger.replica.state import Core
from squall.ledger.replica.types import GroupId, Kind, Member, StorageId, Timers
from squall.ledger.settings import LedgerSettings, WalSettings
from squall.ledger.wal.errors import WalError
from squall.runtime.interfaces import Address, DatagramSocket, NodeId, Runtime
from squall.runtime.tasks import TaskFailure, TaskRunner
from squall.scenarios.group_checks import GroupChecks
from squall.scenarios.group_machine import LEASES_MS, Dispatch, Lost, Machine, SetLease, Write
from squall.scenarios.group_mutants import break_ledger, break_replica
from squall.scenarios.group_words import (
    HEARD_S,
    LOST_FACTOR,
    LOST_MARGIN_S,
    MEMBER_PORT,
    Answer,
    Ask,
    Datagrams,
    Grant,
    Order,
    Renew,
    Report,
    ToMember,
)
from squall.sim.checks import Probe

TICK_S = 0.1
SET_LEASE = 0.05
CHECKPOINT_ENTRIES = 60
ANSWER_S = 2.0
"""A member gives a client no answer after so long."""


class MemberNode:
    def __init__(
        self,
        runtime: Runtime,
        *,
        peers: tuple[str, ...],
        forms: bool,
        timers: Timers,
        version: int,
        probe: Probe,
        checks: GroupChecks,
        now: Any,
        mutant: str | None,
        scrub_s: float,
    ) -> None:
        self._runtime = runtime
        self._peers = tuple(NodeId(peer) for peer in peers)
        self._forms = forms
        self._timers = timers
        self._probe = probe
        self._checks = checks
        self._world_now = now
        self._mutant = mutant
        self._scrub_s = scrub_s
        self._machine = Machine(version, mutant)
        self._tasks = TaskRunner(runtime.clock, runtime.random, on_failure=self._task_failed)
        self._decoder = msgspec.msgpack.Decoder(ToMember)
        self._encoder = msgspec.msgpack.Encoder()
        self._socket: DatagramSocket
        self.ledger: GroupLedger
        self._since = 0.0
        """Latest of: serving, dispatch, arrival of the last granted request."""
        self._losing = 0
        self._flag_ms = LEASES_MS[0]
        if mutant == "lease_from_flag":
            self._flag_ms = runtime.random.choice(LEASES_MS)
        self._heard: dict[str, tuple[float, str]] = {}
        self._busy = False
        self._asked: dict[str, int] = {}
        self._cores: list[Core] = []

    @property
    def is_open(self) -> bool:
        """Its ledger was read from disk and takes part."""
        return hasattr(self, "ledger")

    async def run(self) -> None:
        runtime = self._runtime
        transport = Datagrams()
        await transport.bind(runtime)
        settings = LedgerSettings(
            checkpoint_entries=CHECKPOINT_ENTRIES,
            scrub_interval_s=self._scrub_s,
            wal=WalSettings(segment_bytes=64 * 1024, max_record_bytes=16 << 20),
        )
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
        break_ledger(self.ledger, self._mutant)
        self.ledger.on_role(self._role)
        self.ledger.on_applied(self._applied)
        self.ledger.group_blobs.references = self._machine.references
        self._socket = await runtime.network.bind_datagrams(("", MEMBER_PORT), self)
        core = self.ledger.replica.core
        self._probe(
            "opened", status=core.status.value, storage=core.me.storage[:6], op=core.log.last
        )
        while self.ledger.failure is None:
            await runtime.clock.sleep(TICK_S)
            self._decide()
        failure = self.ledger.failure
        self._probe("failed", why=str(failure)[:120])
        if failure.__cause__ is not None and not isinstance(failure.__cause__, OSError | WalError):
            raise failure.__cause__
        raise failure

    def _task_failed(self, failure: TaskFailure) -> None:
        self._probe("task failed", name=failure.name, error=str(failure.error)[:100])
        if not isinstance(failure.error, OSError | SquallError):
            self._checks.guard(lambda: _raise(failure.error))

    def _prepare(self, replica: Replica) -> None:
        self._cores.append(replica.core)
        self._checks.opened(replica.core.me.storage)
        break_replica(replica, self._mutant)

    # What the checks see.

    def _observe(self, effect: Effect) -> None:
        name = type(effect).__name__
        if name in ("Serves", "SteppedDown", "EnteredEpoch", "Diverged", "ClockTaken"):
            self._probe(name, what=str(effect)[:160])
        checks = self._checks
        if isinstance(effect, Apply) and effect.entries[-1].kind is Kind.MEMBERS:
            checks.guard(lambda: checks.members(effect.entries[-1], self._machine.kept.blobs))
        core, runtime = self._cores[-1], self._runtime
        checks.guard(lambda: checks.effect(runtime.node, runtime.boot, core, effect))

    def _applied(self, entry: object, result: bytes) -> None:
        done = self._machine.executed
        if done:
            self._checks.guard(lambda: self._checks.executed_by(self._runtime.node, done))

    # Requests.

    def on_datagram(self, data: bytes, sender: Address) -> None:
        message = self._decoder.decode(data)
        match message:
            case Ask():
                # A repeated datagram must not be answered for the first.
                if message.seq > self._asked.get(message.client, 0):
                    self._asked[message.client] = message.seq
                    self._start(self._serve(message, sender))
            case Order():
                self._start(self._obey(message, sender))
            case Renew():
                self._heard[message.worker] = (self._runtime.clock.now(), message.boot)
                if self.ledger.is_primary:
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
            return Answer(ask.seq, "done", int(op), "=" + self._machine.kept.keys.get(ask.key, ""))
        if not ledger.is_primary:
            raise NotPrimary(ledger.primary)
        if ask.junk:
            done = await ledger.submit(b"\xc1 no command")
            return Answer(ask.seq, "done", int(done.op), done.result.decode())
        blob = str(await ledger.blobs.put(ask.blob)) if ask.blob else ""
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

    # The lease.

    def _role(self, fence: Fence | None) -> None:
        self._losing = 0
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
        share = self._machine.kept.share
        if share.boot != renew.boot or share.lost or self._losing == share.attempt:
            return
        if not self.ledger.is_primary or self.ledger.fence != fence:
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
        ledger, share = self.ledger, self._machine.kept.share
        if not ledger.is_primary or self._busy:
            return
        now = self._runtime.clock.now()
        draw = self._runtime.random
        if share.lost:
            near = [(w, b) for w, (t, b) in sorted(self._heard.items()) if now - t < HEARD_S]
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
            # Not in the log and never will be: the attempt may go on.
            self._losing = 0
        except (OutcomeUnknown, LedgerFailed):
            pass
        else:
            if isinstance(command, Dispatch):
                self._since = max(self._since, self._runtime.clock.now())
        finally:
            self._busy = False


def _raise(error: Exception) -> None:
    raise error
