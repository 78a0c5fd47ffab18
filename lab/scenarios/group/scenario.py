"""A replicated group under every fault that it promises to survive.

Groups of 1, 3 and 5 members run the real ledger on simulated disks and networks. Clients record
their operations on a few keys, workers hold execution leases, and an operator replaces lost
disks, exchanges members, hands the lead over and activates a new version. The checks: there is
one history; no acknowledged command is lost or applied twice; each view has one primary; members
keep their promises; confirmed rounds are right; leases never overlap; the group clock keeps
running; and the answers are linearizable.

After the faults all members run (all but a minority, in some seeds), and the group must
serve within five simulated seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lab.mutants.group import MUTANTS, broken_files
from lab.scenarios.group.bit_rot import rot_checkpoint, rot_log
from lab.scenarios.group.callers import Client, Operator, Worker
from lab.scenarios.group.checks import GroupChecks
from lab.scenarios.group.node import MemberNode
from lab.sim.faults import Faults
from lab.sim.node import State
from lab.sim.run import Scenario
from lab.sim.swarm import SURVIVABLE, Fault, draw_swarm
from lab.sim.world import World
from squall.cluster.ledger.interface import LedgerFailed
from squall.cluster.ledger.replica.types import FAST, LAN, Timers
from squall.runtime.interfaces import Runtime

FAULTY_S = 10
SERVES_WITHIN_S = 5.0
LATE = {Fault.SUSPEND, Fault.TAIL, Fault.REORDER, Fault.SWIZZLE, Fault.BANDWIDTH}
"""Faults that can deliver the group clock to a restarted member seconds late."""
FORMS_WITHIN_S = 20.0
NEVER_S = 1e6
ROT = 0.2
CLIENTS = 3
SLOWER = Timers(0.1, 0.5, 0.8, 0.1, 0.1)
"""Slower than FAST and faster than LAN; causes fewer events per second than FAST."""


class Group:
    """The nodes, parameters and checks of one run."""

    def __init__(self, world: World) -> None:
        draw = world.random("scenario")
        self.world = world
        self.draw = draw
        size = world.parameter("members", draw.choice((1, 3, 3, 3, 3, 5)))
        self.members = [f"m{number}" for number in range(size)]
        self.spares = ["s0", "s1"] if size == 1 else ["s0"]
        changes = draw.random() < 0.6
        if not changes:
            self.spares = []
        self.timers = draw.choice((FAST, SLOWER, SLOWER))
        if world.parameter("lan", 0):
            self.timers = LAN
        self.checks = GroupChecks(world)
        self.nodes: dict[str, MemberNode] = {}
        self.upgrades = draw.random() < 0.5
        self.boots: dict[str, int] = {}
        rot = world.random("rot")
        # Whether the disk of one member suffers bit rot.
        self.rots = size > 1 and rot.random() < ROT
        self.scrub_s = rot.uniform(1.0, 6.0) if self.rots else NEVER_S
        sizes = world.random("sizes")
        # Checkpoints by time, in some seeds often, so that returning members need one of a peer.
        self.checkpoint_s = sizes.choice((300.0, 300.0, sizes.uniform(0.1, 2.0)))
        self.apply_slice = sizes.choice((128, 128, 1, 4))

    @property
    def all(self) -> list[str]:
        return [*self.members, *self.spares]

    def add(self) -> None:
        world = self.world
        for name in self.all:
            world.add(name, self.member(name), exits_on=(OSError, LedgerFailed))
        for number in range(CLIENTS):
            world.add(f"c{number}", self.client)
        for number in range(2):
            world.add(f"w{number}", self._worker)
        world.add("op", self._operator)

    def member(self, name: str) -> Any:
        async def run(runtime: Runtime) -> None:
            self.boots[name] = self.boots.get(name, 0) + 1
            upgraded = self.upgrades and self.boots[name] > 1
            node = MemberNode(
                runtime,
                peers=tuple(self.members),
                forms=name in self.members,
                timers=self.timers,
                version=2 if upgraded else 1,
                probe=self.world.probe(name),
                checks=self.checks,
                now=lambda: self.world.now,
                mutant=self.world.mutant,
                scrub_s=self.scrub_s,
                checkpoint_s=self.checkpoint_s,
                apply_slice=self.apply_slice,
            )
            self.nodes[name] = node
            await node.run()

        return run

    async def client(self, runtime: Runtime) -> None:
        await Client(self.world, runtime, self.all, self.checks).run()

    async def _worker(self, runtime: Runtime) -> None:
        await Worker(runtime, self.all, self.checks, self.world.mutant).run()

    async def _operator(self, runtime: Runtime) -> None:
        probe = self.world.probe("op")
        pace_s = self.draw.uniform(0.3, 4.0)
        await Operator(runtime, self.all, len(self.members), probe, pace_s).run()

    def is_formed(self) -> bool:
        return self.checks.newest_ack > 0.0


async def lose_a_disk(group: Group) -> None:
    """Wipes the disk of one member, once, and restarts it."""
    world, draw = group.world, group.draw
    await asyncio.sleep(draw.uniform(0.0, FAULTY_S * 0.7))
    name = draw.choice(group.members)
    world.crash(name)
    world.nodes[name].disk.wipe()
    group.checks.lost_disks.add(name)
    world.trace.note("faults", f"{name} loses its disk")
    await asyncio.sleep(draw.uniform(0.05, 1.0))
    if not world.nodes[name].runs:
        world.start(name)


async def rot_a_disk(group: Group) -> None:
    """Flips bits on the disk of one member again and again, mostly while it is down. The other
    members still hold what it loses."""
    world, draw = group.world, group.world.random("rotting")
    name = draw.choice(group.members)
    while True:
        await asyncio.sleep(draw.uniform(0.3, 3.0))
        node = world.nodes[name]
        if draw.random() < 0.3:
            # Away for so long that it may need a checkpoint of a peer.
            mend = world.partition([name], [other for other in world.nodes if other != name])
            await asyncio.sleep(draw.uniform(1.0, 4.0))
            mend()
            await asyncio.sleep(draw.uniform(0.3, 1.5))
        ends = draw.random() < 0.8
        if ends and node.runs:
            world.crash(name)
        fetched, when = group.checks.fetched
        if fetched == name and world.now - when < 3.0:
            flipped = rot_checkpoint(node.disk, draw, newest=True)
        else:
            rot = rot_checkpoint if draw.random() < 0.2 else rot_log
            flipped = rot(node.disk, draw)
        if flipped:
            world.count("flipped bits")
        await asyncio.sleep(draw.uniform(0.02, 0.5))
        if ends and node.state in (State.OFF, State.ENDED):
            world.start(name)


async def hunt(group: Group, who: Callable[[], str], pace_s: float) -> None:
    """Strikes the node that `who` returns, again and again: random faults alone rarely hit the
    node that tests a rule."""
    world = group.world
    draw = world.random(f"hunt {pace_s}")
    while True:
        await asyncio.sleep(draw.expovariate(1.0 / pace_s))
        name = who()
        if not name or not world.nodes[name].runs:
            continue
        lasts_s = draw.choice((draw.uniform(0.05, 0.6), draw.uniform(0.3, 2.5)))
        others = [other for other in world.nodes if other != name]
        way = draw.randrange(4)
        if way == 0:
            world.pause(name)
            await asyncio.sleep(lasts_s)
            world.resume(name)
        elif way == 1 and name in group.all:
            world.crash(name)
            await asyncio.sleep(lasts_s / 3)
            if world.nodes[name].state in (State.OFF, State.ENDED):
                world.start(name)
        else:
            some = draw.sample(others, draw.randrange(1, len(others) + 1))
            mend = world.partition([name], some)
            await asyncio.sleep(lasts_s)
            mend()


async def strike_epochs(group: Group) -> None:
    """Cuts one member off when an epoch begins, so that it misses the first view. It reconnects
    just as the primary of the others dies."""
    world, checks = group.world, group.checks
    draw = world.random("epochs")
    while True:
        await checks.epoch_begins.wait()
        checks.epoch_begins.clear()
        name = draw.choice(group.all)
        mend = world.partition([name], [other for other in world.nodes if other != name])
        await asyncio.sleep(draw.uniform(0.5, 2.0))
        primary = checks.primary()
        if primary != name and world.nodes[primary].runs:
            world.crash(primary)
        mend()
        await asyncio.sleep(draw.uniform(0.5, 2.0))
        if world.nodes[primary].state in (State.OFF, State.ENDED):
            world.start(primary)


async def supervise(group: Group) -> None:
    """Restarts members that end after the fault phase, because of a late fault."""
    while True:
        await asyncio.sleep(0.2)
        for name in group.all:
            if group.world.nodes[name].state is State.ENDED:
                group.world.start(name)


async def scenario(world: World) -> None:
    with broken_files(world.mutant):
        await _scenario(world)


async def _scenario(world: World) -> None:
    group = Group(world)
    group.add()
    world.start()
    await world.eventually(group.is_formed, within_s=FORMS_WITHIN_S, what="the group formed")
    swarm = draw_swarm(world.random("swarm"), SURVIVABLE, longest_s=(0.5, 5.0), pace=2.0)
    group.checks.clock_runs = not swarm.faults & LATE
    faults = Faults(world, swarm, [*group.all, "w0", "w1"])
    seconds = world.parameter("seconds", FAULTY_S)
    loss = None
    if len(group.members) > 1 and group.draw.random() < 0.35 and not group.rots:
        loss = asyncio.ensure_future(lose_a_disk(group))
    hunters: list[asyncio.Future[None]] = []
    if group.rots:
        hunters.append(asyncio.ensure_future(rot_a_disk(group)))
    if group.draw.random() < 0.7:
        pace_s = group.draw.uniform(0.4, 3.0)
        hunters.append(asyncio.ensure_future(hunt(group, group.checks.primary, pace_s)))
    if group.draw.random() < 0.5:
        pace_s = group.draw.uniform(0.8, 3.0)
        hunters.append(asyncio.ensure_future(hunt(group, lambda: group.checks.runner, pace_s)))
    if group.draw.random() < 0.5:
        hunters.append(asyncio.ensure_future(strike_epochs(group)))
    await faults.run(seconds)
    for task in (*hunters, *([loss] if loss is not None else [])):
        task.cancel()
    faults.end()
    healed = world.now
    hunters = [asyncio.ensure_future(supervise(group))]
    await world.eventually(
        lambda: group.checks.newest_ack > healed,
        within_s=SERVES_WITHIN_S,
        what="the group serves",
    )
    await asyncio.sleep(0.5)
    for task in hunters:
        task.cancel()
    group.checks.finish()


SCENARIO = Scenario(
    "group",
    "a replicated group with clients, leases and membership changes, under every fault",
    scenario,
    mutants=MUTANTS,
    limit_s=300.0,
)
