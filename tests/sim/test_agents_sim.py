"""Whole agents in the simulation: store, election, log, mailboxes, leases, under faults.

The agents are the real ones on a model of the engine; the store is across a network that
delays, loses, repeats and cuts; agents are killed, paused and cut off. Every job that was
accepted ends once, no share is in two live attempts, and the sums hold.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import cast

import msgspec
import pytest

from squall.api.errors import SquallError
from squall.nodes.agent.leader import LEADER_ADDRESS, find_leader
from squall.nodes.agent.network import StoreNetwork, mailbox_name
from squall.nodes.agent.node import AgentNode, AgentPlan
from squall.nodes.agent.pace import pace_of
from squall.nodes.agent.secret_check import proof_of, signing_secret
from squall.nodes.agent.timers import agent_timers
from squall.nodes.agent.world import World as NodeWorld
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from squall.scenarios import datacenter
from squall.scenarios.coordination_store import STORE, SimStore, StoreMachine, draw_ways
from squall.scenarios.datacenter import CLUSTER, SECRET, Asked, Lab
from squall.scenarios.datacenter_engine import ModelHost, ModelMachine
from squall.sim.checks import check
from squall.sim.faults import Faults
from squall.sim.run import Scenario, run_seed
from squall.sim.swarm import SURVIVABLE, draw_swarm
from squall.sim.world import World
from squall.stats.manifest import Profile
from squall.wire.secrets import Secrets, worker_credential

URL = "memory:"
AGENTS = ("a1", "a2", "a3")
FAULTY_S = 20.0
CONVERGE_S = 400.0
SEEDS = range(1, 9)
CUT_SEEDS = range(1, 4)
CUT_S = 9.0
"""Longer than a lease and the wait after it."""
MUTANTS = ("cores_ignore_lease", "lost_at_once")
"""Core processes that go on after their lease; losses that do not wait for it."""
MANY = range(1, int(os.environ.get("SQUALL_AGENT_SEEDS", "0")) + 1)


def plan(lab: Lab) -> AgentPlan:
    timers = agent_timers(URL, "fast")
    work = msgspec.structs.replace(
        timers.work,
        lost_factor=lab.manager_timers.lost_factor,
        lost_margin_s=lab.manager_timers.lost_margin_s,
    )
    return AgentPlan(
        cluster=CLUSTER,
        node_secrets=Secrets.of_node(SECRET),
        worker_secrets=Secrets.of_credential(worker_credential(SECRET)),
        proofs=(proof_of(SECRET, CLUSTER),),
        signing=(signing_secret(SECRET, CLUSTER),),
        timers=msgspec.structs.replace(timers, work=work),
        pace=pace_of(URL),
        cores=2,
    )


async def agent(
    runtime: Runtime, lab: Lab, machine: StoreMachine, agents: dict[str, AgentNode]
) -> None:
    tasks = TaskRunner(runtime.clock, runtime.random)
    node = agents[runtime.node] = AgentNode(
        runtime,
        SimStore(machine, runtime.node),
        ModelHost(lab.engine, runtime),
        ModelMachine(lab.world, runtime.node),
        plan(lab),
        tasks=tasks,
        log=Log(MemorySink(), runtime.clock),
    )
    await datacenter._with_tasks(tasks, node.run(asyncio.Event()))  # pyright: ignore[reportPrivateUsage]


async def client(
    runtime: Runtime, lab: Lab, machine: StoreMachine, asked: Asked, after_s: float | None
) -> None:
    store = SimStore(machine, runtime.node)
    network = StoreNetwork(
        store,
        own=mailbox_name(runtime.node, runtime.boot),
        clock=runtime.clock,
        random=runtime.random,
        tasks=TaskRunner(runtime.clock, runtime.random),
        pace=pace_of(URL),
        resolve=lambda _: find_leader(store),
    )
    world = cast("Runtime", NodeWorld(runtime, network))
    await datacenter.client(world, lab, asked, after_s)


async def scenario(world: World) -> None:
    draw = world.random("scenario")
    lab = datacenter._lab(world)  # pyright: ignore[reportPrivateUsage]
    lab.members = (LEADER_ADDRESS[0],)
    # Without transactions it would be S3, whose pace is another: seconds for each message.
    ways = replace(draw_ways(world.random("ways")), transactions=True)
    machine = StoreMachine(world, ways, lambda writes, fence: None)
    agents: dict[str, AgentNode] = {}
    world.add(STORE, machine.program)
    for name in AGENTS:
        world.add(
            name,
            lambda runtime: agent(runtime, lab, machine, agents),
            exits_on=(SquallError, OSError),
        )
    for number in range(2):
        asked = Asked(datacenter._submission(draw, number))  # pyright: ignore[reportPrivateUsage]
        lab.asked.append(asked)
        after_s = draw.uniform(0.5, 8.0) if draw.random() < 0.3 else None
        world.add(
            f"c{number}",
            lambda runtime, a=asked, s=after_s: client(runtime, lab, machine, a, s),
        )
    swarm = draw_swarm(world.random("swarm"), SURVIVABLE, longest_s=(2.0, 8.0))
    faults = Faults(world, swarm, [STORE, *AGENTS], most_down=2)
    world.start()
    running = asyncio.ensure_future(lab.engine.run())
    supervising = asyncio.ensure_future(
        datacenter._supervise(world, AGENTS)  # pyright: ignore[reportPrivateUsage]
    )
    await faults.run(FAULTY_S)
    faults.end()
    machine.heal([*AGENTS, "c0", "c1"])
    await world.eventually(
        lambda: running.done() or all(asked.result is not None for asked in lab.asked),
        within_s=CONVERGE_S,
        what="every accepted job ends",
    )
    if running.done():
        running.result()
    lab.managers = {name: node.manager for name, node in agents.items() if node.manager is not None}
    for asked in lab.asked:
        datacenter._judge(lab, asked)  # pyright: ignore[reportPrivateUsage]
    running.cancel()
    supervising.cancel()


SCENARIO = Scenario("agents", "", scenario, limit_s=2000.0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", MANY or SEEDS)
def test_jobs_of_agents_end_once_with_exact_sums(seed: int) -> None:
    outcome = run_seed(SCENARIO, seed)
    assert outcome.clean, outcome.failure + "\n" + outcome.details + "\n".join(outcome.tail[-20:])


async def cut_off(world: World) -> None:
    """One agent that runs a share does not reach the store for a while."""
    lab = datacenter._lab(world)  # pyright: ignore[reportPrivateUsage]
    lab.members = (LEADER_ADDRESS[0],)
    ways = replace(draw_ways(world.random("ways")), transactions=True)
    machine = StoreMachine(world, ways, lambda writes, fence: None)
    agents: dict[str, AgentNode] = {}
    world.add(STORE, machine.program)
    for name in AGENTS:
        world.add(name, lambda runtime: agent(runtime, lab, machine, agents))
    profile = Profile(model="closed", vus=6, max_vus=6, duration_s=30.0)
    drawn = datacenter._submission(world.random("scenario"), 1)  # pyright: ignore[reportPrivateUsage]
    flow = msgspec.structs.replace(
        drawn.manifest.workflows[0], profile=profile, depends=[], priority="auto"
    )
    manifest = msgspec.structs.replace(drawn.manifest, workflows=[flow])
    asked = Asked(msgspec.structs.replace(drawn, manifest=manifest))
    lab.asked.append(asked)
    world.add("c0", lambda runtime: client(runtime, lab, machine, asked, None))
    machine.heal([*AGENTS, "c0"])
    world.start(STORE, *AGENTS)
    running = asyncio.ensure_future(lab.engine.run())
    await asyncio.sleep(3.0)
    world.start("c0")
    await world.eventually(
        lambda: lab.target.total(asked.job) > 0, within_s=60.0, what="the load begins"
    )
    await asyncio.sleep(3.0)
    victim = next(
        name
        for name, each in agents.items()
        if each.worker.session.live and not each.coordinator.is_coordinator
    )
    for source, target in ((victim, STORE), (STORE, victim)):
        world.links.cut(source, target)
    await asyncio.sleep(CUT_S)
    for source, target in ((victim, STORE), (STORE, victim)):
        world.links.mend(source, target)
    await world.eventually(
        lambda: running.done() or asked.result is not None, within_s=120.0, what="the job ends"
    )
    if running.done():
        running.result()
    datacenter._judge(lab, asked)  # pyright: ignore[reportPrivateUsage]
    assert asked.result is not None
    check(bool(asked.result.losses), "an agent was cut off and nothing is called lost")
    check(any(loss.refilled_by for loss in asked.result.losses), "nobody took its load over")
    running.cancel()


CUT = Scenario("cut", "", cut_off, limit_s=600.0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", CUT_SEEDS)
def test_the_load_of_an_agent_that_is_cut_off_moves_and_is_never_made_twice(seed: int) -> None:
    outcome = run_seed(CUT, seed)
    assert outcome.clean, outcome.failure + "\n" + outcome.details + "\n".join(outcome.tail[-20:])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_of_the_lease_makes_it_twice(mutant: str) -> None:
    outcomes = [run_seed(CUT, seed, mutant=mutant) for seed in CUT_SEEDS]
    assert any("CheckFailed" in outcome.failure for outcome in outcomes), outcomes[0].failure
