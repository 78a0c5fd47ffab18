"""Looks at all links of a node in turn, each once per interval.

A manager has thousands of links, and a timer for each costs more than the look itself. Links
are kept in the order of their turns; those whose turns are close together share one timer.
Between two looks at a link there is at least most of an interval, and at most one of them
plus what the loop is late: by how much it was, a link is told. One that idles is looked at
after `IDLE` intervals only, unless it is added anew.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from squall.runtime.interfaces import Clock

IDLE = 4
SHARED = 1 / 16
"""The part of an interval within which turns are taken together."""


class Looked(Protocol):
    def look(self, now: float, late_s: float) -> bool:
        """Whether it idles. `late_s`: how long after its turn it is looked at."""
        ...


class KeepAlive:
    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._turns: dict[Looked, float] = {}
        """When the turn of each is, the next one first."""
        self._idle: dict[Looked, float] = {}
        """The same for those that idle."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return len(self._turns) + len(self._idle)

    def add(self, link: Looked) -> None:
        self._forget(link)
        now = self._clock.now()
        self._turns[link] = now + self._interval_s
        if self._timer is None or self._timer_at > now + self._interval_s:
            self._wait(now, self._interval_s)

    def discard(self, link: Looked) -> None:
        self._forget(link)
        if not len(self) and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget(self, link: Looked) -> None:
        self._turns.pop(link, None)
        self._idle.pop(link, None)

    def _wait(self, now: float, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(delay_s, self._interval_s * SHARED)
        self._timer_at = now + delay_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._clock.now()
        for queue in (self._turns, self._idle):
            self._look_at(queue, now)
        firsts = [next(iter(queue.values())) for queue in (self._turns, self._idle) if queue]
        if firsts and self._timer is None:
            self._wait(now, min(firsts) - now)

    def _look_at(self, queue: dict[Looked, float], now: float) -> None:
        """At those whose turn it is."""
        until = now + self._interval_s * SHARED
        ripe: list[tuple[Looked, float]] = []
        for link, turn in queue.items():
            if turn > until:
                break
            ripe.append((link, turn))
        for link, turn in ripe:
            # One look may end other links.
            if queue.pop(link, None) is None:
                continue
            # Before the look, which may be its last.
            self._turns[link] = now + self._interval_s
            late_s = now - turn
            if link.look(now, late_s if late_s > 0.0 else 0.0) and link in self._turns:
                del self._turns[link]
                self._idle[link] = now + IDLE * self._interval_s
