"""Wakes all heartbeat loops of a process that are due at the same tick in one turn of the loop.

A process may hold a thousand members. If each had a timer of its own, each beat would cost a turn
of the event loop, one system call to send and one to read. Beats that begin in the same turn share
them, so beats begin only at ticks: fifty per heartbeat interval.

The timer asks nothing but `now` and `sleep` of its clock, so the simulation runs the same code.
"""

from __future__ import annotations

import asyncio
import math
from weakref import WeakValueDictionary

from squall.runtime.interfaces import Clock

# With fewer ticks more beats fall on one, and a large process would hold up its loop for longer.
TICKS_PER_INTERVAL = 50
# A time that is a tick already must stay the same tick in spite of the error of the division.
ROUNDING = 1e-6


def next_tick(at: float, interval: float) -> float:
    """The first tick at or after `at`: exactly the same float for every loop of this interval."""
    apart = interval / TICKS_PER_INTERVAL
    return math.ceil(at / apart - ROUNDING) * apart


class SharedTimer:
    """Sleeps once per tick, however many callers wait for it.

    The first caller for a tick sleeps; the others wait for futures that it resolves.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        # The loop is held so that its id, the key in `_timers`, is not given to another one.
        self._loop = loop
        self._clock = clock
        # Per tick that a caller sleeps for: the others. True says that the tick is reached, False
        # that the sleeper was cancelled and another one must sleep.
        self._waiting: dict[float, list[asyncio.Future[bool]]] = {}

    async def sleep_until(self, tick: float) -> None:
        while (waiting := self._waiting.get(tick)) is not None:
            reached = self._loop.create_future()
            waiting.append(reached)
            if await reached:
                return
        self._waiting[tick] = []
        is_reached = False
        try:
            await self._clock.sleep(max(tick - self._clock.now(), 0.0))
            is_reached = True
        finally:
            for reached in self._waiting.pop(tick):
                if not reached.done():
                    reached.set_result(is_reached)
        # The others run in the next turn of the loop; the sleeper joins them there.
        await asyncio.sleep(0)


# One per loop and clock, by their ids: a key that held the loop would keep a closed one alive. An
# entry goes with the last heartbeat loop that uses it.
_timers: WeakValueDictionary[tuple[int, int], SharedTimer] = WeakValueDictionary()


def shared_timer(clock: Clock) -> SharedTimer:
    """The timer of the running loop for this clock. All real runtimes of a process have one clock;
    in the simulation each process has its own, because its clock may drift or stop."""
    loop = asyncio.get_running_loop()
    key = (id(loop), id(clock))
    timer = _timers.get(key)
    if timer is None:
        timer = _timers[key] = SharedTimer(loop, clock)
    return timer
