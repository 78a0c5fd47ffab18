"""A client learns what happens to its job: changes of state, seconds, results of workflows; and a
callback that is slow or broken harms nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from squall.api.errors import ExitCode
from squall.cluster.client.errors import RequestRefused
from squall.cluster.client.job_updates import JobUpdate, job_updates
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
    Followed,
    JobState,
    JobView,
    StreamEvent,
    StreamSnapshot,
    WorkflowView,
)
from squall.cluster.results.job_result import JobResult, ResultInfo
from squall.cluster.wire.messages import ErrorCode
from squall.engine.outcome import WorkflowOutcome
from squall.job_callbacks import SNAPSHOTS_WAITING_MAX, JobCallbacks, UpdateKind
from squall.stats.manifest import FileManifest
from squall.stats.snapshot import Snapshot
from tests.fakes.datacenter import workflow

JOB = JobId("g-1")


def second(at_s: float) -> Snapshot:
    return Snapshot(elapsed_s=at_s, workflows=(), cpu=0.0, processes=1, lag_p99_s=0.0, gc_max_s=0.0)


class Cluster:
    """A job of the workflows A and B: what each answer brings, and the status after it."""

    def __init__(self) -> None:
        self.steps: list[tuple[JobState, str, str]] = [
            ("queued", "pending", "pending"),
            ("running", "running", "pending"),
            ("running", "running", "pending"),
            ("running", "completed", "running"),
            ("completing", "completed", "failed"),
            ("completed", "completed", "failed"),
        ]
        self.at = -1
        self.asked = 0
        self.fetched: list[str] = []

    async def follow(self, job: JobId) -> AsyncIterator[Followed]:
        for index, (state, _, _) in enumerate(self.steps):
            self.at = index
            changed = index > 0 and self.steps[index] != self.steps[index - 1]
            events = [StreamEvent(float(index), "changed")] if changed else []
            yield Followed(upto=index, items=[*events, StreamSnapshot(second(index))], state=state)

    async def counted_status(self, job: JobId) -> JobView:
        """With counters to the end; a plain status has none once the job is over."""
        self.asked += 1
        state, a, b = self.steps[self.at]
        views = [WorkflowView(name="A", state=a), WorkflowView(name="B", state=b, error="late")]
        return JobView(job=job, state=state, file="f.py", workflows=views)

    async def workflow_result(self, job: JobId, name: str) -> JobResult:
        self.fetched.append(name)
        return JobResult(
            job=job,
            state="completed",
            status="completed",
            manifest=FileManifest(path="f.py", workflows=[workflow(name, vus=1, duration_s=1)]),
            info=ResultInfo(),
            elapsed_s=1.0,
            workflows=[WorkflowOutcome(name=name, status="completed")],
        )


def updates(cluster: Cluster) -> AsyncIterator[JobUpdate]:
    return job_updates(cast(Any, cluster), JOB)


@pytest.mark.asyncio
async def test_each_state_and_each_result_comes_once() -> None:
    cluster = Cluster()
    found = [update async for update in updates(cluster)]
    views = [update.view for update in found if update.view is not None]
    assert [view.state for view in views] == [
        "queued", "running", "running", "completing", "completed",
    ]  # fmt: skip
    assert [(r.name, r.status, r.error) for update in found for r in update.results] == [
        ("A", "completed", ""), ("B", "failed", "late"),
    ]  # fmt: skip
    assert cluster.fetched == ["A", "B"]
    assert [s.elapsed_s for update in found for s in update.snapshots] == [0, 1, 2, 3, 4, 5]
    # A second in which nothing changed costs no request.
    assert cluster.asked == len(cluster.steps) - 1


async def final() -> Snapshot | None:
    return second(99.0)


@pytest.mark.asyncio
async def test_a_slow_callback_delays_no_other_and_gets_everything() -> None:
    seen: dict[UpdateKind, list[Any]] = {"status": [], "progress": [], "workflow": []}
    gate = asyncio.Event()

    async def slow(result: Any) -> None:
        await gate.wait()
        seen["workflow"].append(result.name)

    callbacks = JobCallbacks(
        {
            "status": lambda view: seen["status"].append(view.state),
            "progress": lambda snapshot: seen["progress"].append(snapshot.elapsed_s),
            "workflow": slow,
        }
    )
    run = asyncio.create_task(callbacks.run(updates(Cluster()), final))
    for _ in range(50):
        await asyncio.sleep(0)
    assert seen["status"][-1] == "completed" and seen["progress"][-1] == 99.0
    assert seen["workflow"] == [] and not run.done()
    gate.set()
    await run
    assert seen["workflow"] == ["A", "B"]


@pytest.mark.asyncio
async def test_a_callback_that_raises_is_logged_and_called_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[float] = []

    def broken(snapshot: Snapshot) -> None:
        calls.append(snapshot.elapsed_s)
        raise ValueError("no such column")

    await JobCallbacks({"progress": broken}).run(updates(Cluster()), final)
    assert calls == [0, 1, 2, 3, 4, 5, 99.0]
    assert "the progress callback raised" in caplog.text and "no such column" in caplog.text


@pytest.mark.asyncio
async def test_snapshots_that_wait_are_bounded_and_the_last_is_kept() -> None:
    calls: list[float] = []

    async def many() -> AsyncIterator[JobUpdate]:
        yield JobUpdate([second(at) for at in range(1000)])

    await JobCallbacks({"progress": lambda s: calls.append(s.elapsed_s)}).run(many(), final)
    assert len(calls) == SNAPSHOTS_WAITING_MAX and calls[-1] == 99.0


@pytest.mark.asyncio
async def test_a_job_without_results_still_shows_its_end() -> None:
    cluster = Cluster()

    async def refused(job: JobId, name: str) -> JobResult:
        raise RequestRefused("left no result", ErrorCode.NOT_FOUND, ExitCode.USAGE)

    cluster.workflow_result = refused  # type: ignore[method-assign]
    found = [update async for update in updates(cluster)]
    assert [u.view.state for u in found if u.view is not None][-1] == "completed"
    assert not any(update.results for update in found)


@pytest.mark.asyncio
async def test_a_caller_that_gives_up_and_a_callback_that_asks_do_not_stop_the_callbacks() -> None:
    seen: list[str] = []
    gate = asyncio.Event()

    async def asks(view: JobView) -> None:
        seen.append(view.state)
        # As `Job.result` does.
        if not callbacks.is_calling:
            await asyncio.shield(run)
        await gate.wait()

    callbacks = JobCallbacks({"status": asks})
    run = asyncio.create_task(callbacks.run(updates(Cluster()), final))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.shield(run)
    assert not callbacks.is_calling
    gate.set()
    await run
    assert seen == ["queued", "running", "running", "completing", "completed"]


@pytest.mark.asyncio
async def test_a_client_that_closes_does_not_wait_for_a_callback_that_hangs() -> None:
    async def hangs(view: JobView) -> None:
        await asyncio.Event().wait()

    run = asyncio.create_task(JobCallbacks({"status": hangs}).run(updates(Cluster()), final))
    await asyncio.sleep(0.01)
    run.cancel()
    async with asyncio.timeout(5.0):
        await asyncio.gather(run, return_exceptions=True)
    assert run.cancelled()
