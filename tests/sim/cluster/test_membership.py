"""Membership in a simulated datacenter: no job ends differently, a suspected worker gets no new
work, and a cut link is told from a dead node.
"""

from __future__ import annotations

import asyncio

import pytest

from lab.scenarios.datacenter import scenario as datacenter
from lab.scenarios.datacenter.membership import PlacementCheck
from lab.scenarios.datacenter.scenario import CLUSTER, PORT, SECRET, DatacenterLab
from lab.scenarios.registry import find
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.manager.node import ManagerNode
from squall.cluster.presence.contacts import who_hears
from squall.cluster.protocol.membership.contacts import MemberList
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner
from tests.sim.cluster.lab.group_jobs import asked_job, clean, closed

SHORT = {"seconds": "18", "jobs": "3"}
CALM = {"seconds": "0", "jobs": "3"}
KNOWN_S = 20.0


def jobs_of(seed: int, **parameters: str) -> dict[str, int]:
    outcome = run_seed(find("datacenter"), seed, parameters=parameters)
    assert outcome.clean, outcome.failure
    return {what: count for what, count in outcome.tally.items() if what.startswith("jobs ")}


@pytest.mark.parametrize("seed", [3, 5])
def test_under_faults_every_job_ends_as_without_membership(seed: int) -> None:
    assert jobs_of(seed, **SHORT, membership="1") == jobs_of(seed, **SHORT)


def test_with_three_managers_jobs_end_once_with_exact_sums() -> None:
    assert sum(jobs_of(3, **SHORT, membership="1", managers="3").values()) == 3


def test_without_faults_nothing_differs() -> None:
    assert jobs_of(3, **CALM, membership="1") == jobs_of(3, **CALM)


# A worker that falls silent.


async def started(world: World, workers: int) -> DatacenterLab:
    """A datacenter in which all members know each other."""
    world.parameters["membership"] = "1"
    lab = datacenter.make_lab(world)
    for name in lab.members:
        world.add(name, lambda runtime: datacenter.manager(runtime, lab))
    for number in range(workers):
        world.add(f"w{number + 1}", lambda runtime: datacenter.worker(runtime, lab))
    world.start()
    everyone = len(lab.members) + workers - 1

    def all_known() -> bool:
        states = [[each.state.value for each in driver(node).members()] for node in running(lab)]
        return len(states) == len(lab.members) and all(s == ["alive"] * everyone for s in states)

    await world.eventually(all_known, within_s=KNOWN_S, what="all know each other")
    return lab


def running(lab: DatacenterLab) -> list[ManagerNode]:
    return [node for node in lab.managers.values() if node.ready.is_set()]


def driver(node: ManagerNode):
    return node._parts.presence.driver  # pyright: ignore[reportPrivateUsage]


async def silent_worker(world: World) -> None:
    lab = await started(world, workers=2)
    placements = PlacementCheck(world, lab.managers)
    background = [asyncio.ensure_future(each) for each in (placements.run(), lab.engine.run())]
    (manager,) = running(lab)
    await asyncio.sleep(1.0)
    mend = world.partition(("w2",), ("m1", "w1"))
    boot = manager.machine.tables.workers["w2"].boot
    await world.eventually(
        lambda: driver(manager).suspected_since("w2", boot) is not None,
        within_s=5.0,
        what="w2 is suspected",
    )
    director = manager.director
    assert director is not None
    # Its sessions alone would still say that it is there.
    assert director.state.is_present(manager.machine.tables.workers["w2"])
    asked = asked_job("new", closed("load", 3.0))
    world.add("c1", lambda runtime: datacenter.client(runtime, lab, asked, None))
    world.start("c1")
    tables = manager.machine.tables
    await world.eventually(
        lambda: asked.job and tables.live_of(asked.job), within_s=5.0, what="it is placed"
    )
    world.count("on " + " ".join(sorted({each.node for _, each in tables.live_of(asked.job)})))
    mend()
    await world.eventually(lambda: asked.result is not None, within_s=60.0, what="it ends")
    world.count(asked.state)
    await world.eventually(
        lambda: driver(manager).suspected_since("w2", boot) is None,
        within_s=20.0,
        what="w2 is back",
    )
    for each in background:
        each.cancel()
    placements.end(lab.sinks)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_worker_gets_no_new_work_as_soon_as_it_is_suspected(seed: int) -> None:
    outcome = run_seed(Scenario("test", "", silent_worker), seed)
    clean(outcome)
    assert outcome.tally["on w1"] == outcome.tally["completed"] == 1


# A link that is cut.


async def cut_link(world: World) -> None:
    world.parameters["managers"] = "3"
    lab = await started(world, workers=2)
    mend = world.partition(("w2",), ("m1",))
    await asyncio.sleep(3.0)
    answer = await members(world, lab)
    # Each of the five nodes is asked once at most, however many others ask it.
    assert 3 <= answer.asked <= 5
    row = next(each for each in answer.members if each.name == "w2")
    assert row.state == "alive", row
    assert row.not_heard_by == ["m1"] and len(row.heard_by) >= 2, row
    assert who_hears(row).endswith("hear it, only m1 does not")
    mend()
    world.crash("w2")
    await asyncio.sleep(3.0)
    row = next(each for each in (await members(world, lab)).members if each.name == "w2")
    assert row.state == "dead" and who_hears(row).startswith("nobody hears w2"), row


async def members(world: World, lab: DatacenterLab) -> MemberList:
    answers: list[MemberList] = []

    async def ask(runtime: Runtime) -> None:
        me = ClusterClient(
            runtime,
            TaskRunner(runtime.clock, runtime.random),
            addresses=[(name, PORT) for name in lab.members],
            secrets=Secrets.of_credential(client_credential(SECRET, runtime.node)),
            cluster=CLUSTER,
            reconnect_timeout_s=10.0,
        )
        answers.append(await me.members())
        await asyncio.Event().wait()

    name = f"asker{len(world.nodes)}"
    world.add(name, ask)
    world.start(name)
    await world.eventually(lambda: answers, within_s=20.0, what="the members are listed")
    return answers[0]


def test_a_cut_link_is_told_from_a_dead_node() -> None:
    clean(run_seed(Scenario("test", "", cut_link), 1))
