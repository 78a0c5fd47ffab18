"""The listening side: accepts links and knows which peer is on which.

A connection that does not prove the secret costs a bounded buffer for a bounded time and gets
no answer but, perhaps, "busy". The number of such connections is bounded, in total and per
address; beyond it, a new one takes the place of the one that has waited longest, so idle
connections never keep honest peers out. A peer that connects again replaces its former link of
the same kind, which is dead or about to be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from squall.cluster.wire.errors import HandshakeFailed, WireError
from squall.cluster.wire.links.channel import Channel
from squall.cluster.wire.links.handshake import BUSY_FRAME, ListenerHandshake
from squall.cluster.wire.links.link import Link
from squall.cluster.wire.links.switchboard import Switchboard
from squall.cluster.wire.messages import RefusalCode
from squall.cluster.wire.negotiation import LinkKind
from squall.cluster.wire.roles import Role
from squall.runtime.interfaces import Address, BootId, Connection, Listener, NodeId

DRAIN_POLL_S = 0.01
GAVE_PLACE = "it proved nothing in time and gave its place to a newer connection"


def _ignore(*_: object) -> None:
    pass


class Endpoint:
    """Listens at one address for peers of the roles in `accepts`."""

    def __init__(
        self,
        board: Switchboard,
        *,
        accepts: Collection[Role] = (Role.NODE, Role.WORKER, Role.CLIENT),
        on_connected: Callable[[Channel], None] = _ignore,
        on_disconnected: Callable[[Channel, Exception | None], None] = _ignore,
    ) -> None:
        self._board = board
        self._accepts = frozenset(accepts)
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._listener: Listener | None = None
        self._callers: dict[Caller, None] = {}
        self._by_peer: dict[tuple[NodeId, BootId, LinkKind], Caller] = {}
        # Connections that have not finished their handshake, the oldest first.
        self._unproven: dict[Caller, None] = {}
        self._unproven_from: dict[str, dict[Caller, None]] = {}

    @property
    def address(self) -> Address:
        if self._listener is None:
            raise WireError("this endpoint does not listen")
        return self._listener.address

    @property
    def links(self) -> int:
        return len(self._by_peer)

    @property
    def unproven(self) -> int:
        """Connections that have not finished their handshake."""
        return len(self._unproven)

    def channel(self, node: NodeId, boot: BootId, kind: LinkKind) -> Channel | None:
        caller = self._by_peer.get((node, boot, kind))
        return caller.channel if caller is not None else None

    async def listen(self, address: Address) -> None:
        board = self._board
        tls = board.tls.listen.reporting(board.on_refused) if board.tls is not None else None
        self._listener = await board.runtime.network.listen(address, self._accept, tls=tls)

    async def close(self, drain_s: float = 0.0) -> None:
        """Accepts no more links, waits up to `drain_s` for running handlers, then closes all."""
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

    # Called by a caller.

    def opened(self, caller: Caller) -> bool:
        """Returns whether the connection may try its handshake."""
        if self._listener is None or not self._make_room(caller.address[0]):
            self._board.counters.handshake_evicted += 1
            return False
        self._callers[caller] = None
        self._unproven[caller] = None
        self._unproven_from.setdefault(caller.address[0], {})[caller] = None
        return True

    def _make_room(self, host: str) -> bool:
        """Evicts the oldest idle connection if there are too many; False if there is none."""
        limits = self._board.limits
        same = self._unproven_from.get(host, {})
        if len(same) >= limits.handshakes_per_address:
            return self._evict_oldest(same)
        if len(self._unproven) >= limits.handshakes_max:
            return self._evict_oldest(self._unproven)
        return True

    def _evict_oldest(self, callers: Iterable[Caller]) -> bool:
        before = self._board.runtime.clock.now() - self._board.limits.handshake_grace_s
        for caller in callers:
            if caller.opened_at > before:
                return False
            if not caller.has_proof:
                self._board.counters.handshake_evicted += 1
                self._settled(caller)
                caller.turn_away()
                return True
        return False

    def _settled(self, caller: Caller) -> None:
        """The connection is no longer under handshake."""
        self._unproven.pop(caller, None)
        host = caller.address[0]
        same = self._unproven_from.get(host, {})
        same.pop(caller, None)
        if not same:
            self._unproven_from.pop(host, None)

    def proved(self, caller: Caller) -> None:
        self._settled(caller)
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
            self._settled(caller)
            if self._listener is not None and error is not None:
                self._board.on_refused(caller.address, error)
            return
        key = (session.peer.node, session.peer.boot, session.link)
        if self._by_peer.get(key) is caller:
            del self._by_peer[key]
        self._on_disconnected(caller.channel, error)


class Caller:
    """One accepted connection with its link and its channel."""

    def __init__(self, board: Switchboard, endpoint: Endpoint, accepts: Collection[Role]) -> None:
        self.channel = Channel(board, on_established=self._established, on_lost=self._lost)
        self._handshake = ListenerHandshake(board.keyring, board.profile, accepts)
        self.link = Link(
            self._handshake,
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
        self._clock = board.runtime.clock
        self.address: Address = ("", 0)
        self.opened_at = 0.0

    @property
    def has_proof(self) -> bool:
        return self._handshake.has_proof

    def on_open(self, connection: Connection) -> None:
        self.address = connection.peer
        self.opened_at = self._clock.now()
        self._admitted = self._endpoint.opened(self)
        if self._admitted:
            self.link.on_open(connection)
        else:
            connection.send(BUSY_FRAME)
            connection.close()

    def on_data(self, data: bytes) -> None:
        if self._admitted:
            self.link.on_data(data)

    def on_closed(self, error: Exception | None) -> None:
        if self._admitted:
            self.link.on_closed(error)

    def turn_away(self) -> None:
        self.link.turn_away(BUSY_FRAME, HandshakeFailed(GAVE_PLACE, code=RefusalCode.BUSY))

    def close(self) -> None:
        self.channel.close("this node stops")
        if self.link.session is None:
            self.link.abort(HandshakeFailed("this node stops"))

    def _established(self, channel: Channel) -> None:
        self._endpoint.proved(self)

    def _lost(self, channel: Channel, error: Exception | None) -> None:
        self._endpoint.ended(self, error)
