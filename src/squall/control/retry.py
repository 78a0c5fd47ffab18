"""Whether a failed operation is tried again, and when.

One `Retry` per operation, so that concurrent operations share nothing but the budget. A
retry happens only if it cannot do harm (the first try was certainly not executed, or the
operation is idempotent), if attempts are left, if it can begin before the deadline with
time to spare, and if the budget of the destination has room: retries must never multiply
the load on a peer that fails because of load.

Never sleeps, never reads a clock, never draws by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from squall.control.deadline import Deadline
from squall.control.settings import Jitter, RetryBudgetSettings, RetryPolicy

Uniform = Callable[[float, float], float]


class Effect(enum.Enum):
    """What a failed try may have done at the other side."""

    NONE = "none"
    """Certainly not executed: not sent, or shed. Safe to try again."""
    UNKNOWN = "unknown"
    """Sent, no answer. Safe to try again only if the operation is idempotent."""
    FINAL = "final"
    """The peer answered, or the mistake is ours: another try ends the same way."""


@dataclass(frozen=True, slots=True)
class Failure:
    effect: Effect
    retry_after_s: float = 0.0
    """The peer's hint; 0.0 says nothing."""


class Reason(enum.Enum):
    """Why there is no further try."""

    FINAL = "it would end the same way"
    NOT_IDEMPOTENT = "it may have been executed and must not be repeated"
    ATTEMPTS = "all attempts are used"
    DEADLINE = "the deadline is too near"
    BUDGET = "the retry budget is used up"


@dataclass(frozen=True, slots=True)
class TryAgain:
    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: Reason


class RetryBudget:
    """Bounds what retries add to the load on one destination; shared by its operations.

    A bucket of `burst` tokens. Each first try adds `ratio`, each second `reserve_per_s`,
    each retry takes one. See `RetryBudgetSettings` for the bound that follows.
    """

    def __init__(self, settings: RetryBudgetSettings, now: float) -> None:
        self._settings = settings
        self._tokens = settings.burst
        self._filled_at = now
        self.first_tries_total = 0
        self.retries_total = 0
        self.refused_total = 0

    def first_try(self, now: float) -> None:
        self.first_tries_total += 1
        self._fill(now, self._settings.ratio)

    def take(self, now: float) -> bool:
        self._fill(now, 0.0)
        if self._tokens < 1.0:
            self.refused_total += 1
            return False
        self._tokens -= 1.0
        self.retries_total += 1
        return True

    @property
    def tokens(self) -> float:
        return self._tokens

    def _fill(self, now: float, extra: float) -> None:
        passed_s = max(0.0, now - self._filled_at)
        self._filled_at = max(self._filled_at, now)
        added = passed_s * self._settings.reserve_per_s + extra
        self._tokens = min(self._settings.burst, self._tokens + added)


class Retry:
    """The state of one operation: how often it was tried and how long it waited last."""

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        deadline: Deadline,
        idempotent: bool,
        budget: RetryBudget | None = None,
    ) -> None:
        self._policy = policy
        self._deadline = deadline
        self._idempotent = idempotent
        self._budget = budget
        self._last_delay_s = policy.base_s
        self.attempts = 0

    def begin(self, now: float) -> float | None:
        """A try starts: the time it has, to be handed on; None if the deadline has passed."""
        remaining_s = self._deadline.remaining_s(now)
        if remaining_s <= 0:
            return None
        self.attempts += 1
        if self.attempts == 1 and self._budget is not None:
            self._budget.first_try(now)
        timeout_s = self._policy.attempt_timeout_s
        return remaining_s if timeout_s is None else min(remaining_s, timeout_s)

    def next_delay(self, failure: Failure, now: float, uniform: Uniform) -> TryAgain | GiveUp:
        """A try failed. The budget is asked last, so that only real retries are charged."""
        if failure.effect is Effect.FINAL:
            return GiveUp(Reason.FINAL)
        if failure.effect is Effect.UNKNOWN and not self._idempotent:
            return GiveUp(Reason.NOT_IDEMPOTENT)
        most = self._policy.max_attempts
        if most is not None and self.attempts >= most:
            return GiveUp(Reason.ATTEMPTS)
        delay_s = self._draw(uniform)
        hint_s = min(failure.retry_after_s, self._policy.hint_cap_s)
        delay_s = max(delay_s, hint_s)
        left_s = self._deadline.remaining_s(now + delay_s)
        if left_s <= 0 or left_s < self._policy.least_attempt_s:
            return GiveUp(Reason.DEADLINE)
        if self._budget is not None and not self._budget.take(now):
            return GiveUp(Reason.BUDGET)
        return TryAgain(delay_s)

    def _draw(self, uniform: Uniform) -> float:
        policy = self._policy
        if policy.jitter is Jitter.DECORRELATED:
            drawn_s = min(policy.cap_s, uniform(policy.base_s, self._last_delay_s * 3))
            self._last_delay_s = drawn_s
            return drawn_s
        # Two to the 60th times the shortest base is past any cap, and still a float.
        doublings = min(self.attempts - 1, 60)
        top_s = min(policy.cap_s, policy.base_s * 2.0**doublings)
        if policy.jitter is Jitter.EQUAL:
            return top_s / 2 + uniform(0, top_s / 2)
        return uniform(0, top_s)
