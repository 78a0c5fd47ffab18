"""Lists the datacenters and the gates, or the nodes of one datacenter, for `squall nodes`.

A gate has no list of all nodes: the nodes of a hundred datacenters with a thousand workers each do
not fit into one message. It passes the question about one datacenter on to that datacenter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.protocol.membership.contacts import AskMembers, MemberList
from squall.cluster.protocol.messages import ListNodes, NodeList, NodeView
from squall.cluster.wire.errors import RemoteError, WireError
from squall.cluster.wire.messages import ErrorCode

GATES = "gates"
"""What a list of gates has in place of the name of its datacenter."""


class NodeLists:
    """Answers `ListNodes` on a gate."""

    def __init__(
        self,
        known: KnownDatacenters,
        now: Callable[[], float],
        gates: Callable[[], list[NodeView]],
        ask: Callable[[str, msgspec.Struct], Awaitable[Any]],
    ) -> None:
        """`ask` asks a datacenter and raises WireError."""
        self._known = known
        self._now = now
        self._gates = gates
        self._ask = ask

    async def nodes(self, datacenter: str) -> NodeList:
        if not datacenter:
            return NodeList(GATES, self._gates(), datacenters=self._known.views(self._now()))
        answer: NodeList = await self._answer(datacenter, ListNodes())
        # As they are named everywhere else at a gate: `squall drain eu/w1`.
        named = [
            msgspec.structs.replace(each, name=f"{datacenter}/{each.name}") for each in answer.nodes
        ]
        return NodeList(datacenter, named)

    async def members(self, datacenter: str) -> MemberList:
        """The membership of a datacenter, as one of its managers sees it."""
        return await self._answer(datacenter, AskMembers())

    async def _answer(self, datacenter: str, message: msgspec.Struct) -> Any:
        if datacenter not in self._known:
            there = ", ".join(self._known.names)
            raise RemoteError(ErrorCode.NOT_FOUND, f"no datacenter {datacenter}; there are {there}")
        try:
            return await self._ask(datacenter, message)
        except RemoteError:
            raise
        except WireError as error:
            found = self._known[datacenter].finding(self._now())
            text = f"{datacenter} does not answer: {found.reason or error}"
            raise RemoteError(ErrorCode.CONFLICT, text) from None
