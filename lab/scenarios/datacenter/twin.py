"""A second worker under the name of one that lives on.

A machine is replaced, or two are set up with one name: the twin has the name of a worker and an
empty directory. While the worker is cut off from the managers, they give its name to the twin; the
worker makes load until its lease ends, and nothing that the twin says may shorten that (R6).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from lab.sim.world import World
from squall.runtime.interfaces import NodeId, Runtime

TWIN = "twin"
BEGINS_S = (3.0, 25.0)
ALONE_S = (0.5, 2.0)
"""From the cut to the start of the twin: some twins ask while the other is still heard."""
APART_S = (4.0, 10.0)
"""How long the worker stays cut off: one to three leases."""


class NamedRuntime:
    """The runtime of the twin's machine, under the name of the worker."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self.node = NodeId(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


async def start_twin(
    world: World, managers: Sequence[str], worker: str, draw: random.Random
) -> None:
    """Cuts the worker off, starts the twin, and lets the worker return."""
    await asyncio.sleep(draw.uniform(*BEGINS_S))
    mend = world.partition((worker,), managers)
    await asyncio.sleep(draw.uniform(*ALONE_S))
    world.count("twins")
    world.start(TWIN)
    await asyncio.sleep(draw.uniform(*APART_S))
    mend()
