"""The real world for one boot of one node: clocks, randomness, network, disk, processes.

It decides nothing about the node; it must never be named by node code, which knows the
interfaces only.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
import time
from pathlib import Path

from squall.api.errors import ConfigError
from squall.runtime.interfaces import BootId, NodeId
from squall.runtime.real_disk import RealDisk
from squall.runtime.real_network import RealNetwork
from squall.runtime.real_processes import RealProcesses

BOOT_ID_BYTES = 8


class RealClock:
    """The kernel's clocks. The loop's own time has whole milliseconds; this has not."""

    def now(self) -> float:
        return time.monotonic()

    if sys.platform == "linux":

        def boot_time(self) -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    else:

        def boot_time(self) -> float:
            return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RealRuntime:
    """Make it on a running loop, close it at the end. Without `data_dir` there is no disk;
    without `seed` the randomness differs in each boot."""

    def __init__(
        self,
        node: str,
        boot: str | None = None,
        data_dir: Path | None = None,
        seed: int | None = None,
    ) -> None:
        self.node = NodeId(node)
        self.boot = BootId(boot or secrets.token_hex(BOOT_ID_BYTES))
        self.clock = RealClock()
        self.random = random.Random(seed)
        self.network = RealNetwork()
        self.processes = RealProcesses()
        self._disk = None if data_dir is None else RealDisk(data_dir)

    @property
    def disk(self) -> RealDisk:
        if self._disk is None:
            raise ConfigError(f"node {self.node} has no data directory: start it with one")
        return self._disk

    def entropy(self, size: int) -> bytes:
        return os.urandom(size)

    async def close(self) -> None:
        """Ends children, connections, files and threads that are still there."""
        await self.processes.close()
        await self.network.close()
        if self._disk is not None:
            await self._disk.close()
