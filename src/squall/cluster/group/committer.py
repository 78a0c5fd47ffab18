"""Submits commands to the group's log for requests from the wire.

Every API of a member uses it. It translates the log's errors into answers that the sender
can act on, with the primary's address if another member leads. The commands are those of the
group's state machine, which a `CommandCodec` encodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Literal, NamedTuple, TypeVar

from squall.api.errors import SquallError
from squall.cluster.ledger.interface import (
    Ledger,
    LedgerFailed,
    NotPrimary,
    OpNumber,
    OutcomeUnknown,
    ReadLevel,
    TryLater,
)
from squall.cluster.protocol.command_outcomes import Accepted, Rejected, decode_outcome
from squall.cluster.protocol.read_facts import ReadFacts
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.interfaces import NodeId

RETRY_AFTER_S = 0.3
"""The delay that the answer asks of a sender before it retries. A heartbeat round takes 0.25 s,
so by then a primary has either confirmed itself or stepped down."""

SESSION_WAIT_S = 1.0
"""How long a manager that is behind what a client has seen waits to catch up."""

Address = Callable[[NodeId | None], str]
"""Returns host:port of a member, or "" if it is unknown."""


Command = TypeVar("Command")


class CommandCodec(NamedTuple, Generic[Command]):
    """Encodes the commands of a state machine."""

    version: int
    """Commands are proposed with it, and so only after all members announced it (R3)."""
    encode: Callable[[Command], bytes]
    """Raises `SquallError` for a command that is too large."""


class Committer(Generic[Command]):
    """Commits commands and confirms reads, and raises every failure as `RemoteError`."""

    def __init__(
        self,
        ledger: Ledger,
        codec: CommandCodec[Command],
        address: Address,
        managers: Callable[[], list[str]] = lambda: [],
        failover_s: float = 0.0,
    ) -> None:
        """`managers` returns the addresses of the group's members, for the answers to clients.
        `failover_s` is how long the group may need to elect a leader."""
        self._ledger = ledger
        self._codec = codec
        self._address = address
        self._managers = managers
        self.failover_s = failover_s

    async def commit(self, command: Command) -> Accepted:
        try:
            body = self._codec.encode(command)
        except SquallError as error:
            raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
        try:
            committed = await self._ledger.submit(body, version=self._codec.version)
        except SquallError as error:
            raise self.answer(error) from None
        outcome = decode_outcome(committed.result)
        if isinstance(outcome, Rejected):
            raise RemoteError(ErrorCode.CONFLICT, outcome.text)
        return outcome

    async def read(self) -> ReadFacts:
        """Returns when the local state includes everything committed before the call (R2)."""
        try:
            await self._ledger.read(ReadLevel.STRONG)
        except SquallError as error:
            raise self.answer(error) from None
        return self.facts("strong")

    async def read_session(self, seen: tuple[str, int]) -> ReadFacts:
        """Returns when the local state includes what the client has seen: the group, and an op."""
        ledger = self._ledger
        group, op = seen
        if group == ledger.standing().group and ledger.applied < op:
            try:
                async with asyncio.timeout(SESSION_WAIT_S):
                    await ledger.read(ReadLevel.SESSION, OpNumber(op))
            except SquallError as error:
                raise self.answer(error) from None
            except TimeoutError:
                text = f"this manager has applied op {ledger.applied}, and you have seen op {op}"
                raise RemoteError(
                    ErrorCode.RETRY_LATER, text, retry_after_s=RETRY_AFTER_S
                ) from None
        return self.facts("session")

    def facts(self, level: Literal["strong", "session"]) -> ReadFacts:
        """Says how recent the local state is."""
        ledger = self._ledger
        standing, fence = ledger.standing(), ledger.fence
        return ReadFacts(
            level=level,
            op=int(ledger.applied),
            group=standing.group,
            epoch=fence.epoch,
            view=fence.view,
            age_s=0.0 if level == "strong" or ledger.is_primary else round(standing.stale_s, 3),
            managers=self._managers(),
        )

    def answer(self, error: SquallError) -> RemoteError:
        """Translates an error of the log into an answer to the sender."""
        text = str(error)
        # Check `TryLater` first: it is a subclass of `NotPrimary`, but this member does lead.
        if isinstance(error, TryLater | OutcomeUnknown | LedgerFailed):
            return RemoteError(
                ErrorCode.RETRY_LATER,
                text,
                retry_after_s=RETRY_AFTER_S,
                leader_within_s=self.failover_s,
            )
        if isinstance(error, NotPrimary):
            return RemoteError(
                ErrorCode.NOT_PRIMARY,
                text,
                primary=self._address(error.primary),
                retry_after_s=RETRY_AFTER_S,
                leader_within_s=self.failover_s,
            )
        return RemoteError(ErrorCode.INTERNAL, text)
