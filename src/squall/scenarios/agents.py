"""Whole agents on a store: election, log, mailboxes, leases, under faults.

The agents are the real ones on a model of the engine. The store is across a network that
delays, loses, repeats and cuts; agents are killed, paused and cut off. Half of the seeds aim
at leases besides: an agent that makes load stands still or does not reach the store, or the
store does not reach it, for less or for longer than its lease, while its core processes live.

Invariants are those of the datacenter: every accepted job ends, once; no share in two live
attempts; no core given twice; layers in order; counted <= the target's count <= counted + u.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from squall.api.errors import SquallError
from squall.nodes.agent.leader import LEADER_ADDRESS, find_leader
from squall.nodes.agent.network import StoreNetwork, mailbox_name
from squall.nodes.agent.node import AgentNode, AgentPlan
from squall.nodes.agent.pace import pace_of
from squall.nodes.agent.secret_check import proof_of, signing_secret
from squall.nodes.agent.timers import agent_timers
from squall.nodes.agent.world import World as NodeWorld
from squall.nodes.submission import Submission
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from squall.scenarios import datacenter
from squall.scenarios.coordination_store import STORE, SimStore, StoreMachine, Ways, draw_ways
from squall.scenarios.datacenter import CLUSTER, SECRET, Asked, Lab
from squall.scenarios.datacenter_engine import ModelHost, ModelMachine
from squall.sim.faults import Faults
from squall.sim.run import Scenario
from squall.sim.swarm import CLOCK, NETWORK, SURVIVABLE, Fault, draw_swarm
from squall.sim.world import World
from squall.stats.manifest import Profile
from squall.wire.secrets import Secrets, worker_credential

URL = "memory:"
AGENTS = ("a1", "a2", "a3")
CLIENTS = ("c0", "c1")
FAULTY_S = 20
AIMED_S = 45
"""How long faults come and go; a lease has to pass in it, more than once."""
CONVERGE_S = 400.0
LIVING = (*NETWORK, *CLOCK, Fault.SHUFFLE)
LOOK_S = 0.25
LEASE_S = agent_timers(URL, "fast").work.execution_lease_s
MUTANTS = {
    name: datacenter.MUTANTS[name]
    for name in ("cores_ignore_lease", "lease_from_receipt", "lost_at_once")
}


@dataclass
class Stage:
    """A store, agents on it, and their jobs."""

    world: World
    lab: Lab
    store: StoreMachine
    agents: dict[str, AgentNode] = field(default_factory=dict[str, AgentNode])

    def heal(self) -> None:
        self.store.heal([*AGENTS, *CLIENTS])


def make_stage(world: World, ways: Ways) -> Stage:
    """With its store and agents, none of them started."""
    lab = datacenter.make_lab(world)
    lab.members = (LEADER_ADDRESS[0],)
    stage = Stage(world, lab, StoreMachine(world, ways, lambda writes, fence: None))
    world.add(STORE, stage.store.program)
    for name in AGENTS:
        world.add(name, lambda runtime: agent(runtime, stage), exits_on=(SquallError, OSError))
    return stage


def add_client(stage: Stage, name: str, asked: Asked, cancel_after_s: float | None = None) -> None:
    stage.lab.asked.append(asked)
    stage.world.add(name, lambda runtime: client(runtime, stage, asked, cancel_after_s))


async def agent(runtime: Runtime, stage: Stage) -> None:
    tasks = TaskRunner(runtime.clock, runtime.random)
    node = stage.agents[runtime.node] = AgentNode(
        runtime,
        SimStore(stage.store, runtime.node),
        ModelHost(stage.lab.engine, runtime),
        ModelMachine(stage.world, runtime.node),
        _plan(stage.lab),
        tasks=tasks,
        log=Log(MemorySink(), runtime.clock),
    )
    await datacenter.with_tasks(tasks, node.run(asyncio.Event()))


def _plan(lab: Lab) -> AgentPlan:
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


async def client(
    runtime: Runtime, stage: Stage, asked: Asked, cancel_after_s: float | None
) -> None:
    store = SimStore(stage.store, runtime.node)
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
    await datacenter.client(world, stage.lab, asked, cancel_after_s)


async def scenario(world: World) -> None:
    draw = world.random("scenario")
    aims = draw.random() < 0.5 or world.parameter("aims", 0) > 0
    stage = make_stage(world, draw_ways(world.random("ways")))
    for number, name in enumerate(CLIENTS):
        submission = datacenter.draw_submission(draw, number)
        after_s = draw.uniform(0.5, 8.0) if draw.random() < 0.3 else None
        if aims:
            submission, after_s = lasting(submission, draw), None
        add_client(stage, name, Asked(submission), after_s)
    # An agent that is killed loses its core processes with it: no lease is in question then.
    allowed, longest_s = (LIVING, (0.5, 2.0)) if aims else (SURVIVABLE, (2.0, 8.0))
    swarm = draw_swarm(world.random("swarm"), allowed, longest_s=longest_s)
    faults = Faults(world, swarm, [STORE, *AGENTS], most_down=2)
    world.start()
    lab = stage.lab
    running = asyncio.ensure_future(lab.engine.run())
    supervising = asyncio.ensure_future(datacenter.supervise(world, AGENTS))
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


def lasting(submission: Submission, draw: random.Random) -> Submission:
    """The same job with one workflow that outlasts several leases, and so few users that cores
    stay free for who takes over."""
    duration_s = draw.uniform(20.0, 40.0)
    vus = draw.randint(1, 2)
    profile = Profile(model="closed", vus=vus, max_vus=vus, duration_s=duration_s)
    if draw.random() < 0.3:
        rate = float(draw.randint(5, 40))
        profile = Profile(model="open", vus=vus, max_vus=40, duration_s=duration_s, rate_per_s=rate)
    flow = msgspec.structs.replace(
        submission.manifest.workflows[0], profile=profile, depends=[], priority="auto"
    )
    manifest = msgspec.structs.replace(submission.manifest, workflows=[flow])
    return msgspec.structs.replace(submission, manifest=manifest)


# Faults that aim at leases.


async def aim_at_leases(stage: Stage, aims: bool) -> None:
    """Again and again, until it is cancelled; what it began is undone by the end of all
    faults, or by itself."""
    world = stage.world
    draw = world.random("aims")
    while aims:
        await asyncio.sleep(LOOK_S)
        loaded = [name for name in AGENTS if _makes_load(stage, name)]
        if not loaded or draw.random() < 0.2:
            continue
        others = [name for name in loaded if not stage.agents[name].coordinator.is_coordinator]
        victim = draw.choice(others or loaded)
        strike = draw.choice(STRIKES)
        world.count(f"aimed {strike.__name__.strip('_')}")
        undo = strike(world, victim)
        # Shorter than a lease: it may go on. Longer, and longer than the wait for its end: it
        # must have stopped when another takes over.
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


def _unheard(world: World, victim: str) -> Callable[[], None]:
    """Nothing that it writes arrives."""
    world.cut(victim, STORE)
    return lambda: world.mend(victim, STORE)


def _unanswered(world: World, victim: str) -> Callable[[], None]:
    """What it writes takes effect, and it never hears so."""
    world.cut(STORE, victim)
    return lambda: world.mend(STORE, victim)


def _all_away(world: World, victim: str) -> Callable[[], None]:
    """The store is away for everybody; when it is back, one of them stays cut off a while."""
    world.pause(STORE)
    alone = world.partition([victim], [STORE])
    loop = asyncio.get_running_loop()
    loop.call_later(1.3 * LEASE_S, alone)
    return lambda: world.resume(STORE)


STRIKES = (_pause, _pause, _pause, _cut_off, _unheard, _unanswered, _all_away)
"""The main process that stands still is the hardest: nobody but its core processes is left
to keep the lease."""


SCENARIO = Scenario(
    "agents",
    "agents that share a store: jobs end exactly once with exact sums",
    scenario,
    mutants=MUTANTS,
    limit_s=2000.0,
)
