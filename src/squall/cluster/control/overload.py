"""Decides whether a node falls behind: healthy, busy, stressed or overloaded.

The node feeds it once a second with the delay of its event loop. The worse of two rules counts:

- *absolute*: the median of the last samples exceeds 200, 500 or 2,000 ms;
- *relative*: the median exceeds this node's usual delay by half (busy) or by twice that
  delay (stressed, never worse). The usual delay is a slow moving average that only learns
  while the node is healthy. Below 20 ms this rule is off: a delay that grows from 1 ms to 3 ms is
  not load.

The median ignores a single spike. A worse state counts at once, a better one only after some
samples in a row. Silence counts as healthy: a node that sheds everything gets no more samples
and would otherwise stay overloaded. Pure.
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
    """The manager asks its workers for telemetry half as often."""
    STRESSED = 2
    """A quarter as often."""
    OVERLOADED = 3
    """The manager sheds TELEMETRY."""


class OverloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    samples: int = 10
    baseline_weight: float = 0.01
    samples_least: int = 3
    """One late second says nothing, even if it is the first."""
    relative: tuple[float, float, float] = (0.5, 2.0, math.inf)
    relative_least_s: float = 0.02
    absolute_s: tuple[float, float, float] = (0.2, 0.5, 2.0)
    calm_samples: int = 5
    """Better samples in a row before the state improves by one."""
    silence_s: float = 10.0


class OverloadDetector:
    """Turns samples of the loop's delay into an `Overload` state."""

    def __init__(self, settings: OverloadSettings | None = None) -> None:
        self.settings = settings if settings is not None else OverloadSettings()
        self._recent: deque[float] = deque(maxlen=self.settings.samples)
        self._state = Overload.HEALTHY
        self._calm = 0
        self._fed_at = 0.0
        # The usual delay; None until there were enough samples.
        self.baseline_s: float | None = None

    def feed(self, lag_s: float, now: float) -> Overload:
        self.state(now)
        self._fed_at = now
        self._recent.append(max(lag_s, 0.0))
        found = self._judged()
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

    def _judged(self) -> Overload:
        settings, now_s = self.settings, self.current_s
        if len(self._recent) < settings.samples_least:
            return Overload.HEALTHY
        level = _level(now_s, settings.absolute_s)
        usual_s = self.baseline_s
        full = len(self._recent) == settings.samples
        if full and usual_s is not None and now_s > settings.relative_least_s:
            more = (now_s - usual_s) / max(usual_s, 0.001)
            level = max(level, _level(more, settings.relative))
        return Overload(level)

    def _learn(self) -> None:
        # Only from healthy seconds: otherwise any load would become usual after a while.
        if self._state is not Overload.HEALTHY or len(self._recent) < self.settings.samples:
            return
        before_s = self.current_s if self.baseline_s is None else self.baseline_s
        self.baseline_s = before_s + self.settings.baseline_weight * (self.current_s - before_s)


def _level(value: float, bounds: tuple[float, float, float]) -> int:
    return sum(value > bound for bound in bounds)
