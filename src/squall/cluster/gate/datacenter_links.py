"""The links of a gate to the managers of its datacenters.

A gate keeps a link to every manager that it knows: those of its flags, and those that the answers
name. The manager that leads comes first. Links to managers that left their group are closed.

A name ("dns:", "srv:") among the flags is looked up while no manager of its datacenter has a link.
"""

from __future__ import annotations

import asyncio

from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.wire.links.named_addresses import NamedAddresses
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard
from squall.runtime.addresses import address_in, shown_address
from squall.runtime.interfaces import Address


class DatacenterLinks:
    """Links to the managers of all datacenters. Two datacenters whose flags name the same manager
    share its links, because a process has one link of each kind to a manager."""

    def __init__(self, board: Switchboard, known: KnownDatacenters) -> None:
        self._board = board
        self._known = known
        self._peers: dict[Address, Peer] = {}
        # Set when a link to any manager was made.
        self._connected = asyncio.Event()
        self._named: dict[str, NamedAddresses] = {}

    def peers(self, datacenter: str) -> list[Peer]:
        """All managers of a datacenter, dialled, the one that leads first."""
        return [self._peer(each) for each in self._addresses(datacenter)]

    def linked(self, datacenter: str) -> list[Peer]:
        """The managers with a link, the one that leads first: ask them in this order."""
        return [each for each in self.peers(datacenter) if each.control.session is not None]

    async def any_link(self, datacenter: str, timeout_s: float) -> list[Peer]:
        """`linked`; if there is none, waits for the first up to `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := self.linked(datacenter)):
                    self._connected.clear()
                    await self._connected.wait()
                return found
        except TimeoutError:
            return self.linked(datacenter)

    def trouble(self, datacenter: str) -> str:
        """Why there is no link: the reason of the first manager that has one."""
        for peer in self.peers(datacenter):
            if peer.last_error is not None:
                return f"{shown_address(peer.address)}: {peer.last_error}"
        named = self._named.get(datacenter)
        return next(map(str, named.errors.values()), "") if named is not None else ""

    async def close_former(self) -> None:
        """Closes the links to managers that are no longer known."""
        wanted = {each for name in self._known.names for each in self._addresses(name)}
        for former in [each for each in self._peers if each not in wanted]:
            await self._peers.pop(former).close()

    async def close(self) -> None:
        while self._peers:
            _, peer = self._peers.popitem()
            await peer.close()

    def _peer(self, address: Address) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(
                self._board, address, on_connected=lambda _: self._connected.set()
            )
            peer.start()
        return peer

    def _addresses(self, datacenter: str) -> list[Address]:
        """The known managers; while none of them has a link, also those behind the names."""
        shown = self._known[datacenter].managers
        known = [each for text in shown if (each := address_in(text)) is not None]
        named = self._named.get(datacenter)
        if named is None:
            # Only flags give names of several managers: they are the same for ever.
            named = NamedAddresses(self._board, known, self._connected.set)
            self._named[datacenter] = named
        plain = [each for each in known if each not in named.names]
        dialled = [self._peers[each] for each in plain if each in self._peers]
        if not named.names or any(each.control.session is not None for each in dialled):
            return plain
        named.failed()
        return list(dict.fromkeys((*plain, *named.found)))
