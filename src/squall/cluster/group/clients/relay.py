"""Relays requests of clients to the member that can answer them.

A client that cannot reach the primary, or the leader of its job, asks any member that it reaches.
That member sends the request on over its own link, with the name in the client's credential, and
returns the answer. The member that answers applies the client's rates and rights as if it had asked
there. A relayed request is never relayed again, so there are no loops, and the number under way is
bounded: a cut network must not fill the members that are left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from squall.cluster.group.job_leaders.choice import RELAY_S, JobLeaders
from squall.cluster.group.job_tables import GroupJob, HoldsJobs
from squall.cluster.ledger.interface import Ledger
from squall.cluster.protocol.group_messages import Relay, RelayAnswer
from squall.cluster.protocol.messages import (
    AdjustJob,
    CancelJob,
    DrainNode,
    Follow,
    GetJob,
    GetWorkflowResult,
    ListJobs,
    ListNodes,
    SubmitJob,
    WhyJob,
)
from squall.cluster.wire.catalogue import MessageType
from squall.cluster.wire.errors import DecodeError, RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.keyring import Identity
from squall.runtime.interfaces import Clock

RELAYED = (
    SubmitJob, ListJobs, GetJob, GetWorkflowResult, CancelJob, AdjustJob, WhyJob, ListNodes,
    DrainNode, Follow,
)  # fmt: skip
RELAYS_MAX = 256
"""Under way at a time: as many clients as follow their jobs through one manager."""
BUSY_RETRY_S = 1.0


class ClientRelay:
    """Handles `Relay` on both members: the one that sends on, and the one that answers."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        machine: HoldsJobs[GroupJob],
        ledger: Ledger,
        leaders: JobLeaders[Any],
        clock: Clock,
    ) -> None:
        self._handlers = handlers
        self._machine = machine
        self._ledger = ledger
        self._leaders = leaders
        self._clock = clock
        self._under_way = 0
        self._numbers = {handlers.catalogue.by_struct[each].number for each in RELAYED}
        # Followers wait in it: they must not take the slots that telemetry needs.
        handlers.on(Relay, self.relay, polls=RELAYS_MAX)

    async def relay(self, message: Relay, incoming: Incoming) -> RelayAnswer:
        peer = incoming.peer
        if message.number not in self._numbers:
            raise RemoteError(ErrorCode.BAD_MESSAGE, f"type {message.number} is not relayed")
        if message.hops:
            if peer.role is not Role.NODE:
                raise RemoteError(ErrorCode.FORBIDDEN, "only a manager relays for others")
            peer = Identity(Role.CLIENT, peer.node, peer.boot, message.name, message.operator)
            return await self._answered(message, incoming._replace(peer=peer))
        to = self._answers(message)
        if to is None:
            return await self._answered(message, incoming)
        sent_on = Relay(
            number=message.number,
            body=message.body,
            hops=1,
            name=peer.name or str(peer.node),
            operator=peer.operator or peer.role is Role.NODE,
        )
        left_s = RELAY_S if incoming.deadline is None else incoming.deadline - self._clock.now()
        return await self._bounded(lambda: self._leaders.relay_to(to, sent_on, max(left_s, 0.1)))

    def _answers(self, message: Relay) -> str | None:
        """The member to ask; None: this one."""
        decoded = self._decoded(message)[1]
        primary = self._ledger.primary
        job = self._machine.tables.jobs.get(decoded.job) if isinstance(decoded, Follow) else None
        if job is not None:
            return None if self._leaders.leads(job) else self._leaders.of(job)
        return None if primary is None or self._ledger.is_primary else str(primary)

    async def _bounded(self, ask: Callable[[], Awaitable[Any]]) -> RelayAnswer:
        if self._under_way >= RELAYS_MAX:
            text = f"{self._under_way} requests are being relayed, at most {RELAYS_MAX} are allowed"
            raise RemoteError(ErrorCode.OVERLOADED, text, retry_after_s=BUSY_RETRY_S)
        self._under_way += 1
        try:
            return await ask()
        finally:
            self._under_way -= 1

    async def _answered(self, message: Relay, incoming: Incoming) -> RelayAnswer:
        row, decoded = self._decoded(message)
        answer = self._handlers.by_number[row.number][1](decoded, incoming)
        if isawaitable(answer):
            answer = await answer
        kind, body = self._handlers.catalogue.encode(answer)
        return RelayAnswer(kind.number, body)

    def _decoded(self, message: Relay) -> tuple[MessageType, Any]:
        row = self._handlers.catalogue.by_number[message.number]
        try:
            return row, self._handlers.catalogue.decode(row, message.body)
        except DecodeError as error:
            raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
