"""Wakes everything that waits for one moment in one turn of the loop, by one timer.

A process may hold a thousand members. If each had a timer of its own, each beat would cost a
turn of the loop, a system call to send and one to read; beats that begin in the same turn share
them. So what repeats begins at one of fifty moments per interval. A clock that is not that of
the machine, as in a simulation, keeps time by itself.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from squall.runtime.interfaces import Clock
from squall.runtime.real import RealClock

PER_INTERVAL = 50
"""Fewer would hold up the loop of a large process for longer, and make work for the collector
of garbage."""
ROUNDING = 1e-6


def next_moment(at: float, interval: float) -> float:
    """The first one that is not before `at`: the same number for all with this interval."""
    apart = interval / PER_INTERVAL
    return math.ceil(at / apart - ROUNDING) * apart


class Moments:
    """Of one loop. A moment is the same number for all who wait for it."""

    def __init__(self) -> None:
        self._waiting: dict[float, list[asyncio.Future[None]]] = {}

    async def reach(self, clock: Clock, moment: float) -> None:
        """Returns when the clock shows that."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.get(moment)
        if waiting is None:
            waiting = self._waiting[moment] = []
            loop.call_later(max(moment - clock.now(), 0.0), self._wake, moment)
        waiting.append(woken)
        await woken

    def _wake(self, moment: float) -> None:
        for woken in self._waiting.pop(moment):
            if not woken.done():
                woken.set_result(None)


_moments: WeakKeyDictionary[asyncio.AbstractEventLoop, Moments] = WeakKeyDictionary()


def reach_by(clock: Clock) -> Callable[[float], Awaitable[None]]:
    """Sleeps until a moment of this clock, together with all others of the loop."""
    kind = type(clock)
    if kind.now is not RealClock.now or kind.sleep is not RealClock.sleep:
        return functools.partial(_alone, clock)
    loop = asyncio.get_running_loop()
    shared = _moments.get(loop)
    if shared is None:
        shared = _moments[loop] = Moments()
    return functools.partial(shared.reach, clock)


async def _alone(clock: Clock, moment: float) -> None:
    await clock.sleep(max(moment - clock.now(), 0.0))
