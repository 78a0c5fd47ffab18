"""What admission remembers: service times, shed callers, fill warnings.

A few numbers per class or limit; nothing here decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


class ServiceTime:
    """The moving average of one class's service time, and when its work last moved on."""

    def __init__(self, first_s: float, weight: float) -> None:
        self.mean_s = first_s
        self._weight = weight
        self._moved_at = -math.inf

    def woke(self, now: float) -> None:
        """The first request after an idle time starts: the class was not stuck before."""
        self._moved_at = now

    def ended(self, now: float, service_s: float) -> None:
        self._moved_at = now
        self.mean_s += self._weight * (max(0.0, service_s) - self.mean_s)

    def stalled_s(self, now: float) -> float:
        """How long nothing of the class has ended; infinite if nothing ever started."""
        return max(0.0, now - self._moved_at)


class Backlog:
    """Estimates how many shed callers will come back: a count that decays."""

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
    """The warning that a limit is nearly reached."""

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
        self._warned = 0

    def rise_to(self, used: int) -> Filling | None:
        before = self._warned
        while self._warned < len(self._warn_at) and used >= self._warn_at[self._warned]:
            self._warned += 1
        return Filling(self._name, used, self._limit_max) if self._warned > before else None

    def fall_to(self, used: int) -> None:
        while self._warned and used < self._rearm_below[self._warned - 1]:
            self._warned -= 1
