"""The status of one job has its layers, priorities, workers and counts, and says who changed it and
why. The result of a workflow can be had before its job is over.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from squall.cluster.datacenter.records import JobRecord
from squall.cluster.ledger.interface import Digest
from squall.cluster.manager.results.assembler import ResultAssembler
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
    AdjustJob,
    CancelJob,
    GetJob,
    GetWorkflowResult,
    ListJobs,
)
from squall.cluster.results.job_result import decode_result
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from squall.stats.attempt_record import AttemptRecord
from tests.fakes.datacenter import Bench, workflow
from tests.fakes.wire import FakeClock
from tests.unit.cluster.manager.lab.client_api import api, by


class Disk:
    """The blobs of a manager; no record is on it."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []

    async def put(self, data: bytes) -> Digest:
        self.blobs.append(data)
        return Digest(f"blob {len(self.blobs)}")

    async def record(self, digest: str) -> AttemptRecord | None:
        return None


def layered(bench: Bench) -> JobId:
    """Warm runs before Load."""
    return bench.submit(
        workflow("Warm", vus=1, duration_s=1),
        workflow("Load", "Warm", vus=2, duration_s=60),
    )


def is_over(job: JobRecord, name: str) -> bool:
    found = job.workflow(name)
    return found is not None and found.over


@pytest.mark.asyncio
async def test_status_has_layers_priorities_workers_and_counts() -> None:
    bench = Bench(w1=1, w2=1)
    job = layered(bench)
    bench.until(lambda: bool(bench.wf(job, "Load").started_ms))
    bench.run(2.0)
    clients = api(bench)
    view = (await clients.requests.get_job(GetJob(job), by("ann"))).view
    warm, load = view.workflows
    assert (view.state, view.exit_code) == ("running", None)
    assert (warm.layer, load.layer, load.priority) == (0, 1, "auto")
    assert warm.workers == [] and load.workers == ["w1", "w2"]
    assert warm.counters is not None and load.counters is not None
    states = [
        bench.director.state.status(key, each.node, each.boot)
        for key, each in bench.machine.tables.live_of(job)
    ]
    assert load.counters.planned == sum(s.counters.planned for s in states if s is not None)
    assert load.counters.made == sum(s.counters.made for s in states if s is not None)
    # A list of jobs does not look at every attempt.
    listed = (await clients.requests.list_jobs(ListJobs(), by("ann"))).jobs[0]
    assert [each.counters for each in listed.workflows] == [None, None]


@pytest.mark.asyncio
async def test_a_change_is_recorded_with_its_author_and_reason() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=60))
    bench.until(lambda: bench.job(job).state == "running")
    clients, ann = api(bench), by("ann")
    await clients.changes.adjust(AdjustJob(job=job, vus=1, reason="the target is slow"), ann)
    view = (await clients.requests.get_job(GetJob(job), ann)).view
    assert len(view.adjustments) == 1
    assert view.adjustments[0].startswith("Load: users set to 1 at ")
    assert view.adjustments[0].endswith("by ann (the target is slow)")
    await clients.changes.cancel(CancelJob(job, reason="the shop is down"), ann)
    assert bench.job(job).reason == "cancelled by ann (the shop is down)"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reason", "line"),
    [("x" * 201, "201 characters; at most 200"), ("a\x1b[2Jb", "control characters")],
)
async def test_a_reason_that_cannot_be_shown_is_refused(reason: str, line: str) -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=60))
    clients, ann = api(bench), by("ann")
    for ask in (
        lambda: clients.changes.cancel(CancelJob(job, reason=reason), ann),
        lambda: clients.changes.adjust(AdjustJob(job=job, paused=True, reason=reason), ann),
    ):
        with pytest.raises(RemoteError, match=line):
            await ask()
    assert not bench.job(job).stop and not bench.job(job).adjustments


@pytest.mark.asyncio
async def test_the_result_of_a_workflow_comes_before_the_job_is_over() -> None:
    bench, disk = Bench(w1=1), Disk()
    job = layered(bench)
    results = ResultAssembler(
        bench.machine,
        cast(Any, disk),
        FakeClock(),
        group_ms=lambda: bench.group_ms,
        options_of=lambda record: record.submission.options,
    )
    clients, ann = api(bench, results=results, blobs=disk), by("ann")
    bench.until(lambda: is_over(bench.job(job), "Warm"))
    held = await clients.get_workflow_result(GetWorkflowResult(job, "Warm"), ann)
    (data,) = disk.blobs
    assert (held.blob, held.size) == ("blob 1", len(data))
    assert [each.name for each in decode_result(data).workflows] == ["Warm"]
    for name, code in (("Load", ErrorCode.CONFLICT), ("Nothing", ErrorCode.NOT_FOUND)):
        with pytest.raises(RemoteError) as refused:
            await clients.get_workflow_result(GetWorkflowResult(job, name), ann)
        assert refused.value.code == code
    # Then the result of the job has it.
    bench.finish(job)
    held = await clients.get_workflow_result(GetWorkflowResult(job, "Warm"), ann)
    assert held.blob == bench.job(job).result != ""
