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
from lab.scenarios.group.machine import Machine
from lab.scenarios.group.node import BLOB_KEEP_S, MemberNode, MemberShape
from lab.scenarios.group.recovery import LastCopy, copy_files, put_files
from lab.sim.faults import Faults
from lab.sim.node import State
from lab.sim.run import Scenario
from lab.sim.swarm import CLOCK, SURVIVABLE, Fault, draw_swarm
from lab.sim.world import World
from squall.cluster.ledger.interface import LedgerFailed
from squall.cluster.ledger.recover import Recovery
from squall.cluster.ledger.replica.types import FAST, LAN, Timers
from squall.runtime.interfaces import Runtime

FAULTY_S = 10
SERVES_WITHIN_S = 5.0
WIRE_SERVES_WITHIN_S = 20.0
"""What a stream sent before the faults ended is sent again with growing pauses, and everything
behind it waits."""
LATE = {Fault.SUSPEND, Fault.TAIL, Fault.REORDER, Fault.SWIZZLE, Fault.BANDWIDTH}
"""Faults that can deliver the group clock to a restarted member seconds late."""
FORMS_WITHIN_S = 20.0
NEVER_S = 1e6
ROT = 0.2
WIRE = 0.1
BURSTS = 0.1
DATAGRAM_BURSTS = ((64, 40_000), (1_500, 900))
WIRE_BURSTS = ((64, 256 * 1024), (1_500, 900))
"""A command of 256 kB, the largest, does not fit a datagram."""
SLOW_APPLY = 0.15
SLOW_S = 0.02
STRANDS = 0.1
FREEZES = 0.1
FEW_BLOBS, MANY_BLOBS = 0.06, 0.15
DOWNGRADE = 0.2
ENDS = 0.1
"""Share of the seeds in which the group is lost in the end, but for one copy."""
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
        sizes = world.random("sizes")
        self.shape = MemberShape(
            scrub_s=rot.uniform(1.0, 6.0) if self.rots else NEVER_S,
            checkpoint_s=sizes.choice((300.0, 300.0, sizes.uniform(0.1, 2.0))),
            apply_slice=sizes.choice((128, 128, 1, 4)),
            apply_s=sizes.choice((0.0, 0.0, sizes.uniform(0.001, 0.01))),
            over_wire=sizes.random() < WIRE or world.parameter("wire", 0) > 0,
        )
        if self.rots and rot.random() < 0.5:
            # A returning member then needs a checkpoint of a peer, which may be damaged later.
            self.shape.checkpoint_s = rot.uniform(0.5, 2.0)
        # Commands that a member submits at once: their number and size.
        self.bursts: tuple[tuple[int, int], ...] = ()
        slow = world.random("slow apply")
        if sizes.random() < BURSTS:
            self.bursts = WIRE_BURSTS if self.shape.over_wire else DATAGRAM_BURSTS
            # A member that applies slowly would need minutes for a burst.
            self.shape.apply_s = 0.0
        elif slow.random() < SLOW_APPLY:
            self.shape.apply_slice, self.shape.apply_s = 1, slow.uniform(SLOW_S, 4 * SLOW_S)
        # A member is cut off for long while clients name blobs that it holds and has forgotten.
        self.strands = size > 1 and not self.rots and sizes.random() < STRANDS
        # The primary stops while the answers to its rounds are under way.
        self.freezes = size > 1 and not self.rots and world.random("freeze").random() < FREEZES
        # Whether members restart with the old version at times, until the faults end.
        self.downgrades = self.upgrades
        self._downgrade = world.random("downgrade")
        self.last_copy: LastCopy | None = None

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
            recovers = self.last_copy is not None
            node = MemberNode(
                runtime,
                peers=(name,) if recovers else tuple(self.members),
                nodes=tuple(self.all),
                forms=name in self.members,
                timers=self.timers,
                version=self._version(name),
                probe=self.world.probe(name),
                checks=self.checks,
                now=lambda: self.world.now,
                mutant=self.world.mutant,
                shape=self.shape,
                recovered=self._recovered if recovers else None,
            )
            self.nodes[name] = node
            await node.run()

        return run

    def _version(self, name: str) -> int:
        """The first boot of a member knows version 1, later ones version 2. Some are taken back."""
        if not self.upgrades or self.boots[name] < 2:
            return 1
        if self.downgrades and self._downgrade.random() < DOWNGRADE:
            self.world.count("downgrades")
            return 1
        return 2

    def _recovered(self, recovery: Recovery, machine: Machine) -> GroupChecks:
        copy, former = self.last_copy, self.checks
        assert copy is not None
        former.guard(lambda: copy.check(recovery, machine, former))
        self.world.count("recovered groups")
        return GroupChecks(self.world, first_op=recovery.op + 1)

    async def client(self, runtime: Runtime) -> None:
        blobs = MANY_BLOBS if self.strands else FEW_BLOBS
        await Client(
            self.world,
            runtime,
            self.all,
            self.checks,
            blobs=blobs,
            bursts=self.bursts,
            follows=self.shape.apply_s > SLOW_S,
        ).run()

    async def _worker(self, runtime: Runtime) -> None:
        await Worker(runtime, self.all, self.checks, self.world.mutant).run()

    async def _operator(self, runtime: Runtime) -> None:
        probe = self.world.probe("op")
        pace_s = self.draw.uniform(0.3, 4.0)
        await Operator(runtime, self.all, len(self.members), probe, pace_s).run()

    def holds_state(self, name: str) -> bool:
        """Whether a new group can be made from the disk of this member."""
        if not self.world.nodes[name].runs or name not in self.nodes:
            return False
        if not self.nodes[name].is_open:
            return False
        core = self.nodes[name].ledger.replica.core
        return core.is_member and core.commit > 0 and not core.mending

    def copy_of(self, name: str, files: dict[str, bytes] | None = None) -> LastCopy:
        ledger = self.nodes[name].ledger
        durable_op = self.checks.durable.get(ledger.member.storage, 0)
        log = ledger.replica.core.log
        held = {
            command: op
            for command, op in self.checks.acked.items()
            if op <= durable_op
            # A member that was cut off may hold another entry under this op, which no quorum has.
            and (op < log.base_op or log.checksum(op) == self.checks.history[op])
        }
        return LastCopy(name, durable_op, held, files)

    def back_up(self) -> LastCopy | None:
        """Copies the files of one member while it runs."""
        names = [name for name in self.members if self.holds_state(name)]
        if not names:
            return None
        name = self.world.random("backup").choice(names)
        return self.copy_of(name, copy_files(self.world.nodes[name].disk))

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
            for _ in range(draw.randint(15, 75)):
                await asyncio.sleep(0.02)
                if _is_recent(group, name):
                    break
        ends = draw.random() < 0.8
        if ends and node.runs:
            world.crash(name)
        if _is_recent(group, name):
            flipped = rot_checkpoint(node.disk, draw, newest=True)
        else:
            rot = rot_checkpoint if draw.random() < 0.2 else rot_log
            flipped = rot(node.disk, draw)
        if flipped:
            world.count("flipped bits")
        await asyncio.sleep(draw.uniform(0.02, 0.5))
        if ends and node.state in (State.OFF, State.ENDED):
            world.start(name)


def _is_recent(group: Group, name: str) -> bool:
    """Whether the newest checkpoint of the member is probably one of a peer."""
    installed, when = group.checks.installed
    return installed == name and group.world.now - when < 0.5


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


async def freeze(group: Group) -> None:
    """Holds back the answers to the primary's last rounds and stops it, until the others have
    another primary. Then it goes on, and the old answers arrive."""
    world, draw, links = group.world, group.world.random("freezes"), group.world.links
    while True:
        await asyncio.sleep(draw.uniform(0.5, 1.5))
        name = group.checks.primary()
        if not world.nodes[name].runs:
            continue
        others = [each for each in group.all if each != name]
        for other in others:
            links.clog(other, name)
        await asyncio.sleep(draw.uniform(1.0, 2.5) * group.timers.heartbeat_s)
        world.pause(name)
        await asyncio.sleep(draw.uniform(1.5, 3.0) * group.timers.follower_timeout_s)
        world.resume(name)
        await asyncio.sleep(draw.uniform(0.0, group.timers.heartbeat_s))
        for other in others:
            links.unclog(other, name)


async def strand(group: Group) -> None:
    """Cuts one member off for longer than it keeps blobs that it does not need."""
    world, draw = group.world, group.world.random("strands")
    while True:
        await asyncio.sleep(draw.uniform(0.5, 2.0))
        name = draw.choice([each for each in group.members if each != group.checks.primary()])
        mend = world.partition([name], [other for other in group.all if other != name])
        await asyncio.sleep(draw.uniform(1.2, 2.0) * BLOB_KEEP_S)
        mend()


async def lose_the_group(group: Group, backup: LastCopy | None) -> None:
    """Loses all members but one, or all with a backup left, and makes a new group from the rest."""
    world = group.world
    holders = [name for name in group.members if group.holds_state(name)]
    if backup is None and not holders:
        return
    copy = backup or group.copy_of(world.random("end").choice(holders))
    for node in world.nodes.values():
        if node.is_up:
            world.crash(node.name)
    if copy.files is not None:
        put_files(world.nodes[copy.node].disk, copy.files)
    group.last_copy = copy
    group.nodes.clear()
    world.start(copy.node)
    await world.eventually(
        lambda: group.holds_state(copy.node) and group.nodes[copy.node].ledger.is_primary,
        within_s=SERVES_WITHIN_S,
        what="the new group serves",
    )
    await group.nodes[copy.node].ledger.submit(b"the first command")


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
    allowed = SURVIVABLE
    if group.strands or group.freezes:
        # While one member is stranded or stopped, the others must be able to serve.
        allowed = CLOCK
    elif group.shape.over_wire:
        # What a stream has under way on a slow link still takes its time after the faults end.
        allowed = tuple(each for each in SURVIVABLE if each is not Fault.BANDWIDTH)
    swarm = draw_swarm(world.random("swarm"), allowed, longest_s=(0.5, 5.0), pace=2.0)
    group.checks.clock_runs = not swarm.faults & LATE
    faults = Faults(world, swarm, [*group.all, "w0", "w1"])
    seconds = world.parameter("seconds", FAULTY_S)
    hunters = _hunters(group)
    end = world.random("end")
    ends = end.random() < ENDS or world.parameter("ends", 0) > 0
    ends, backed_up = ends and not group.rots, end.random() < 0.5
    await faults.run(seconds)
    backup = group.back_up() if ends and backed_up else None
    for task in hunters:
        task.cancel()
    group.downgrades = False
    faults.end()
    healed = world.now
    hunters = [asyncio.ensure_future(supervise(group))]
    await world.eventually(
        lambda: group.checks.newest_ack > healed,
        within_s=WIRE_SERVES_WITHIN_S if group.shape.over_wire else SERVES_WITHIN_S,
        what="the group serves",
    )
    await asyncio.sleep(0.5)
    for task in hunters:
        task.cancel()
    group.checks.finish()
    if ends:
        await lose_the_group(group, backup)


def _hunters(group: Group) -> list[asyncio.Future[None]]:
    """Starts the faults that aim at something."""
    draw, checks = group.draw, group.checks
    if group.strands:
        return [asyncio.ensure_future(strand(group))]
    if group.freezes:
        return [asyncio.ensure_future(freeze(group))]
    hunters: list[asyncio.Future[None]] = []
    if len(group.members) > 1 and draw.random() < 0.35 and not group.rots:
        hunters.append(asyncio.ensure_future(lose_a_disk(group)))
    if group.rots:
        hunters.append(asyncio.ensure_future(rot_a_disk(group)))
    if draw.random() < 0.7:
        pace_s = draw.uniform(0.4, 3.0)
        hunters.append(asyncio.ensure_future(hunt(group, checks.primary, pace_s)))
    if draw.random() < 0.5:
        pace_s = draw.uniform(0.8, 3.0)
        hunters.append(asyncio.ensure_future(hunt(group, lambda: checks.runner, pace_s)))
    if draw.random() < 0.5:
        hunters.append(asyncio.ensure_future(strike_epochs(group)))
    return hunters


SCENARIO = Scenario(
    "group",
    "a replicated group with clients, leases and membership changes, under every fault",
    scenario,
    mutants=MUTANTS,
    limit_s=300.0,
)
