"""Without a quorum nothing goes over the boundary between two layers, and nothing is lost
there; workers that stand still hold up no commit."""

from __future__ import annotations

import asyncio

import pytest

from lab.scenarios.datacenter.scenario import CLUSTER, PORT, SECRET
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.client.submission_journal import SubmissionJournal
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner
from tests.sim.cluster.lab.group_jobs import WORKERS, Story, clean, closed, play

LAYERS = (closed("first", 2.0), closed("second", 3.0, "first"))
HELD_S = 6.0


def _sent(story: Story, workflow: str) -> bool:
    return any(key.workflow == workflow for key in story.lab.target.by_attempt)


async def _hold_at_the_boundary(story: Story) -> None:
    """No manager hears another from the last moment of the first layer on."""
    world, members = story.world, story.lab.members
    await asyncio.sleep(1.8)
    world.partition(*([name] for name in members))
    await asyncio.sleep(HELD_S)
    assert not _sent(story, "second"), "a layer began without a quorum"
    assert not story.primary, "a manager leads alone"


async def _held_then_one_peer(story: Story) -> None:
    await _hold_at_the_boundary(story)
    one, other, _ = story.lab.members
    story.world.mend(one, other)
    story.world.mend(other, one)
    await story.until(lambda: _sent(story, "second"), "the second layer begins")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_layer_waits_for_a_quorum_and_goes_on_when_one_peer_is_back(seed: int) -> None:
    outcome, story = play(seed, _held_then_one_peer, *LAYERS)
    clean(outcome)
    assert story.asked.result is not None and story.asked.result.losses == []
    assert story.attempts() == {1}, "what was over is not run again"
    assert story.counted == story.arrived


async def _held_too_long(story: Story) -> None:
    story.ends_as = "timeout"
    await _hold_at_the_boundary(story)
    await asyncio.sleep(8.0)
    assert not _sent(story, "second") and story.asked.result is None
    story.world.links.mend_all()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_job_that_waited_too_long_ends_with_its_first_layer_attached(seed: int) -> None:
    outcome, story = play(seed, _held_too_long, *LAYERS, timeout_s=10.0)
    clean(outcome)
    result = story.asked.result
    assert result is not None and result.losses == [] and "timeout" in result.reason
    assert [each.status for each in result.workflows if each.name == "first"] == ["completed"]
    assert not _sent(story, "second"), "a layer began although the job's time was over"
    assert story.counted == story.arrived > 0, "what the first layer did is in the result"


async def _freeze_workers(story: Story) -> None:
    """All workers stand still; jobs are created and cancelled meanwhile."""
    world = story.world
    took: dict[str, list[float]] = {"before": [], "frozen": []}

    async def submits(runtime: Runtime) -> None:
        tasks = TaskRunner(runtime.clock, runtime.random)
        me = ClusterClient(
            runtime,
            tasks,
            addresses=[(name, PORT) for name in story.lab.members],
            secrets=Secrets.of_credential(client_credential(SECRET, runtime.node)),
            cluster=CLUSTER,
            reconnect_timeout_s=30.0,
        )
        journal = SubmissionJournal(runtime, runtime.node, lambda owner: False)
        for phase in took:
            if phase == "frozen":
                for name in WORKERS:
                    world.pause(name)
            for _ in range(8):
                began = world.now
                made, _ = await me.submit(story.asked.submission, b"", journal, f"{began}")
                await me.cancel(made.job)
                took[phase].append(world.now - began)
        for name in WORKERS:
            world.resume(name)
        await asyncio.Event().wait()

    world.add("c9", submits)
    world.start("c9")
    await story.until(lambda: len(took["frozen"]) == 8, "all were created and cancelled")
    # The first one makes its links.
    assert max(took["frozen"]) <= 2.0 * max(took["before"]), took


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_that_stand_still_hold_up_no_commit_and_count_once(seed: int) -> None:
    outcome, story = play(seed, _freeze_workers, closed("first", 6.0))
    clean(outcome)
    assert story.counted <= story.arrived
