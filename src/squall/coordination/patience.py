"""How a member goes on with its signals while its store refuses, while it is isolated, and from
one incarnation to the next.

It must never act for a member that is isolated, nor go on after the member has stopped.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from squall.coordination.assembly import Assembly
from squall.coordination.errors import (
    CoordinationError,
    MemberFencedError,
    NotRunningError,
    StoreError,
    StoreUnavailableError,
)
from squall.coordination.records import Signal

T = TypeVar("T")
RETRY_S = 1.0


class Patience:
    """Of one member."""

    def __init__(self, parts: Assembly, isolated: Callable[[], bool]) -> None:
        self._parts = parts
        self._isolated = isolated
        self._is_over = False
        self._told = ""
        """What was last refused: it is logged once, not every second."""

    async def until_done(
        self,
        step: Callable[[], Awaitable[T]],
        *,
        what: str,
        about: Signal | None = None,
        refusals_max: float = math.inf,
    ) -> T:
        """Takes the step again while the store does not answer or refuses, and in the next
        incarnation if the present one has ended. `NotRunningError` when the member stops.
        The log says `what`, and of which signal, if the store does answer. What it refuses more
        often than `refusals_max` is raised."""
        refusals = 0
        while True:
            await self.until_fit()
            try:
                result = await step()
            except (MemberFencedError, StoreUnavailableError) as error:
                self._tell(what, error, about)
            except StoreError as error:
                refusals += 1
                if refusals > refusals_max:
                    raise
                self._tell(what, error, about)
            else:
                self._told = ""
                return result
            await self._parts.clock.sleep(RETRY_S)

    async def until_fit(self) -> None:
        """A member that is isolated takes nothing: another may be in its place."""
        while self.check_running() and self._isolated():
            await self._parts.clock.sleep(RETRY_S)

    @property
    def isolated(self) -> bool:
        return self._isolated()

    def check_running(self) -> bool:
        if self._is_over:
            raise self.ended()
        return True

    def end(self) -> None:
        self._is_over = True

    def ended(self) -> NotRunningError:
        return NotRunningError(f"{self._parts.member_id} has stopped: it takes no signals any more")

    def _tell(self, what: str, error: CoordinationError, about: Signal | None) -> None:
        """That a store does not answer is told by the heartbeats."""
        if isinstance(error, StoreUnavailableError) or str(error) == self._told:
            return
        self._told = str(error)
        fields = {} if about is None else names_of(about)
        self._parts.log.error(what, error=error, **fields)


def names_of(signal: Signal) -> dict[str, str]:
    """For lines of the log: who looks for the whole of a conversation finds it."""
    return {
        "signal_id": signal.signal_id,
        "correlation_id": signal.correlation_id,
        "sender_id": signal.sender_id,
    }
