"""Managers whose log lies in a store: whoever leads goes on with the jobs of the one before."""

from __future__ import annotations

import asyncio
import re

import pytest

from lab.scenarios.datacenter import scenario as datacenter
from lab.scenarios.datacenter.scenario import (
    CLUSTER,
    DATACENTER,
    PORT,
    SECRET,
    DatacenterLab,
    SubmittedJob,
)
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from squall.cluster.group.clients.operator_api import IN_A_STORE
from squall.cluster.manager.node import ManagerNode, ManagerPlan
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.seal.secrets import Secrets
from squall.coordination.stores.interface import Store
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from squall.store_mode.ledger.open_store_ledger import open_store_log
from tests.unit.store_mode.lab.ledgers import SMALL, CountedStore, Leave


async def manager(runtime: Runtime, lab: DatacenterLab, store: Store, term: Leave) -> None:
    tasks = TaskRunner(runtime.clock, runtime.random)
    plan = ManagerPlan(
        datacenter=DATACENTER,
        listen=("", PORT),
        members={str(runtime.node): (str(runtime.node), PORT)},
        secrets=Secrets.of_node(SECRET),
        cluster=CLUSTER,
        settings=lab.settings,
        timers=lab.manager_timers,
        metrics=("", PORT + 1),
        opener=open_store_log(store, term=term, settings=SMALL),
    )
    node = ManagerNode(runtime, tasks, plan, Log(MemorySink(), runtime.clock))
    lab.managers[runtime.node] = node
    await node.run(asyncio.Event())


async def scenario(world: World) -> None:
    world.parameters["managers"] = "3"
    lab = datacenter.make_lab(world)
    store, terms = CountedStore(world), {name: Leave(n) for n, name in enumerate(lab.members, 1)}
    draw = world.random("scenario")
    for name in lab.members:
        world.add(name, lambda runtime: manager(runtime, lab, store, terms[runtime.node]))
    for name in ("w1", "w2", "w3"):
        world.add(name, lambda runtime: datacenter.worker(runtime, lab))
    for number in range(3):
        asked = SubmittedJob(datacenter.draw_submission(draw, number))
        lab.asked.append(asked)
        world.add(f"c{number}", lambda runtime, a=asked: datacenter.client(runtime, lab, a, None))
    running = asyncio.ensure_future(lab.engine.run())
    first, second, third = lab.members
    world.start(first, "w1", "w2", "w3", "c0", "c1", "c2")
    await world.eventually(
        lambda: all(asked.job for asked in lab.asked), within_s=60.0, what="jobs are accepted"
    )
    await asyncio.sleep(3.0)
    world.kill(first)
    world.start(second)
    await asyncio.sleep(4.0)
    (shown,) = lab.managers[second]._group.view().members  # pyright: ignore[reportPrivateUsage]
    assert (shown.name, shown.state) == (second, "leads")
    with pytest.raises(RemoteError, match=IN_A_STORE[:40]):
        lab.managers[second]._group._group()  # pyright: ignore[reportPrivateUsage]
    # The next one begins while this one still believes to lead.
    world.start(third)
    await asyncio.sleep(2.0)
    assert lab.managers[second].director is None
    assert lab.managers[third].director is not None
    await world.eventually(
        lambda: all(asked.result is not None for asked in lab.asked),
        within_s=240.0,
        what="every accepted job ends",
    )
    for asked in lab.asked:
        datacenter.judge(lab, asked)
    check_metrics(lab)
    running.cancel()


def check_metrics(lab: DatacenterLab) -> None:
    """The manager that led when a job ended counted it, and no other one."""
    shown = [node.registry.exposition() for node in lab.managers.values()]
    ended = re.findall(r'squall_job_events_total\{event="job_ended"\} (\d+)', "\n".join(shown))
    assert len(ended) == 3 and 1 <= sum(map(int, ended)) <= len(lab.asked)
    for text in shown:
        assert 'squall_wire_events{event="handshakes"}' in text
        assert 'squall_requests_running{class="telemetry"}' in text


@pytest.mark.parametrize("seed", [1, 2])
def test_jobs_survive_two_changes_of_the_leader(seed: int) -> None:
    outcome = run_seed(Scenario("test", "", scenario), seed)
    assert outcome.clean, outcome.failure + "\n" + outcome.details + "\n".join(outcome.tail[-20:])
