"""The group clock as one member knows it: milliseconds that never go back (R10).

The primary advances it by its own monotonic clock. Heartbeats and entries carry it to the
followers, and votes carry it to the next primary. The time away counts only if the whole quorum
of a view change has restarted: no member then knows the time, and the smallest one is added. A
process that was restarted knows it from the kernel's CLOCK_BOOTTIME, which nobody can set. Only
after a restart of the machine does it depend on the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from squall.cluster.ledger.interface import GroupMs
from squall.cluster.ledger.replica.messages import Vote

AWAY_MS_MAX = 24 * 3600 * 1000
"""A restart adds at most one day from wall clocks, which may be wrong in both directions."""


class GroupClock:
    """Computes the group's time from the last value heard and this machine's monotonic clock."""

    def __init__(self, group_ms: int, away_ms: int) -> None:
        # The clock runs: since its start this member heard the time from a primary, or led.
        self.is_heard = False
        self.away_ms = min(max(away_ms, 0), AWAY_MS_MAX)
        self._ms = group_ms
        self._at = 0.0

    def read(self, now: float) -> GroupMs:
        if not self.is_heard:
            return GroupMs(self._ms)
        return GroupMs(self._ms + int((now - self._at) * 1000.0))

    def observe(self, group_ms: int, now: float) -> None:
        present = self.read(now)
        if not self.is_heard or group_ms > present:
            self._ms = max(group_ms, present)
            self._at = now
            self.is_heard = True

    def floor(self, group_ms: int) -> None:
        """Raises a clock that does not run yet to the time of a log entry."""
        if not self.is_heard:
            self._ms = max(self._ms, group_ms)


def running_from(group_ms: int, now: float) -> GroupClock:
    """Returns a clock that runs from `group_ms`, known to be the present time."""
    clock = GroupClock(group_ms, 0)
    clock.observe(group_ms, now)
    return clock


class ClockStamp(NamedTuple):
    """Readings of the clocks of a machine at one moment."""

    wall_ms: int
    boot_ms: int = 0
    kernel: int = 0
    """A sum of the id of the kernel boot; 0: unknown."""


def away_since(stamp: ClockStamp, now: ClockStamp) -> int:
    """Returns the time between two stamps of one machine, within 0 and one day."""
    if stamp.kernel and stamp.kernel == now.kernel:
        return away_ms(stamp.boot_ms, now.boot_ms)
    return away_ms(stamp.wall_ms, now.wall_ms)


def away_ms(stamp_ms: int, now_ms: int) -> int:
    """Returns the time between two readings of one clock, within 0 and one day."""
    return min(max(now_ms - stamp_ms, 0), AWAY_MS_MAX)


def continued_from(votes: Iterable[Vote]) -> tuple[int, bool]:
    """Returns the time from which a new primary continues, and whether all voters restarted."""
    votes = list(votes)
    awake = [vote.group_ms for vote in votes if not vote.is_restarted]
    latest = max(vote.group_ms for vote in votes)
    if awake:
        return max(max(awake), latest), False
    return latest + min(vote.away_ms for vote in votes), True
