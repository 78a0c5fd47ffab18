"""A simulated machine that runs one program, boot after boot.

The machine owns what survives a process: disk, wall clock, pace of its oscillator. A
boot is one process with its runtime; when it is gone, none of its code runs again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum

from lab.sim.clock import SimClock, WallClock
from lab.sim.disk.disk import NodeDisk, SimDisk
from lab.sim.errors import OutsideWorldError
from lab.sim.loop import SimLoop
from lab.sim.network.names import NameTable, SimResolver
from lab.sim.network.network import NodeNetwork, SimNetwork
from lab.sim.process import SimProcess
from squall.runtime.interfaces import (
    BootId,
    Clock,
    Disk,
    Network,
    NodeId,
    Process,
    Processes,
    Resolver,
    Runtime,
)

Program = Callable[[Runtime], Awaitable[None]]
"""What a node runs; returns or raises to end its process, is cancelled to stop it."""


class State(StrEnum):
    OFF = "off"
    """No power: the host does not answer."""
    ENDED = "ended"
    """The host is up and the process is gone."""
    RUNNING = "running"
    PAUSED = "paused"
    SUSPENDED = "suspended"


class SimRuntime:
    """Everything that one boot of a node may ask for."""

    def __init__(
        self,
        node: str,
        boot: str,
        clock: Clock,
        draw: random.Random,
        network: Network,
        resolver: Resolver,
        disk: Disk,
        processes: Processes,
    ) -> None:
        self.node = NodeId(node)
        self.boot = BootId(boot)
        self.clock = clock
        self.random = draw
        self.network = network
        self.resolver = resolver
        self.disk = disk
        self.processes = processes

    def entropy(self, size: int) -> bytes:
        return self.random.randbytes(size)


class NoProcesses:
    """A scenario that needs processes gives a model of them to `World.add`."""

    async def spawn(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        inherit: Sequence[int] = (),
        niceness: int = 0,
    ) -> Process:
        raise OutsideWorldError(f"cannot start {command[0]}: the simulation has no processes")


class Node:
    """One machine. Only `World` changes it."""

    def __init__(
        self,
        name: str,
        program: Program,
        disk: SimDisk,
        seed: str,
        *,
        exits_on: tuple[type[BaseException], ...] = (),
        processes: Callable[[SimProcess], Processes] | None = None,
    ) -> None:
        self.name = name
        self.program = program
        self.disk = disk
        self.exits_on = exits_on
        self.wall = WallClock()
        self.rate = 1.0
        self.state = State.OFF
        self.boots = 0
        self.process: SimProcess | None = None
        self.main: asyncio.Task[None] | None = None
        self.runtime: SimRuntime | None = None
        self.halted_since = 0.0
        self._seed = seed
        self._processes = processes
        self._uptime_s = random.Random(f"{seed}/uptime").uniform(10.0, 1e6)
        self._uptime_at = 0.0
        # Of the time since the last loss of power; the next process continues with it.
        self._suspended_s = 0.0
        self.power_losses = 0

    @property
    def is_up(self) -> bool:
        """The host has power."""
        return self.state is not State.OFF

    @property
    def runs(self) -> bool:
        """Its code runs, now."""
        return self.state is State.RUNNING

    def boot(self, loop: SimLoop, network: SimNetwork, names: NameTable) -> None:
        """Starts the next process of this machine; its task begins in the next turn."""
        self.boots += 1
        seed = f"{self._seed}/boot {self.boots}"
        process = SimProcess(
            self.name,
            world_now=loop.now,
            clock_start=self._uptime_s + (loop.now - self._uptime_at) * self.rate,
            rate=self.rate,
        )
        process.suspended_s = self._suspended_s
        draw = random.Random(seed)
        clock = SimClock(loop, process, self.wall, f"{self.name} kernel {self.power_losses}")
        self.runtime = SimRuntime(
            self.name,
            f"{self.name}.{self.boots}.{draw.getrandbits(32):08x}",
            clock,
            draw,
            NodeNetwork(network, process, self.name),
            SimResolver(names, clock),
            NodeDisk(self.disk, loop, process),
            self._processes(process) if self._processes else NoProcesses(),
        )
        self.process = process
        self.state = State.RUNNING
        main = _main(self.program, self.runtime)
        self.main = process.context.copy().run(loop.create_task, main, name=f"{self.name} main")

    def note_uptime(self, now: float, *, power_lost: bool) -> None:
        """Stores the clock reading from which the next boot continues; a loss of power draws a new
        one."""
        assert self.process is not None
        uptime = random.Random(f"{self._seed}/uptime {self.boots}").uniform(5.0, 60.0)
        self._uptime_s = uptime if power_lost else self.process.local_time(now)
        self._suspended_s = 0.0 if power_lost else self.process.suspended_s
        self.power_losses += power_lost
        self._uptime_at = now


async def _main(program: Program, runtime: Runtime) -> None:
    await program(runtime)
