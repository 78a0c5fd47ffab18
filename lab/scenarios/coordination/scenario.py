"""Members coordinate through a store, under faults of members, store and network.

The real `Coordinator` runs; only the store is a model (`store`). Safety: two members never act in
one epoch, none acts after the end of its lease, fenced writes never go back to an old epoch, an
acknowledged signal was handled and took effect once, a death is decided once and only about a
silent boot, forged signals have no effect, each attempt of a ticket is taken once and its end is
written once, each due time is run once. Liveness: after the faults some of the members must elect a
leader, act, exchange signals and end every ticket, and no due time may be missing. At the end the
store loses all its data while the leader stands still, and the others begin anew: what they lead in
is still above every epoch before.
"""

from __future__ import annotations

import asyncio

from lab.mutants.coordination import MUTANTS, mutated
from lab.scenarios.coordination.checks import (
    Acting,
    Busy,
    RunChecks,
    SignalChecks,
    StoreChecks,
    TicketChecks,
)
from lab.scenarios.coordination.intruder import intrude
from lab.scenarios.coordination.member import JOB_EVERY_S, TIMING, MemberProgram
from lab.scenarios.coordination.store import STORE, StoreMachine, draw_ways
from lab.sim.checks import check
from lab.sim.faults import Faults
from lab.sim.node import State
from lab.sim.run import Scenario
from lab.sim.swarm import CLOCK, NETWORK, PROCESS, Fault, draw_swarm
from lab.sim.world import World
from squall.runtime.interfaces import Runtime

FAULTY_S = 30
CONVERGE_S = 25.0
# Later than a wall clock can have been after its jumps.
LATEST_WALL_S = 24 * 3600.0
FAULTS = (*PROCESS, *NETWORK, *CLOCK, Fault.SHUFFLE)


async def hunt(world: World, acting: Acting, machine: StoreMachine) -> None:
    """Strikes the leader: random faults rarely hit it in the right moment."""
    draw = world.random("hunt")
    pause_s = draw.uniform(2.0, 8.0)
    while True:
        await asyncio.sleep(draw.expovariate(1.0 / pause_s))
        name = acting.last_node
        if not name or not world.nodes[name].runs:
            continue
        lasts_s = draw.uniform(0.3, 2.5 * TIMING.lease_ttl)
        way = draw.randrange(5)
        if way == 0:
            mend = world.partition([name], [STORE])
            await asyncio.sleep(lasts_s)
            mend()
        elif way == 1:
            world.kill(name)
        elif way == 2:
            machine.late_s[name] = lasts_s
            await asyncio.sleep(lasts_s)
            machine.late_s.pop(name, None)
        else:
            (world.pause if way == 3 else world.suspend)(name)
            await asyncio.sleep(lasts_s)
            world.resume(name)


async def doze(world: World, acting: Acting, store_checks: StoreChecks, members: list[str]) -> None:
    """Pauses a follower and resumes it when its death is about to be decided, or just after."""
    draw = world.random("doze")
    pause_s = draw.choice((2.0, 5.0, 1000.0))
    while True:
        await asyncio.sleep(draw.expovariate(1.0 / pause_s))
        name = draw.choice(members)
        if name == acting.last_node or not world.nodes[name].runs:
            continue
        world.pause(name)
        await store_checks.last_warning(name, within_s=2.0 * TIMING.dead_after)
        if draw.random() < 0.5:
            await asyncio.sleep(draw.uniform(0.0, TIMING.monitor_interval))
        world.resume(name)


async def interrupt(world: World, busy: Busy) -> None:
    """Cuts a busy member off from the store, so that it cannot write the end of its work or gets no
    answer."""
    draw = world.random("interrupt")
    pause_s = draw.choice((2.0, 5.0, 1000.0))
    while True:
        await asyncio.sleep(draw.expovariate(1.0 / pause_s))
        for _ in range(draw.randrange(4)):
            await busy.next()
        mend = world.partition([await busy.next()], [STORE])
        longest_s = draw.choice((0.5 * TIMING.lease_ttl, TIMING.dead_after))
        await asyncio.sleep(draw.uniform(0.1, longest_s))
        mend()


async def outages(world: World) -> None:
    """Kills or pauses the store now and then."""
    draw = world.random("outages")
    pause_s = draw.choice((10.0, 20.0, 1000.0))
    while True:
        await asyncio.sleep(draw.expovariate(1.0 / pause_s))
        if not world.nodes[STORE].runs:
            continue
        lasts_s = draw.uniform(0.1, 6.0)
        if draw.random() < 0.5:
            world.pause(STORE)
            await asyncio.sleep(lasts_s)
            world.resume(STORE)
        else:
            world.kill(STORE)
            await asyncio.sleep(lasts_s)
            world.start(STORE)


async def lose_store(world: World, acting: Acting, machine: StoreMachine, core: list[str]) -> None:
    """No member that runs knows the epochs of before, and the last leader wakes up after the next
    one was elected. Epochs then begin at the wall clock, which must not have been set back."""
    former = acting.last_node
    for name in core:
        (world.pause if name == former else world.kill)(name)
        world.nodes[name].wall.error_s = LATEST_WALL_S
    machine.forget()
    lost = world.now
    world.start(*(name for name in core if name != former))
    await world.eventually(
        lambda: acting.last_at > lost and acting.last_node != former,
        within_s=CONVERGE_S,
        what="a member leads in the new store",
    )
    world.resume(former)
    await asyncio.sleep(2.0 * TIMING.lease_ttl)


async def supervise(world: World, names: list[str]) -> None:
    """Restarts processes that ended by themselves."""
    while True:
        await asyncio.sleep(1.0)
        for name in names:
            if world.nodes[name].state is State.ENDED:
                world.start(name)


async def scenario(world: World) -> None:
    with mutated(world.mutant):
        await _scenario(world)


async def _scenario(world: World) -> None:
    draw = world.random("scenario")
    members = [f"m{number}" for number in range(draw.choice((2, 3, 4, 5)))]
    acting, signals, busy = Acting(world), SignalChecks(world), Busy()
    runs = RunChecks(world, JOB_EVERY_S, busy)
    store_checks = StoreChecks(world, TIMING, runs)
    machine = StoreMachine(world, draw_ways(world.random("ways")), store_checks.wrote)
    machine.members = members
    tickets = TicketChecks(world)
    world.watch(acting, signals, tickets, runs, busy)

    async def program(runtime: Runtime) -> None:
        probe = world.probe(runtime.node)
        await MemberProgram(runtime, machine, probe).run()

    world.add(STORE, machine.program)
    for name in members:
        world.add(name, program, exits_on=(OSError, *_expected()))
    swarm = draw_swarm(world.random("swarm"), FAULTS, longest_s=(2.0, 10.0))
    faults = Faults(world, swarm, members)
    world.start()
    trouble = [
        asyncio.ensure_future(hunt(world, acting, machine)),
        asyncio.ensure_future(doze(world, acting, store_checks, members)),
        asyncio.ensure_future(interrupt(world, busy)),
        asyncio.ensure_future(outages(world)),
        asyncio.ensure_future(intrude(world, machine, members)),
    ]
    await faults.run(world.parameter("seconds", FAULTY_S))
    for each in trouble:
        each.cancel()
    core = draw.sample(members, draw.randint(2, len(members)))
    machine.heal(core)
    machine.takes_tickets = False
    world.resume(STORE)
    if not world.nodes[STORE].runs:
        world.start(STORE)
    faults.end(core)
    supervising = asyncio.ensure_future(supervise(world, core))
    healed, before = world.now, len(signals.acked)
    await world.eventually(
        lambda: acting.last_at > healed + TIMING.lease_ttl and acting.last_node in core,
        within_s=CONVERGE_S,
        what=f"one of {','.join(core)} acts",
    )
    await world.eventually(
        lambda: len(signals.acked) > before + 2, within_s=CONVERGE_S, what="signals are acked"
    )
    await world.eventually(
        lambda: tickets.enqueued <= store_checks.finals, within_s=CONVERGE_S, what="tickets end"
    )
    await world.eventually(lambda: runs.have_ended, within_s=CONVERGE_S, what="runs end")
    check(not runs.left_out, f"due times without a run: {runs.left_out}")
    supervising.cancel()
    lost = sorted(text for text in signals.acked if text not in store_checks.effects)
    check(not lost, f"acknowledged without effect: {', '.join(lost)}")
    # Signals, tickets and runs are lost with the store; epochs are not.
    world.unwatch(signals, tickets, runs)
    store_checks.only_epochs = acting.may_overlap = True
    await lose_store(world, acting, machine, core)


def _expected() -> tuple[type[BaseException], ...]:
    """Errors with which a process may end; its supervisor restarts it."""
    from squall.coordination.errors import DuplicateMemberError, StoreUnavailableError

    return (DuplicateMemberError, StoreUnavailableError)


SCENARIO = Scenario(
    "coordination",
    "members that share a store elect leaders and exchange signals under every fault",
    scenario,
    mutants=MUTANTS,
    limit_s=600.0,
)
