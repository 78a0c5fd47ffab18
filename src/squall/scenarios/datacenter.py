"""A whole datacenter: managers, workers, clients that submit, follow and cancel.

`--set managers=3` makes the managers a group of three; by default there is one.

The real nodes run here, on a model of the engine. Clients submit jobs of all load models,
in layers, some of which they cancel; faults strike manager, workers and network. Then the
world heals and every job that was accepted must end.

Invariants: every accepted job ends, once; no share in two live attempts; no core given
twice (the state machine raises an alarm); layers in order; a cancelled job never sends
again once it is over; the shares' users add up to the plan's; and the sums: counted <=
the target's count <= counted + u.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from squall.api.errors import SquallError
from squall.engine.options import RunOptions
from squall.nodes.client.client import ClusterClient
from squall.nodes.client.journal import Journal
from squall.nodes.identity import JobId
from squall.nodes.manager.node import ManagerNode, ManagerPlan
from squall.nodes.results.result import JobResult
from squall.nodes.submission import BundleManifest, Submission
from squall.nodes.timers import Timers, timers_of
from squall.nodes.worker.node import WorkerNode
from squall.nodes.worker.settings import WorkerSettings
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.sections import TIMER_PROFILES, TimerSettings
from squall.runtime.tasks import TaskRunner
from squall.scenarios.datacenter_engine import ModelEngine, ModelHost, ModelMachine, ModelTarget
from squall.settings import Settings
from squall.sim.checks import check
from squall.sim.faults import Faults
from squall.sim.node import State
from squall.sim.run import Scenario
from squall.sim.swarm import SURVIVABLE, draw_swarm
from squall.sim.world import World
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest
from squall.wire.secrets import Secrets, client_credential, worker_credential

T = TypeVar("T")
PORT = 7400
SECRET = "the secret of the simulated datacenter"
CLUSTER = "sim"
DATACENTER = "dc"
WORKERS = 3
FAULTY_S = 40
JOBS = 4
CONVERGE_S = 240.0
RESTART_S = 1.0
MUTANTS = {
    "cores_ignore_lease": "core processes go on after their lease ended",
    "lease_from_receipt": "a lease is counted from when its grant arrived, or later",
    "lost_at_once": "attempts are declared lost without waiting for their lease",
}
NO_JOB = JobId("")
FINAL = ("completed", "partial", "failed", "cancelled", "timeout")


@dataclass
class Asked:
    """One job as its client knows it."""

    submission: Submission
    job: JobId = NO_JOB
    cancelled: bool = False
    state: str = ""
    result: JobResult | None = None
    failure: str = ""


@dataclass
class Lab:
    world: World
    target: ModelTarget
    engine: ModelEngine
    timers: Timers
    manager_timers: Timers
    settings: Settings
    members: tuple[str, ...]
    asked: list[Asked] = field(default_factory=list[Asked])
    managers: dict[str, ManagerNode] = field(default_factory=dict[str, ManagerNode])


async def manager(runtime: Runtime, lab: Lab) -> None:
    tasks = TaskRunner(runtime.clock, runtime.random)
    plan = ManagerPlan(
        datacenter=DATACENTER,
        listen=("", PORT),
        members={name: (name, PORT) for name in lab.members},
        secrets=Secrets.of_node(SECRET),
        cluster=CLUSTER,
        settings=lab.settings,
        timers=lab.manager_timers,
    )
    node = ManagerNode(runtime, tasks, plan, Log(MemorySink(), runtime.clock))
    lab.managers[runtime.node] = node
    await with_tasks(tasks, node.run(asyncio.Event()))


async def worker(runtime: Runtime, lab: Lab) -> None:
    tasks = TaskRunner(runtime.clock, runtime.random)
    settings = WorkerSettings(
        datacenter=DATACENTER,
        managers=tuple((name, PORT) for name in lab.members),
        cores=2,
        secrets=Secrets.of_credential(worker_credential(SECRET)),
        cluster=CLUSTER,
        timers=lab.timers,
    )
    host = ModelHost(lab.engine, runtime)
    machine = ModelMachine(lab.world, runtime.node)
    node = WorkerNode(runtime, host, machine, settings, tasks=tasks)
    await with_tasks(tasks, node.run(asyncio.Event()))


async def client(runtime: Runtime, lab: Lab, asked: Asked, cancel_after_s: float | None) -> None:
    """Submits until accepted, follows to the end, fetches the result. A client is never
    hurt by the faults itself; its links are."""
    tasks = TaskRunner(runtime.clock, runtime.random)
    me = ClusterClient(
        runtime,
        tasks,
        addresses=[(name, PORT) for name in lab.members],
        secrets=Secrets.of_credential(client_credential(SECRET, runtime.node)),
        cluster=CLUSTER,
        patience_s=30.0,
    )
    journal = Journal(runtime, runtime.node, lambda owner: False)
    while not asked.job:
        try:
            accepted, _ = await me.submit(asked.submission, b"", journal, runtime.node)
            asked.job = accepted.job
        except SquallError:
            await runtime.clock.sleep(1.0)
    if cancel_after_s is not None:
        await runtime.clock.sleep(cancel_after_s)
        await _again(runtime, lambda: me.cancel(asked.job))
        asked.cancelled = True
    while asked.result is None:
        view = await _again(runtime, lambda: me.status(asked.job))
        if view.state in FINAL:
            same = asked.state in ("", view.state)
            check(same, f"{asked.job} was {asked.state}, is {view.state}")
            asked.state = view.state
            asked.result = await _again(runtime, lambda: me.result(asked.job))
        await runtime.clock.sleep(0.5)
    await asyncio.Event().wait()


async def _again(runtime: Runtime, ask: Callable[[], Awaitable[T]]) -> T:
    """Asks until it is answered."""
    while True:
        try:
            return await ask()
        except SquallError:
            await runtime.clock.sleep(0.5)


async def with_tasks(tasks: TaskRunner, main: Coroutine[Any, Any, Any]) -> None:
    """A node's main program; an essential task that fails ends it, as a process would."""
    body = asyncio.ensure_future(main)
    fatal = asyncio.ensure_future(tasks.fatal())
    await asyncio.wait((body, fatal), return_when=asyncio.FIRST_COMPLETED)
    if not body.done():
        body.cancel()
        raise fatal.result().error
    fatal.cancel()
    body.result()


async def scenario(world: World) -> None:
    draw = world.random("scenario")
    lab = make_lab(world)
    names = [f"w{number + 1}" for number in range(WORKERS)]
    for name in lab.members:
        world.add(name, lambda runtime: manager(runtime, lab), exits_on=(SquallError, OSError))
    for name in names:
        world.add(name, lambda runtime: worker(runtime, lab), exits_on=(SquallError, OSError))
    clients: list[str] = []
    for number in range(world.parameter("jobs", JOBS)):
        asked = Asked(draw_submission(draw, number))
        lab.asked.append(asked)
        after_s = draw.uniform(0.5, 8.0) if draw.random() < 0.3 else None
        clients.append(f"c{number + 1}")
        world.add(
            clients[-1],
            lambda runtime, asked=asked, after_s=after_s: client(runtime, lab, asked, after_s),
        )
    lab.engine.deaths = draw.choice([0.0, 0.0, 0.002])
    swarm = draw_swarm(world.random("swarm"), SURVIVABLE, longest_s=(3.0, 15.0))
    faults = Faults(world, swarm, [*lab.members, *names], most_down=2)
    world.start()
    running = asyncio.ensure_future(lab.engine.run())
    await faults.run(world.parameter("seconds", FAULTY_S))
    faults.end()
    lab.engine.deaths = 0.0
    supervising = asyncio.ensure_future(supervise(world, (*lab.members, *names)))
    await world.eventually(
        lambda: running.done() or all(asked.result is not None for asked in lab.asked),
        within_s=CONVERGE_S,
        what="every accepted job ends",
    )
    if running.done():
        running.result()
    for asked in lab.asked:
        judge(lab, asked)
    running.cancel()
    supervising.cancel()


async def supervise(world: World, names: Sequence[str]) -> None:
    """A fault of the last moment may still end a node: it is started again, as systemd
    would."""
    while True:
        await asyncio.sleep(RESTART_S)
        for name in names:
            if world.nodes[name].state is State.ENDED:
                world.start(name)


def judge(lab: Lab, asked: Asked) -> None:
    result = asked.result
    check(result is not None, f"{asked.job} has no result")
    assert result is not None
    world, job = lab.world, asked.job
    world.count(f"jobs {asked.state}")
    world.tally["losses"] = world.tally.get("losses", 0) + len(result.losses)
    counted = sum(report.requests.sent for report in result.reports)
    target = lab.target.total(job)
    unknown = sum(loss.unknown_requests for loss in result.losses)
    sent = {str(key): n for key, n in lab.target.by_attempt.items() if key.job == job}
    check(
        counted <= target <= counted + unknown,
        f"{job} {asked.state}: {counted} counted, {target} at the target, u = {unknown}; "
        f"sent {sent}; losses {result.losses}; {result.reason} "
        f"{[(w.name, w.status, w.error) for w in result.workflows]}",
    )
    for node in lab.managers.values():
        check(not node.machine.tables.alarms, f"alarms: {node.machine.tables.alarms}")
    lab.target.check_layers(job, asked.submission.manifest)


def make_lab(world: World) -> Lab:
    fast = {key.removeprefix("timers."): v for key, v in TIMER_PROFILES["fast"].items()}
    group = msgspec.convert({"profile": "fast", **fast}, TimerSettings)
    count = world.parameter("managers", 1)
    timers = timers_of(group, count)
    target = ModelTarget(world)
    engine = ModelEngine(world, target, lease_rule=world.mutant != "cores_ignore_lease")
    managers = timers
    if world.mutant == "lost_at_once":
        managers = msgspec.structs.replace(timers, lost_factor=0.2, lost_margin_s=0.0)
    if world.mutant == "lease_from_receipt":
        engine.lease_extra_s = 3.0
    members = tuple(f"m{number + 1}" for number in range(count))
    return Lab(world, target, engine, timers, managers, Settings(timers=group), members)


def draw_submission(draw: random.Random, number: int) -> Submission:
    layers = draw.choice([1, 1, 2])
    workflows = [
        WorkflowManifest(
            name=f"flow{layer}",
            depends=[f"flow{layer - 1}"] if layer else [],
            profile=_profile(draw),
            steps=[StepManifest(name="get", protocol="http")],
            priority=draw.choice(["auto", "auto", "low", "high", "exclusive"]),
        )
        for layer in range(layers)
    ]
    return Submission(
        bundle="",
        bundle_size=0,
        contents=BundleManifest(entry="", python="3.11"),
        manifest=FileManifest(path=f"job{number}.py", workflows=workflows),
        options=RunOptions(url="http://target/", seed=number),
        timeout_s=200.0,
    )


def _profile(draw: random.Random) -> Profile:
    vus = draw.randint(1, 8)
    duration_s = draw.uniform(3.0, 14.0)
    kind = draw.choice(["closed", "closed", "open", "iterations"])
    if kind == "open":
        rate = float(draw.randint(5, 40))
        return Profile(model="open", vus=vus, max_vus=40, duration_s=duration_s, rate_per_s=rate)
    if kind == "iterations":
        count = draw.randint(vus, 200)
        return Profile(model="iterations", vus=vus, max_vus=vus, duration_s=60.0, iterations=count)
    return Profile(model="closed", vus=vus, max_vus=vus, duration_s=duration_s)


SCENARIO = Scenario(
    "datacenter",
    "one manager, its workers and clients: jobs end exactly once with exact sums",
    scenario,
    mutants=MUTANTS,
    limit_s=1200.0,
)
