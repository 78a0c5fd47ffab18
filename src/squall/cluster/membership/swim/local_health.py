"""The local health score (Lifeguard): how much this member distrusts its own clock and network.

It rises only on evidence against this member itself: its loop was late, proxies that should have
answered with a nack did not, or it had to refute a suspicion of itself. A probe that failed with
all nacks in hand is the target's fault and does not count, so a mass failure does not slow down the
members that survive it (C10).
"""

from __future__ import annotations

SCORE_MAX = 8
STRETCH = 0.25
"""Multiplier per point: 1 to 3 (FAIL-142)."""


class LocalHealth:
    def __init__(self) -> None:
        self.score = 0

    @property
    def multiplier(self) -> float:
        """Stretches the probe interval, the probe timeout and new suspicions."""
        return 1.0 + STRETCH * self.score

    def probe_answered(self) -> None:
        self.score = max(self.score - 1, 0)

    def nacks_missing(self, missing: int) -> None:
        self._raise(missing)

    def refuted(self) -> None:
        self._raise(1)

    def was_late(self, intervals: float) -> None:
        """`intervals`: by how many probe intervals the loop was late."""
        self._raise(2 if intervals >= 1.0 else 1)

    def _raise(self, points: int) -> None:
        self.score = min(self.score + points, SCORE_MAX)
