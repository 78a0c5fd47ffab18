"""A circuit breaker: stops asking a store that does not answer.

It counts operations in a row that failed after all their retries. Failures within `same_moment_s`
count once, because a burst of parallel calls says no more than one call. After
`failures_to_open` of them the circuit is open for `open_s`; then exactly one operation probes the
store. Any success closes the circuit, also that of a heartbeat, which is never held back.

A store that hangs is worse than one that refuses: each try costs its caller a whole time limit. So
the first hang opens the circuit. It may have been one broken connection, which hangs all its
callers at once: the circuit is then open for `hung_open_s` only, and for `open_s` if the probe
hangs too.

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
    hung_open_s: float = 5.0
    same_moment_s: float = 0.1


class StoreBreaker:
    """Call `admit` before an operation, and then `succeeded` or `failed` once."""

    def __init__(self, settings: BreakerSettings | None = None) -> None:
        self.settings = settings or BreakerSettings()
        self.failures = 0
        # How many calls were answered. A caller compares it to see whether the store answered
        # another call while its own hung.
        self.answers = 0
        self.opened_at: float | None = None
        self._open_for_s = self.settings.open_s
        self._counted_at = float("-inf")
        # Tries in a row that hung.
        self._hung_tries = 0
        self._probing_since: float | None = None

    @property
    def unanswered(self) -> int:
        """Operations that failed in a row, or tries that hung in a row, if these are more."""
        return max(self.failures, self._hung_tries)

    def state(self, now: float) -> BreakerState:
        if self.opened_at is None:
            return BreakerState.CLOSED
        if now - self.opened_at < self._open_for_s:
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
        self.answers += 1
        self.failures = 0
        self._hung_tries = 0
        self.opened_at = None
        self._probing_since = None

    def hung(self, now: float) -> None:
        """A try used up its time limit, and the store answered no other call meanwhile."""
        self._hung_tries += 1
        if self.opened_at is None:
            self._open(now, self.settings.hung_open_s)
        else:
            self._probe_failed(now)

    def failed(self, now: float) -> None:
        if self.opened_at is not None:
            self._probe_failed(now)
            return
        if now - self._counted_at >= self.settings.same_moment_s:
            self._counted_at = now
            self.failures += 1
        if self.failures >= self.settings.failures_to_open:
            self._open(now, self.settings.open_s)

    def reset(self) -> None:
        """Closes the circuit by an operator's command."""
        self.succeeded()

    def _probe_failed(self, now: float) -> None:
        # A call that began before the circuit opened is no probe and must not prolong it.
        if self._probing_since is not None:
            self._probing_since = None
            self._open(now, self.settings.open_s)

    def _open(self, now: float, for_s: float) -> None:
        self.opened_at = now
        self._open_for_s = for_s
