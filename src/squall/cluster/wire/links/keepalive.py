"""Checks every link of a node once per interval.

A manager has thousands of links, and a timer for each would cost more than the check itself.
Links are kept in the order of their turns, and links whose turns are close together share one
timer. If the event loop was late, the check receives the delay, so a busy process does not
declare its peers dead. An idle link is checked only every `IDLE` intervals until it is added
again.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from squall.runtime.interfaces import Clock

IDLE = 4
SHARED = 1 / 16
"""The part of an interval within which turns share a timer."""


class CheckedLink(Protocol):
    def check(self, now: float, late_s: float) -> bool:
        """Checks the link; returns whether it idles. `late_s`: delay of this check."""
        ...


class KeepAlive:
    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        # The time of each link's next check, the next one first.
        self._turns: dict[CheckedLink, float] = {}
        # The same for idle links.
        self._idle: dict[CheckedLink, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return len(self._turns) + len(self._idle)

    def add(self, link: CheckedLink) -> None:
        self._forget(link)
        now = self._clock.now()
        self._turns[link] = now + self._interval_s
        if self._timer is None or self._timer_at > now + self._interval_s:
            self._wait(now, self._interval_s)

    def discard(self, link: CheckedLink) -> None:
        self._forget(link)
        if not len(self) and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget(self, link: CheckedLink) -> None:
        self._turns.pop(link, None)
        self._idle.pop(link, None)

    def _wait(self, now: float, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(delay_s, self._interval_s * SHARED)
        self._timer_at = now + delay_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._check_due)

    def _check_due(self) -> None:
        self._timer = None
        now = self._clock.now()
        for queue in (self._turns, self._idle):
            self._check_queue(queue, now)
        firsts = [next(iter(queue.values())) for queue in (self._turns, self._idle) if queue]
        if firsts and self._timer is None:
            self._wait(now, min(firsts) - now)

    def _check_queue(self, queue: dict[CheckedLink, float], now: float) -> None:
        """Checks the links whose turn it is."""
        until = now + self._interval_s * SHARED
        ripe: list[tuple[CheckedLink, float]] = []
        for link, turn in queue.items():
            if turn > until:
                break
            ripe.append((link, turn))
        for link, turn in ripe:
            # A check may end other links.
            if queue.pop(link, None) is None:
                continue
            # Set before the check, which may close the link.
            self._turns[link] = now + self._interval_s
            late_s = now - turn
            if link.check(now, late_s if late_s > 0.0 else 0.0) and link in self._turns:
                del self._turns[link]
                self._idle[link] = now + IDLE * self._interval_s
