"""Members that coordinate through a store, under faults of members, store and the way there.

The real `Coordinator` runs; only the store is a model (`coordination_store`). Promises: no
two members act in one epoch, nobody acts after the end of its lease, fenced writes never go
back to an old epoch, what is acknowledged was handled and took effect once, a death is
decided once about a silent incarnation, forged signals have no effect, an attempt of a ticket is
taken once and its end is written once, a due time is run once. When the faults end, some members
alone must elect, act and exchange signals again, bring every ticket to its end, and have left out
no due time.
"""

from __future__ import annotations

import asyncio

from squall.runtime.interfaces import Runtime
from squall.scenarios.coordination_checks import (
    Acting,
    Busy,
    RunBook,
    SignalBook,
    StoreBook,
    TicketBook,
)
from squall.scenarios.coordination_intruder import intrude
from squall.scenarios.coordination_member import JOB_EVERY_S, TIMING, MemberProgram
from squall.scenarios.coordination_mutants import MUTANTS, mutated
from squall.scenarios.coordination_store import STORE, StoreMachine, draw_ways
from squall.sim.checks import check
from squall.sim.faults import Faults
from squall.sim.node import State
from squall.sim.run import Scenario
from squall.sim.swarm import CLOCK, NETWORK, PROCESS, Fault, draw_swarm
from squall.sim.world import World

FAULTY_S = 30
CONVERGE_S = 25.0
FAULTS = (*PROCESS, *NETWORK, *CLOCK, Fault.SHUFFLE)


async def hunt(world: World, acting: Acting, machine: StoreMachine) -> None:
    """Strikes the one that leads: random faults rarely hit it in the right moment."""
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


async def doze(world: World, acting: Acting, book: StoreBook, members: list[str]) -> None:
    """One that does not lead is silent and back when its death is decided, or just after."""
    draw = world.random("doze")
    pause_s = draw.choice((2.0, 5.0, 1000.0))
    while True:
        await asyncio.sleep(draw.expovariate(1.0 / pause_s))
        name = draw.choice(members)
        if name == acting.last_node or not world.nodes[name].runs:
            continue
        world.pause(name)
        await book.last_warning(name, within_s=2.0 * TIMING.dead_after)
        if draw.random() < 0.5:
            await asyncio.sleep(draw.uniform(0.0, TIMING.monitor_interval))
        world.resume(name)


async def interrupt(world: World, busy: Busy) -> None:
    """One that works does not reach the store when it is through, or does not hear from it."""
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
    """The store is away now and then, or stands still."""
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


async def supervise(world: World, names: list[str]) -> None:
    """Starts again what ended by itself."""
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
    acting, signals, busy = Acting(world), SignalBook(world), Busy()
    runs = RunBook(world, JOB_EVERY_S, busy)
    book = StoreBook(world, TIMING, runs)
    machine = StoreMachine(world, draw_ways(world.random("ways")), book.wrote)
    machine.members = members
    tickets = TicketBook(world)
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
        asyncio.ensure_future(doze(world, acting, book, members)),
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
        lambda: tickets.enqueued <= book.finals, within_s=CONVERGE_S, what="tickets end"
    )
    await world.eventually(lambda: runs.have_ended, within_s=CONVERGE_S, what="runs end")
    check(not runs.left_out, f"due times without a run: {runs.left_out}")
    supervising.cancel()
    lost = sorted(text for text in signals.acked if text not in book.effects)
    check(not lost, f"acknowledged without effect: {', '.join(lost)}")


def _expected() -> tuple[type[BaseException], ...]:
    """A process may end by these, and its supervisor starts it again."""
    from squall.coordination.errors import DuplicateMemberError, StoreUnavailableError

    return (DuplicateMemberError, StoreUnavailableError)


SCENARIO = Scenario(
    "coordination",
    "members of a store elect, fence, beat and signal under faults of all kinds",
    scenario,
    mutants=MUTANTS,
    limit_s=600.0,
)
