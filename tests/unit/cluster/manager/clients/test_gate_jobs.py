"""A client that comes to a manager with a job of the gates is sent to the gates that have it."""

from __future__ import annotations

import pytest

from squall.cluster.datacenter.gated_records import KnownGates
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import CancelJob, GetJob
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from tests.fakes.datacenter import Bench
from tests.unit.cluster.manager.lab.client_api import api, by


def knowing_gates() -> Bench:
    bench = Bench(w1=1)
    known = KnownGates(group="g7a1", former=("g000",), addresses=("g1:7500", "g2:7500"))
    bench.machine.tables.gates["g7a1"] = known
    return bench


@pytest.mark.asyncio
@pytest.mark.parametrize("job", ["g7a1-5", "g000-9"])
async def test_a_job_of_the_gates_or_of_those_they_took_over_is_asked_for_there(job: str) -> None:
    clients = api(knowing_gates())
    for ask in (
        clients.requests.get_job(GetJob(JobId(job)), by("ann")),
        clients.changes.cancel(CancelJob(JobId(job)), by("ann")),
    ):
        with pytest.raises(RemoteError) as refused:
            await ask
        assert refused.value.code == ErrorCode.NOT_PRIMARY
        assert refused.value.primary in ("g1:7500", "g2:7500")


@pytest.mark.asyncio
async def test_any_other_job_that_is_not_here_is_unknown() -> None:
    clients = api(knowing_gates())
    with pytest.raises(RemoteError) as refused:
        await clients.requests.get_job(GetJob(JobId("dc00-5")), by("ann"))
    assert refused.value.code == ErrorCode.NOT_FOUND
