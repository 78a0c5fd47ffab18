"""The toy election under all survivable faults.

Leaders write a new value as often as they can. Promises: one leader per term, one value
per committed version, no member's term ever falls. When the faults end, a majority alone
must elect a leader that commits something new.
"""

from __future__ import annotations

import asyncio

from squall.runtime.interfaces import Runtime
from squall.scenarios.replica import MUTANTS, Confirmed, Led
from squall.scenarios.replica_node import ReplicaNode
from squall.sim.checks import AtMostOne, Event, NeverFalls, Probe
from squall.sim.faults import Faults
from squall.sim.run import Scenario
from squall.sim.swarm import SURVIVABLE, draw_swarm
from squall.sim.world import World

FAULTY_S = 25
CONVERGE_S = 30.0
WRITE_PAUSE_S = 0.05


class Writer:
    """What a member does when it leads: writes a value, waits for its commit, goes on."""

    def __init__(self, runtime: Runtime, members: list[str], probe: Probe, mutant: str | None):
        self._probe = probe
        self._boot = runtime.boot
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self.node = ReplicaNode(
            runtime,
            members,
            probe,
            mutant=mutant,
            on_led=self._led,
            on_confirmed=self._confirmed,
        )

    def _led(self, led: Led) -> None:
        self._wanted = led.accepted.version

    def _confirmed(self, confirmed: Confirmed) -> None:
        if confirmed.version < self._wanted:
            return
        self._wanted = confirmed.version + 1
        if confirmed.version > 0:
            value = confirmed.value.decode()
            self._probe("commits", version=confirmed.version, value=value, term=confirmed.term)
        self._loop.call_later(WRITE_PAUSE_S, self._write)

    def _write(self) -> None:
        self._number += 1
        value = f"{self._boot}#{self._number}".encode()
        self.node.apply(self.node.replica.propose(value))


class Committed:
    """The highest version committed so far."""

    def __init__(self) -> None:
        self.version = 0

    def observe(self, event: Event) -> None:
        if event.name == "commits":
            self.version = max(self.version, event.fields["version"])


async def scenario(world: World) -> None:
    draw = world.random("scenario")
    members = [f"m{number}" for number in range(draw.choice((3, 3, 5)))]
    mutant = world.mutant

    def program(name: str):
        async def run(runtime: Runtime) -> None:
            await Writer(runtime, members, world.probe(name), mutant).node.run()

        return run

    committed = Committed()
    world.watch(
        AtMostOne("leads", key="term", value="node"),
        AtMostOne("commits", key="version", value="value"),
        NeverFalls("recovered", field="term"),
        committed,
    )
    for name in members:
        world.add(name, program(name), exits_on=(OSError,))
    swarm = draw_swarm(world.random("swarm"), SURVIVABLE)
    faults = Faults(world, swarm, members)
    world.start()
    await faults.run(world.parameter("seconds", FAULTY_S))
    core = draw.sample(members, len(members) // 2 + 1)
    faults.end(core)
    before = committed.version
    await world.eventually(
        lambda: committed.version > before,
        within_s=CONVERGE_S,
        what=f"{','.join(core)} commit something new",
    )


SCENARIO = Scenario(
    "election",
    "a majority elects a leader that keeps a register",
    scenario,
    mutants=MUTANTS,
    limit_s=600.0,
)
