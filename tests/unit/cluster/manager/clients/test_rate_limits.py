"""A client that floods its manager with queries is refused, other clients are not, and a request
that stops a job is always accepted.
"""

from __future__ import annotations

import msgspec
import pytest

from squall.cluster.control.settings import ClientSettings
from squall.cluster.protocol.messages import CancelJob, ListJobs, ListNodes, SubmitJob
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.roles import Role
from squall.runtime.metrics import Registry
from tests.fakes.datacenter import Bench, submission, workflow
from tests.unit.cluster.manager.lab.client_api import api, by

QUERY_RATE, SUBMIT_RATE = ClientSettings().queries, ClientSettings().submits


@pytest.mark.asyncio
async def test_a_flood_of_one_client_is_turned_away_and_no_other_notices() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=60))
    clients = api(bench)
    for _ in range(int(QUERY_RATE.burst)):
        await clients.requests.list_jobs(ListJobs(), by("ann"))
    with pytest.raises(RemoteError, match="400 at once and then 100 a second") as refused:
        await clients.requests.list_nodes(ListNodes(), by("ann"))
    assert refused.value.code == ErrorCode.OVERLOADED
    assert refused.value.retry_after_s == pytest.approx(1 / QUERY_RATE.per_s)
    assert len((await clients.requests.list_jobs(ListJobs(), by("bob"))).jobs) == 1
    for _ in range(1000):
        await clients.requests.list_jobs(ListJobs(), by("", Role.NODE))
    stopped = await clients.changes.cancel(CancelJob(job, now=True), by("ann"))
    assert stopped.state == "stopping"


@pytest.mark.asyncio
async def test_submissions_have_a_limit_of_their_own() -> None:
    clients = api(Bench(w1=1))
    nothing = SubmitJob(key="", submission=submission())
    for number in range(int(SUBMIT_RATE.burst) + 1):
        with pytest.raises(RemoteError) as refused:
            await clients.submit(nothing, by("ann"))
        limited = refused.value.code == ErrorCode.OVERLOADED
        assert limited == (number >= SUBMIT_RATE.burst)
    await clients.requests.list_jobs(ListJobs(), by("ann"))


@pytest.mark.asyncio
async def test_who_was_turned_away_is_counted_by_client_and_limit() -> None:
    registry = Registry()
    clients = api(Bench(w1=1), registry)
    nothing = SubmitJob(key="", submission=submission())
    for _ in range(int(SUBMIT_RATE.burst) + 3):
        with pytest.raises(RemoteError):
            await clients.submit(nothing, by("ann"))
    for _ in range(int(QUERY_RATE.burst)):
        await clients.requests.list_jobs(ListJobs(), by("bob"))
    with pytest.raises(RemoteError):
        await clients.requests.list_jobs(ListJobs(), by("bob"))
    told = registry.exposition()
    assert 'squall_client_refusals_total{client="ann",limit="submits"} 3' in told
    assert 'squall_client_refusals_total{client="bob",limit="asks"} 1' in told
    assert told.count("squall_client_refusals_total{") == 2


@pytest.mark.asyncio
async def test_who_finds_the_queue_full_is_counted_too() -> None:
    registry, bench = Registry(), Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=60))
    given = msgspec.structs.replace(bench.machine.tables.jobs[job].submission, bundle="")
    clients = api(bench, registry, queue_max=0)
    with pytest.raises(RemoteError, match="the queue is full: 0 jobs wait, at most 0 are allowed"):
        await clients.accept(SubmitJob(key="other", submission=given), "ann")
    assert 'squall_client_refusals_total{client="ann",limit="queue"} 1' in registry.exposition()
