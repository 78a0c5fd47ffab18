"""The API for clients over a bench that commits at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from squall.cluster.control.settings import ClientSettings
from squall.cluster.datacenter.commands import Accepted, Command
from squall.cluster.group.clients.job_requests import Views
from squall.cluster.group.metrics import refusal_counter
from squall.cluster.manager.clients.api import ClientApi
from squall.cluster.manager.clients.job_views import detailed_view, job_view, node_views
from squall.cluster.manager.results.assembler import ResultAssembler
from squall.cluster.protocol.messages import NodeList
from squall.cluster.wire.links.dispatch import Incoming
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.keyring import Identity
from squall.runtime.interfaces import BootId, NodeId
from squall.runtime.log import Log, MemorySink
from squall.runtime.metrics import Registry
from tests.fakes.datacenter import Bench


class CommitNow:
    """Commits at once."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def read(self) -> None:
        return None

    def facts(self, level: str) -> None:
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


def by(name: str, role: Role = Role.CLIENT, *, operator: bool = False) -> Incoming:
    peer = Identity(role, NodeId(f"n-{name}"), BootId("b"), name, operator)
    return Incoming(peer, None, None)


def api(
    bench: Bench,
    registry: Registry | None = None,
    sink: MemorySink | None = None,
    *,
    queue_max: int = 5_000,
    results: ResultAssembler | None = None,
    blobs: object = None,
) -> ClientApi:
    tables = bench.machine.tables

    async def nodes(datacenter: str) -> NodeList:
        return NodeList("dc", node_views(tables))

    async def why(job: Any) -> tuple[list[str], list[str]]:
        return [], []

    views = Views(
        lambda job: job_view(tables, job, bench.group_ms),
        nodes,
        why,
        lambda job: detailed_view(
            job_view(tables, job, bench.group_ms), tables, job, bench.director.state
        ),
    )
    unused = cast(Any, None)
    return ClientApi(
        datacenter="dc",
        machine=bench.machine,
        ledger=cast(Any, SimpleNamespace(blobs=blobs)),
        committer=cast(Any, CommitNow(bench)),
        stream=unused,
        reports=unused,
        views=views,
        sealer=unused,
        clock=cast(Any, Clock()),
        wall_s=lambda: 0.0,
        lead_member=lambda key: "m1",
        led_elsewhere=lambda job: "",
        ask_primary=unused,
        log=Log(sink or MemorySink(), cast(Any, Clock())),
        rates=ClientSettings(),
        queue_max=queue_max,
        results=results or unused,
        on_refused=refusal_counter(registry or Registry()),
    )
