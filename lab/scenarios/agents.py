"""Whole agents on a store: election, log, mailboxes, leases, under faults.

Real agents run on a model of the engine. The network to the store delays, loses, repeats and cuts
off messages; agents are killed, paused and partitioned. Half of the seeds also aim at leases: an
agent that makes load is paused, or loses its connection to the store in one or both directions,
for less or more than its lease, while its core processes keep running.

The invariants are those of the datacenter: every accepted job ends, once; no share runs in two
live attempts; no core is given twice; layers run in order; counted <= the target's count <=
counted + u (R8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from lab.mutants import datacenter as datacenter_mutants
from lab.scenarios.coordination.store import STORE, StoreMachine, Ways, connect, draw_ways
from lab.scenarios.datacenter import scenario as datacenter
from lab.scenarios.datacenter.engine_model import ModelHost, ModelMachine
from lab.scenarios.datacenter.scenario import CLUSTER, SECRET, DatacenterLab, SubmittedJob
from lab.sim.faults import Faults, supervise
from lab.sim.run import Scenario
from lab.sim.swarm import SURVIVABLE, draw_swarm
from lab.sim.world import World
from squall.api.errors import SquallError
from squall.cluster.wire.seal.secrets import Secrets, worker_credential
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from squall.store_mode.find_coordinator import LEADER_ADDRESS, find_leader
from squall.store_mode.node import AgentNode, AgentPlan
from squall.store_mode.runtime_over_store import StoreRuntime
from squall.store_mode.secret_check import proof_of, signing_secret
from squall.store_mode.timers import agent_timers
from squall.store_mode.transport.network import StoreNetwork, mailbox_name
from squall.store_mode.transport.tuning import tuning_of

URL = "memory:"
AGENTS = ("a1", "a2", "a3")
CLIENTS = ("c0", "c1")
FAULTY_S = 20
AIMED_S = 45
"""Length of the fault phase, long enough for several leases to end."""
CONVERGE_S = 400.0
POLL_S = 0.25
LEASE_S = agent_timers(URL, "fast").work.execution_lease_s
MUTANTS = {
    name: datacenter_mutants.MUTANTS[name]
    for name in ("cores_ignore_lease", "lease_from_receipt", "lost_at_once")
}


@dataclass
class Stage:
    """The store, agents and jobs of one run."""

    world: World
    lab: DatacenterLab
    store: StoreMachine
    agents: dict[str, AgentNode] = field(default_factory=dict[str, AgentNode])

    def heal(self) -> None:
        self.store.heal([*AGENTS, *CLIENTS])


def make_stage(world: World, ways: Ways) -> Stage:
    """Returns a stage with its store and agents, none of them started."""
    lab = datacenter.make_lab(world)
    lab.members = (LEADER_ADDRESS[0],)
    stage = Stage(world, lab, StoreMachine(world, ways, lambda writes, fence: None))
    world.add(STORE, stage.store.program)
    for name in AGENTS:
        world.add(name, lambda runtime: agent(runtime, stage), exits_on=(SquallError, OSError))
    return stage


def add_client(
    stage: Stage, name: str, asked: SubmittedJob, cancel_after_s: float | None = None
) -> None:
    stage.lab.asked.append(asked)
    stage.world.add(name, lambda runtime: client(runtime, stage, asked, cancel_after_s))


async def agent(runtime: Runtime, stage: Stage) -> None:
    tasks = TaskRunner(runtime.clock, runtime.random)
    node = stage.agents[runtime.node] = AgentNode(
        runtime,
        connect(stage.store, runtime.node),
        ModelHost(stage.lab.engine, runtime),
        ModelMachine(stage.world, runtime.node),
        _plan(stage.lab),
        tasks=tasks,
        log=Log(MemorySink(), runtime.clock),
    )
    await datacenter.with_tasks(tasks, node.run(asyncio.Event()))


def _plan(lab: DatacenterLab) -> AgentPlan:
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
        tuning=tuning_of(URL),
        cores=2,
    )


async def client(
    runtime: Runtime, stage: Stage, asked: SubmittedJob, cancel_after_s: float | None
) -> None:
    store = connect(stage.store, runtime.node)
    network = StoreNetwork(
        store,
        own=mailbox_name(runtime.node, runtime.boot),
        clock=runtime.clock,
        random=runtime.random,
        tasks=TaskRunner(runtime.clock, runtime.random),
        tuning=tuning_of(URL),
        resolve=lambda _: find_leader(store),
    )
    world = cast("Runtime", StoreRuntime(runtime, network))
    await datacenter.client(world, stage.lab, asked, cancel_after_s)


async def scenario(world: World) -> None:
    draw = world.random("scenario")
    aims = draw.random() < 0.5 or world.parameter("aims", 0) > 0
    stage = make_stage(world, draw_ways(world.random("ways")))
    for number, name in enumerate(CLIENTS):
        submission = datacenter.draw_submission(draw, number)
        after_s = draw.uniform(0.5, 8.0) if draw.random() < 0.3 else None
        if aims:
            submission, after_s = datacenter.lasting(submission, draw), None
        add_client(stage, name, SubmittedJob(submission), after_s)
    # Seeds that aim at leases kill no agent: its core processes would die with it, and the
    # lease would not be tested.
    allowed, longest_s = (
        (datacenter.FAULTS_WITHOUT_KILLS, (0.5, 2.0)) if aims else (SURVIVABLE, (2.0, 8.0))
    )
    swarm = draw_swarm(world.random("swarm"), allowed, longest_s=longest_s)
    faults = Faults(world, swarm, [STORE, *AGENTS], most_down=2)
    world.start()
    lab = stage.lab
    running = asyncio.ensure_future(lab.engine.run())
    supervising = asyncio.ensure_future(supervise(world, AGENTS))
    seconds = world.parameter("seconds", AIMED_S if aims else FAULTY_S)
    aiming = asyncio.ensure_future(aim_at_leases(stage, aims))
    await faults.run(seconds)
    aiming.cancel()
    faults.end()
    stage.heal()
    await world.eventually(
        lambda: running.done() or all(asked.result is not None for asked in lab.asked),
        within_s=CONVERGE_S,
        what="every accepted job ends",
    )
    if running.done():
        running.result()
    judge(stage)
    running.cancel()
    supervising.cancel()


def judge(stage: Stage) -> None:
    lab = stage.lab
    lab.managers = {
        name: node.manager for name, node in stage.agents.items() if node.manager is not None
    }
    for asked in lab.asked:
        datacenter.judge(lab, asked)


# Faults that aim at leases.


async def aim_at_leases(stage: Stage, aims: bool) -> None:
    """Strikes an agent that makes load, again and again until cancelled. Each strike is undone
    here, or when all faults end."""
    world = stage.world
    draw = world.random("aims")
    while aims:
        await asyncio.sleep(POLL_S)
        loaded = [name for name in AGENTS if _makes_load(stage, name)]
        if not loaded or draw.random() < 0.2:
            continue
        others = [name for name in loaded if not stage.agents[name].coordinator.is_coordinator]
        victim = draw.choice(others or loaded)
        strike = draw.choice(STRIKES)
        world.count(f"aimed {strike.__name__.strip('_')}")
        undo = strike(world, victim)
        # A strike shorter than a lease lets the load continue. In one longer than the primary's
        # wait for a loss, the load must have stopped before another agent takes over (R5).
        shortest, longest = draw.choice(((0.3, 1.0), (1.6, 3.0)))
        await asyncio.sleep(draw.uniform(shortest, longest) * LEASE_S)
        undo()
        await asyncio.sleep(draw.uniform(0.2, 0.6) * LEASE_S)


def _makes_load(stage: Stage, name: str) -> bool:
    node = stage.agents.get(name)
    return stage.world.nodes[name].runs and node is not None and node.worker.session.live > 0


def _pause(world: World, victim: str) -> Callable[[], None]:
    world.pause(victim)
    return lambda: world.resume(victim)


def _cut_off(world: World, victim: str) -> Callable[[], None]:
    return world.partition([victim], [STORE])


def _requests_lost(world: World, victim: str) -> Callable[[], None]:
    """The victim's requests do not reach the store."""
    world.cut(victim, STORE)
    return lambda: world.mend(victim, STORE)


def _replies_lost(world: World, victim: str) -> Callable[[], None]:
    """The victim's requests take effect, but the replies do not reach it."""
    world.cut(STORE, victim)
    return lambda: world.mend(STORE, victim)


def _store_paused(world: World, victim: str) -> Callable[[], None]:
    """The store is paused for all agents; after it resumes, the victim stays cut off for a
    while."""
    world.pause(STORE)
    alone = world.partition([victim], [STORE])
    loop = asyncio.get_running_loop()
    loop.call_later(1.3 * LEASE_S, alone)
    return lambda: world.resume(STORE)


STRIKES = (_pause, _pause, _pause, _cut_off, _requests_lost, _replies_lost, _store_paused)
"""A paused main process comes up most often because it is the hardest case: only its core
processes are left to observe the lease (R6)."""


SCENARIO = Scenario(
    "agents",
    "agents that share a store; every job ends exactly once with exact sums",
    scenario,
    mutants=MUTANTS,
    hunt={"aims": "1"},
    limit_s=2000.0,
)
