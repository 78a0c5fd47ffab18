"""The clocks of one boot of a node.

Monotonic and boot time begin at arbitrary values, run a little fast or slow, and continue over
the processes of a machine until it loses power; the wall clock is off and may jump. All follow the
world's time; none moves by itself.
"""

from __future__ import annotations

import asyncio

from lab.sim.loop import SimLoop
from lab.sim.process import SimProcess

WALL_EPOCH_S = 1_800_000_000.0
"""What a correct wall clock shows at world time 0: January 2027."""


class WallClock:
    """The wall clock of a machine, which outlives its processes."""

    def __init__(self, error_s: float = 0.0) -> None:
        self.error_s = error_s


class SimClock:
    def __init__(self, loop: SimLoop, process: SimProcess, wall: WallClock, kernel: str) -> None:
        self._loop = loop
        self._process = process
        self._wall = wall
        self._kernel = kernel

    def now(self) -> float:
        return self._process.local_time(self._loop.now)

    def boot_time(self) -> float:
        return self._process.local_time(self._loop.now) + self._process.suspended_s

    def kernel_boot(self) -> str:
        """Changes with each loss of power, as boot time then begins anew."""
        return self._kernel

    def wall(self) -> float:
        return WALL_EPOCH_S + self._loop.now + self._wall.error_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
