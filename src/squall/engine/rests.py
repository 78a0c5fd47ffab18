"""When users rest: think time, pacing, and the pause after a quick failure.

A resting user is in no iteration, so it can be woken at any moment: at the end of the
run nobody waits for somebody who thinks.
"""

from __future__ import annotations

import asyncio
import random
from time import perf_counter

from squall.api.workflow import VU
from squall.stats.manifest import Profile

QUICK_FAILURE_S = 0.050
"""A failed iteration shorter than this would spin a core against a dead target."""
FIRST_REST_S = 0.010
LONGEST_REST_S = 1.0


class Rests:
    """The resting users of one share."""

    def __init__(self, profile: Profile, randomness: random.Random) -> None:
        self._think_s = profile.think_s
        self._pacing_s = profile.pacing_s
        self._random = randomness
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
        """After an iteration that ended without an answer: longer each time, up to 1 s."""
        seconds = 0.0
        if took_s < QUICK_FAILURE_S:
            seconds = min(FIRST_REST_S * 2 ** min(failures - 1, 10), LONGEST_REST_S)
            # Users that failed together must not come back together.
            seconds *= self._random.uniform(0.5, 1.0)
        await self._rest(vu, seconds)

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
