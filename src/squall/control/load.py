"""What admission knows of the recent past: service times, shed callers, fill warnings.

Decides nothing by itself. All of it is bounded: a few numbers per class or limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


class ServiceTime:
    """The moving average of how long one class's work takes, and when it last moved on."""

    def __init__(self, first_s: float, weight: float) -> None:
        self.mean_s = first_s
        self._weight = weight
        self._moved_at = -math.inf

    def woke(self, now: float) -> None:
        """A class that was idle cannot have been stuck before this start."""
        self._moved_at = now

    def ended(self, now: float, service_s: float) -> None:
        self._moved_at = now
        self.mean_s += self._weight * (max(0.0, service_s) - self.mean_s)

    def stalled_s(self, now: float) -> float:
        """How long nothing of the class has ended; infinite if nothing ever started."""
        return max(0.0, now - self._moved_at)


class Backlog:
    """How many shed callers are likely to come back: a count that decays."""

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._count = 0.0
        self._counted_at = -math.inf

    def add(self, now: float) -> float:
        """Counts one more and returns the count with it."""
        passed_s = max(0.0, now - self._counted_at)
        self._count = self._count * math.exp(-passed_s / self._memory_s) + 1
        self._counted_at = now
        return self._count


@dataclass(frozen=True, slots=True)
class Filling:
    """A warning: a limit is nearly reached."""

    limit: str
    used: int
    limit_max: int

    @property
    def percent(self) -> int:
        return 100 * self.used // self.limit_max


class FillAlarm:
    """Warns once per threshold on the way up, and again only after a clear fall."""

    def __init__(self, name: str, limit_max: int, levels: tuple[float, ...], rearm: float) -> None:
        self._name = name
        self._limit_max = limit_max
        self._warn_at = [math.ceil(level * limit_max) for level in levels]
        self._rearm_below = [math.ceil((level - rearm) * limit_max) for level in levels]
        self._told = 0

    def rise_to(self, used: int) -> Filling | None:
        before = self._told
        while self._told < len(self._warn_at) and used >= self._warn_at[self._told]:
            self._told += 1
        return Filling(self._name, used, self._limit_max) if self._told > before else None

    def fall_to(self, used: int) -> None:
        while self._told and used < self._rearm_below[self._told - 1]:
            self._told -= 1
