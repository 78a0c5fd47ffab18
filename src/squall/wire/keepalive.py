"""Looks at all links of a node in turn, each once per interval.

A manager has thousands of links, and a timer for each costs more than the look itself. Links
are kept in the order of their turns; those whose turns are close together share one timer.
Between two looks at a link there is at least most of an interval, and at most one of them
plus what the loop is late: by how much it was, a link is told.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from squall.runtime.interfaces import Clock

SHARED = 1 / 16
"""The part of an interval within which turns are taken together."""


class Looked(Protocol):
    def look(self, now: float, late_s: float) -> None:
        """`late_s`: how long after its turn."""
        ...


class KeepAlive:
    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._turns: dict[Looked, float] = {}
        """When the turn of each is, the next one first."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, link: Looked) -> None:
        self._turns.pop(link, None)
        self._turns[link] = self._clock.now() + self._interval_s
        if self._timer is None:
            self._wait(self._interval_s)

    def discard(self, link: Looked) -> None:
        self._turns.pop(link, None)
        if not self._turns and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(delay_s, self._interval_s * SHARED), self._look)

    def _look(self) -> None:
        self._timer = None
        now, turns = self._clock.now(), self._turns
        until = now + self._interval_s * SHARED
        ripe: list[tuple[Looked, float]] = []
        for link, turn in turns.items():
            if turn > until:
                break
            ripe.append((link, turn))
        for link, turn in ripe:
            # One look may end other links.
            if turns.pop(link, None) is not None:
                turns[link] = now + self._interval_s
                late_s = now - turn
                link.look(now, late_s if late_s > 0.0 else 0.0)
        first = next(iter(turns.values()), None)
        if first is not None and self._timer is None:
            self._wait(first - now)
