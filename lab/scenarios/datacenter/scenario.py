"""A whole datacenter: managers, workers, and clients that submit, follow and cancel.

`--set managers=3` makes a group of three managers; by default there is one.

The real nodes run on a model of the engine. Clients submit jobs of all load models, in layers,
and cancel some of them; faults hit managers, workers and the network. In half of the seeds, other
faults aim at the moment in which an attempt is declared lost (`loss_faults`); `--set aims=1` makes
every seed do so. In a third of the seeds a second worker takes the name of one that is cut off
(`twin`); `--set twin=1` makes every seed do so. With `--set membership=1` the nodes also take part
in membership, which must change no job (`membership`). Then the faults end, and every job that was
accepted must end.

Invariants: every accepted job ends, once; no share runs in two attempts at a time; no core is
given twice (the state machine raises an alarm); layers run in order; a cancelled job never sends
again once it is over; the users of all shares add up to the plan; and the sums of R8: counted <=
the target's count <= counted + u.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from lab.mutants.datacenter import MUTANTS, mutated
from lab.scenarios.datacenter.engine_model import ModelEngine, ModelHost, ModelMachine, ModelTarget
from lab.scenarios.datacenter.loss_faults import PREPARE_S, aim_at_losses, slow_commits
from lab.scenarios.datacenter.membership import PlacementCheck
from lab.scenarios.datacenter.twin import TWIN, NamedRuntime, start_twin
from lab.sim.checks import check
from lab.sim.faults import Faults, supervise
from lab.sim.run import Scenario
from lab.sim.swarm import CLOCK, NETWORK, SURVIVABLE, Fault, draw_swarm
from lab.sim.world import World
from squall.api.errors import SquallError
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.client.submission_journal import SubmissionJournal
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.manager.node import ManagerNode, ManagerPlan
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import BundleManifest, Submission
from squall.cluster.protocol.timers import Timers, timers_of
from squall.cluster.results.job_result import JobResult
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.seal.secrets import Secrets, client_credential, worker_credential
from squall.cluster.worker.node import WorkerNode
from squall.cluster.worker.settings import WorkerSettings
from squall.engine.run_options import RunOptions
from squall.runtime.backoff import Backoff
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from squall.settings.shared_sections import TIMER_PROFILES, MembershipSettings, TimerSettings
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest

T = TypeVar("T")
PORT = 7400
SECRET = "the secret of the simulated datacenter"
CLUSTER = "sim"
DATACENTER = "dc"
WORKERS = 3
FAULTY_S = 40
JOBS = 4
AIMED_JOBS = 2
"""Cores must stay free for the attempt that follows a lost one."""
CONVERGE_S = 240.0
RETRY = Backoff(first_s=0.5, factor=1.0)
"""Pause after a client has exhausted its own retries of a request."""
FAULTS_WITHOUT_KILLS = (*NETWORK, *CLOCK, Fault.SHUFFLE)
"""The faults of seeds that aim at leases. They kill no node: the core processes of a worker would
die with it, and the lease would not be tested."""
NO_JOB = JobId("")
FINAL = ("completed", "partial", "failed", "cancelled", "timeout")


@dataclass
class SubmittedJob:
    """A job as its client knows it."""

    submission: Submission
    job: JobId = NO_JOB
    cancelled: bool = False
    state: str = ""
    result: JobResult | None = None
    failure: str = ""


@dataclass
class DatacenterLab:
    """Everything that the nodes and the checks of one run share."""

    world: World
    target: ModelTarget
    engine: ModelEngine
    timers: Timers
    manager_timers: Timers
    settings: Settings
    # The machines of the managers.
    members: tuple[str, ...]
    asked: list[SubmittedJob] = field(default_factory=list[SubmittedJob])
    managers: dict[str, ManagerNode] = field(default_factory=dict[str, ManagerNode])
    datacenter: str = DATACENTER
    make_host: Callable[[ModelEngine, Runtime], ModelHost] = ModelHost
    # Nodes of several datacenters may have one name: they have those of their machines without
    # this, which begins the names of the machines.
    prefix: str = ""
    # Managers and workers take part in membership.
    membership: bool = False
    sinks: list[MemorySink] = field(default_factory=list[MemorySink])

    def log(self, runtime: Runtime) -> Log:
        self.sinks.append(MemorySink())
        return Log(self.sinks[-1], runtime.clock)

    def named(self, runtime: Runtime) -> Runtime:
        name = runtime.node.removeprefix(self.prefix)
        return cast("Runtime", NamedRuntime(runtime, name)) if self.prefix else runtime


async def manager(runtime: Runtime, lab: DatacenterLab, machine: Datacenter | None = None) -> None:
    """Runs a manager, with another state machine than its own if a test gives one."""
    tasks = TaskRunner(runtime.clock, runtime.random)
    plan = ManagerPlan(
        datacenter=lab.datacenter,
        listen=("", PORT),
        members={name.removeprefix(lab.prefix): (name, PORT) for name in lab.members},
        secrets=Secrets.of_node(SECRET),
        cluster=CLUSTER,
        settings=lab.settings,
        timers=lab.manager_timers,
        membership=lab.membership,
    )
    node = ManagerNode(lab.named(runtime), tasks, plan, lab.log(runtime))
    node.machine = machine or node.machine
    lab.managers[runtime.node] = node
    await with_tasks(tasks, node.run(asyncio.Event()))


async def worker(runtime: Runtime, lab: DatacenterLab, name: str = "") -> None:
    """Runs a worker under the name of its machine, or under another name."""
    tasks = TaskRunner(runtime.clock, runtime.random)
    named = cast("Runtime", NamedRuntime(runtime, name)) if name else lab.named(runtime)
    # Where workers are members, each has a credential for its own name alone.
    bound_to = named.node if lab.membership else ""
    settings = WorkerSettings(
        datacenter=lab.datacenter,
        managers=tuple((name, PORT) for name in lab.members),
        cores=2,
        secrets=Secrets.of_credential(worker_credential(SECRET, bound_to)),
        cluster=CLUSTER,
        timers=lab.timers,
        membership=lab.membership,
    )
    host = lab.make_host(lab.engine, runtime)
    machine = ModelMachine(lab.world, runtime.node)
    node = WorkerNode(named, host, machine, settings, tasks=tasks, log=lab.log(runtime))
    await with_tasks(tasks, node.run(asyncio.Event()))


async def client(
    runtime: Runtime, lab: DatacenterLab, asked: SubmittedJob, cancel_after_s: float | None
) -> None:
    """Submits until the job is accepted, follows it to the end, fetches the result. Faults hit
    the links of a client, but never the client itself."""
    tasks = TaskRunner(runtime.clock, runtime.random)
    me = ClusterClient(
        runtime,
        tasks,
        addresses=[(name, PORT) for name in lab.members],
        secrets=Secrets.of_credential(client_credential(SECRET, runtime.node)),
        cluster=CLUSTER,
        reconnect_timeout_s=30.0,
    )
    journal = SubmissionJournal(runtime, runtime.node, lambda owner: False)
    while not asked.job:
        try:
            accepted, _ = await me.submit(asked.submission, b"", journal, runtime.node)
            asked.job = accepted.job
        except SquallError:
            await runtime.clock.sleep(RETRY.delay_s(1))
    if cancel_after_s is not None:
        await runtime.clock.sleep(cancel_after_s)
        await _retried(runtime, lambda: me.cancel(asked.job))
        asked.cancelled = True
    while asked.result is None:
        view = await _retried(runtime, lambda: me.status(asked.job))
        if view.state in FINAL:
            same = asked.state in ("", view.state)
            check(same, f"{asked.job} was {asked.state}, is {view.state}")
            asked.state = view.state
            asked.result = await _retried(runtime, lambda: me.result(asked.job))
        await runtime.clock.sleep(0.5)
    await asyncio.Event().wait()


async def _retried(runtime: Runtime, ask: Callable[[], Awaitable[T]]) -> T:
    """Repeats a request until it is answered."""
    while True:
        try:
            return await ask()
        except SquallError:
            await runtime.clock.sleep(RETRY.delay_s(1))


async def with_tasks(tasks: TaskRunner, main: Coroutine[Any, Any, Any]) -> None:
    """Runs a node's main program; an essential task that fails ends it, as it ends a process."""
    body = asyncio.ensure_future(main)
    fatal = asyncio.ensure_future(tasks.fatal())
    await asyncio.wait((body, fatal), return_when=asyncio.FIRST_COMPLETED)
    if not body.done():
        body.cancel()
        raise fatal.result().error
    fatal.cancel()
    body.result()


async def scenario(world: World) -> None:
    with mutated(world.mutant):
        await _scenario(world)


async def _scenario(world: World) -> None:
    draw, aim = world.random("scenario"), world.random("aims")
    aims = aim.random() < 0.5 or world.parameter("aims", 0) > 0
    lab = make_lab(world)
    names = [f"w{number + 1}" for number in range(WORKERS)]
    for name in lab.members:
        world.add(name, lambda runtime: manager(runtime, lab), exits_on=(SquallError, OSError))
    for name in names:
        world.add(name, lambda runtime: worker(runtime, lab), exits_on=(SquallError, OSError))
    twin = world.random("twin")
    twin_of = twin.choice(names) if twin.random() < 0.33 or world.parameter("twin", 0) else ""
    if twin_of:
        world.add(
            TWIN, lambda runtime: worker(runtime, lab, twin_of), exits_on=(SquallError, OSError)
        )
    for number in range(world.parameter("jobs", AIMED_JOBS if aims else JOBS)):
        submission = draw_submission(draw, number)
        after_s = draw.uniform(0.5, 8.0) if draw.random() < 0.3 else None
        if aims:
            submission, after_s = lasting(submission, aim), None
        asked = SubmittedJob(submission)
        lab.asked.append(asked)
        world.add(
            f"c{number + 1}",
            lambda runtime, asked=asked, after_s=after_s: client(runtime, lab, asked, after_s),
        )
    lab.engine.deaths = 0.0 if aims else draw.choice([0.0, 0.0, 0.002])
    allowed, longest_s = (FAULTS_WITHOUT_KILLS, (0.5, 2.0)) if aims else (SURVIVABLE, (3.0, 15.0))
    swarm = draw_swarm(world.random("swarm"), allowed, longest_s=longest_s)
    faults = Faults(world, swarm, [*lab.members, *names], most_down=2)
    world.start(*(name for name in world.nodes if name != TWIN))
    running = asyncio.ensure_future(lab.engine.run())
    placements = PlacementCheck(world, lab.managers)
    checking = asyncio.ensure_future(placements.run()) if lab.membership else None
    twins = (
        asyncio.ensure_future(start_twin(world, lab.members, twin_of, twin)) if twin_of else None
    )
    await _run_faults(lab, faults, aim if aims else None)
    if twins is not None:
        twins.cancel()
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
    if checking is not None:
        checking.cancel()
        placements.end(lab.sinks)
    running.cancel()
    supervising.cancel()


async def _run_faults(lab: DatacenterLab, faults: Faults, aim: random.Random | None) -> None:
    """Runs the faults of the swarm; with `aim`, also those that aim at losses."""
    world = lab.world
    aiming: asyncio.Future[None] | None = None
    if aim is not None:
        slow_commits(world, lab.members, aim)
        lab.engine.preparation_s = PREPARE_S
        lease_s = lab.timers.execution_lease_s
        aiming = asyncio.ensure_future(aim_at_losses(world, lab.managers, lease_s, aim))
    await faults.run(world.parameter("seconds", FAULTY_S))
    if aiming is not None:
        aiming.cancel()
    faults.end()


def judge(lab: DatacenterLab, asked: SubmittedJob) -> None:
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


def make_lab(world: World) -> DatacenterLab:
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
    engine.monotonic_only = world.mutant == "monotonic_only"
    members = tuple(f"m{number + 1}" for number in range(count))
    # As the profile sets them.
    probes = MembershipSettings(probe_interval_s=0.2, probe_timeout_s=0.06)
    settings = Settings(timers=group, membership=probes)
    lab = DatacenterLab(world, target, engine, timers, managers, settings, members)
    lab.membership = world.parameter("membership", 0) > 0
    return lab


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


def lasting(submission: Submission, draw: random.Random) -> Submission:
    """Returns the same job with one workflow that outlasts several leases, and so few users that
    cores stay free for the worker that takes over."""
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
    "managers, workers and clients; every job ends exactly once with exact sums",
    scenario,
    mutants=MUTANTS,
    hunt={"aims": "1", "twin": "1"},
    limit_s=1200.0,
)
