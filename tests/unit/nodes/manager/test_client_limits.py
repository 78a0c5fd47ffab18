"""A client that floods its manager with questions is told to wait; nobody else is, and what
stops a job always gets through.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from director_bench import Bench, workflow
from squall.control.settings import LOOK_RATE, SUBMIT_RATE
from squall.nodes.datacenter.commands import Accepted, Command
from squall.nodes.manager import clients as clients_module
from squall.nodes.manager.clients import ClientApi, Views
from squall.nodes.manager.metrics import refusal_counter
from squall.nodes.manager.views import job_view, node_views
from squall.nodes.messages import CancelJob, ListJobs, ListNodes, SubmitJob
from squall.runtime.interfaces import BootId, NodeId
from squall.runtime.metrics import Registry
from squall.wire.dispatch import Incoming
from squall.wire.errors import RemoteError
from squall.wire.keyring import Identity
from squall.wire.messages import ErrorCode
from squall.wire.roles import Role


class Log:
    """Commits at once."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def read(self) -> None:
        return None

    async def commit(self, command: Command) -> Accepted:
        outcome = self.bench.apply(command)
        assert isinstance(outcome, Accepted)
        return outcome


class Clock:
    at = 100.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


def by(name: str, role: Role = Role.CLIENT) -> Incoming:
    return Incoming(Identity(role, NodeId(f"n-{name}"), BootId("b"), name), None, None)


def api(bench: Bench, registry: Registry | None = None) -> ClientApi:
    tables = bench.machine.tables
    views = Views(
        lambda job: job_view(tables, job, bench.group_ms),
        lambda: node_views(tables),
        lambda job: ([], []),
    )
    unused = cast(Any, None)
    return ClientApi(
        datacenter="dc",
        machine=bench.machine,
        ledger=unused,
        committer=cast(Any, Log(bench)),
        leader=unused,
        views=views,
        vault=unused,
        clock=cast(Any, Clock()),
        lead_member=lambda key: "m1",
        led_elsewhere=lambda job: "",
        ask_primary=unused,
        on_refused=refusal_counter(registry or Registry()),
    )


@pytest.mark.asyncio
async def test_a_flood_of_one_client_is_turned_away_and_no_other_notices() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=60))
    clients = api(bench)
    for _ in range(int(LOOK_RATE.burst)):
        await clients.list_jobs(ListJobs(), by("ann"))
    with pytest.raises(RemoteError, match="ann asks too often") as refused:
        await clients.list_nodes(ListNodes(), by("ann"))
    assert refused.value.code == ErrorCode.OVERLOADED
    assert refused.value.retry_after_s == pytest.approx(1 / LOOK_RATE.per_s)
    assert len((await clients.list_jobs(ListJobs(), by("bob"))).jobs) == 1
    for _ in range(1000):
        await clients.list_jobs(ListJobs(), by("", Role.NODE))
    stopped = await clients.cancel(CancelJob(job, now=True), by("ann"))
    assert stopped.state == "stopping"


@pytest.mark.asyncio
async def test_submissions_have_a_limit_of_their_own() -> None:
    clients = api(Bench(w1=1))
    nothing = SubmitJob(key="", submission=cast(Any, None))
    for number in range(int(SUBMIT_RATE.burst) + 1):
        with pytest.raises(RemoteError) as refused:
            await clients.submit(nothing, by("ann"))
        limited = refused.value.code == ErrorCode.OVERLOADED
        assert limited == (number >= SUBMIT_RATE.burst)
    await clients.list_jobs(ListJobs(), by("ann"))


@pytest.mark.asyncio
async def test_who_was_turned_away_is_counted_by_client_and_limit() -> None:
    registry = Registry()
    clients = api(Bench(w1=1), registry)
    nothing = SubmitJob(key="", submission=cast(Any, None))
    for _ in range(int(SUBMIT_RATE.burst) + 3):
        with pytest.raises(RemoteError):
            await clients.submit(nothing, by("ann"))
    for _ in range(int(LOOK_RATE.burst)):
        await clients.list_jobs(ListJobs(), by("bob"))
    with pytest.raises(RemoteError):
        await clients.list_jobs(ListJobs(), by("bob"))
    told = registry.exposition()
    assert 'squall_client_refusals_total{client="ann",limit="submits"} 3' in told
    assert 'squall_client_refusals_total{client="bob",limit="asks"} 1' in told
    assert told.count("squall_client_refusals_total{") == 2


@pytest.mark.asyncio
async def test_who_finds_the_queue_full_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "WAITING_MAX", 0)
    registry, bench = Registry(), Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=60))
    submission = msgspec.structs.replace(bench.machine.tables.jobs[job].submission, bundle="")
    with pytest.raises(RemoteError, match="which is all it holds"):
        await api(bench, registry).accept(SubmitJob(key="other", submission=submission), "ann")
    assert 'squall_client_refusals_total{client="ann",limit="queue"} 1' in registry.exposition()
