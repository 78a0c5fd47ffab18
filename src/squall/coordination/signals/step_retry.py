"""Repeats the steps of a member's signals while the store refuses or the member is isolated.

A step is one action on the store that must happen in the end: reading the inbox, judging a signal,
delivering it. It is repeated across boots of the member. A step must never run while the member is
isolated, nor after it has stopped.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from squall.coordination.errors import (
    CoordinationError,
    MemberFencedError,
    NotRunningError,
    StoreError,
    StoreUnavailableError,
)
from squall.coordination.member_parts import MemberParts
from squall.coordination.records.schemas import Signal
from squall.runtime.backoff import Backoff

T = TypeVar("T")
# Constant: a member that was isolated should act again within about a second of its return, and
# the guarded store has already backed off before a step fails.
STEP_RETRY = Backoff(first_s=1.0, factor=1.0)


class StepRetry:
    """Runs the steps of one member until they are done or the member stops."""

    def __init__(self, parts: MemberParts, isolated: Callable[[], bool]) -> None:
        self._parts = parts
        self._isolated = isolated
        self._has_ended = False
        # The last refusal that was logged. A store that refuses each second is logged once.
        self._last_logged = ""

    async def until_done(
        self,
        step: Callable[[], Awaitable[T]],
        *,
        what: str,
        about: Signal | None = None,
        refusals_max: float = math.inf,
    ) -> T:
        """Repeats the step until it returns, also in the next boot if the present one has ended.

        Raises `NotRunningError` when the member stops, and the refusal itself once the store has
        refused more than `refusals_max` times; no answer is no refusal. `what` is the name of the
        log event, `about` the signal that it names."""
        refusals = 0
        while True:
            await self.until_not_isolated()
            try:
                result = await step()
            except (MemberFencedError, StoreUnavailableError) as error:
                self._log_once(what, error, about)
            except StoreError as error:
                refusals += 1
                if refusals > refusals_max:
                    raise
                self._log_once(what, error, about)
            else:
                self._last_logged = ""
                return result
            await self._parts.clock.sleep(STEP_RETRY.first_s)

    async def until_not_isolated(self) -> None:
        """An isolated member takes no signals: another process may have its place."""
        while self.check_running() and self._isolated():
            await self._parts.clock.sleep(STEP_RETRY.first_s)

    @property
    def isolated(self) -> bool:
        return self._isolated()

    def check_running(self) -> bool:
        if self._has_ended:
            raise self.ended()
        return True

    def end(self) -> None:
        self._has_ended = True

    def ended(self) -> NotRunningError:
        return NotRunningError(f"{self._parts.member_id} has stopped: it takes no more signals")

    def _log_once(self, what: str, error: CoordinationError, about: Signal | None) -> None:
        """Leaves out a store that does not answer: the heartbeats report that."""
        if isinstance(error, StoreUnavailableError) or str(error) == self._last_logged:
            return
        self._last_logged = str(error)
        fields = {} if about is None else log_fields(about)
        self._parts.log.error(what, error=error, **fields)


def log_fields(signal: Signal) -> dict[str, str]:
    """The fields by which a log search finds a whole conversation."""
    return {
        "signal_id": signal.signal_id,
        "correlation_id": signal.correlation_id,
        "sender_id": signal.sender_id,
    }
