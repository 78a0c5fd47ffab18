"""A manager whose wall clock is wrong: it is reported, and times that people see stay right."""

from __future__ import annotations

import asyncio

from lab.scenarios.datacenter import scenario as datacenter
from lab.scenarios.datacenter.scenario import DatacenterLab, SubmittedJob
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from tests.sim.cluster.lab.group_jobs import asked_job, clean, closed

HOUR_S = 3600.0


def leads(world: World, lab: DatacenterLab) -> list[str]:
    runs = world.running()
    return [n for n, node in lab.managers.items() if n in runs and node.director is not None]


def created_at(lab: DatacenterLab, asked: SubmittedJob) -> float:
    return max(
        node.machine.tables.jobs[asked.job].created_at
        for node in lab.managers.values()
        if asked.job in node.machine.tables.jobs
    )


async def submitted(world: World, lab: DatacenterLab, name: str) -> SubmittedJob:
    asked = asked_job(name, closed("load", 1.0))
    world.add(name, lambda runtime: datacenter.client(runtime, lab, asked, None))
    world.start(name)
    await world.eventually(lambda: asked.job, within_s=30.0, what=f"{name} is accepted")
    return asked


async def wrong_clock(world: World) -> None:
    world.parameters["managers"] = "3"
    lab = datacenter.make_lab(world)
    for name in lab.members:
        world.add(name, lambda runtime: datacenter.manager(runtime, lab))
    world.add("w1", lambda runtime: datacenter.worker(runtime, lab))
    world.start()
    await world.eventually(lambda: leads(world, lab), within_s=30.0, what="one leads")
    wrong = leads(world, lab)[0]
    world.jump_wall_clock(wrong, HOUR_S)

    def offsets() -> list[float]:
        watches = [node._watch for node in lab.managers.values()]  # pyright: ignore[reportPrivateUsage]
        return [watch.clock_offsets().get(wrong, 0.0) for watch in watches]

    # Every manager, the wrong one included, knows which clock is wrong and by how much.
    await world.eventually(
        lambda: all(abs(each - HOUR_S) < 1.0 for each in offsets()),
        within_s=20.0,
        what="the wrong clock is known",
    )
    right = next(name for name in lab.members if name != wrong)
    first = await submitted(world, lab, "c1")
    true_s = world.nodes[right].runtime.clock.wall()  # pyright: ignore[reportOptionalMemberAccess]
    assert abs(created_at(lab, first) - true_s) < 60.0

    world.kill(wrong)
    await asyncio.sleep(1.0)
    await world.eventually(lambda: leads(world, lab), within_s=30.0, what="another one leads")
    second = await submitted(world, lab, "c2")
    assert created_at(lab, first) <= created_at(lab, second)


def test_an_hour_of_error_is_reported_and_not_shown() -> None:
    clean(run_seed(Scenario("test", "", wrong_clock), 1))
