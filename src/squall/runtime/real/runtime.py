"""The real runtime of one boot of a node: clocks, randomness, network, disk, processes.

Node code never names it: it knows the interfaces only.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import secrets
import sys
import time
from pathlib import Path

from squall.api.errors import ConfigError
from squall.runtime.interfaces import Address, BootId, NodeId
from squall.runtime.real.disk import RealDisk
from squall.runtime.real.network import RealNetwork
from squall.runtime.real.processes import RealProcesses
from squall.runtime.real.resolver import RealResolver

BOOT_ID_BYTES = 8


@functools.cache
def _kernel_boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class RealClock:
    """The kernel's clocks, which are finer than the loop's whole milliseconds."""

    # The functions themselves, without a Python frame: every message and commit reads clocks.
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    if sys.platform == "linux":
        boot_time = staticmethod(functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    else:
        boot_time = staticmethod(time.monotonic)

    def kernel_boot(self) -> str:
        return _kernel_boot()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# One object for all runtimes of the process: members that share a clock share their timers.
CLOCK = RealClock()


class RealRuntime:
    """The runtime of one process. Make it on a running loop and close it at the end. Without
    `data_dir` there is no disk; without `seed` each boot draws other random numbers;
    without `dns_server` the system's are asked."""

    def __init__(
        self,
        node: str,
        boot: str | None = None,
        data_dir: Path | None = None,
        seed: int | None = None,
        dns_server: Address | None = None,
    ) -> None:
        self.node = NodeId(node)
        self.boot = BootId(boot or secrets.token_hex(BOOT_ID_BYTES))
        self.clock = CLOCK
        self.random = random.Random(seed)
        self.network = RealNetwork()
        self.resolver = RealResolver(dns_server)
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
        """Ends the remaining children, connections, files and threads."""
        await self.processes.close()
        await self.network.close()
        if self._disk is not None:
            await self._disk.close()
