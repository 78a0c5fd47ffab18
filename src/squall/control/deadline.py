"""How long an operation may still take: one value that is handed down a chain of calls.

A deadline is a reading of this process's monotonic clock, so it must never leave the
process, nor be compared with another machine's readings: a message carries `remaining_s`,
and the receiver makes a deadline of its own from it at arrival. That one is later by the
time the message travelled, so work may outlive its caller's interest by that much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the local monotonic clock; `NEVER` has none."""

    at: float

    @classmethod
    def after(cls, now: float, seconds: float) -> Deadline:
        return cls(now + seconds)

    def remaining_s(self, now: float) -> float:
        """What is left, never negative; infinite without a deadline."""
        return max(0.0, self.at - now)

    def expired(self, now: float) -> bool:
        return now >= self.at

    def sooner(self, now: float, seconds: float) -> Deadline:
        """The earlier of this deadline and `seconds` from now: for one part of the work."""
        return Deadline(min(self.at, now + seconds))


NEVER = Deadline(math.inf)
