"""Jobs under three managers in the simulation.

The real managers and workers run on a model of the engine; the model's target is the
witness of what was sent, by attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lab.scenarios.datacenter import scenario as datacenter
from lab.scenarios.datacenter.scenario import DatacenterLab, SubmittedJob
from lab.sim.run import Outcome, Scenario, run_seed
from lab.sim.world import World
from squall.cluster.datacenter.records import JobRecord
from squall.cluster.ledger.interface import Fence
from squall.cluster.manager.node import ManagerNode
from squall.cluster.protocol.submission import BundleManifest, Submission
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest

WORKERS = ("w1", "w2")
USERS = 4
PER_TICK = 2
"""The model makes no start in the tick in which its time is over: at 20 a second, two."""
Act = Callable[["Story"], Awaitable[None]]


class Story:
    """Three managers, two workers with two cores each, one job, and what happens to them."""

    def __init__(
        self, world: World, *workflows: WorkflowManifest, timeout_s: float = 200.0
    ) -> None:
        world.parameters["managers"] = "3"
        self.world = world
        self.lab: DatacenterLab = datacenter.make_lab(world)
        self.asked = asked_job("job", *workflows, timeout_s=timeout_s)
        self.ends_as = "completed"
        self.lab.asked.append(self.asked)
        self.struck = ""

    async def play(self, act: Act) -> None:
        world, lab = self.world, self.lab
        for name in lab.members:
            world.add(name, lambda runtime: datacenter.manager(runtime, lab))
        for name in WORKERS:
            world.add(name, lambda runtime: datacenter.worker(runtime, lab))
        world.add("c1", lambda runtime: datacenter.client(runtime, lab, self.asked, None))
        world.start()
        running = asyncio.ensure_future(lab.engine.run())
        await self.until(lambda: lab.target.by_attempt, "load arrives")
        await act(self)
        await self.until(lambda: running.done() or self.asked.result, "the job ends")
        if running.done():
            running.result()
        running.cancel()
        assert self.asked.state == self.ends_as
        datacenter.judge(lab, self.asked)

    async def until(self, holds: Callable[[], object], what: str, every_s: float = 0.01) -> None:
        end = self.world.now + 60.0
        while not holds():
            assert self.world.now < end, what
            await asyncio.sleep(every_s)

    @property
    def managers(self) -> dict[str, ManagerNode]:
        runs = self.world.running()
        return {name: node for name, node in self.lab.managers.items() if name in runs}

    @property
    def primary(self) -> str:
        leads = [name for name, node in self.managers.items() if node.director is not None]
        return leads[0] if leads else ""

    @property
    def job(self) -> JobRecord:
        """As the one that knows most of it has it."""
        found = [node.machine.tables for node in self.managers.values()]
        newest = max(found, key=lambda tables: tables.op)
        return newest.jobs[self.asked.job]

    def fences(self) -> dict[str, Fence]:
        ledgers = {name: node._ledger for name, node in self.managers.items()}  # pyright: ignore[reportPrivateUsage]
        return {name: ledger.fence for name, ledger in ledgers.items()}

    @property
    def counted(self) -> int:
        assert self.asked.result is not None
        return sum(report.requests.sent for report in self.asked.result.reports)

    @property
    def arrived(self) -> int:
        return self.lab.target.total(self.asked.job)

    def kill_a_runner(self) -> None:
        """A worker that runs shares of the job, for good."""
        tables = self.managers[self.primary].machine.tables
        self.struck = next(name for name in WORKERS if tables.live.get(name))
        self.world.kill(self.struck)

    def attempts(self) -> set[int]:
        """Numbers of the attempts that sent anything."""
        return {int(key.attempt) for key in self.lab.target.by_attempt}


def asked_job(name: str, *workflows: WorkflowManifest, timeout_s: float = 200.0) -> SubmittedJob:
    return SubmittedJob(
        Submission(
            bundle="",
            bundle_size=0,
            contents=BundleManifest(entry="", python="3.11"),
            manifest=FileManifest(path=f"{name}.py", workflows=list(workflows)),
            options=RunOptions(url="http://target/", seed=1),
            timeout_s=timeout_s,
        )
    )


def closed(name: str, seconds: float, *depends: str) -> WorkflowManifest:
    return WorkflowManifest(
        name=name,
        depends=list(depends),
        profile=Profile(model="closed", vus=USERS, max_vus=USERS, duration_s=seconds),
        steps=[StepManifest(name="get", protocol="http")],
    )


def at_rate(name: str, rate: float, seconds: float) -> WorkflowManifest:
    return WorkflowManifest(
        name=name,
        profile=Profile(model="open", vus=USERS, max_vus=40, duration_s=seconds, rate_per_s=rate),
        steps=[StepManifest(name="get", protocol="http")],
    )


def play(
    seed: int, act: Act, *workflows: WorkflowManifest, timeout_s: float = 200.0
) -> tuple[Outcome, Story]:
    stories: list[Story] = []

    async def scenario(world: World) -> None:
        stories.append(Story(world, *workflows, timeout_s=timeout_s))
        await stories[0].play(act)

    return run_seed(Scenario("test", "", scenario), seed), stories[0]


def clean(outcome: Outcome) -> None:
    assert outcome.clean, outcome.failure + "\n" + outcome.details + "\n".join(outcome.tail[-20:])
