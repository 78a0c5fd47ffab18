"""Submits commands to the group's log for requests from the wire.

Every API of a manager uses it. It translates the log's errors into answers that the sender
can act on, with the primary's address if another member leads.
"""

from __future__ import annotations

from collections.abc import Callable

from squall.api.errors import SquallError
from squall.cluster.datacenter.commands import (
    VERSION,
    Accepted,
    Command,
    Rejected,
    decode_outcome,
    encode,
)
from squall.cluster.ledger.interface import (
    Ledger,
    LedgerFailed,
    NotPrimary,
    OutcomeUnknown,
    ReadLevel,
    TryLater,
)
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.interfaces import NodeId

RETRY_AFTER_S = 0.3
"""The delay that the answer asks of a sender before it retries. A heartbeat round takes 0.25 s,
so by then a primary has either confirmed itself or stepped down."""

Address = Callable[[NodeId | None], str]
"""Returns host:port of a member, or "" if it is unknown."""


class Committer:
    """Commits commands and confirms reads, and raises every failure as `RemoteError`."""

    def __init__(self, ledger: Ledger, address: Address) -> None:
        self._ledger = ledger
        self._address = address

    async def commit(self, command: Command) -> Accepted:
        try:
            body = encode(command)
        except SquallError as error:
            raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
        try:
            committed = await self._ledger.submit(body, version=VERSION)
        except SquallError as error:
            raise self.answer(error) from None
        outcome = decode_outcome(committed.result)
        if isinstance(outcome, Rejected):
            raise RemoteError(ErrorCode.CONFLICT, outcome.text)
        return outcome

    async def read(self) -> None:
        """Returns when the local state includes everything committed before the call (R2)."""
        try:
            await self._ledger.read(ReadLevel.STRONG)
        except SquallError as error:
            raise self.answer(error) from None

    def answer(self, error: SquallError) -> RemoteError:
        """Translates an error of the log into an answer to the sender."""
        text = str(error)
        # Check `TryLater` first: it is a subclass of `NotPrimary`, but this member does lead.
        if isinstance(error, TryLater | OutcomeUnknown | LedgerFailed):
            return RemoteError(ErrorCode.RETRY_LATER, text, retry_after_s=RETRY_AFTER_S)
        if isinstance(error, NotPrimary):
            return RemoteError(
                ErrorCode.NOT_PRIMARY,
                text,
                primary=self._address(error.primary),
                retry_after_s=RETRY_AFTER_S,
            )
        return RemoteError(ErrorCode.INTERNAL, text)
