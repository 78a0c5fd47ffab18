"""A manager relays requests of clients to the member that leads."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.group.clients import relay as module
from squall.cluster.group.clients.relay import ClientRelay
from squall.cluster.protocol.group_messages import AskGroup, Relay, RelayAnswer
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import CancelAccepted, CancelJob
from squall.cluster.wire.catalogue import CATALOGUE
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.roles import Role
from squall.runtime.interfaces import NodeId
from tests.unit.cluster.manager.lab.client_api import by


class Member:
    """A manager as its relay sees it; `others` are the members that it has links to."""

    def __init__(self, name: str, primary: str | None, others: dict[str, Member]) -> None:
        self.name = name
        self.primary = None if primary is None else NodeId(primary)
        self.is_primary = primary == name
        self.others = others
        others[name] = self
        self.asked: list[tuple[str, str, bool]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        handlers = Handlers()
        handlers.on(CancelJob, self._cancel)
        this = cast("Any", self)
        self.relay = ClientRelay(
            handlers, machine=Datacenter(), ledger=this, leaders=this, clock=this
        )

    async def _cancel(self, message: CancelJob, incoming: Incoming) -> CancelAccepted:
        await self.gate.wait()
        self.asked.append((message.job, incoming.peer.name, incoming.peer.operator))
        return CancelAccepted("stopping")

    async def relay_to(self, node: str, message: Relay, timeout_s: float) -> RelayAnswer:
        return await self.others[node].relay.relay(message, by("", Role.NODE))


def cancel(job: str = "g-1", **fields: Any) -> Relay:
    row, body = CATALOGUE.encode(CancelJob(JobId(job)))
    return Relay(number=row.number, body=body, **fields)


@pytest.mark.asyncio
async def test_a_request_is_answered_by_the_primary_in_the_name_of_the_client() -> None:
    group: dict[str, Member] = {}
    primary, follower = Member("m1", "m1", group), Member("m2", "m1", group)
    for name, operator in (("ann", False), ("root", True)):
        answer = await follower.relay.relay(cancel(), by(name, operator=operator))
        decoded = CATALOGUE.decode(CATALOGUE.by_number[answer.number], answer.body)
        assert decoded == CancelAccepted("stopping")
    assert primary.asked == [("g-1", "ann", False), ("g-1", "root", True)]
    assert follower.asked == []


@pytest.mark.asyncio
async def test_a_request_is_relayed_once_at_most() -> None:
    group: dict[str, Member] = {}
    # Each believes that the other one leads.
    one, two = Member("m1", "m2", group), Member("m2", "m1", group)
    await one.relay.relay(cancel(), by("ann"))
    assert (len(one.asked), len(two.asked)) == (0, 1)


@pytest.mark.asyncio
async def test_only_managers_speak_for_others_and_only_for_requests_of_clients() -> None:
    alone = Member("m1", "m1", {})
    with pytest.raises(RemoteError) as refused:
        await alone.relay.relay(cancel(hops=1, name="root", operator=True), by("ann"))
    assert refused.value.code == ErrorCode.FORBIDDEN
    row, body = CATALOGUE.encode(AskGroup())
    with pytest.raises(RemoteError, match="is not relayed"):
        await alone.relay.relay(Relay(number=row.number, body=body), by("ann"))
    broken = Relay(number=cancel().number, body=b"\xc1")
    with pytest.raises(RemoteError) as refused:
        await alone.relay.relay(broken, by("ann"))
    assert refused.value.code == ErrorCode.BAD_MESSAGE
    assert alone.asked == []


@pytest.mark.asyncio
async def test_the_number_under_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RELAYS_MAX", 3)
    group: dict[str, Member] = {}
    primary, follower = Member("m1", "m1", group), Member("m2", "m1", group)
    primary.gate.clear()
    waiting = [asyncio.ensure_future(follower.relay.relay(cancel(), by("ann"))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(RemoteError, match="3 requests are being relayed, at most 3") as refused:
        await follower.relay.relay(cancel(), by("ann"))
    assert refused.value.code == ErrorCode.OVERLOADED
    primary.gate.set()
    await asyncio.gather(*waiting)
    await follower.relay.relay(cancel(), by("ann"))
    assert len(primary.asked) == 4
