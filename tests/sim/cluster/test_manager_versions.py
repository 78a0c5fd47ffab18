"""Managers of two versions in one group: none of them applies a command that another cannot."""

from __future__ import annotations

import asyncio

from lab.scenarios.datacenter import scenario as datacenter
from lab.scenarios.datacenter.scenario import DatacenterLab
from lab.sim.node import State
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from squall.api.errors import SquallError
from squall.cluster.datacenter.commands import VERSION
from squall.cluster.datacenter.state_machine import Datacenter
from tests.sim.cluster.lab.group_jobs import asked_job, clean, closed


class OldDatacenter(Datacenter):
    @property
    def version(self) -> int:
        return VERSION - 1


def tables_named(lab: DatacenterLab) -> list[str]:
    """The managers that applied the first command, which names the group."""
    return [name for name, node in lab.managers.items() if node.machine.tables.group]


async def upgrade(world: World) -> None:
    world.parameters["managers"] = "3"
    lab = datacenter.make_lab(world)
    exits = (SquallError, OSError)
    for name in lab.members:
        world.add(name, lambda runtime: datacenter.manager(runtime, lab), exits_on=exits)
    world.nodes["m3"].program = lambda runtime: datacenter.manager(runtime, lab, OldDatacenter())
    world.add("w1", lambda runtime: datacenter.worker(runtime, lab))
    asked = asked_job("job", closed("load", 2.0))
    world.add("c1", lambda runtime: datacenter.client(runtime, lab, asked, None))
    world.start()
    running = asyncio.ensure_future(lab.engine.run())
    leads = lambda: [name for name, node in lab.managers.items() if node.director is not None]  # noqa: E731
    await world.eventually(leads, within_s=30.0, what="one leads")
    await asyncio.sleep(5.0)
    assert tables_named(lab) == [] and not asked.job, "m3 cannot apply these commands"

    world.kill("m3")
    world.nodes["m3"].program = lambda runtime: datacenter.manager(runtime, lab)
    world.start("m3")
    await world.eventually(
        lambda: asked.result is not None or running.done(), within_s=60.0, what="the job ends"
    )
    assert asked.state == "completed"
    await world.eventually(lambda: len(tables_named(lab)) == 3, within_s=5.0, what="all apply")

    world.kill("m3")
    world.nodes["m3"].program = lambda runtime: datacenter.manager(runtime, lab, OldDatacenter())
    world.start("m3")
    await world.eventually(
        lambda: world.nodes["m3"].state is State.ENDED, within_s=10.0, what="the older one exits"
    )
    running.cancel()


def test_commands_wait_for_the_last_old_manager_and_then_it_cannot_return() -> None:
    clean(run_seed(Scenario("test", "", upgrade), 1))
