"""Whether a node falls behind: healthy, busy, stressed or overloaded.

It is fed with how late the node's own loop is, once a second, and its share of a core. The
worst of three rules counts:

- *absolute*: the median of the last samples above 200, 500, 2,000 ms;
- *relative*: that median above what is usual for this node, by half: busy, by twice that
  much and more: stressed, never worse; what is usual is a slow moving average that stands still
  while the state is not healthy, and below 20 ms nothing is relative: 1 ms that becomes 3 ms is
  no load;
- *CPU* above 85, 95, 99 % of a core, and only together with a loop that is late: a manager
  with a full core and a punctual loop is well used.

A median, so that one spike is nothing. Worse counts at once, better only after some samples
in a row, and silence is healthy: who sheds everything would otherwise never hear that it is
over. Pure.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from statistics import median

import msgspec


class Overload(enum.IntEnum):
    HEALTHY = 0
    BUSY = 1
    """It is asked for telemetry less often."""
    STRESSED = 2
    """And less often still."""
    OVERLOADED = 3
    """TELEMETRY is shed."""


class OverloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    samples: int = 10
    baseline_weight: float = 0.01
    samples_least: int = 3
    """One late second says nothing, also when it is the first."""
    relative: tuple[float, float, float] = (0.5, 2.0, math.inf)
    relative_least_s: float = 0.02
    absolute_s: tuple[float, float, float] = (0.2, 0.5, 2.0)
    cpu: tuple[float, float, float] = (0.85, 0.95, 0.99)
    calm_samples: int = 5
    """So many in a row before the state is better by one."""
    silence_s: float = 10.0


class OverloadDetector:
    def __init__(self, settings: OverloadSettings | None = None) -> None:
        self.settings = settings if settings is not None else OverloadSettings()
        self._recent: deque[float] = deque(maxlen=self.settings.samples)
        self._state = Overload.HEALTHY
        self._calm = 0
        self._fed_at = 0.0
        self.baseline_s: float | None = None
        """What is usual; None before there were enough samples to say so."""

    def feed(self, lag_s: float, now: float, cpu: float = 0.0) -> Overload:
        self.state(now)
        self._fed_at = now
        self._recent.append(max(lag_s, 0.0))
        found = self._judged(cpu)
        if found >= self._state:
            self._state, self._calm = found, 0
        else:
            self._calm += 1
            if self._calm >= self.settings.calm_samples:
                self._state, self._calm = Overload(self._state - 1), 0
        self._learn()
        return self._state

    def state(self, now: float) -> Overload:
        if self._recent and now - self._fed_at > self.settings.silence_s:
            self._recent.clear()
            self._state, self._calm = Overload.HEALTHY, 0
        return self._state

    @property
    def current_s(self) -> float:
        """The median of the last samples."""
        return median(self._recent) if self._recent else 0.0

    def _judged(self, cpu: float) -> Overload:
        settings, now_s = self.settings, self.current_s
        if len(self._recent) < settings.samples_least:
            return Overload.HEALTHY
        levels = [_level(now_s, settings.absolute_s)]
        usual_s = self.baseline_s
        if now_s > settings.relative_least_s:
            if usual_s is not None and len(self._recent) == settings.samples:
                more = (now_s - usual_s) / max(usual_s, 0.001)
                levels.append(_level(more, settings.relative))
            levels.append(_level(cpu, settings.cpu))
        return Overload(max(levels))

    def _learn(self) -> None:
        """Only from healthy seconds: else any load would be usual after a while."""
        if self._state is not Overload.HEALTHY or len(self._recent) < self.settings.samples:
            return
        before_s = self.current_s if self.baseline_s is None else self.baseline_s
        self.baseline_s = before_s + self.settings.baseline_weight * (self.current_s - before_s)


def _level(value: float, bounds: tuple[float, float, float]) -> int:
    return sum(value > bound for bound in bounds)
