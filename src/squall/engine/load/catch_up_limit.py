"""Limits how fast an open model catches up with late starts.

After a pause of the whole process, everything that was due would start at once, and the
target would see a burst that is not in the plan. Two limits prevent that:

- No second, wherever it begins, has more than 1.05 times the starts that the plan has for a
  second at that time; near the beginning or the end of a plan, for its first or last second. A
  pause of 30 ms is made up for at once, a longer one over the seconds that follow.
- Starts that are later than that are released one after the other at that rate. Without this, a
  whole second of them would start in the first moment after a pause and the next ones a second
  later; the way to the target shortens such gaps, and the target would see both in one second.

A start counts from the moment the user begins, not from the moment it is handed out: on a
busy machine the two differ by more than 50 ms.

Pure: no clock, no I/O. The driver drops starts that have waited too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

# Makes up for 50 ms in each second.
MOST = 1.05
# The starts of this long count, so that a second at the target has no more than its share even if
# the way there shortens the distance between two starts by 20 ms.
WINDOW_S = 1.02
# A start that is later than this is spread. Shorter delays are common on a busy machine, and
# spreading their starts would make them later still.
SPREAD_AFTER_S = 0.03
# How much of the spread may be made up for at once: two turns of the driver that releases them.
SPREAD_SLACK_S = 0.01
# The planned rate is read this often; each reading costs three searches in the schedule.
RATE_READ_S = 0.25


class CatchUpLimit:
    """Says whether a late start may begin now. `planned_until(t)` is the number of starts that
    the plan has up to second `t` of its own time; it begins at `begin_s` and ends at `end_s`."""

    def __init__(
        self, planned_until: Callable[[float], int], begin_s: float = 0.0, end_s: float = inf
    ) -> None:
        self._planned_until = planned_until
        self._begin_s, self._end_s = begin_s, end_s
        self._rate_read_at = -inf
        self._most = 1
        # The earliest moment for the next late start.
        self._spread_at = -inf
        # When the starts of the last `WINDOW_S` began; older ones are removed from the left.
        self._made: deque[float] = deque()
        # Starts that were handed out and have not begun. They count, or a burst of them could
        # begin together.
        self._handed_out = 0

    def follow(
        self, planned_until: Callable[[float], int], begin_s: float, end_s: float = inf
    ) -> None:
        """Uses another plan from here on. Starts of the old plan no longer count."""
        self._made.clear()
        self._spread_at = -inf
        self._planned_until = planned_until
        self._begin_s, self._end_s = begin_s, end_s
        self._rate_read_at = -inf

    def spend(self, now_s: float, late_s: float = 0.0) -> bool:
        """Hands out one start, planned `late_s` ago, if one more may begin now; `now_s` is the
        plan's time. The caller reports it with `started` when it begins, or `returned` if it
        never does."""
        is_late = late_s > SPREAD_AFTER_S
        if is_late and now_s < self._spread_at:
            return False
        made = self._made
        while made and made[0] <= now_s - WINDOW_S:
            made.popleft()
        if now_s - self._rate_read_at >= RATE_READ_S:
            self._rate_read_at = now_s
            # The larger of the second before and the second after: at the end of a ramp, the
            # second after alone would be too few. Both lie inside the plan: a second that
            # reaches beyond it has too few starts, and in a plan of a second or two, such as one
            # after a late change of the rate, both would.
            before = self._second_from(max(now_s - 1.0, self._begin_s))
            per_s = max(before, self._second_from(min(now_s, self._end_s - 1.0)))
            # 5 % of a few starts a second is less than one start.
            self._most = max(int(MOST * per_s), per_s + 1)
        if len(made) + self._handed_out >= self._most:
            return False
        if is_late:
            since_s = max(self._spread_at, now_s - SPREAD_SLACK_S)
            self._spread_at = since_s + WINDOW_S / self._most
        self._handed_out += 1
        return True

    def _second_from(self, at_s: float) -> int:
        # A start that is planned for `begin_s` itself belongs to the first second.
        done = self._planned_until(at_s) if at_s > self._begin_s else 0
        return self._planned_until(at_s + 1.0) - done

    def started(self, now_s: float) -> None:
        self._handed_out -= 1
        self._made.append(now_s)

    def returned(self) -> None:
        self._handed_out -= 1
