"""One simulated world: machines, the network between them, and the faults.

A scenario is an async function of a world. It adds nodes, does things to them, and
checks. All randomness comes from the seed, one stream per purpose, so that a change in
one part does not reshuffle the others.

Crash is a loss of power: unsynced data is at risk and peers get no notice. Kill is
`kill -9`: the disk keeps everything and the kernel closes the sockets. A pause is
SIGSTOP: callbacks wait, time goes on. A suspension stops the machine with its network,
and its monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from lab.sim.checks import Check, Event, Probe
from lab.sim.disk.disk import SimDisk
from lab.sim.errors import NodeFailed, NotLive, SimulationError
from lab.sim.loop import SimLoop, silence
from lab.sim.network.links import LinkProfile, Links
from lab.sim.network.names import NameTable
from lab.sim.network.network import SimNetwork
from lab.sim.node import Node, Program, State
from lab.sim.process import OWNER, SimProcess
from lab.sim.trace import Trace
from squall.runtime.interfaces import Processes, Runtime

POLL_S = 0.1
"""The interval at which `eventually` checks its condition, in simulated time."""


class World:
    def __init__(
        self,
        seed: int,
        *,
        mutant: str | None = None,
        parameters: Mapping[str, str] | None = None,
        limit_s: float = 3600.0,
        echo: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.mutant = mutant
        self.parameters = dict(parameters or {})
        self.loop = SimLoop(limit_s=limit_s)
        self.trace = Trace(self.loop, echo=echo)
        self.links = Links()
        self.nodes: dict[str, Node] = {}
        self.network = SimNetwork(
            self.loop, self.trace, self.random("network"), self.links, hosts=self
        )
        self.names = NameTable()
        # What the scenario counted; summed over all seeds of a campaign.
        self.tally: dict[str, int] = {}
        self._checks: list[Check] = []

    # What a scenario asks.

    @property
    def now(self) -> float:
        return self.loop.now

    def random(self, purpose: str) -> random.Random:
        """A stream of its own for each purpose."""
        return random.Random(f"{self.seed}/{purpose}")

    def parameter(self, name: str, default: int) -> int:
        return int(self.parameters.get(name, default))

    def count(self, what: str) -> None:
        self.tally[what] = self.tally.get(what, 0) + 1

    def is_up(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.is_up and node.state is not State.SUSPENDED

    def running(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.runs]

    def runtime(self, name: str) -> Runtime:
        """The runtime of the present boot, for a scenario that acts as that node."""
        runtime = self.nodes[name].runtime
        if runtime is None:
            raise SimulationError(f"{name} was never started")
        return runtime

    # Nodes.

    def add(
        self,
        name: str,
        program: Program,
        *,
        exits_on: tuple[type[BaseException], ...] = (),
        processes: Callable[[SimProcess], Processes] | None = None,
    ) -> Node:
        """A machine without power. What its program raises fails the run, unless it is
        one of `exits_on`, or a group of them: then the process ends, as a real one would."""
        if name in self.nodes:
            raise SimulationError(f"two nodes are called {name}")
        disk = SimDisk(name, self.trace, self.random(f"disk {name}"))
        node = Node(
            name,
            program,
            disk,
            f"{self.seed}/node {name}",
            exits_on=exits_on,
            processes=processes,
        )
        self.nodes[name] = node
        return node

    def start(self, *names: str) -> None:
        """Powers up, or starts a new process on a machine that is up."""
        for name in names or tuple(self.nodes):
            node = self.nodes[name]
            if node.state not in (State.OFF, State.ENDED):
                raise SimulationError(f"{name} runs already")
            was_off = not node.is_up
            node.boot(self.loop, self.network, self.names)
            self.trace.note(name, f"starts, boot {node.boots}")
            process, main = node.process, node.main
            assert process is not None
            assert main is not None
            main.add_done_callback(lambda task, node=node: self._ended(node, task))
            if was_off:
                self.network.host_started(name)

    def crash(self, name: str) -> None:
        """Power is lost: no code runs on, unsynced data is at risk, peers hear nothing."""
        self._end(name, State.OFF, "loses power")

    def kill(self, name: str) -> None:
        """kill -9: no code runs on; disk and kernel survive."""
        self._end(name, State.ENDED, "is killed")

    async def stop(self, name: str, deadline_s: float = 10.0) -> None:
        """SIGTERM: the program is cancelled and may clean up; killed at the deadline."""
        node = self.nodes[name]
        main = node.main
        if main is None or node.state not in (State.RUNNING, State.PAUSED):
            return
        self.trace.note(name, "is asked to stop")
        main.cancel()
        await asyncio.wait([main], timeout=deadline_s)
        if not main.done():
            self.kill(name)

    def pause(self, name: str) -> None:
        """SIGSTOP: nothing of it runs; its kernel still takes packets."""
        node = self.nodes[name]
        if node.runs and node.process is not None:
            self.trace.note(name, "is paused")
            self.loop.pause(node.process)
            node.state = State.PAUSED
            node.halted_since = self.now

    def suspend(self, name: str) -> None:
        """The machine sleeps: like a pause, but its network and its clock stop too."""
        node = self.nodes[name]
        if node.runs and node.process is not None:
            self.trace.note(name, "is suspended")
            self.loop.pause(node.process)
            node.state = State.SUSPENDED
            node.halted_since = self.now
            self._each_link(name, self.links.clog)

    def resume(self, name: str) -> None:
        """Ends a pause or a suspension: all that is due runs now, late."""
        node = self.nodes[name]
        if node.process is None or node.state not in (State.PAUSED, State.SUSPENDED):
            return
        self.trace.note(name, "goes on")
        if node.state is State.SUSPENDED:
            node.process.skip(node.halted_since, self.now)
            self._each_link(name, self.links.unclog)
        node.state = State.RUNNING
        self.loop.resume(node.process)

    def jump_wall_clock(self, name: str, seconds: float) -> None:
        self.trace.note(name, f"wall clock jumps {seconds:+.3f} s")
        self.nodes[name].wall.error_s += seconds

    def set_clock_rate(self, name: str, rate: float) -> None:
        node = self.nodes[name]
        self.trace.note(name, f"clock rate {rate:.4f}")
        node.rate = rate
        if node.process is not None:
            node.process.set_rate(rate, self.now)

    # Links.

    def shape(self, profile: LinkProfile) -> None:
        """How all links between machines behave."""
        self.links.shape(profile)

    def cut(self, source: str, target: str) -> None:
        """One way only."""
        self.trace.note("network", f"cut {source} > {target}")
        self.links.cut(source, target)

    def mend(self, source: str, target: str) -> None:
        self.trace.note("network", f"mended {source} > {target}")
        self.links.mend(source, target)

    def partition(self, *groups: Iterable[str]) -> Callable[[], None]:
        """Cuts all links between the groups; the returned call mends them."""
        sides = [list(group) for group in groups]
        pairs = [
            (source, target)
            for here in sides
            for there in sides
            if here is not there
            for source in here
            for target in there
        ]
        shown = " | ".join(",".join(side) for side in sides)
        self.trace.note("network", f"partition {shown}")
        for source, target in pairs:
            self.links.cut(source, target)

        def mend() -> None:
            self.trace.note("network", f"partition ends {shown}")
            for source, target in pairs:
                self.links.mend(source, target)

        return mend

    def heal(self) -> None:
        """Opens all links, ends all pauses, makes links and disks behave."""
        self.trace.note("network", "heals")
        self.links.shape(LinkProfile())
        for name, node in self.nodes.items():
            self.resume(name)
            node.disk.profile = type(node.disk.profile)()
        self.links.mend_all()

    # Checks.

    def watch(self, *checks: Check) -> None:
        self._checks.extend(checks)

    def unwatch(self, *checks: Check) -> None:
        for each in checks:
            self._checks.remove(each)

    def probe(self, node: str) -> Probe:
        def report(name: str, /, **fields: Any) -> None:
            owner = OWNER.get()
            if owner is not None and not owner.alive:
                return
            event = Event(self.now, node, name, fields)
            self.trace.note(node, str(event))
            for check in self._checks:
                try:
                    check.observe(event)
                except Exception as error:
                    # Never into the node: its own error handling would swallow it.
                    self.loop.fail(error, "", None)

        return report

    async def eventually(
        self, condition: Callable[[], object], *, within_s: float, what: str
    ) -> None:
        """Raises `NotLive` unless the condition becomes true within `within_s` of simulated
        time."""
        deadline = self.now + within_s
        while not condition():
            if self.now >= deadline:
                raise NotLive(f"not within {within_s:g} s: {what}")
            await asyncio.sleep(POLL_S)
        self.trace.note("scenario", f"reached: {what}")

    def close(self) -> None:
        """The end of the world: nothing that still waits may run or complain."""
        for node in self.nodes.values():
            if node.process is not None and node.process.alive:
                self.loop.kill(node.process)
        for task in asyncio.all_tasks(self.loop):
            silence(task)
            coroutine: Any = task.get_coro()
            with contextlib.suppress(BaseException):
                coroutine.close()
        self.loop.close()

    # Inside.

    def _end(self, name: str, state: State, text: str) -> None:
        node = self.nodes[name]
        process = node.process
        power_lost = state is State.OFF
        if process is not None and process.alive:
            self.trace.note(name, text)
            if node.state is State.SUSPENDED:
                self._each_link(name, self.links.unclog)
            node.note_uptime(self.now, power_lost=power_lost)
            self.loop.kill(process)
            self.network.process_ended(process, power_lost=power_lost)
        elif power_lost and node.is_up:
            node.note_uptime(self.now, power_lost=True)
        if power_lost and node.is_up:
            node.disk.lose_power()
        node.state = state if node.is_up else State.OFF

    def _ended(self, node: Node, task: asyncio.Task[None]) -> None:
        if node.main is not task or node.process is None or not node.process.alive:
            return
        error = None if task.cancelled() else task.exception()
        self._end(node.name, State.ENDED, "exits" if error is None else f"exits: {error!r}")
        if error is not None and not _is_all(error, node.exits_on):
            failed = NodeFailed(f"{node.name}: {type(error).__name__}: {error}")
            failed.__cause__ = error
            self.loop.fail(failed, "", None)

    def _each_link(self, name: str, change: Callable[[str, str], None]) -> None:
        for other in self.nodes:
            if other != name:
                change(name, other)
                change(other, name)


def _is_all(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether the error, or every member of an exception group, is of these kinds."""
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return all(_is_all(member, kinds) for member in members)
    return isinstance(error, kinds)
