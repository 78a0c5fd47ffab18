"""Managers of two versions in one group: none of them applies a command that another cannot."""

from __future__ import annotations

import asyncio

from lab.scenarios.datacenter import scenario as datacenter
from lab.scenarios.datacenter.scenario import DatacenterLab, SubmittedJob
from lab.sim.node import State
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from squall.api.errors import SquallError
from squall.cluster.datacenter.commands import VERSION, Configure, encode
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.manager.node import ManagerNode
from tests.sim.cluster.lab.group_jobs import asked_job, clean, closed


class OldDatacenter(Datacenter):
    @property
    def version(self) -> int:
        return VERSION - 1


def tables_named(lab: DatacenterLab) -> list[str]:
    """The managers that applied the first command, which names the group."""
    return [name for name, node in lab.managers.items() if node.machine.tables.group]


def a_group(world: World) -> tuple[DatacenterLab, SubmittedJob]:
    """Three managers, a worker and a client with one job; nothing runs yet."""
    world.parameters["managers"] = "3"
    lab = datacenter.make_lab(world)
    exits = (SquallError, OSError)
    for name in lab.members:
        world.add(name, lambda runtime: datacenter.manager(runtime, lab), exits_on=exits)
    world.add("w1", lambda runtime: datacenter.worker(runtime, lab))
    asked = asked_job("job", closed("load", 2.0))
    world.add("c1", lambda runtime: datacenter.client(runtime, lab, asked, None))
    return lab, asked


def start(world: World, lab: DatacenterLab, name: str, machine: type[Datacenter]) -> None:
    world.nodes[name].program = lambda runtime: datacenter.manager(runtime, lab, machine())
    world.start(name)


def leader(lab: DatacenterLab) -> ManagerNode | None:
    return next((node for node in lab.managers.values() if node.director is not None), None)


async def unused(world: World) -> None:
    lab, asked = a_group(world)
    for name in lab.members:
        start(world, lab, name, OldDatacenter)
    running = asyncio.ensure_future(lab.engine.run())
    await world.eventually(lambda: leader(lab), within_s=30.0, what="the group is formed")
    for name in lab.members:
        world.kill(name)
    for name in lab.members[:2]:
        start(world, lab, name, Datacenter)
    world.start("w1")
    world.start("c1")
    await world.eventually(
        lambda: asked.result is not None or running.done(), within_s=60.0, what="the job ends"
    )
    assert asked.state == "completed"
    running.cancel()


async def upgrade(world: World) -> None:
    lab, asked = a_group(world)
    for name in lab.members:
        start(world, lab, name, OldDatacenter)
    running = asyncio.ensure_future(lab.engine.run())
    await world.eventually(lambda: leader(lab), within_s=30.0, what="an old one leads")
    old = leader(lab)
    assert old is not None
    await old._ledger.submit(  # pyright: ignore[reportPrivateUsage]
        encode(Configure(group="old", lease_ms=5000)), version=VERSION - 1
    )
    await world.eventually(lambda: len(tables_named(lab)) == 3, within_s=5.0, what="all apply")
    world.start("w1")
    world.start("c1")
    for name in lab.members[:2]:
        world.kill(name)
        start(world, lab, name, Datacenter)
        await asyncio.sleep(5.0)
    world.kill("m3")
    await world.eventually(lambda: leader(lab), within_s=30.0, what="a new one leads")
    start(world, lab, "m3", OldDatacenter)
    await asyncio.sleep(5.0)
    assert not asked.job, "m3 cannot apply these commands"

    world.kill("m3")
    start(world, lab, "m3", Datacenter)
    await world.eventually(
        lambda: asked.result is not None or running.done(), within_s=60.0, what="the job ends"
    )
    assert asked.state == "completed"

    world.kill("m3")
    start(world, lab, "m3", OldDatacenter)
    await world.eventually(
        lambda: world.nodes["m3"].state is State.ENDED, within_s=10.0, what="the older one exits"
    )
    running.cancel()


def test_a_group_without_commands_needs_no_answer_of_a_manager_that_is_away() -> None:
    clean(run_seed(Scenario("test", "", unused), 1))


def test_commands_wait_for_the_last_old_manager_and_then_it_cannot_return() -> None:
    clean(run_seed(Scenario("test", "", upgrade), 1))
