"""Stories of jobs under three managers, in the simulation: who dies when, and what is left.

The real managers and workers run on a model of the engine; the model's target is the
witness of what was sent, by attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from squall.engine.options import RunOptions
from squall.ledger.interface import Fence
from squall.nodes.datacenter.records import JobRecord
from squall.nodes.datacenter.states import WorkflowState
from squall.nodes.manager.copies import Copies
from squall.nodes.manager.node import ManagerNode
from squall.nodes.submission import BundleManifest, Submission
from squall.scenarios import datacenter
from squall.scenarios.datacenter import Asked, Lab
from squall.sim.run import Outcome, Scenario, run_seed
from squall.sim.world import World
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
        self.lab: Lab = datacenter.make_lab(world)
        self.asked = Asked(
            Submission(
                bundle="",
                bundle_size=0,
                contents=BundleManifest(entry="", python="3.11"),
                manifest=FileManifest(path="job.py", workflows=list(workflows)),
                options=RunOptions(url="http://target/", seed=1),
                timeout_s=timeout_s,
            )
        )
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


# The leader dies between layers, and again while the second one runs.


async def die_between_layers(story: Story) -> None:
    world = story.world
    await story.until(
        lambda: story.job.workflows[0].state is WorkflowState.COMPLETED, "layer 0 is over"
    )
    first = story.primary
    world.kill(first)
    second = story.asked.submission.manifest.workflows[1].name
    sent = story.lab.target.by_attempt
    await story.until(lambda: any(key.workflow == second for key in sent), "layer 1 sends")
    world.start(first)
    await asyncio.sleep(2.0)
    await story.until(lambda: story.primary, "one leads")
    world.kill(story.primary)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_over_is_not_run_again_when_the_primary_dies_between_layers(seed: int) -> None:
    outcome, story = play(
        seed, die_between_layers, closed("first", 2.0), closed("second", 8.0, "first")
    )
    clean(outcome)
    assert story.asked.result is not None
    assert story.asked.result.losses == []
    assert story.attempts() == {1}
    assert story.counted == story.arrived


# The leader dies when one of two workflows of a layer is over.


async def die_within_a_layer(story: Story) -> None:
    await story.until(lambda: story.job.workflows[0].state is WorkflowState.COMPLETED, "one")
    assert story.job.workflows[1].state is WorkflowState.RUNNING
    story.world.kill(story.primary)


@pytest.mark.parametrize("seed", [1, 2])
def test_of_a_layer_only_what_runs_goes_on_when_the_primary_dies(seed: int) -> None:
    outcome, story = play(
        seed,
        die_within_a_layer,
        closed("short", 2.0),
        closed("long", 6.0),
        closed("after", 2.0, "short", "long"),
    )
    clean(outcome)
    assert story.asked.result is not None and story.asked.result.losses == []
    assert story.attempts() == {1}
    assert story.counted == story.arrived
    assert {key.workflow for key in story.lab.target.by_attempt} == {"short", "long", "after"}


# A primary that stood still while another one led comes back.


async def stand_still_over_a_layer(story: Story) -> None:
    first = story.primary
    story.world.pause(first)
    sent = story.lab.target.by_attempt
    await story.until(lambda: any(key.workflow == "second" for key in sent), "layer 1 sends")
    story.world.resume(first)
    await asyncio.sleep(2.0)
    assert story.lab.managers[first].director is None, "it has heard that another one leads"
    assert story.primary != first


@pytest.mark.parametrize("seed", [1, 2])
def test_a_primary_that_wakes_up_starts_nothing_twice(seed: int) -> None:
    outcome, story = play(
        seed, stand_still_over_a_layer, closed("first", 3.0), closed("second", 6.0, "first")
    )
    clean(outcome)
    assert story.asked.result is not None and story.asked.result.losses == []
    assert story.attempts() == {1}
    assert story.counted == story.arrived


# A worker cannot tell its result, and who leads dies meanwhile.


async def cut_off_at_the_end(story: Story) -> None:
    world = story.world
    await asyncio.sleep(5.0)
    mend = world.partition(WORKERS, list(story.lab.members))
    await asyncio.sleep(1.2)
    world.kill(story.primary)
    await asyncio.sleep(1.5)
    mend()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_result_that_could_not_be_told_reaches_the_next_primary(seed: int) -> None:
    outcome, story = play(seed, cut_off_at_the_end, closed("load", 6.0))
    clean(outcome)
    assert story.attempts() == {1}
    assert story.counted == story.arrived, "its final record counts, whole"


# A worker dies together with the manager that had its reports.


async def die_with_the_leader(story: Story) -> None:
    await asyncio.sleep(6.0)
    leader = story.job.leader
    story.kill_a_runner()
    story.world.kill(leader)


def cut_at(story: Story) -> list[float]:
    """Up to where the reports of what ran on the dead worker count."""
    assert story.asked.result is not None
    losses = story.asked.result.losses
    return [loss.cut_at_s or 0.0 for loss in losses if loss.worker == story.struck]


SHOWN_S = 6.0 - 1.0 - 1.0 - 1.0
"""When it died, less the second under way, a copy's age, and the way of a report."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_reports_survive_the_death_of_the_worker_and_of_the_job_leader(seed: int) -> None:
    outcome, story = play(seed, die_with_the_leader, closed("load", 14.0))
    clean(outcome)
    assert cut_at(story) and min(cut_at(story)) >= SHOWN_S


def test_without_copies_those_reports_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the copies are for: else all that ran on the worker is unknown."""

    async def nothing(self: Copies) -> None: ...

    monkeypatch.setattr(Copies, "give", nothing)
    outcome, story = play(1, die_with_the_leader, closed("load", 14.0))
    clean(outcome)
    assert max(cut_at(story)) < SHOWN_S


# Somebody is cut off.


async def cut_off_a_follower(story: Story) -> None:
    world, before = story.world, story.fences()
    assert len(set(before.values())) == 1
    follower = next(name for name in story.lab.members if name != story.primary)
    mend = world.partition([follower], [name for name in world.nodes if name != follower])
    await asyncio.sleep(10.0)
    assert story.fences() == before, "it asks whether it would be voted for, and nobody would"
    mend()
    await asyncio.sleep(3.0)
    assert story.fences() == before
    applied = {int(node.machine.tables.op) for node in story.managers.values()}
    assert max(applied) - min(applied) <= 2, "it has caught up"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_follower_that_is_cut_off_ends_no_view(seed: int) -> None:
    outcome, story = play(seed, cut_off_a_follower, at_rate("load", 20.0, 16.0))
    clean(outcome)
    assert story.counted == story.arrived >= 20 * 16 - PER_TICK


# A rate stays one while managers come and go: the model's target checks every second.


async def lose_managers_in_turn(story: Story) -> None:
    world = story.world
    for _ in range(3):
        await asyncio.sleep(2.0)
        await story.until(lambda: story.primary, "one leads")
        name = story.primary
        world.kill(name)
        await asyncio.sleep(1.5)
        world.start(name)


@pytest.mark.parametrize("seed", [1, 2])
def test_an_open_model_keeps_its_rate_while_the_primary_changes(seed: int) -> None:
    outcome, story = play(seed, lose_managers_in_turn, at_rate("load", 20.0, 14.0))
    clean(outcome)
    assert story.asked.result is not None and story.asked.result.losses == []
    assert story.attempts() == {1}
    assert story.counted == story.arrived >= 20 * 14 - PER_TICK


async def lose_a_worker_and_the_primary(story: Story) -> None:
    await asyncio.sleep(3.0)
    primary = story.primary
    story.kill_a_runner()
    story.world.kill(primary)


def test_an_open_model_keeps_its_rate_when_a_share_is_refilled() -> None:
    outcome, story = play(1, lose_a_worker_and_the_primary, at_rate("load", 20.0, 14.0))
    clean(outcome)
    assert 2 in story.attempts()
