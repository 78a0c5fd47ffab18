"""A runtime whose network goes through a store.

An agent is two nodes in one process: a worker, and a manager while it leads. Both have the
agent's name; the manager has a new boot id for each term, because each term starts a new one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from squall.runtime.interfaces import (
    BootId,
    Clock,
    Disk,
    Network,
    NodeId,
    Processes,
    Resolver,
    Runtime,
)

BOOT_ID_BYTES = 8


@dataclass(frozen=True)
class StoreRuntime:
    """The `base` runtime with another network and, if given, another boot id."""

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
    def resolver(self) -> Resolver:
        return self.base.resolver

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
