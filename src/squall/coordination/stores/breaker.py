"""A circuit breaker: stops asking a store that does not answer.

It counts operations in a row that failed after all their retries. Failures within `same_moment_s`
count once, because a burst of parallel calls says no more than one call. After
`failures_to_open` of them the circuit is open for `open_s`; then exactly one operation probes the
store. Any success closes the circuit, also that of a heartbeat, which is never held back.

A store that hangs is worse than one that refuses: each try costs its caller a whole time limit. So
tries that hung at two moments, without any answer in between, open the circuit before the
operations gave up. One moment is not enough: one broken connection hangs all its callers at once.

Pure: time is an argument.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

# A connection that breaks once is one moment; a hang that lasts is at least a second one.
HUNG_MOMENTS = 2


class BreakerState(IntEnum):
    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class BreakerSettings(msgspec.Struct, frozen=True, kw_only=True):
    failures_to_open: int = 10
    open_s: float = 60.0
    same_moment_s: float = 0.1


class StoreBreaker:
    """Call `admit` before an operation, and then `succeeded` or `failed` once."""

    def __init__(self, settings: BreakerSettings | None = None) -> None:
        self.settings = settings or BreakerSettings()
        self.failures = 0
        self.opened_at: float | None = None
        self._counted_at = float("-inf")
        # Tries in a row that hung, in how many moments, and the last one.
        self._hung_tries = 0
        self._hung_moments = 0
        self._hung_at = float("-inf")
        self._probing_since: float | None = None

    @property
    def unanswered(self) -> int:
        """Operations that failed in a row, or tries that hung in a row, if these are more."""
        return max(self.failures, self._hung_tries)

    def state(self, now: float) -> BreakerState:
        if self.opened_at is None:
            return BreakerState.CLOSED
        if now - self.opened_at < self.settings.open_s:
            return BreakerState.OPEN
        return BreakerState.HALF_OPEN

    def admit(self, now: float) -> bool:
        state = self.state(now)
        if state is BreakerState.HALF_OPEN:
            # A probe whose caller was cancelled reports no end: it must not block the next one
            # for ever.
            since = self._probing_since
            if since is not None and now - since < self.settings.open_s:
                return False
            self._probing_since = now
        return state is not BreakerState.OPEN

    def succeeded(self) -> None:
        self.failures = 0
        self._hung_tries = self._hung_moments = 0
        self.opened_at = None
        self._probing_since = None

    def hung(self, now: float) -> None:
        """One try of an operation used up its time limit without an answer."""
        self._hung_tries += 1
        if now - self._hung_at >= self.settings.same_moment_s:
            self._hung_at = now
            self._hung_moments += 1
        if self.opened_at is None and self._hung_moments >= HUNG_MOMENTS:
            self.opened_at = now

    def failed(self, now: float) -> None:
        if self.opened_at is not None:
            if self._probing_since is not None:
                self.opened_at = now
                self._probing_since = None
            return
        if now - self._counted_at >= self.settings.same_moment_s:
            self._counted_at = now
            self.failures += 1
        if self.failures >= self.settings.failures_to_open:
            self.opened_at = now

    def reset(self) -> None:
        """Closes the circuit by an operator's command."""
        self.succeeded()
