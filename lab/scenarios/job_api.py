"""The job API of a datacenter is linearizable, through failovers, kills and partitions.

Four clients with one credential submit under shared keys, adjust, extend, cancel, and look at
jobs, while faults hit the managers and the network. In a third of the seeds one worker runs the
jobs; in the others they wait in the queue until they are cancelled, so that every answer is known
exactly. One order must explain all answers (`lab/histories`).

`--set managers=1` makes every seed one manager; by default four of five seeds have three.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from lab.histories.job_api import JobModel, counted, problem_of
from lab.histories.job_clients import CAP_MS, JobClient, JobHistory, small_submission
from lab.mutants.job_api import MUTANTS, mutated
from lab.scenarios.datacenter.scenario import (
    CLUSTER,
    PORT,
    SECRET,
    DatacenterLab,
    make_lab,
    manager,
    worker,
)
from lab.sim.checks import check
from lab.sim.faults import Faults, supervise
from lab.sim.node import State
from lab.sim.run import Scenario
from lab.sim.swarm import NETWORK, PROCESS, Fault, draw_swarm
from lab.sim.world import World
from squall.api.errors import SquallError
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.client.submission_journal import SubmissionJournal
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner

CLIENTS = 4
FAULTY_S = 4
THINK_S = 0.04
AIM_EVERY_S = 0.8
"""The mean time between two faults that aim at the primary."""
LASTS_S = (0.02, 1.2)
PREPARE_S = (0.02, 0.1)
AFTERWARDS = 3
"""Operations of each client after the faults."""
CONVERGE_S = 40.0
TIMEOUTS = RequestTimeouts(connect_s=0.4, answer_s=1.0, query_s=1.5)
GIVES_UP_S = 1.5
"""So short that clients give up now and then: operations without an answer are part of the test."""
FAULTS = (*PROCESS, *NETWORK, Fault.DRIFT, Fault.SLOW_DISK, Fault.SHUFFLE)
"""No wall clock jumps: if all managers restart meanwhile, the group clock follows the jump, as
promised (R10), and jobs time out or are purged. The model knows no such ends."""


class Clients:
    """The clients of one run, and what they recorded."""

    def __init__(self, world: World, lab: DatacenterLab, duration_s: float) -> None:
        self._lab = lab
        self._duration_s = duration_s
        self.history = JobHistory(lambda: world.now)
        self.calm = False
        self.done = 0

    async def run(self, runtime: Runtime) -> None:
        """Operates until the faults are over, and a little longer."""
        tasks = TaskRunner(runtime.clock, runtime.random)
        client = ClusterClient(
            runtime,
            tasks,
            addresses=[(name, PORT) for name in self._lab.members],
            secrets=Secrets.of_credential(client_credential(SECRET, "team")),
            cluster=CLUSTER,
            reconnect_timeout_s=GIVES_UP_S,
            timeouts=TIMEOUTS,
        )
        me = JobClient(
            runtime.node,
            client,
            SubmissionJournal(runtime, runtime.node, lambda owner: False),
            self.history,
            runtime.random,
            lambda content: small_submission(content, self._duration_s, "http://target/"),
        )
        left = AFTERWARDS
        while left:
            left -= self.calm
            await runtime.clock.sleep(runtime.random.expovariate(1.0 / THINK_S))
            await me.operate()
        # Nothing that was accepted is lost or changed, as the last manager has it.
        await me.list_jobs()
        self.done += 1
        await asyncio.Event().wait()


async def scenario(world: World) -> None:
    with mutated(world.mutant):
        await _scenario(world)


async def _scenario(world: World) -> None:
    draw = world.random("scenario")
    if "managers" not in world.parameters:
        world.parameters["managers"] = draw.choice(["3", "3", "3", "3", "1"])
    runs = draw.random() < 0.33
    lab = make_lab(world)
    lab.engine.preparation_s = PREPARE_S
    clients = Clients(world, lab, draw.uniform(0.1, 0.6))
    for name in lab.members:
        world.add(name, lambda runtime: manager(runtime, lab), exits_on=(SquallError, OSError))
    if runs:
        world.add("w1", lambda runtime: worker(runtime, lab), exits_on=(SquallError, OSError))
    for number in range(CLIENTS):
        world.add(f"c{number + 1}", clients.run)
    world.start()
    engine = asyncio.ensure_future(lab.engine.run()) if runs else None
    # Faults during the formation of the group would only cost time: no client is answered.
    await world.eventually(lambda: primaries(world, lab), within_s=10.0, what="a manager leads")
    swarm = draw_swarm(world.random("swarm"), FAULTS, longest_s=(0.3, 2.0), pace=4.0)
    faults = Faults(world, swarm, lab.members)
    aiming = asyncio.ensure_future(aim_at_primaries(world, lab, world.random("aims")))
    await faults.run(world.parameter("seconds", FAULTY_S))
    aiming.cancel()
    faults.end()
    clients.calm = True
    supervising = asyncio.ensure_future(supervise(world, list(world.nodes)))
    await world.eventually(
        lambda: clients.done == CLIENTS, within_s=CONVERGE_S, what="every client is answered"
    )
    supervising.cancel()
    if engine is not None:
        engine.cancel()
    for what, count in counted(clients.history.recorded).items():
        world.tally[what] = world.tally.get(what, 0) + count
    problem = problem_of(clients.history.recorded, JobModel(runs, CAP_MS))
    verdict, *history = problem.splitlines() or [""]
    for line in history:
        world.trace.note("history", line)
    check(not problem, verdict)


def primaries(world: World, lab: DatacenterLab) -> list[str]:
    """The managers that believe to lead."""
    return [
        name
        for name, node in sorted(lab.managers.items())
        if node.director is not None and world.nodes[name].runs
    ]


async def aim_at_primaries(world: World, lab: DatacenterLab, draw: random.Random) -> None:
    """Kills the manager that leads, or stops it, or cuts it off from the others but not from the
    clients: the moments in which two managers may believe that they lead."""
    while True:
        await asyncio.sleep(draw.expovariate(1.0 / AIM_EVERY_S))
        leads = primaries(world, lab)
        if not leads:
            continue
        name = draw.choice(leads)
        others = [member for member in lab.members if member != name]
        kind = draw.choice(["kill", "pause", "part", "part"])
        mend: Callable[[], None] | None = None
        if kind == "kill":
            world.kill(name)
        elif kind == "pause":
            world.pause(name)
        else:
            mend = world.partition([name], others)
        world.count(f"primaries hit ({kind})")
        await asyncio.sleep(draw.uniform(*LASTS_S))
        if mend is not None:
            mend()
        elif kind == "pause":
            world.resume(name)
        elif world.nodes[name].state is State.ENDED:
            world.start(name)


SCENARIO = Scenario(
    "job-api",
    "clients of managers that fail over; one order explains every answer of the job API",
    scenario,
    mutants=MUTANTS,
    limit_s=200.0,
)
