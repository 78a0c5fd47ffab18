"""The random fault scheduler: injects the kinds of faults that the seed's swarm drew.

A run has two phases. In the first, faults come and go and nothing may break. Then
`end` heals the world, or a healthy core of it, and the scenario demands that the core
converges. The scheduler never ends what it did not begin, except by `end`.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from lab.sim.disk.disk import DiskProfile
from lab.sim.node import State
from lab.sim.swarm import Fault, Swarm
from lab.sim.world import World

Undo = Callable[[], None]
WALL_JUMP_S = 3600.0
EXITED_RESTART_S = 2.0
"""A process that ended by itself is restarted within this time, as a supervisor would."""
RESTART_S = 1.0
"""The same after the faults."""


class Faults:
    """The random fault scheduler of one run."""

    def __init__(
        self,
        world: World,
        swarm: Swarm,
        nodes: Sequence[str],
        *,
        most_down: int | None = None,
    ) -> None:
        """`most_down`: how many of `nodes` may be off or halted at once; None: all."""
        self._world = world
        self._swarm = swarm
        self._nodes = list(nodes)
        self._most_down = len(self._nodes) if most_down is None else most_down
        self._draw = world.random("faults")
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()
        self._begin: dict[Fault, Callable[[], Undo | None]] = {
            Fault.CRASH: self._crash,
            Fault.KILL: self._kill,
            Fault.PAUSE: self._pause,
            Fault.SUSPEND: self._suspend,
            Fault.PARTITION: self._partition,
            Fault.ONE_WAY: self._one_way,
            Fault.ISOLATE: self._isolate,
            Fault.SWIZZLE: self._swizzle,
            Fault.RESET: self._reset,
            Fault.WALL_JUMP: self._wall_jump,
            Fault.BIT_ROT: self._rot,
            Fault.LOST_DISK: self._lose_disk,
        }
        world.trace.note("faults", str(swarm))
        self._shape()

    async def run(self, duration_s: float) -> None:
        """Injects and ends faults for `duration_s`."""
        world = self._world
        end = world.now + duration_s
        for kind in self._swarm.intervals_s:
            self._schedule(kind)
        self._at(0.0, self._supervise)
        while self._agenda and self._agenda[0][0] <= end:
            when, _, action = heapq.heappop(self._agenda)
            await asyncio.sleep(max(when - world.now, 0.0))
            action()
        await asyncio.sleep(max(end - world.now, 0.0))

    def end(self, core: Sequence[str] | None = None) -> None:
        """Heals the world; with `core`, those nodes run well and the others are lost."""
        world = self._world
        self._agenda.clear()
        world.loop.shuffle = None
        world.heal()
        for name in self._nodes:
            node = world.nodes[name]
            if core is not None and name not in core:
                if node.is_up:
                    world.crash(name)
            elif node.state in (State.OFF, State.ENDED):
                world.start(name)
        world.trace.note("faults", "end" if core is None else f"end, core {','.join(core)}")

    # The agenda.

    def _at(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self._world.now + delay_s, next(self._sequence), action))

    def _schedule(self, kind: Fault) -> None:
        delay = self._draw.expovariate(1.0 / self._swarm.intervals_s[kind])
        self._at(delay, lambda: self._happen(kind))

    def _happen(self, kind: Fault) -> None:
        undo = self._begin[kind]()
        if undo is not None:
            # Mostly short: a restart in the middle of interrupted work finds more bugs.
            self._at(0.01 + self._draw.random() ** 3 * self._swarm.longest_s, undo)
        self._schedule(kind)

    def _supervise(self) -> None:
        for name in self._nodes:
            if self._world.nodes[name].state is State.ENDED:
                self._at(self._draw.uniform(0.0, EXITED_RESTART_S), self._starter(name))
        self._at(EXITED_RESTART_S, self._supervise)

    def _starter(self, name: str) -> Undo:
        def start() -> None:
            if self._world.nodes[name].state in (State.OFF, State.ENDED):
                self._world.start(name)

        return start

    # What holds from the start.

    def _shape(self) -> None:
        world, swarm = self._world, self._swarm
        world.shape(swarm.links)
        if Fault.SHUFFLE in swarm.faults:
            world.loop.shuffle = world.random("shuffle")
        for name in self._nodes:
            profile: DiskProfile = replace(swarm.disk)
            if Fault.FULL_DISK in swarm.faults and self._draw.random() < 0.3:
                profile.capacity_bytes = int(self._draw.uniform(2_000, 200_000))
            world.nodes[name].disk.profile = profile
            if swarm.drift:
                world.set_clock_rate(name, 1.0 + self._draw.uniform(-swarm.drift, swarm.drift))

    # Faults that begin and may end.

    def _victim(self) -> str | None:
        up = [name for name in self._nodes if self._world.nodes[name].runs]
        if not up or len(self._nodes) - len(up) >= self._most_down:
            return None
        return self._draw.choice(up)

    def _crash(self) -> Undo | None:
        name = self._victim()
        if name is None:
            return None
        self._world.crash(name)
        return self._starter(name)

    def _kill(self) -> Undo | None:
        name = self._victim()
        if name is None:
            return None
        self._world.kill(name)
        return self._starter(name)

    def _pause(self) -> Undo | None:
        name = self._victim()
        if name is None:
            return None
        self._world.pause(name)
        return lambda: self._world.resume(name)

    def _suspend(self) -> Undo | None:
        name = self._victim()
        if name is None:
            return None
        self._world.suspend(name)
        return lambda: self._world.resume(name)

    def _lose_disk(self) -> Undo | None:
        name = self._victim()
        if name is None:
            return None
        self._world.crash(name)
        self._world.nodes[name].disk.wipe()
        return self._starter(name)

    def _partition(self) -> Undo | None:
        names = _shuffled(self._draw, self._all())
        if len(names) < 2:
            return None
        at = self._draw.randrange(1, len(names))
        return self._world.partition(names[:at], names[at:])

    def _isolate(self) -> Undo | None:
        name = self._draw.choice(self._nodes)
        return self._world.partition([name], [other for other in self._all() if other != name])

    def _one_way(self) -> Undo | None:
        pair = self._pair()
        if pair is None:
            return None
        source, target = pair
        self._world.cut(source, target)
        return lambda: self._world.mend(source, target)

    def _reset(self) -> Undo | None:
        pair = self._pair()
        if pair is None:
            return None
        one, other = pair
        broken = self._world.network.reset_streams(one, other)
        self._world.trace.note("network", f"reset {one} > {other}, {broken} streams")
        return None

    def _wall_jump(self) -> Undo | None:
        name = self._draw.choice(self._nodes)
        self._world.jump_wall_clock(name, self._draw.uniform(-WALL_JUMP_S, WALL_JUMP_S))
        return None

    def _rot(self) -> Undo | None:
        self._world.nodes[self._draw.choice(self._nodes)].disk.rot()
        return None

    def _swizzle(self) -> Undo | None:
        """The links of some nodes stop one by one and come back in another order."""
        names = self._all()
        some = _shuffled(self._draw, names)[: self._draw.randrange(1, len(names) + 1)]
        links = self._world.links
        self._world.trace.note("network", f"swizzle {','.join(some)}")
        stops = {name: self._draw.uniform(0.0, self._swarm.longest_s / 3) for name in some}
        for name in some:
            others = [other for other in names if other != name]

            def each(change: Callable[[str, str], None], name: str, others: list[str]) -> None:
                for other in others:
                    change(name, other)
                    change(other, name)

            lasts = self._draw.uniform(0.0, self._swarm.longest_s)
            self._at(stops[name], lambda n=name, o=others: each(links.clog, n, o))
            self._at(stops[name] + lasts, lambda n=name, o=others: each(links.unclog, n, o))
        return None

    def _all(self) -> list[str]:
        return list(self._world.nodes)

    def _pair(self) -> tuple[str, str] | None:
        names = self._all()
        if len(names) < 2:
            return None
        source, target = self._draw.sample(names, 2)
        return source, target


async def supervise(world: World, nodes: Sequence[str]) -> None:
    """Restarts processes that end by themselves, as systemd would. After `Faults.end` the scenario
    needs it: a process may still end because of a fault before, such as a sync that failed."""
    while True:
        await asyncio.sleep(RESTART_S)
        for name in nodes:
            if world.nodes[name].state is State.ENDED:
                world.start(name)


def _shuffled(draw: random.Random, names: Sequence[str]) -> list[str]:
    return draw.sample(list(names), len(names))
