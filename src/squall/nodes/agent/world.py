"""The world of a node whose links go through a store: the given one, with another network.

An agent is two nodes in one process, a worker and at times a manager. Both have the name of
the agent; the manager has a boot of its own for each term, because it begins anew each time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from squall.runtime.interfaces import BootId, Clock, Disk, Network, NodeId, Processes, Runtime

BOOT_ID_BYTES = 8


@dataclass(frozen=True)
class World:
    """A `Runtime`. Without a `boot` of its own it is the boot of the process."""

    base: Runtime
    network: Network
    own_boot: str = ""

    @property
    def node(self) -> NodeId:
        return self.base.node

    @property
    def boot(self) -> BootId:
        return BootId(self.own_boot) if self.own_boot else self.base.boot

    @property
    def clock(self) -> Clock:
        return self.base.clock

    @property
    def random(self) -> random.Random:
        return self.base.random

    @property
    def disk(self) -> Disk:
        return self.base.disk

    @property
    def processes(self) -> Processes:
        return self.base.processes

    def entropy(self, size: int) -> bytes:
        return self.base.entropy(size)


def new_boot(runtime: Runtime) -> str:
    return runtime.entropy(BOOT_ID_BYTES).hex()
