"""The listening side: accepts links, and knows which peer is on which.

A connection that does not prove itself costs a bounded buffer for a bounded time and gets
no answer. A peer that connects again replaces its former link of the same kind, which is
dead or about to be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from squall.runtime.interfaces import Address, BootId, Connection, Listener, NodeId
from squall.wire.channel import Channel
from squall.wire.errors import HandshakeFailed, WireError
from squall.wire.handshake import ListenerHandshake
from squall.wire.link import Link
from squall.wire.profile import LinkKind
from squall.wire.roles import Role
from squall.wire.switchboard import Switchboard

DRAIN_POLL_S = 0.01


def _nobody(*_: object) -> None:
    pass


class Endpoint:
    """`accepts` are the roles that may connect here."""

    def __init__(
        self,
        board: Switchboard,
        *,
        accepts: Collection[Role] = (Role.NODE, Role.WORKER, Role.CLIENT),
        on_connected: Callable[[Channel], None] = _nobody,
        on_disconnected: Callable[[Channel, Exception | None], None] = _nobody,
    ) -> None:
        self._board = board
        self._accepts = frozenset(accepts)
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._listener: Listener | None = None
        self._callers: dict[Caller, None] = {}
        self._by_peer: dict[tuple[NodeId, BootId, LinkKind], Caller] = {}
        self.unproven = 0
        """Connections that have not finished their handshake."""

    @property
    def address(self) -> Address:
        if self._listener is None:
            raise WireError("this endpoint does not listen")
        return self._listener.address

    @property
    def links(self) -> int:
        return len(self._by_peer)

    def channel(self, node: NodeId, boot: BootId, kind: LinkKind) -> Channel | None:
        caller = self._by_peer.get((node, boot, kind))
        return caller.channel if caller is not None else None

    async def listen(self, address: Address) -> None:
        self._listener = await self._board.runtime.network.listen(
            address, self._accept, tls=self._board.listen_tls
        )

    async def close(self, drain_s: float = 0.0) -> None:
        """No new links; what is being handled may be answered for so long; then the end."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        clock = self._board.runtime.clock
        until = clock.now() + drain_s
        while any(c.channel.handling or c.channel.waiting for c in self._callers):
            if clock.now() >= until:
                break
            await clock.sleep(DRAIN_POLL_S)
        for caller in list(self._callers):
            caller.close()

    def _accept(self) -> Caller:
        return Caller(self._board, self, self._accepts)

    # What a caller tells.

    def opened(self, caller: Caller) -> bool:
        """Whether it may try its handshake."""
        if self._listener is None or self.unproven >= self._board.limits.handshakes_max:
            self._board.counters.handshake_failed += 1
            return False
        self._callers[caller] = None
        self.unproven += 1
        return True

    def proved(self, caller: Caller) -> None:
        self.unproven -= 1
        session = caller.channel.session
        if session is None:
            return
        key = (session.peer.node, session.peer.boot, session.link)
        former = self._by_peer.get(key)
        self._by_peer[key] = caller
        if former is not None:
            former.link.abort(WireError("replaced by a newer link"))
        self._on_connected(caller.channel)

    def ended(self, caller: Caller, error: Exception | None) -> None:
        self._callers.pop(caller, None)
        session = caller.link.session
        if session is None:
            self.unproven -= 1
            return
        key = (session.peer.node, session.peer.boot, session.link)
        if self._by_peer.get(key) is caller:
            del self._by_peer[key]
        self._on_disconnected(caller.channel, error)


class Caller:
    """One accepted connection: its link and its channel."""

    def __init__(self, board: Switchboard, endpoint: Endpoint, accepts: Collection[Role]) -> None:
        self.channel = Channel(board, on_established=self._established, on_lost=self._lost)
        self.link = Link(
            ListenerHandshake(board.keyring, board.profile, accepts),
            self.channel,
            clock=board.runtime.clock,
            limits=board.limits,
            counters=board.counters,
            keepalive=board.keepalive,
            budget=board.budget,
            claims=board.claims,
        )
        self._endpoint = endpoint
        self._admitted = False

    def on_open(self, connection: Connection) -> None:
        self._admitted = self._endpoint.opened(self)
        if self._admitted:
            self.link.on_open(connection)
        else:
            connection.abort()

    def on_data(self, data: bytes) -> None:
        if self._admitted:
            self.link.on_data(data)

    def on_closed(self, error: Exception | None) -> None:
        if self._admitted:
            self.link.on_closed(error)

    def close(self) -> None:
        self.channel.close("this node stops")
        if self.link.session is None:
            self.link.abort(HandshakeFailed("this node stops"))

    def _established(self, channel: Channel) -> None:
        self._endpoint.proved(self)

    def _lost(self, channel: Channel, error: Exception | None) -> None:
        self._endpoint.ended(self, error)
