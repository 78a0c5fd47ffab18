"""Three to nine members under faults: each observer keeps its rules, and ends with the right view.

In a third of the seeds two parts of the group lose each other for longer than any suspicion. In
another third an observer suspects a member and stops, so it misses the refutation. After the faults
every member must see every other one alive, in its present boot. Then one member crashes for good,
one restarts within a second and one leaves, and all others must see exactly that.
"""

from __future__ import annotations

import asyncio

from lab.mutants.membership import MUTANTS, mutated
from lab.scenarios.membership.checks import ObserverChecks
from lab.scenarios.membership.driver import PORT, MemberDriver
from lab.sim.checks import check
from lab.sim.faults import Faults
from lab.sim.run import Scenario
from lab.sim.swarm import Fault, Swarm, draw_swarm
from lab.sim.world import World
from squall.cluster.membership.effects import Cause, PeerChanged, Seed, State
from squall.runtime.interfaces import BootId, NodeId, Runtime

FAULTS = (
    *(Fault.CRASH, Fault.KILL, Fault.PAUSE, Fault.SUSPEND, Fault.PARTITION, Fault.ONE_WAY),
    *(Fault.ISOLATE, Fault.SWIZZLE, Fault.DRIFT, Fault.DELAY, Fault.TAIL, Fault.LOSS),
    *(Fault.DUPLICATE, Fault.REORDER, Fault.SHUFFLE),
)
WELL_S = 3.0
"""A member that has run and been in reach for this long must not be declared dead."""
LOSS_MAX = 0.05
"""Above this loss, a false death is possible and no bug."""
LOOK_S = 0.1
AGREE_S = 45.0
"""From the end of the faults until all members see the same: dead ones are probed again every few
seconds, a newcomer asks seeds at least every 12 s, and a suspicion may have begun at the end."""
KNOWN_S = 20.0


class MembershipLab:
    """The drivers of a run, and the true state of their nodes."""

    def __init__(self, world: World, swarm: Swarm, names: list[str]) -> None:
        self.world = world
        self.names = names
        self.drivers: dict[str, MemberDriver] = {}
        self.histories: dict[str, list[PeerChanged]] = {}
        self._unwell_at: dict[str, float] = dict.fromkeys(names, 0.0)
        self._cut_at: dict[tuple[str, str], float] = {}
        links = swarm.links
        self.is_strict = links.loss <= LOSS_MAX and not links.tail and not links.reorder

    async def program(self, runtime: Runtime) -> None:
        name = str(runtime.node)
        self._unwell_at[name] = self.world.now
        history = self.histories[name] = []
        checks = ObserverChecks(name, lambda node, boot: self.is_well(name, node, boot))

        def report(effect: PeerChanged) -> None:
            history.append(effect)
            after = effect.after
            self.world.count(f"{after} by {effect.cause}")
            self.world.trace.note(name, f"{effect.member.node} {after} ({effect.cause})")

        seeds = tuple(Seed((seed, PORT)) for seed in self.names if seed.startswith("m"))
        driver = MemberDriver(runtime, checks, seeds, report)
        self.drivers[name] = driver
        await driver.run(runtime)

    async def look(self) -> None:
        """Notes which nodes do not run and which links are closed."""
        world = self.world
        while True:
            running = set(world.running())
            for name in self.names:
                if name not in running:
                    self._unwell_at[name] = world.now
            for one in self.names:
                for other in self.names:
                    link = world.links.between(one, other)
                    if link.cuts or link.clogs:
                        self._cut_at[one, other] = world.now
            await asyncio.sleep(LOOK_S)

    def is_well(self, observer: str, node: NodeId, boot: BootId) -> bool:
        if not self.is_strict or node not in self.world.running():
            return False
        if self.drivers[node].boot != boot:
            return False
        last = max(
            self._unwell_at[node],
            self._cut_at.get((observer, node), 0.0),
            self._cut_at.get((node, observer), 0.0),
        )
        return self.world.now - last > WELL_S

    # What is true at the end.

    def states(self, observer: str, node: str) -> State | None:
        """How an observer sees the present boot of a node; None: only another boot, or none."""
        seen = self.drivers[observer].view(NodeId(node))
        if seen is None or seen.boot != self.drivers[node].boot:
            return None
        return seen.state

    def agree(self, on: State, about: list[str], by: list[str]) -> bool:
        return all(
            self.states(observer, node) is on
            for observer in by
            for node in about
            if node != observer
        )

    def suspects(self, observer: str, node: str) -> bool:
        """Whether the member suspects the node by a probe of its own."""
        changes = [it for it in self.histories[observer] if it.member.node == node]
        return (
            bool(changes)
            and changes[-1].after is State.SUSPECT
            and changes[-1].cause is Cause.PROBE
        )

    def disagreement(self, by: list[str]) -> str:
        return "; ".join(
            f"{observer} on {node}: {self.states(observer, node)}"
            for observer in by
            for node in by
            if node != observer and self.states(observer, node) is not State.ALIVE
        )

    def calls(self, observer: str, node: str, after: State) -> int:
        return sum(
            change.member.node == node and change.after is after
            for change in self.histories[observer]
        )


async def scenario(world: World) -> None:
    draw = world.random("membership")
    size = world.parameter("members", 0) or draw.randint(3, 9)
    managers = max(2, min(size - 1, 3))
    names = [f"m{n}" for n in range(managers)] + [f"w{n}" for n in range(size - managers)]
    swarm = draw_swarm(world.random("swarm"), FAULTS, longest_s=(1.0, 25.0))
    lab = MembershipLab(world, swarm, names)
    with mutated(world.mutant):
        for name in names:
            world.add(name, lab.program)
        faults = Faults(world, swarm, names)
        world.start()
        looking = asyncio.ensure_future(lab.look())
        await faults.run(world.parameter("seconds", 60))
        aimed = draw.random()
        if aimed < 2 / 3:
            faults.end()
            await asyncio.sleep(20.0)
            lab.is_strict = True  # the links are good again
        if aimed < 1 / 3:
            await _lose_each_other(lab, draw.sample(names, draw.randint(1, size // 2)))
        elif aimed < 2 / 3:
            await _stop_an_observer(lab, draw.choice(names))
        faults.end()
        await _agree(lab)
        await _end(lab)
        looking.cancel()


async def _lose_each_other(lab: MembershipLab, some: list[str]) -> None:
    """Cuts the group in two for long enough that each side declares the other dead, even while it
    delays deaths."""
    others = [name for name in lab.names if name not in some]
    mend = lab.world.partition(some, others)
    await asyncio.sleep(lab.world.parameter("partition", 100))
    mend()


async def _stop_an_observer(lab: MembershipLab, target: str) -> None:
    """The target is out of reach until a member suspects it by its own probe. That member stops;
    the target comes back and refutes, which the stopped one does not hear. When it goes on, the
    time of its suspicion is long over."""
    world = lab.world
    others = [name for name in lab.names if name != target]
    mend = world.partition([target], others)
    observer = ""
    while not observer and world.now < 400.0:
        await asyncio.sleep(0.05)
        observer = next((name for name in others if lab.suspects(name, target)), "")
    if not observer:
        mend()
        return
    world.pause(observer)
    mend()
    mend = world.partition([observer], [name for name in lab.names if name != observer])
    await asyncio.sleep(30.0)
    mend()
    await asyncio.sleep(WELL_S + 0.3)
    world.resume(observer)
    await asyncio.sleep(5.0)


async def _agree(lab: MembershipLab) -> None:
    """Checks that after the faults every member sees every other one alive."""
    try:
        await lab.world.eventually(
            lambda: lab.agree(State.ALIVE, lab.names, lab.names),
            within_s=AGREE_S,
            what="all members see all members alive",
        )
    except Exception:
        lab.world.trace.note("checks", lab.disagreement(lab.names))
        raise
    await asyncio.sleep(5.0)


async def _end(lab: MembershipLab) -> None:
    """A crash, a restart within a second, and a leave: one callback each, the right one."""
    world = lab.world
    crashed, restarted, leaving, *watchers = [*lab.names[1:], lab.names[0]]
    await asyncio.sleep(1.0)
    if not watchers:
        watchers = [lab.names[0]]
        leaving = ""
    for watcher in watchers:
        lab.histories[watcher].clear()
    world.crash(crashed)
    await world.eventually(
        lambda: lab.agree(State.DEAD, [crashed], watchers),
        within_s=KNOWN_S,
        what=f"all know that {crashed} is dead",
    )
    former = lab.drivers[restarted]
    world.kill(restarted)
    await asyncio.sleep(0.3)
    world.start(restarted)
    await world.eventually(
        lambda: (
            lab.drivers[restarted] is not former and lab.agree(State.ALIVE, [restarted], watchers)
        ),
        within_s=KNOWN_S,
        what=f"all see the new boot of {restarted}",
    )
    if leaving:
        lab.drivers[leaving].leave()
        await asyncio.sleep(1.0)
        world.kill(leaving)
        await world.eventually(
            lambda: lab.agree(State.LEFT, [leaving], watchers),
            within_s=KNOWN_S,
            what=f"all know that {leaving} left",
        )
    for watcher in watchers:
        for node, calls in ((crashed, 1), (restarted, 1), (leaving, 0)):
            found = lab.calls(watcher, node, State.DEAD)
            check(found == calls, f"{watcher} was told {found} times that {node} died")
        ended = [
            change.cause
            for change in lab.histories[watcher]
            if change.member.node == restarted and change.after is State.DEAD
        ]
        check(ended == [Cause.RESTART], f"{watcher} saw no restart of {restarted}: {ended}")


SCENARIO = Scenario(
    "membership",
    "members crash, stop and lose each other: one callback per transition, no false death, "
    "one view afterwards",
    scenario,
    mutants=MUTANTS,
    hunt={"seconds": "10"},
)
