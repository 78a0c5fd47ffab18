"""Lists the nodes of all datacenters for `squall nodes`: each is asked for its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from squall.cluster.protocol.messages import ListNodes, NodeList, NodeView
from squall.cluster.wire.errors import WireError

AskNodes = Callable[[str, ListNodes], Awaitable[NodeList]]
"""Asks a datacenter. Raises WireError."""


async def nodes_of(datacenters: Sequence[str], ask: AskNodes) -> list[NodeView]:
    """The managers and workers of the datacenters that answer, named `eu/w1`."""

    async def asked(name: str) -> list[NodeView]:
        try:
            answer = await ask(name, ListNodes())
        except WireError:
            # The table of datacenters says that it is out of reach.
            return []
        return [msgspec.structs.replace(n, name=f"{name}/{n.name}") for n in answer.nodes]

    found = await asyncio.gather(*(asked(name) for name in datacenters))
    return [node for nodes in found for node in nodes]
