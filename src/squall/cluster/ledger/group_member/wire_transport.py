"""The ledger's transport over the wire: one peer per member, with control and bulk links.

A message that fits uses the control link, a larger one the bulk link (R11). The transport
drops a message that it cannot send: the ledgers resend everything from their state.

The transport dials no peer before the ledger listens: the handshake names the group, which
the node knows only after it has read its log.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from squall.cluster.wire.blob_transfer import Holder
from squall.cluster.wire.catalogue import SizeClass, message
from squall.cluster.wire.errors import HandshakeFailed, NotSent, WireError
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.links.dispatch import TASK_GROUP, Incoming
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard
from squall.cluster.wire.messages import RefusalCode
from squall.runtime.interfaces import Address, NodeId

CONTROL_BYTES = 200 * 1024
"""Largest data of a control message; leaves room for its frame."""


@message(200, MessageClass.CONTROL)
class ReplicaMessage(msgspec.Struct, frozen=True):
    """One encoded `bulk_messages.Message`."""

    data: bytes


@message(201, MessageClass.CONTROL, size=SizeClass.BULK)
class ReplicaBulk(msgspec.Struct, frozen=True):
    """An encoded `bulk_messages.Message` that is too large for the control link."""

    data: bytes


class WireTransport:
    """Sends the ledger's messages to the other members and passes theirs to the ledger."""

    def __init__(self, board: Switchboard, addresses: Mapping[NodeId, Address]) -> None:
        """`addresses` may include all nodes of the group; this node is skipped."""
        self._board = board
        self._receive: Callable[[NodeId, bytes], None] | None = None
        self._peers: dict[NodeId, Peer] = {}
        self.undelivered = 0
        board.handlers.on(ReplicaMessage, self._arrived)
        board.handlers.on(ReplicaBulk, self._arrived)
        for node, address in sorted(addresses.items()):
            self.add(node, address)

    def add(self, node: NodeId, address: Address) -> None:
        """Adds a node that may become a member, or changes the address of a known one."""
        former = self._peers.get(node)
        if node == self._board.runtime.node or (former and former.address == address):
            return
        if former is not None:
            self._board.tasks.start("former peer", former.close(), group=TASK_GROUP)
        self._peers[node] = Peer(self._board, address, node=node)
        if self._receive is not None:
            self._peers[node].start()

    def listen(self, receive: Callable[[NodeId, bytes], None]) -> None:
        """Sets the receiver and starts dialling; the first link appears after the next await."""
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

    def tell(self, to: NodeId, message: msgspec.Struct) -> None:
        """Sends `message` to one node. Raises WireError."""
        peer = self._peers.get(to)
        if peer is None:
            raise NotSent(f"no link to {to}")
        peer.send(message)

    def broadcast(self, message: msgspec.Struct) -> None:
        """Sends `message` to every connected node."""
        for peer in self._peers.values():
            if peer.control.session is None:
                continue
            try:
                peer.send(message)
            except WireError:
                self.undelivered += 1

    def refusals(self) -> dict[NodeId, str]:
        """The nodes without a link because their settings differ, with the reason."""
        found: dict[NodeId, str] = {}
        for node, peer in self._peers.items():
            error = peer.last_error
            if isinstance(error, HandshakeFailed) and error.code == RefusalCode.SETTINGS:
                found[node] = str(error)
        return found

    def holder(self, node: NodeId) -> Holder:
        return _Member(self, node)

    def is_linked(self, node: NodeId) -> bool:
        peer = self._peers.get(node)
        return peer is not None and peer.control.session is not None

    async def request(self, to: NodeId, message: msgspec.Struct, timeout_s: float) -> Any:
        """Sends a request to another member and returns its answer. Raises WireError."""
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


class _Member:
    """Requests blobs from one member, over the link that exists at the time of the request."""

    def __init__(self, transport: WireTransport, node: NodeId) -> None:
        self._transport = transport
        self._node = node

    def request(self, message: msgspec.Struct, timeout_s: float) -> Coroutine[Any, Any, Any]:
        return self._transport.request(self._node, message, timeout_s)
