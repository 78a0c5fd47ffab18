"""A circuit breaker: stops asking a store that does not answer.

It counts operations in a row that failed after all their retries. Failures within `same_moment_s`
count once, because a burst of parallel calls says no more than one call. After
`failures_to_open` of them the circuit is open for `open_s`; then exactly one operation probes the
store. Any success closes the circuit, also that of a heartbeat, which is never held back.

Pure: time is an argument.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


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
        self._probing_since: float | None = None

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
        self.opened_at = None
        self._probing_since = None

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
