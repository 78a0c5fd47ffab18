"""The links of a gate to the managers of its datacenters.

A gate keeps a link to every manager that it knows: those of its flags, and those that the answers
name. The manager that leads comes first. Links to managers that left their group are closed.
"""

from __future__ import annotations

import asyncio

from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.group.member_watch import address_in
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard


class DatacenterLinks:
    """The managers of all datacenters, by host:port."""

    def __init__(self, board: Switchboard, known: KnownDatacenters) -> None:
        self._board = board
        self._known = known
        self._peers: dict[str, dict[str, Peer]] = {name: {} for name in known.names}
        self._linked: dict[str, asyncio.Event] = {name: asyncio.Event() for name in known.names}

    def peers(self, datacenter: str) -> list[Peer]:
        """All managers of a datacenter, dialled, the one that leads first."""
        peers = self._peers[datacenter]
        wanted = self._known[datacenter].managers
        for shown in wanted:
            address = address_in(shown)
            if shown not in peers and address is not None:
                event = self._linked[datacenter]
                peers[shown] = Peer(
                    self._board, address, on_connected=lambda _, event=event: event.set()
                )
                peers[shown].start()
        return [peers[shown] for shown in wanted if shown in peers]

    def linked(self, datacenter: str) -> list[Peer]:
        """The managers with a link, the one that leads first: ask them in this order."""
        return [each for each in self.peers(datacenter) if each.control.session is not None]

    async def any_link(self, datacenter: str, timeout_s: float) -> list[Peer]:
        """`linked`; if there is none, waits for the first up to `timeout_s`."""
        found = self.linked(datacenter)
        if found:
            return found
        event = self._linked[datacenter]
        event.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass
        return self.linked(datacenter)

    def trouble(self, datacenter: str) -> str:
        """Why there is no link, of the first manager that has a reason."""
        for peer in self.peers(datacenter):
            if peer.last_error is not None:
                host, port = peer.address
                return f"{host}:{port}: {peer.last_error}"
        return ""

    async def close_former(self) -> None:
        """Closes the links to managers that are no longer known."""
        for name, peers in self._peers.items():
            wanted = set(self._known[name].managers)
            for shown in [each for each in peers if each not in wanted]:
                await peers.pop(shown).close()

    async def close(self) -> None:
        for peers in self._peers.values():
            while peers:
                _, peer = peers.popitem()
                await peer.close()
