"""A request that a client sends twice takes effect once, also if the job has moved on since."""

from __future__ import annotations

import asyncio

import pytest

from squall.cluster.datacenter.commands import Accepted, Command
from squall.cluster.protocol.messages import AdjustJob
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from tests.fakes.datacenter import Bench, workflow
from tests.unit.cluster.manager.lab.client_api import CommitNow, api, by

ANN = by("ann")


@pytest.mark.asyncio
async def test_a_second_try_of_an_adjustment_gets_the_answer_of_the_first() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=60))
    clients = api(bench)
    five = AdjustJob(job=job, vus=5, request_id="five")
    assert (await clients.changes.adjust(five, ANN)).adjust_seq == 1
    assert (
        await clients.changes.adjust(AdjustJob(job=job, vus=7, request_id="seven"), ANN)
    ).adjust_seq == 2
    assert (await clients.changes.adjust(five, ANN)).adjust_seq == 1
    assert bench.job(job).workflows[0].adjustment.vus == 7


@pytest.mark.asyncio
async def test_a_second_try_is_answered_although_the_job_is_over() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=1))
    clients = api(bench)
    five = AdjustJob(job=job, vus=5, request_id="five")
    await clients.changes.adjust(five, ANN)
    bench.finish(job, 30)
    assert (await clients.changes.adjust(five, ANN)).adjust_seq == 1
    with pytest.raises(RemoteError, match="is over") as refused:
        await clients.changes.adjust(AdjustJob(job=job, vus=5, request_id="other"), ANN)
    assert refused.value.code == ErrorCode.CONFLICT


@pytest.mark.asyncio
async def test_extensions_that_arrive_together_do_not_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = CommitNow.commit

    async def commit_later(self: CommitNow, command: Command) -> Accepted:
        await asyncio.sleep(0)
        return await commit(self, command)

    monkeypatch.setattr(CommitNow, "commit", commit_later)
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=60), timeout_s=200)
    clients = api(bench)
    wanted_s = (30.0, 35.0, 30.0)
    asked = (clients.changes.adjust(AdjustJob(job=job, extend_s=each), ANN) for each in wanted_s)
    answers = await asyncio.gather(*asked)
    assert max(answer.extended_s for answer in answers) == 35.0
    assert bench.job(job).extension_ms == 35_000
