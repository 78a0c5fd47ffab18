"""The TCP client of one virtual user: `self.client.tcp`.

`exchange` counts as a request; `send` and `receive` count messages only, as those of a WebSocket.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any

from squall.api.arguments import URL, Data
from squall.api.errors import CallError
from squall.api.protocols.tcp import LengthPrefix, TCPResponse, Until
from squall.clients.calls.address import PreparedAddress
from squall.clients.calls.connections import Connections
from squall.clients.calls.payload import SentData, payload_of
from squall.clients.calls.probe import PingAnswer
from squall.clients.http.body import PreparedBody
from squall.clients.http.connect import Dial, dial
from squall.clients.http.shared import NO_ALPN
from squall.clients.tcp.connection import TCPConnection

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient


class TCPClient:
    """The connections of one user, and what goes over them."""

    __slots__ = ("_connections", "_counters", "_http", "_limit", "_shared", "_until")

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._shared = http.shared
        self._limit = http.limit
        self._connections: Connections[TCPConnection] = Connections(http, "tcp", self._open)
        self._counters = self._connections.counters
        # The end of an answer that was checked last.
        self._until: Until | None = None

    async def _open(self, address: PreparedAddress, limit_s: float) -> TCPConnection:
        shared = self._shared
        return await dial(
            shared,
            Dial(address.origin, (NO_ALPN,)),
            lambda: TCPConnection(shared, address),
            self._http.vu_index,
            limit_s,
            limit_s,
        )

    async def exchange(
        self,
        url: URL,
        data: Data,
        *,
        until: Until | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> TCPResponse:
        if until is not self._until:
            _check_until(until)
            self._until = until
        content = data.content if isinstance(data, PreparedBody) else payload_of(data)
        connections, http = self._connections, self._http
        conn = connections.free
        if timeout is None and conn is not None and conn.address is url and conn.is_open:
            connections.free = None
            conn.connect_s = 0.0
            limit_s = http.own_timeout_s if connections.plain else http.timeout_s
        else:
            conn, limit_s = await self._taken(url, "exchange", content, timeout)
        call = SentData(conn.address, "exchange", content)
        started = perf_counter()
        if started > self._limit[0] and not self._shared.allows(started):
            connections.drop(conn)
            raise asyncio.CancelledError
        counters = self._counters
        counters.sent += 1
        future = conn.ask(call, content, until, limit_s, started)
        try:
            response = await future
        except BaseException as error:
            # The future holds the error, whose traceback holds this frame: break the cycle.
            del future
            raise connections.broken(conn, error, call.operation) from None
        counters.replies += 1
        if connections.keeps and connections.free is None:
            connections.free = conn
        else:
            connections.give_back(conn)
        if connections.plain:
            http.last = response
            return response
        return connections.done(response)

    async def send(
        self,
        url: URL,
        data: Data,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> TCPResponse:
        content = payload_of(data)
        conn, limit_s = await self._taken(url, "send", content, timeout)
        call = SentData(conn.address, "send", content)
        started = self._began(conn)
        conn.write(content)
        room = conn.wait_for_room(limit_s, started)
        if room is not None:
            await self._awaited(conn, room, call)
        ended = perf_counter()
        self._connections.give_back(conn)
        response = TCPResponse(call, started, ended, ended, conn.connect_s, "", len(content))
        response.exchanges = 0
        self._connections.show(response)
        return response

    async def receive(
        self,
        url: URL,
        *,
        until: Until | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> TCPResponse:
        return self._connections.done(await self._received(url, until, timeout, "receive", b""))

    async def expect(
        self,
        url: URL,
        expected: Data,
        *,
        until: Until | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> TCPResponse:
        wanted = payload_of(expected)
        response = await self._received(url, until, timeout, "expect", wanted)
        if wanted not in response.body:
            response.error = f"expected {wanted[:60]!r}"
        return self._connections.done(response)

    async def probe(self, url: URL) -> PingAnswer:
        """Connects, and sends nothing: only the author knows which bytes the server understands."""
        address = self._connections.address_of(url)
        conn = await self._connections.take(address, "connect", self._http.timeout_s)
        now = perf_counter()
        version = conn.transport.get_extra_info("ssl_object")
        self._connections.drop(conn)
        response = TCPResponse(
            SentData(address, "connect", b""), now, now, now, conn.connect_s, exchanges=0
        )
        return PingAnswer(f"connected ({version.version()})" if version else "connected", response)

    async def _received(
        self,
        url: Any,
        until: Until | None,
        timeout: Any,  # noqa: ASYNC109
        verb: str,
        wanted: bytes,
    ) -> TCPResponse:
        _check_until(until)
        conn, limit_s = await self._taken(url, verb, wanted, timeout)
        call = SentData(conn.address, verb, wanted)
        started = self._began(conn)
        response = await self._awaited(conn, conn.wait(call, until, limit_s, started), call)
        self._connections.give_back(conn)
        return response

    async def _taken(
        self,
        url: Any,
        verb: str,
        data: bytes,
        timeout: str | float | None,  # noqa: ASYNC109
    ) -> tuple[TCPConnection, float]:
        connections = self._connections
        address, limit_s = connections.address_of(url), connections.limit_s(timeout)
        conn = await connections.take(address, SentData(address, verb, data).operation, limit_s)
        self._shared.expect_timeout(limit_s, perf_counter() + limit_s - conn.connect_s)
        return conn, limit_s

    def _began(self, conn: TCPConnection) -> float:
        """The start of a call on a connection, unless the lease has ended."""
        started = perf_counter()
        if started > self._limit[0] and not self._shared.allows(started):
            self._connections.drop(conn)
            raise asyncio.CancelledError
        return started

    async def _awaited(
        self, conn: TCPConnection, future: asyncio.Future[TCPResponse], call: SentData
    ) -> TCPResponse:
        """Waits for something that does not count as a request."""
        try:
            return await future
        except BaseException as error:
            del future
            raise self._connections.broken(conn, error, call.operation, 0) from None


def _check_until(until: Any) -> None:
    good = until is None or isinstance(until, LengthPrefix)
    if isinstance(until, bytes | int):
        good = bool(until) and until is not True and not (isinstance(until, int) and until < 0)
    if not good:
        raise CallError(
            f"until={until!r} is no end of an answer: write a delimiter such as b'\\n', a number "
            "of bytes, or LengthPrefix(4)"
        )
