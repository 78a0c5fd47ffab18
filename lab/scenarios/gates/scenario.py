"""Three gates, two or three datacenters with two workers each, and clients that submit, follow and
cancel jobs of one or several parts.

The nodes of all datacenters have the same names. The real nodes run on a model of the engine.
Faults hit gates, managers, workers and the links between them; in half of the seeds a whole
datacenter is cut off from the gates for a while. Then the faults end: every job must end once and
in time, with the sums of R8 over all datacenters, and nothing may stay reserved.
`--set datacenters=3`, `--set managers=3` and `--set jobs=4` make it larger.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from functools import partial

import msgspec

from lab.mutants.gates import MUTANTS, mutated
from lab.scenarios.datacenter.engine_model import ModelEngine
from lab.scenarios.datacenter.scenario import (
    CLUSTER,
    FINAL,
    PORT,
    RETRY,
    SECRET,
    DatacenterLab,
    SubmittedJob,
    draw_submission,
    manager,
    with_tasks,
    worker,
)
from lab.scenarios.gates.checks import GatesHost, GatesTarget, GatesWatch
from lab.sim.checks import check
from lab.sim.faults import Faults, supervise
from lab.sim.run import Scenario
from lab.sim.swarm import SURVIVABLE, draw_swarm
from lab.sim.world import World
from squall.api.errors import SquallError
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.client.submission_journal import SubmissionJournal
from squall.cluster.gate.node import GateNode, GatePlan
from squall.cluster.protocol.submission import Submission, Targets
from squall.cluster.protocol.timers import Timers, timers_of
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from squall.settings.shared_sections import TIMER_PROFILES, TimerSettings

GATES = ("g1", "g2", "g3")
FAULTY_S = 30
CONVERGE_S = 300.0
UNREAL_USERS = 2
"""Users of a part: cores must suffice for every datacenter alone."""


@dataclass
class GatesLab:
    """Everything that the nodes and the checks of one run share."""

    world: World
    watch: GatesWatch
    target: GatesTarget
    settings: Settings
    datacenters: dict[str, DatacenterLab] = field(default_factory=dict[str, DatacenterLab])
    asked: list[SubmittedJob] = field(default_factory=list[SubmittedJob])


async def gate(runtime: Runtime, lab: GatesLab) -> None:
    tasks = TaskRunner(runtime.clock, runtime.random)
    plan = GatePlan(
        listen=("", PORT),
        members={name: (name, PORT) for name in GATES},
        datacenters={
            name: tuple(f"{member}:{PORT}" for member in each.members)
            for name, each in lab.datacenters.items()
        },
        secrets=Secrets.of_node(SECRET),
        cluster=CLUSTER,
        settings=lab.settings,
    )
    node = GateNode(runtime, tasks, plan, Log(MemorySink(), runtime.clock))
    lab.watch.boots.append(node)
    await with_tasks(tasks, node.run(asyncio.Event()))


async def client(
    runtime: Runtime,
    lab: GatesLab,
    asked: SubmittedJob,
    cancel_after_s: float | None,
    addresses: tuple[str, ...] = GATES,
) -> None:
    """Submits until the job is accepted, and follows it to its result. A manager redirects the
    client to the gates as soon as it knows them."""
    tasks = TaskRunner(runtime.clock, runtime.random)
    me = ClusterClient(
        runtime,
        tasks,
        addresses=[(name, PORT) for name in addresses],
        secrets=Secrets.of_credential(client_credential(SECRET, runtime.node)),
        cluster=CLUSTER,
        reconnect_timeout_s=30.0,
    )
    journal = SubmissionJournal(runtime, runtime.node, lambda owner: False)
    cancel_at = None
    while asked.result is None:
        try:
            if not asked.job:
                accepted, _ = await me.submit(asked.submission, b"", journal, runtime.node)
                asked.job = accepted.job
                if cancel_after_s is not None:
                    cancel_at = runtime.clock.now() + cancel_after_s
            if cancel_at is not None and runtime.clock.now() >= cancel_at:
                await me.cancel(asked.job)
                asked.cancelled, cancel_at = True, None
            view = await me.status(asked.job)
            if view.state in FINAL:
                same = asked.state in ("", view.state)
                check(same, f"{asked.job} was {asked.state}, is {view.state}")
                asked.state = view.state
                asked.result = await me.result(asked.job)
        except SquallError as error:
            asked.failure = str(error)
        await runtime.clock.sleep(RETRY.delay_s(1))
    await asyncio.Event().wait()


async def scenario(world: World) -> None:
    with mutated(world.mutant):
        await _scenario(world)


async def _scenario(world: World) -> None:
    draw = world.random("scenario")
    lab = make_lab(world)
    names: list[str] = []
    for name in GATES:
        world.add(name, lambda runtime: gate(runtime, lab), exits_on=(SquallError, OSError))
        names.append(name)
    for name, each in lab.datacenters.items():
        for member in each.members:
            world.add(
                member, lambda runtime, e=each: manager(runtime, e), exits_on=(SquallError, OSError)
            )
            names.append(member)
        for number in range(2):
            node = f"{name}-w{number + 1}"
            world.add(
                node, lambda runtime, e=each: worker(runtime, e), exits_on=(SquallError, OSError)
            )
            names.append(node)
    for number in range(world.parameter("jobs", 3)):
        asked = SubmittedJob(draw_gates_submission(draw, number, list(lab.datacenters)))
        after_s = draw.uniform(0.5, 8.0) if draw.random() < 0.3 else None
        lab.asked.append(asked)
        addresses = GATES
        if draw.random() < 0.25:
            addresses = lab.datacenters[draw.choice(sorted(lab.datacenters))].members
        if addresses != GATES and draw.random() < 0.5:
            asked.submission = msgspec.structs.replace(asked.submission, targets=msgspec.UNSET)
        world.add(
            f"c{number + 1}",
            lambda runtime, a=asked, s=after_s, to=addresses: client(runtime, lab, a, s, to),
        )
    engine = next(iter(lab.datacenters.values())).engine
    swarm = draw_swarm(world.random("swarm"), SURVIVABLE, longest_s=(3.0, 12.0))
    faults = Faults(world, swarm, names, most_down=2)
    world.start()
    running = asyncio.ensure_future(engine.run())
    cutting = asyncio.ensure_future(cut_off_datacenters(lab, draw))
    await faults.run(world.parameter("seconds", FAULTY_S))
    cutting.cancel()
    faults.end()
    supervising = asyncio.ensure_future(supervise(world, tuple(names)))
    await world.eventually(
        lambda: running.done() or all(asked.result is not None for asked in lab.asked),
        within_s=CONVERGE_S,
        what="every accepted job ends",
    )
    if running.done():
        running.result()
    for asked in lab.asked:
        judge(lab, asked)
    await world.eventually(
        lambda: not left_over(lab), within_s=CONVERGE_S, what="every datacenter is free again"
    )
    running.cancel()
    supervising.cancel()


async def cut_off_datacenters(lab: GatesLab, draw: random.Random) -> None:
    """Cuts all links between the gates and one datacenter, in one direction or in both."""
    world = lab.world
    while draw.random() < 0.5:
        await asyncio.sleep(draw.uniform(1.0, 8.0))
        name = draw.choice(sorted(lab.datacenters))
        pairs = [(one, member) for one in GATES for member in lab.datacenters[name].members]
        ways = draw.choice(("both", "in", "out"))
        world.trace.note("scenario", f"{name} is cut off from the gates: {ways}")
        links = pairs if ways != "out" else []
        links = [*links, *((b, a) for a, b in pairs)] if ways != "in" else links
        for source, target in links:
            world.links.cut(source, target)
        await asyncio.sleep(draw.choice((1.0, 6.0, 15.0)))
        for source, target in links:
            world.links.mend(source, target)


def left_over(lab: GatesLab) -> list[str]:
    """Lists reservations and handovers that remain although all jobs are over."""
    found: list[str] = []
    for name, each in lab.datacenters.items():
        for node in each.managers.values():
            if node.director is None:
                continue
            tables = node.machine.tables
            found += [f"a core of {name}" for _ in tables.slots]
            found += [str(job) for job, record in tables.gated.items() if not record.closed]
    return found


def judge(lab: GatesLab, asked: SubmittedJob) -> None:
    result, job = asked.result, asked.job
    assert result is not None
    lab.world.count(f"jobs {asked.state}")
    # The faults end long before the limit of a job: one that reaches it was stuck.
    check(asked.state != "timeout", f"{job} ends with {asked.state}: {result.reason}")
    if lab.watch.record(job) is None:
        lab.world.count("jobs of one datacenter alone")
    counted = sum(report.requests.sent for report in result.reports)
    target = lab.target.total(job)
    unknown = sum(loss.unknown_requests for loss in result.losses)
    sent = {
        str(key): n for key, n in lab.target.by_attempt.items() if key.job.startswith(f"{job}.")
    }
    check(
        counted <= target <= counted + unknown,
        f"{job} {asked.state}: {counted} counted, {target} at the target, u = {unknown}; "
        f"sent {sent}; losses {result.losses}; {result.reason}",
    )
    for each in lab.datacenters.values():
        for node in each.managers.values():
            tables = node.machine.tables
            check(not tables.alarms, f"alarms: {tables.alarms}")
            for local in tables.jobs.values():
                judged = local.gate_job and local.submission.options.thresholds
                check(not judged, f"{local.job} judges thresholds in {each.datacenter}")
    for boot in lab.watch.boots:
        check(not boot.machine.tables.alarms, f"alarms: {boot.machine.tables.alarms}")


def make_lab(world: World) -> GatesLab:
    fast = {key.removeprefix("timers."): v for key, v in TIMER_PROFILES["fast"].items()}
    group = msgspec.convert({"profile": "fast", **fast}, TimerSettings)
    managers = world.parameter("managers", 1)
    timers: Timers = timers_of(group, managers)
    settings = Settings(timers=group)
    watch = GatesWatch(world)
    target = GatesTarget(world, watch)
    engine = ModelEngine(world, target)
    lab = GatesLab(world, watch, target, settings)
    for name in ("eu", "us", "ap")[: world.parameter("datacenters", 2)]:
        lab.datacenters[name] = DatacenterLab(
            world,
            target,
            engine,
            timers,
            timers,
            settings,
            tuple(f"{name}-m{number + 1}" for number in range(managers)),
            datacenter=name,
            prefix=f"{name}-",
            make_host=partial(GatesHost, watch=watch),
        )
    return lab


def draw_gates_submission(draw: random.Random, number: int, names: list[str]) -> Submission:
    """A job of all load models, for named datacenters, for any of them, or routed."""
    submission = draw_submission(draw, number)
    options = msgspec.structs.replace(submission.options, thresholds=("flow0.get.p(99) < 60s",))
    kind = draw.choice(("named", "named", "any", "routed"))
    if kind == "named":
        chosen = draw.sample(names, draw.randint(1, len(names)))
        first = draw.choice((0.5, 0.6, 0.75)) if len(chosen) == 2 else 1.0 / len(chosen)
        rest = (1.0 - first) / max(len(chosen) - 1, 1)
        weights = tuple((name, first if i == 0 else rest) for i, name in enumerate(chosen))
        if len(chosen) == 1:
            weights = ((chosen[0], 1.0),)
        targets = Targets(weights=weights)
    elif kind == "any":
        targets = Targets(count=draw.randint(1, len(names)))
    else:
        targets = Targets(fallback=True)
    manifest = submission.manifest
    flows = [msgspec.structs.replace(flow, priority="auto") for flow in manifest.workflows]
    return msgspec.structs.replace(
        submission,
        manifest=msgspec.structs.replace(manifest, workflows=flows),
        options=options,
        targets=targets,
    )


SCENARIO = Scenario(
    "gates",
    "gates, datacenters, workers and clients; every job ends once with the sums of all parts",
    scenario,
    mutants=MUTANTS,
    limit_s=1500.0,
)
