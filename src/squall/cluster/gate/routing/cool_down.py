"""Makes a datacenter that just refused a job a less likely choice for a while.

Its score is multiplied by a factor that falls to 1 within `cool_down_s`. The factor never excludes
a datacenter: if it is the only one left, it still gets the job.
"""

from __future__ import annotations

import math

from squall.cluster.gate.routing.settings import RoutingSettings


class CoolDown:
    def __init__(self, settings: RoutingSettings) -> None:
        self._settings = settings
        self._refused_at = -math.inf
        self.reason = ""
        """Why it refused the last job."""

    def refused(self, reason: str, now: float) -> None:
        self._refused_at = now
        self.reason = reason

    def left_s(self, now: float) -> float:
        return max(self._refused_at + self._settings.cool_down_s - now, 0.0)

    def factor(self, now: float) -> float:
        left = min(self.left_s(now) / self._settings.cool_down_s, 1.0)
        return 1.0 + (self._settings.cool_down_factor - 1.0) * left
