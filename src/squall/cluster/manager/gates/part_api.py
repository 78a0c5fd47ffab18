"""Answers the orders of gates about parts of their jobs (R15).

Every order is committed before it is answered, so a repeated order finds what the first one did.
Any manager takes one: it relays to its primary. The bundle of a part is pulled over the link on
which the order came, once for the whole datacenter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from squall.api.errors import ExitCode, SquallError
from squall.cluster.datacenter.commands import (
    AcceptJob,
    AdjustHeld,
    CancelHeld,
    Command,
    CreateJob,
    ForgetGated,
    KnowGates,
    StartHeld,
)
from squall.cluster.datacenter.gated_records import GatedTry
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.datacenter.tables import Tables
from squall.cluster.group.blob_transfers import Transfers
from squall.cluster.group.clients.submissions import QueueFull, check_room
from squall.cluster.group.committer import Committer
from squall.cluster.group.job_leaders.choice import JobLeaders
from squall.cluster.ledger.interface import Ledger
from squall.cluster.protocol.gates.gate_messages import (
    AcceptPart,
    AdjustPart,
    AnnounceGates,
    CancelPart,
    ForgetPart,
    GatesKnown,
    PartAnswer,
    StartPart,
)
from squall.cluster.protocol.gates.handover_keys import part_job_id
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import fingerprint
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.engine.plan.layers import topological_layers

LaterOrder = StartPart | CancelPart | AdjustPart | ForgetPart
Order = AcceptPart | LaterOrder


class PartApi:
    """Handles the orders of gates."""

    def __init__(
        self,
        *,
        datacenter: str,
        machine: Datacenter,
        ledger: Ledger,
        committer: Committer[Command],
        transfers: Transfers,
        leaders: JobLeaders[Command],
        wall_s: Callable[[], float],
        queue_max: int,
        on_order: Callable[[JobId, GatedTry], None],
    ) -> None:
        """`on_order` is called with each part that the gates ordered something about."""
        self._datacenter = datacenter
        self._machine = machine
        self._ledger = ledger
        self._committer = committer
        self._transfers = transfers
        self._leaders = leaders
        self._wall_s = wall_s
        self._queue_max = queue_max
        self._on_order = on_order

    def register(self, handlers: Handlers) -> None:
        handlers.on(AnnounceGates, self.announce)
        handlers.on(AcceptPart, self.accept)
        handlers.on(StartPart, self.order)
        handlers.on(CancelPart, self.order)
        handlers.on(AdjustPart, self.order)
        handlers.on(ForgetPart, self.order)

    async def announce(self, message: AnnounceGates, incoming: Incoming) -> GatesKnown:
        self._check(message)
        if message.relay and not self._ledger.is_primary:
            return await self._leaders.relay(msgspec.structs.replace(message, relay=False))
        command = unknown_gates(self._machine.tables, message)
        if command is not None:
            await self._committer.commit(command)
        return GatesKnown()

    async def accept(self, message: AcceptPart, incoming: Incoming) -> PartAnswer:
        self._check(message)
        if not self._is_known(message):
            await self._pull_bundle(message, incoming)
        return await self._on_primary(message, lambda: self._accept(message))

    async def order(self, message: LaterOrder, incoming: Incoming) -> PartAnswer:
        async def commit() -> PartAnswer:
            await self._committer.commit(order_command(message))
            return self._answer(message)

        self._check(message)
        return await self._on_primary(message, commit)

    async def _on_primary(
        self, message: Order, act: Callable[[], Awaitable[PartAnswer]]
    ) -> PartAnswer:
        if message.relay and not self._ledger.is_primary:
            return await self._leaders.relay(msgspec.structs.replace(message, relay=False))
        return await act()

    async def _accept(self, message: AcceptPart) -> PartAnswer:
        refusal = ""
        try:
            check_room(self._machine.tables, message.principal, message.key, self._queue_max)
        except QueueFull as error:
            refusal = error.text
        job = part_job_id(message.job, message.datacenter, message.handover)
        command = accept_command(
            message, leader=self._leaders.choose(job), created_at=self._wall_s(), refusal=refusal
        )
        await self._committer.commit(command)
        return self._answer(message)

    async def _pull_bundle(self, message: AcceptPart, incoming: Incoming) -> None:
        """Returns when a quorum has the bundle: the command names it (R9)."""
        submission = message.submission
        if not submission.bundle:
            return
        await self._transfers.pull_for(
            submission.bundle,
            submission.bundle_size,
            incoming.channel,
            full=f"{self._datacenter} cannot store the bundle",
            answer=self._committer.answer,
        )

    def _is_known(self, message: AcceptPart) -> bool:
        """The handover is known, so nothing is created and no bundle is needed."""
        record = self._machine.tables.gated.get(message.job)
        return record is not None and (record.closed or record.find(message.handover) is not None)

    def _check(self, message: Order | AnnounceGates) -> None:
        if message.datacenter != self._datacenter:
            text = f"this is datacenter {self._datacenter}, not {message.datacenter}"
            raise RemoteError(ErrorCode.BAD_MESSAGE, text)

    def _answer(self, message: Order) -> PartAnswer:
        tables = self._machine.tables
        record = tables.gated.get(message.job)
        tried = record.find(message.handover) if record is not None else None
        if tried is not None:
            self._on_order(message.job, tried)
        return part_answer(tables, message)


# What an order means for the log: pure, so that a simulation runs the same.


def accept_command(
    message: AcceptPart, *, leader: str, created_at: float, refusal: str = ""
) -> AcceptJob:
    """`refusal` says why this datacenter takes no job now; "" if it does."""
    submission = message.submission
    is_final = False
    layers: tuple[tuple[str, ...], ...] = ()
    try:
        names = {w.name: w.depends for w in submission.manifest.workflows}
        layers = tuple(tuple(layer) for layer in topological_layers(names, "workflow"))
    except SquallError as error:
        refusal, is_final = str(error), True
    return AcceptJob(
        gate_job=message.job,
        datacenter=message.datacenter,
        handover=message.handover,
        fence=message.fence,
        create=CreateJob(
            principal=message.principal,
            key=message.key,
            fingerprint=fingerprint(submission),
            submission=submission,
            sealed=message.sealed,
            leader=leader,
            created_at=created_at,
            layers=layers,
            timeout_ms=round(message.timeout_s * 1000),
        ),
        refusal=refusal,
        exit_code=int(ExitCode.CONFIG) if is_final else 0,
        is_final=is_final,
    )


def order_command(message: LaterOrder) -> Command:
    job, handover, fence = message.job, message.handover, message.fence
    match message:
        case StartPart():
            timeout_ms = round(message.timeout_s * 1000)
            return StartHeld(gate_job=job, handover=handover, fence=fence, timeout_ms=timeout_ms)
        case CancelPart():
            return CancelHeld(
                gate_job=job,
                handover=handover,
                fence=fence,
                kind=message.kind or "cancelled",
                reason=message.reason,
                now=message.now,
                exit_code=message.exit_code,
            )
        case AdjustPart():
            return AdjustHeld(
                gate_job=job,
                handover=handover,
                fence=fence,
                adjust_seq=message.adjust_seq,
                workflows=tuple(message.workflows),
                by=message.by,
                extension_ms=round(message.extension_s * 1000),
            )
        case ForgetPart():
            return ForgetGated(gate_job=job, handover=handover, fence=fence)


def unknown_gates(tables: Tables, message: AnnounceGates) -> KnowGates | None:
    """The command that makes the sender's group known; None if it is."""
    fence, wanted = message.fence, tuple(sorted(message.gates))
    known = tables.gates.get(fence.group)
    if known is not None and known.addresses == wanted and known.former == fence.former:
        return None
    return KnowGates(group=fence.group, former=fence.former, addresses=wanted)


def part_answer(tables: Tables, message: Order) -> PartAnswer:
    """The committed state of the part that an order names."""
    record = tables.gated.get(message.job)
    if record is None or record.closed:
        return PartAnswer(state="unknown", closed=record is not None)
    tried = record.find(message.handover)
    if tried is None:
        return PartAnswer(state="unknown")
    return PartAnswer(state=tried.state, reason=tried.reason, adjust_seq=tried.adjust_seq)
