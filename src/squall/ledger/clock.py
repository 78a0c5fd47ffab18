"""The group clock: milliseconds that continue from entry to entry and never go back.

A primary continues from the last value it knows by the boot time of its machine: a
monotonic clock that also counts suspended time, in which workers went on. Only when
everybody who knew the time restarted is the gap taken from the wall clock, and no more
than a day of it: a wall clock may be wrong in both directions.

Pure: `now_s` is a reading of `Clock.boot_time()`, given by the caller.
"""

from __future__ import annotations

from squall.ledger.interface import GroupMs

LONGEST_GAP_MS = 24 * 3600 * 1000


class GroupClock:
    def __init__(self, group_ms: int, now_s: float) -> None:
        self._base_ms = group_ms
        self._base_s = now_s
        self._last_ms = group_ms

    def read(self, now_s: float) -> GroupMs:
        present = self._base_ms + int((now_s - self._base_s) * 1000.0)
        if present > self._last_ms:
            self._last_ms = present
        return GroupMs(self._last_ms)

    def hear(self, group_ms: int, now_s: float) -> None:
        """Somebody of the group read this; goes on from there when it is ahead of us."""
        if group_ms > self.read(now_s):
            self._base_ms, self._base_s = group_ms, now_s
            self._last_ms = group_ms


def after_restart(group_ms: int, wall_ms: int, wall_now_ms: int) -> int:
    """Where the clock goes on when the last known reading was taken at `wall_ms`."""
    return group_ms + min(max(wall_now_ms - wall_ms, 0), LONGEST_GAP_MS)
