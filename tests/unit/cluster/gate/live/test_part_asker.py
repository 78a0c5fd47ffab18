"""A gate asks the manager that leads a part's job, wherever in its datacenter that is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.cluster.gate.datacenter_links import DatacenterLinks
from squall.cluster.gate.live.part_follower import PartAsker
from squall.cluster.protocol.group_messages import Relay, RelayAnswer
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import Follow, Followed
from squall.cluster.wire.catalogue import CATALOGUE
from squall.cluster.wire.errors import RemoteError, WireError

FOLLOW = Follow(job=JobId("g7a1-5.eu1"))


class Manager:
    """A manager that names the leader of the job, or leads it."""

    def __init__(self, port: int, leader: int) -> None:
        self.address = ("10.0.0.1", port)
        self.leader = leader
        self.asked = 0

    async def request(self, message: Follow | Relay, timeout_s: float) -> Followed | RelayAnswer:
        self.asked += 1
        if isinstance(message, Relay):
            row, body = CATALOGUE.encode(Followed(upto=2, state="running"))
            return RelayAnswer(row.number, body)
        if self.leader != self.address[1]:
            # As it comes off the wire: a plain text.
            raise RemoteError("not_primary", primary=f"10.0.0.1:{self.leader}")
        return Followed(upto=1, state="running")


def asker(*managers: Manager) -> PartAsker:
    async def any_link(datacenter: str, timeout_s: float) -> list[Any]:
        return list(managers)

    return PartAsker(cast("DatacenterLinks", SimpleNamespace(any_link=any_link)))


def test_the_leader_is_asked_at_once_after_it_was_named() -> None:
    first, second = Manager(1, leader=2), Manager(2, leader=2)
    made = asker(first, second)
    assert asyncio.run(made.ask("eu", FOLLOW)).state == "running"
    asyncio.run(made.ask("eu", FOLLOW))
    assert (first.asked, second.asked) == (1, 2)


def test_a_leader_without_a_link_is_asked_through_another_manager() -> None:
    only = Manager(1, leader=2)
    answer = asyncio.run(asker(only).ask("eu", FOLLOW))
    assert (answer.upto, only.asked) == (2, 2)


def test_a_datacenter_without_a_link_is_an_error_to_retry() -> None:
    with pytest.raises(WireError, match="no link to a manager of eu"):
        asyncio.run(asker().ask("eu", FOLLOW))
