"""The waits of users between two iterations: think time, pacing, failures, a paused load.

A waiting user is in no iteration, so it can be woken at any moment: the end of a run never waits
for think time.
"""

from __future__ import annotations

import asyncio
import random
from time import perf_counter

from squall.api.workflow import VU
from squall.runtime.backoff import Backoff
from squall.stats.manifest import Profile

# A user whose iterations fail faster than this would spin a core against a dead target.
QUICK_FAILURE_S = 0.050

# 10 ms costs a user one iteration if the failure was a single one; 1 s keeps thousands of users
# cheap while the target is down and still notices within a second that it is back. Half of it
# is drawn, because users that failed together must not come back together.
AFTER_FAILURE = Backoff(first_s=0.010, cap_s=1.0, jitter=0.5)


class ThinkTime:
    """Makes the users of one share wait between iterations, and wakes them early."""

    def __init__(self, profile: Profile, randomness: random.Random) -> None:
        self._think_s = profile.think_s
        self._pacing_s = profile.pacing_s
        self._random = randomness
        # How long users rested after failures since the last `take_rested_s`.
        self._rested_s = 0.0
        self._resting: dict[VU, asyncio.Future[None]] = {}

    @property
    def thinks(self) -> bool:
        return self._think_s is not None or self._pacing_s is not None

    @property
    def count(self) -> int:
        return len(self._resting)

    async def between(self, vu: VU, began: float) -> None:
        """Between two iterations: think, and at least the pacing from start to start."""
        seconds = 0.0
        if self._think_s is not None:
            low, high = self._think_s
            seconds = low if low == high else self._random.uniform(low, high)
        if self._pacing_s is not None:
            seconds = max(seconds, began + self._pacing_s - perf_counter())
        await self._rest(vu, seconds)

    async def after_failure(self, vu: VU, failures: int, took_s: float) -> None:
        """After an iteration in which nothing was answered: longer each time, up to 1 s."""
        seconds = 0.0
        if took_s < QUICK_FAILURE_S:
            seconds = AFTER_FAILURE.delay_s(failures, self._random.uniform)
        if seconds <= 0.0:
            await self._rest(vu, 0.0)
            return
        began = perf_counter()
        try:
            await self._rest(vu, seconds)
        finally:
            self._rested_s += perf_counter() - began

    def take_rested_s(self) -> float:
        """How long users rested after failures since the last call; rests that are not over are
        in the next one."""
        rested_s, self._rested_s = self._rested_s, 0.0
        return rested_s

    def wake(self, vu: VU) -> None:
        future = self._resting.get(vu)
        if future is not None and not future.done():
            future.set_result(None)

    def wake_all(self) -> None:
        for vu in list(self._resting):
            self.wake(vu)

    async def _rest(self, vu: VU, seconds: float) -> None:
        if seconds <= 0.0 or vu.stop:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        handle = loop.call_later(seconds, self.wake, vu)
        self._resting[vu] = future
        try:
            await future
        finally:
            handle.cancel()
            del self._resting[vu]


class Pause:
    """Holds the users of one share between two iterations while the load is paused.

    A paused user keeps its connections, its cookies and its place in the feeds. The hot loop
    knows nothing of it: a pause ends each user's loop by the flag that ends it anyway, and
    the share starts the loop again afterwards.
    """

    def __init__(self) -> None:
        self.paused = False
        self._waiting: list[asyncio.Future[None]] = []

    async def changed(self) -> None:
        """Returns at the next `wake`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            # A user that was cancelled while it waited has cancelled its future too.
            if not future.done():
                future.set_result(None)
