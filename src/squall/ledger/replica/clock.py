"""The group clock as one member knows it: milliseconds that never go back.

The primary continues it by its own monotonic clock, heartbeats and entries carry it, and
votes carry it over a change of primary. Wall time counts only when the whole quorum of a
view change restarted: then the smallest time away is added, because nobody knows better.
"""

from __future__ import annotations

from collections.abc import Iterable

from squall.ledger.replica.messages import Vote

AWAY_MS_MAX = 24 * 3600 * 1000


class GroupClock:
    def __init__(self, group_ms: int, away_ms: int) -> None:
        self.is_heard = False
        """Whether it runs: heard, or led, since this member started."""
        self.away_ms = min(max(away_ms, 0), AWAY_MS_MAX)
        self._ms = group_ms
        self._at = 0.0

    def read(self, now: float) -> int:
        if not self.is_heard:
            return self._ms
        return self._ms + int((now - self._at) * 1000.0)

    def hear(self, group_ms: int, now: float) -> None:
        present = self.read(now)
        if not self.is_heard or group_ms > present:
            self._ms = max(group_ms, present)
            self._at = now
            self.is_heard = True

    def floor(self, group_ms: int) -> None:
        """An entry of the log carries it; without having heard the clock it stands there."""
        if not self.is_heard:
            self._ms = max(self._ms, group_ms)


def continued_from(votes: Iterable[Vote]) -> tuple[int, bool]:
    """Where a new primary goes on, and whether the whole quorum had restarted."""
    votes = list(votes)
    awake = [vote.group_ms for vote in votes if not vote.is_restarted]
    latest = max(vote.group_ms for vote in votes)
    if awake:
        return max(max(awake), latest), False
    return latest + min(vote.away_ms for vote in votes), True
