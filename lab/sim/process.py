"""The simulated process that a callback belongs to, with its own pace of time.

Asyncio carries a context from a task to all that it starts, so the context variable
`OWNER` names the process of every callback and timer. The loop asks the
process whether it runs, is paused or is dead. Nothing here schedules anything.

A process reads a monotonic clock of its own: it began at an arbitrary value, runs a
little fast or slow, and stands still while the machine is suspended.
"""

from __future__ import annotations

from contextvars import Context, ContextVar
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from lab.sim.loop import Item


class Standing(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class SimProcess:
    """One boot of a node, as the loop sees it."""

    def __init__(
        self, name: str, *, world_now: float = 0.0, clock_start: float = 0.0, rate: float = 1.0
    ) -> None:
        self.name = name
        self.standing = Standing.RUNNING
        # Callbacks that became due while the process was paused, in order.
        self.held: list[Item] = []
        # Unfinished tasks of a dead process, kept so that no `finally` of theirs runs.
        self.unfinished: list[asyncio.Task[object]] = []
        self.context = Context()
        self.context.run(OWNER.set, self)
        self.suspended_s = 0.0
        self._rate = rate
        self._world_anchor = world_now
        self._local_anchor = clock_start

    @property
    def alive(self) -> bool:
        return self.standing is not Standing.DEAD

    def local_time(self, world_time: float) -> float:
        return self._local_anchor + (world_time - self._world_anchor) * self._rate

    def world_time(self, local_time: float) -> float:
        return self._world_anchor + (local_time - self._local_anchor) / self._rate

    def set_rate(self, rate: float, world_now: float) -> None:
        self._local_anchor = self.local_time(world_now)
        self._world_anchor = world_now
        self._rate = rate

    def skip(self, world_since: float, world_now: float) -> None:
        """The machine was suspended: its monotonic clock did not count that time."""
        self._local_anchor = self.local_time(world_since)
        self._world_anchor = world_now
        self.suspended_s += world_now - world_since

    def __repr__(self) -> str:
        return f"<process {self.name} {self.standing.value}>"


OWNER: ContextVar[SimProcess | None] = ContextVar("squall_sim_owner", default=None)
KERNEL = SimProcess("kernel")
"""Owner of what no process does: packets in flight, timers of the network."""
