"""How fast an open model may catch up with starts that are late.

After a pause of the whole process everything that was due would start at once, and the
target would see a burst that nobody planned. Here no second, wherever it begins, has more
than 1.05 times the starts that the plan has for a second then. So a pause of 50 ms is made
up for at once, a longer one over the seconds that follow.

What counts is the moment at which a user begins, not the one at which it was told to: on a
busy machine the two differ by more than the twentieth part of a second.

Pure; the driver drops what has waited too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

MOST = 1.05
LOOK_S = 0.25
"""How often the rate of the plan is looked up."""


class Pace:
    """`planned_until(t)` is how many starts the plan has up to a moment of its own time."""

    def __init__(self, planned_until: Callable[[float], int]) -> None:
        self._planned_until = planned_until
        self._looked_at = -inf
        self._most = 1
        self._made: deque[float] = deque()
        """When the starts of the last second were made."""
        self._told = 0
        """Starts that were given away and not begun yet."""

    def follow(self, planned_until: Callable[[float], int]) -> None:
        """Another plan from here on; what was made by the old one does not weigh on it."""
        self._made.clear()
        self._planned_until = planned_until
        self._looked_at = -inf

    def spend(self, now_s: float) -> bool:
        """Whether one more may start now; `now_s` is the plan's time. Who spends it calls
        `started` when it begins, or `returned` when it does not."""
        made = self._made
        while made and made[0] <= now_s - 1.0:
            made.popleft()
        if now_s - self._looked_at >= LOOK_S:
            self._looked_at = now_s
            present = self._planned_until(now_s)
            before = present - self._planned_until(now_s - 1.0)
            per_s = max(before, self._planned_until(now_s + 1.0) - present)
            # A few starts a second have no twentieth part.
            self._most = max(int(MOST * per_s), per_s + 1)
        if len(made) + self._told >= self._most:
            return False
        self._told += 1
        return True

    def started(self, now_s: float) -> None:
        self._told -= 1
        self._made.append(now_s)

    def returned(self) -> None:
        self._told -= 1
