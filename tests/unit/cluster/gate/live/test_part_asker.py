"""A gate asks the manager that leads a part's job, wherever in its datacenter that is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.cluster.gate.datacenter_links import DatacenterLinks
from squall.cluster.gate.live.part_follower import PartAsker
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import Follow, Followed
from squall.cluster.wire.errors import RemoteError, WireError

FOLLOW = Follow(job=JobId("g7a1-5.eu1"))


class Manager:
    """A manager that names the leader of the job, or leads it."""

    def __init__(self, port: int, leader: int) -> None:
        self.address = ("10.0.0.1", port)
        self.leader = leader
        self.asked = 0

    async def request(self, message: Follow, timeout_s: float) -> Followed:
        self.asked += 1
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


def test_a_leader_without_a_link_is_an_error_to_retry() -> None:
    with pytest.raises(RemoteError):
        asyncio.run(asker(Manager(1, leader=2)).ask("eu", FOLLOW))
    with pytest.raises(WireError, match="no link to a manager of eu"):
        asyncio.run(asker().ask("eu", FOLLOW))
