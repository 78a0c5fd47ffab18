"""The replica's transport on the wire: one peer per member, control and bulk links.

What fits a control message travels there, larger things on the bulk link. A message that
cannot be sent is dropped: all of it is sent again from state. It decides nothing.

Nobody is dialled before somebody listens: who dials says which group it belongs to, and
that is known only when the log was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from squall.runtime.interfaces import Address, NodeId
from squall.wire.catalogue import SizeClass, message
from squall.wire.dispatch import TASK_GROUP, Incoming
from squall.wire.errors import HandshakeFailed, NotSent, WireError
from squall.wire.header import MessageClass
from squall.wire.messages import RefusalCode
from squall.wire.peer import Peer
from squall.wire.switchboard import Switchboard

CONTROL_BYTES = 200 * 1024
"""Below the size of a control message, with room for its frame."""


@message(200, MessageClass.CONTROL)
class ReplicaMessage(msgspec.Struct, frozen=True):
    """One encoded `exchange.Message`."""

    data: bytes


@message(201, MessageClass.CONTROL, size=SizeClass.BULK)
class ReplicaBulk(msgspec.Struct, frozen=True):
    """The same, too large for the control link."""

    data: bytes


class WireTransport:
    def __init__(self, board: Switchboard, addresses: Mapping[NodeId, Address]) -> None:
        """`addresses` of all nodes that may belong to the group; this one is skipped."""
        self._board = board
        self._receive: Callable[[NodeId, bytes], None] | None = None
        self._peers: dict[NodeId, Peer] = {}
        self.undelivered = 0
        board.handlers.on(ReplicaMessage, self._arrived)
        board.handlers.on(ReplicaBulk, self._arrived)
        for node, address in sorted(addresses.items()):
            self.add(node, address)

    def add(self, node: NodeId, address: Address) -> None:
        """A node that may become a member; one that is known moves to this address."""
        former = self._peers.get(node)
        if node == self._board.runtime.node or (former and former.address == address):
            return
        if former is not None:
            self._board.tasks.start("former peer", former.close(), group=TASK_GROUP)
        self._peers[node] = Peer(self._board, address, node=node)
        if self._receive is not None:
            self._peers[node].start()

    def listen(self, receive: Callable[[NodeId, bytes], None]) -> None:
        """Links are made from here on, when the caller next waits."""
        is_first, self._receive = self._receive is None, receive
        if is_first:
            for peer in self._peers.values():
                peer.start()

    def send(self, to: NodeId, data: bytes) -> None:
        peer = self._peers.get(to)
        if peer is None:
            return
        kind = ReplicaMessage if len(data) <= CONTROL_BYTES else ReplicaBulk
        try:
            peer.send(kind(data))
        except WireError:
            self.undelivered += 1

    def tell(self, message: msgspec.Struct) -> None:
        """To every known node, as far as it is connected."""
        for peer in self._peers.values():
            if peer.control.session is None:
                continue
            try:
                peer.send(message)
            except WireError:
                self.undelivered += 1

    def refusals(self) -> dict[NodeId, str]:
        """Who is not talked to because the settings of both sides differ, and in which words."""
        found: dict[NodeId, str] = {}
        for node, peer in self._peers.items():
            error = peer.last_error
            if isinstance(error, HandshakeFailed) and error.code == RefusalCode.SETTINGS:
                found[node] = str(error)
        return found

    async def request(self, to: NodeId, message: msgspec.Struct, timeout_s: float) -> Any:
        """Asks another member. Raises WireError."""
        peer = self._peers.get(to)
        if peer is None:
            raise NotSent(f"no link to {to}")
        return await peer.request(message, timeout_s)

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close()

    def _arrived(self, message: ReplicaMessage | ReplicaBulk, incoming: Incoming) -> None:
        if self._receive is not None:
            self._receive(incoming.peer.node, message.data)
