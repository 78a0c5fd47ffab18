"""Jobs under three managers, in the simulation: deaths at chosen moments, and the results."""

from __future__ import annotations

import asyncio

import pytest

from squall.cluster.datacenter.workflow_states import WorkflowState
from squall.cluster.group.job_leaders.report_copies import MemberCopies
from tests.sim.cluster.lab.group_jobs import (
    PER_TICK,
    WORKERS,
    Story,
    at_rate,
    clean,
    closed,
    play,
)

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


# A worker cannot deliver its result, and the primary dies meanwhile.


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

    async def nothing(self: MemberCopies) -> None: ...

    monkeypatch.setattr(MemberCopies, "give", nothing)
    outcome, story = play(1, die_with_the_leader, closed("load", 14.0))
    clean(outcome)
    assert max(cut_at(story)) < SHOWN_S


# A member is cut off.


async def cut_off_a_follower(story: Story) -> None:
    world, before = story.world, story.fences()
    assert len(set(before.values())) == 1
    follower = next(name for name in story.lab.members if name != story.primary)
    mend = world.partition([follower], [name for name in world.nodes if name != follower])
    await asyncio.sleep(10.0)
    assert story.fences() == before, "it asks for pre-votes, and no member agrees"
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
