"""A simulated world for tests of whole members: virtual time, one memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from lab.scenarios.coordination.store import WorldClock
from lab.sim.clock import WALL_EPOCH_S
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from lab.stores.faulty import FaultyStore, StoreFaults
from squall.coordination.coordinator import Coordinator
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.stores.memory.store import MemoryStore
from squall.coordination.timing import Timing
from squall.runtime.interfaces import Runtime

NORMAL = Timing()
FAST = Timing(
    heartbeat_interval=0.5,
    heartbeat_ttl=3.0,
    dead_after=4.5,
    monitor_interval=0.5,
    lease_ttl=2.0,
    min_epoch_duration=0.0,
    max_epoch_duration=10.0,
    cold_start_observation_window=0.0,
    cold_start_preparation_delay=0.0,
    rank_delay=0.02,
    rank_delay_cap=0.2,
    retention=60.0,
    work_interval=0.1,
)
SECRET = "5ec2e7" * 12
# The epoch of a leader that is elected in the first second of the world.
FIRST_EPOCH = int(WALL_EPOCH_S)


class Lab:
    """Members by name on one store. `faults[name]` are those of one member's connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = MemoryStore(WorldClock(world, 1.0))
        self.members: dict[str, Coordinator] = {}
        self.faults: dict[str, StoreFaults] = {}

    def member(
        self,
        name: str,
        plugin: Callable[[str], CoordinatorPlugin] | None = None,
        **options: object,
    ) -> None:
        """Adds a machine that is started by `world.start(name)`; its member is replaced at
        each boot."""
        chosen = {
            "profile": FAST,
            "unsafe_timings": True,
            "secret": SECRET,
            "ack_timeout": 1.0,
            "retry_base": 0.2,
        } | options

        async def program(runtime: Runtime) -> None:
            faults = self.faults.setdefault(name, StoreFaults())
            store = FaultyStore(self.store, runtime.clock, runtime.random, faults)
            plugins = () if plugin is None else (plugin(name),)
            coordinator = Coordinator(store, *plugins, member_id=name, runtime=runtime, **chosen)
            self.members[name] = coordinator
            async with coordinator:
                await runtime.clock.sleep(1e6)

        self.world.add(name, program)

    def start(self, *names: str, **options: Any) -> None:
        for name in names:
            self.member(name, **options)
            self.world.start(name)

    async def ready(self, *names: str) -> None:
        """Waits until these members run."""
        await self.world.eventually(
            lambda: all(
                name in self.members and self.members[name].current_coordinator for name in names
            ),
            within_s=10.0,
            what="members run",
        )

    def run_on(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """As a task of that member's process."""
        process = self.world.nodes[name].process
        assert process is not None
        context = process.context.copy()
        return context.run(asyncio.get_running_loop().create_task, work)

    @property
    def leaders(self) -> list[str]:
        return [
            name
            for name, member in self.members.items()
            if self.world.nodes[name].runs and member.is_coordinator
        ]

    async def led(self, within_s: float = 10.0, *, but: str = "") -> str:
        """Waits until exactly one member leads, and names it."""
        await self.world.eventually(
            lambda: len(self.leaders) == 1 and self.leaders[0] != but,
            within_s=within_s,
            what="one leads",
        )
        return self.leaders[0]


def play(
    script: Callable[[Lab], Awaitable[None]], *, seed: int = 1, limit_s: float = 3600.0
) -> None:
    """Runs a script in a world of its own; what it raises fails the test. After `limit_s`
    virtual seconds it counts as stuck."""

    async def scenario(world: World) -> None:
        await script(Lab(world))

    outcome = run_seed(Scenario("test", "", scenario, limit_s=limit_s), seed)
    assert outcome.clean, outcome.failure + "\n" + outcome.details
