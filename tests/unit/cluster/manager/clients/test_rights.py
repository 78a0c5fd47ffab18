"""A client changes only its own jobs; an operator changes any job and drains workers. Every change
is recorded with the name of its author.
"""

from __future__ import annotations

import msgspec
import pytest

from squall.cluster.datacenter.gated_records import KnownGates
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
    AdjustJob,
    CancelJob,
    DrainNode,
    GetJob,
    ListJobs,
    ListNodes,
    SubmitJob,
)
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.roles import Role
from squall.runtime.log import LogRecord, MemorySink
from squall.runtime.metrics import Registry
from tests.fakes.datacenter import Bench, submission, workflow
from tests.unit.cluster.manager.lab.client_api import api, by


def running(bench: Bench) -> JobId:
    """A job of ann that runs on w1."""
    job = bench.submit(workflow("Load", vus=1, duration_s=60))
    bench.until(lambda: bench.job(job).state == "running")
    return job


def texts(bench: Bench, job: JobId) -> list[str]:
    return [event.text for event in bench.machine.tables.events[job]]


def only(sink: MemorySink, event: str) -> LogRecord:
    (found,) = [record for record in sink.records if record.event == event]
    return found


@pytest.mark.asyncio
async def test_a_client_sees_the_job_of_another_but_changes_nothing() -> None:
    bench, registry, sink = Bench(w1=1), Registry(), MemorySink()
    job = running(bench)
    before = texts(bench, job)
    clients, bob = api(bench, registry, sink), by("bob")
    assert len((await clients.requests.list_jobs(ListJobs(), bob)).jobs) == 1
    assert (await clients.requests.get_job(GetJob(job), bob)).view.state == "running"
    assert (await clients.requests.list_nodes(ListNodes(), bob)).nodes
    changes = clients.changes
    attempts = (
        (lambda: changes.cancel(CancelJob(job), bob), f"{job} was submitted by ann: bob may not"),
        (lambda: changes.adjust(AdjustJob(job=job, vus=2), bob), "bob may not adjust it"),
        (lambda: changes.adjust(AdjustJob(job=job, extend_s=5), bob), "bob may not adjust it"),
        (lambda: clients.drain(DrainNode("w1"), bob), "bob may not drain w1"),
    )
    for attempt, text in attempts:
        with pytest.raises(RemoteError, match=text) as refused:
            await attempt()
        assert refused.value.code == ErrorCode.FORBIDDEN
        assert "squall secret client NAME --operator" in refused.value.text
        assert "\n" not in refused.value.text
    assert texts(bench, job) == before
    assert not bench.machine.tables.workers["w1"].draining
    assert sink.events() == ["client_refused"] * 4
    told = registry.exposition()
    assert 'squall_client_refusals_total{client="bob",limit="rights"} 4' in told


@pytest.mark.asyncio
async def test_a_client_may_not_drain_a_worker_that_runs_its_own_job() -> None:
    bench = Bench(w1=1)
    running(bench)
    with pytest.raises(RemoteError, match="ann may not drain w1"):
        await api(bench).drain(DrainNode("w1"), by("ann"))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("who", "shown"),
    [
        (by("ann"), "ann"),
        (by("bob", operator=True), "bob"),
        (by("", Role.NODE), "n-"),
    ],
)
async def test_the_owner_an_operator_and_a_manager_change_a_job_under_their_name(
    who: object, shown: str
) -> None:
    bench, sink = Bench(w1=1), MemorySink()
    job = running(bench)
    clients = api(bench, sink=sink)
    await clients.changes.adjust(AdjustJob(job=job, paused=True, extend_s=5), who)  # type: ignore[arg-type]
    await clients.changes.cancel(CancelJob(job), who)  # type: ignore[arg-type]
    assert f"Load: paused, by {shown}" in texts(bench, job)
    assert f"got 5 s more, by {shown}" in texts(bench, job)
    assert f"cancelled by {shown}" in texts(bench, job)
    for event in ("job_adjusted", "job_extended"):
        fields = only(sink, event).fields
        assert (fields["job"], fields["by"]) == (job, shown)


@pytest.mark.asyncio
async def test_an_operator_drains_a_worker_and_its_jobs_record_who_did() -> None:
    bench, sink = Bench(w1=1), MemorySink()
    job = running(bench)
    clients, bob = api(bench, sink=sink), by("bob", operator=True)
    await clients.drain(DrainNode("w1"), bob)
    await clients.drain(DrainNode("w1", resume=True), bob)
    assert texts(bench, job)[-2:] == ["bob drains w1", "bob resumes w1"]
    fields = [record.fields for record in sink.records if record.event == "worker_drained"]
    assert [(each["by"], each["draining"]) for each in fields] == [("bob", True), ("bob", False)]


@pytest.mark.asyncio
async def test_only_an_operator_goes_past_the_gates() -> None:
    bench = Bench(w1=1)
    bench.machine.tables.gates["g"] = KnownGates(group="g", addresses=("g1:7500",))
    clients = api(bench)
    given = msgspec.structs.replace(submission(workflow("Load", vus=1, duration_s=60)), bundle="")
    job = SubmitJob(key="k", submission=given)
    with pytest.raises(RemoteError, match="submit to g1:7500, or here with --direct"):
        await clients.submit(job, by("bob"))
    direct = SubmitJob(key="k", submission=given, direct=True)
    with pytest.raises(RemoteError, match="bob may not go past the gates") as refused:
        await clients.submit(direct, by("bob"))
    assert refused.value.code == ErrorCode.FORBIDDEN
    assert (await clients.submit(direct, by("bob", operator=True))).created
