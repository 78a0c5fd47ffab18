"""The execution lease: no two attempts of a share ever send load at the same time.

Three managers replicate one `Share` (attempt, worker, lost or not, lease in force) with
the toy register; workers ask for grants and run the attempt that they hold a lease for.

States of an attempt: dispatched -> running (while leased) -> lost; lost is committed,
final, and permits attempt + 1.

Rules that are under test, each with a mutant that breaks it (`lease_facts.MUTANTS`):
a grant follows a round begun after its request arrived; the worker counts from the send;
a loss is proposed only 1.1 x longest lease + margin after the latest of leading,
dispatch and arrival of the last granted request; nothing is granted from then on; the
lease length is a replicated fact.

Invariant: once attempt n + 1 sent a request, attempt n sends none; an attempt runs in
one boot of one worker. Assumption: clock rates differ by less than 5 %.
"""

from __future__ import annotations

import asyncio

from squall.runtime.interfaces import Runtime
from squall.scenarios.lease_facts import MUTANTS
from squall.scenarios.lease_manager import Manager
from squall.scenarios.lease_worker import Worker
from squall.sim.checks import Event, check
from squall.sim.faults import Faults
from squall.sim.run import Scenario
from squall.sim.swarm import SURVIVABLE, draw_swarm
from squall.sim.world import World

MANAGERS = 3
WORKERS = 3
FAULTY_S = 40
CONVERGE_S = 30.0


class NoOverlap:
    """Looks at the requests as the target sees them, and counts the attempts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._attempt = 0
        self._boot = ""
        self.node = ""
        """Who sent the last request."""
        self.last_request = 0.0

    def observe(self, event: Event) -> None:
        if event.name != "request":
            return
        attempt, boot = event.fields["attempt"], event.fields["boot"]
        check(
            attempt >= self._attempt,
            f"{event.node} sends for attempt {attempt} while attempt {self._attempt} runs",
        )
        if attempt > self._attempt:
            if self._attempt:
                self._world.count("attempts that followed another")
            self._attempt, self._boot = attempt, boot
        check(boot == self._boot, f"attempt {attempt} runs in {self._boot} and in {boot}")
        self.node = event.node
        self.last_request = event.time


async def hunt(world: World, managers: list[str], overlap: NoOverlap) -> None:
    """Strikes the worker that runs the attempt, again and again: random faults alone
    rarely hit it, and only a lost attempt puts the lease to the test."""
    draw = world.random("hunt")
    pause_s = draw.uniform(1.0, 6.0)
    while True:
        await asyncio.sleep(draw.expovariate(1.0 / pause_s))
        name = overlap.node
        if not name or not world.nodes[name].runs:
            continue
        lasts_s = draw.uniform(0.5, 6.0)
        way = draw.randrange(3)
        if way == 0:
            mend = world.partition([name], draw.sample(managers, draw.randint(1, MANAGERS)))
            await asyncio.sleep(lasts_s)
            mend()
        else:
            (world.pause if way == 1 else world.suspend)(name)
            await asyncio.sleep(lasts_s)
            world.resume(name)


async def scenario(world: World) -> None:
    managers = [f"m{number}" for number in range(MANAGERS)]
    workers = [f"w{number}" for number in range(WORKERS)]

    async def manage(runtime: Runtime) -> None:
        probe = world.probe(runtime.node)
        await Manager(runtime, managers, probe, world.mutant).run()

    async def work(runtime: Runtime) -> None:
        await Worker(runtime, managers, world.probe(runtime.node), world.mutant).run()

    overlap = NoOverlap(world)
    world.watch(overlap)
    for name in managers:
        world.add(name, manage, exits_on=(OSError,))
    for name in workers:
        world.add(name, work)
    # Long enough that leases run out and attempts are lost.
    swarm = draw_swarm(world.random("swarm"), SURVIVABLE, longest_s=(4.0, 20.0))
    faults = Faults(world, swarm, [*managers, *workers], most_down=2)
    world.start()
    hunting = asyncio.ensure_future(hunt(world, managers, overlap))
    await faults.run(world.parameter("seconds", FAULTY_S))
    hunting.cancel()
    draw = world.random("scenario")
    core = [*draw.sample(managers, MANAGERS // 2 + 1), draw.choice(workers)]
    faults.end(core)
    healed = world.now
    await world.eventually(
        lambda: overlap.last_request > healed + 5.0,
        within_s=CONVERGE_S,
        what=f"an attempt runs on {core[-1]}",
    )


SCENARIO = Scenario(
    "lease",
    "managers grant execution leases to workers, one attempt after another",
    scenario,
    mutants=MUTANTS,
    limit_s=600.0,
)
