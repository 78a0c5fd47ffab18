"""Finds or opens the connection of a call, by the connection policy of the workflow.

A user has one connection per origin, and calls that run at the same time are streams of it. With
`connections = "shared"`, `streams` users share one connection; with `"request"` each call has its
own. A call waits while the peer allows no further stream.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from squall.api.errors import TransportError
from squall.clients.http.connect import Dial, dial
from squall.clients.http.failure_reasons import timeout_reason
from squall.clients.http.origin import Origin
from squall.clients.http.shared import HTTPShared
from squall.clients.http.url import PreparedURL
from squall.clients.http2.connection import HTTP2Connection
from squall.clients.http2.header_states import HeaderStates
from squall.clients.http2.stream import NOT_HTTP2

ConnectionKey = tuple[Origin, int]


class OpenConnections:
    """The connections of one user, or of all users if they share."""

    __slots__ = ("by_key", "opening")

    def __init__(self) -> None:
        self.by_key: dict[ConnectionKey, HTTP2Connection] = {}
        # Users that share a connection wait here for the one that opens it.
        self.opening: dict[ConnectionKey, asyncio.Future[None]] = {}

    def close(self) -> None:
        for conn in tuple(self.by_key.values()):
            # Calls that still run keep it; it closes after the last one.
            conn.drain()
            if not conn.streams:
                conn.close()


class HTTP2Shared:
    """What the clients of a share that speak HTTP/2, or gRPC over it, have in common."""

    __slots__ = ("connections", "counters", "protocol", "shared", "speaks", "states", "users")

    def __init__(self, shared: HTTPShared, protocol: str) -> None:
        self.shared = shared
        self.protocol = protocol
        self.counters = shared.counters_of(protocol)
        self.states = HeaderStates()
        self.connections = OpenConnections() if shared.connections == "shared" else None
        # Whether an origin chose HTTP/2, for clients that negotiate.
        self.speaks: dict[Origin, bool] = {}
        # Clients made so far.
        self.users = 0

    @classmethod
    def of(cls, shared: HTTPShared, protocol: str = "http2") -> HTTP2Shared:
        found = shared.protocols.get(protocol)
        if found is None:
            found = shared.protocols[protocol] = cls(shared, protocol)
        return found


class Connector:
    """Gets connections for the calls of one user."""

    __slots__ = ("_http2", "_known", "_place", "_vu_index", "open")

    def __init__(self, http2: HTTP2Shared, vu_index: int) -> None:
        self._http2 = http2
        self._vu_index = vu_index
        # What the last plain call used; one that drains is not in `open` any more.
        self._known: HTTP2Connection | None = None
        self.open = http2.connections or OpenConnections()
        # Users that share take the places of a connection in the order in which they came.
        self._place = http2.users // http2.shared.streams if http2.connections else 0
        http2.users += 1

    def free(self, url: PreparedURL) -> HTTP2Connection | None:
        """An open connection for a plain get, if it may open a stream at once."""
        conn, lane = self._known, url.lane
        if conn is None or conn.draining or conn.origin is not lane:
            conn = None if lane is None else self.open.by_key.get((lane, self._place))
            self._known = conn
        # `is_full`, without the call.
        return None if conn is None or len(conn.streams) >= conn.most_streams else conn

    async def get(
        self, origin: Origin, timeout_s: float, spent_s: float
    ) -> tuple[HTTP2Connection, bool]:
        """(A connection that may open a stream, whether it was open before)."""
        began = perf_counter()
        if not self._http2.shared.reuse:
            return await self._opened(origin, timeout_s, timeout_s - spent_s), False
        key = (origin, self._place)
        known = self.open
        while True:
            conn = known.by_key.get(key)
            if conn is not None and not conn.is_full:
                return conn, True
            left_s = max(timeout_s - spent_s - (perf_counter() - began), 0.0)
            if conn is not None:
                turn = asyncio.get_running_loop().create_future()
                conn.waiting.append(turn)
                await _turn(turn, timeout_s, left_s, began)
                continue
            opening = known.opening.get(key)
            if opening is not None:
                await _turn(asyncio.shield(opening), timeout_s, left_s, began)
                continue
            opening = known.opening[key] = asyncio.get_running_loop().create_future()
            try:
                conn = await self._opened(origin, timeout_s, left_s)
                if conn.is_usable:
                    known.by_key[key] = conn
            finally:
                del known.opening[key]
                opening.set_result(None)
            return conn, False

    async def _opened(self, origin: Origin, timeout_s: float, left_s: float) -> HTTP2Connection:
        conn = await dial(
            self._http2.shared,
            Dial(origin, ("h2",), tunnels=True),
            lambda: self.new(origin),
            self._vu_index,
            timeout_s,
            max(left_s, 0.0),
        )
        if not conn.speaks_http2:
            conn.close()
            now = perf_counter()
            raise TransportError(NOT_HTTP2, started=now, ended=now)
        return conn

    def new(self, origin: Origin) -> HTTP2Connection:
        """A connection that is not open yet."""
        return HTTP2Connection(self._http2.shared, self._http2, origin, self._gone)

    def adopt(self, conn: HTTP2Connection) -> None:
        """Uses a connection that was opened elsewhere for the next calls, unless there is one."""
        if self.open.by_key.setdefault((conn.origin, self._place), conn) is not conn:
            conn.close()

    def _gone(self, conn: HTTP2Connection) -> None:
        key = (conn.origin, self._place)
        if self.open.by_key.get(key) is conn:
            del self.open.by_key[key]


async def _turn(
    turn: asyncio.Future[None],
    timeout_s: float,
    left_s: float,
    began: float,
) -> None:
    try:
        async with asyncio.timeout(left_s):
            await turn
    except TimeoutError:
        raise TransportError(
            timeout_reason(timeout_s), started=began, ended=perf_counter()
        ) from None
