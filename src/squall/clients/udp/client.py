"""The UDP client of one virtual user: `self.client.udp`.

`exchange` counts as a request, which fails if no answer comes; `send` and `receive` count messages
only.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any

from squall.api.arguments import URL, Data
from squall.api.errors import TransportError
from squall.api.protocols.udp import UDPResponse
from squall.clients.calls.address import PreparedAddress
from squall.clients.calls.connections import Connections
from squall.clients.calls.payload import SentData, payload_of
from squall.clients.calls.probe import PingAnswer
from squall.clients.http.body import PreparedBody
from squall.clients.http.failure_reasons import connect_reason
from squall.clients.udp.endpoint import UDPEndpoint

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient


class UDPClient:
    """The sockets of one user, and what goes over them."""

    __slots__ = ("_connections", "_counters", "_http", "_limit", "_shared", "_timeout_s")

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._shared = http.shared
        self._limit = http.limit
        self._connections: Connections[UDPEndpoint] = Connections(http, "udp", self._open)
        self._counters = self._connections.counters
        # The limit of the last call.
        self._timeout_s = 0.0

    async def _open(self, address: PreparedAddress, limit_s: float) -> UDPEndpoint:
        began = perf_counter()
        try:
            return UDPEndpoint(self._shared, address, self._http.vu_index)
        except OSError as error:
            reason = connect_reason(error, address.origin.where)
            raise TransportError(reason, started=began, ended=perf_counter()) from error

    async def exchange(
        self,
        url: URL,
        data: Data,
        *,
        reply: bool = True,
        timeout: str | float = "1s",  # noqa: ASYNC109
    ) -> UDPResponse:
        if not reply:
            return await self.send(url, data)
        content = data.content if isinstance(data, PreparedBody) else payload_of(data)
        connections, shared = self._connections, self._shared
        endpoint = connections.free
        if endpoint is not None and endpoint.address is url:
            connections.free = None
            endpoint.connect_s = 0.0
        else:
            endpoint = await self._taken(url, "exchange", content)
        timeout_s = 1.0 if timeout == "1s" else shared.seconds(timeout)
        call = SentData(endpoint.address, "exchange", content)
        if timeout_s != self._timeout_s:
            # The sweep knows the limit of the call before.
            shared.expect_timeout(timeout_s, perf_counter() + timeout_s)
            self._timeout_s = timeout_s
        started = perf_counter()
        if started > self._limit[0] and not shared.allows(started):
            connections.drop(endpoint)
            raise asyncio.CancelledError
        counters = self._counters
        counters.sent += 1
        try:
            future = endpoint.ask(call, content, timeout_s, started)
            response = await future
        except BaseException as error:
            # The future holds the error, whose traceback holds this frame: break the cycle.
            future = None
            raise connections.broken(endpoint, error, call.operation) from None
        if response.lost:
            counters.failed += 1
            # Its answer may still come, and must not be taken for the next one.
            connections.drop(endpoint)
        else:
            counters.replies += 1
            if connections.keeps and connections.free is None:
                connections.free = endpoint
            else:
                connections.give_back(endpoint)
        if connections.plain:
            self._http.last = response
            return response
        return connections.done(response)

    async def send(self, url: URL, data: Data) -> UDPResponse:
        content = payload_of(data)
        endpoint = await self._taken(url, "send", content)
        call = SentData(endpoint.address, "send", content)
        started = self._began(endpoint)
        reason = endpoint.send(content)
        now = perf_counter()
        if reason:
            error = TransportError(reason, started=started, ended=now)
            raise self._connections.broken(endpoint, error, call.operation, 0)
        self._connections.give_back(endpoint)
        response = UDPResponse(
            call, started, now, now, endpoint.connect_s, bytes_sent=len(content), exchanges=0
        )
        self._connections.show(response)
        return response

    async def receive(
        self,
        url: URL,
        *,
        timeout: str | float = "1s",  # noqa: ASYNC109
    ) -> UDPResponse:
        endpoint = await self._taken(url, "receive", b"")
        timeout_s = self._shared.seconds(timeout)
        call = SentData(endpoint.address, "receive", b"")
        started = self._began(endpoint)
        self._shared.expect_timeout(timeout_s, started + timeout_s)
        future = endpoint.wait(call, timeout_s, started)
        try:
            response = await future
        except BaseException as error:
            del future
            raise self._connections.broken(endpoint, error, call.operation, 0) from None
        self._connections.give_back(endpoint)
        return self._connections.done(response)

    async def probe(self, url: URL) -> PingAnswer:
        """Sends an empty datagram. Few servers answer it, but the server's machine reports a closed
        port."""
        response = await self.exchange(url, b"", timeout="0.5s")
        if response.lost:
            response.error = ""
            return PingAnswer("sent", response, ["no answer to an empty datagram, and no refusal"])
        return PingAnswer("answered", response)

    async def _taken(self, url: Any, verb: str, data: bytes) -> UDPEndpoint:
        connections = self._connections
        address = connections.address_of(url)
        operation = SentData(address, verb, data).operation
        return await connections.take(address, operation, self._http.timeout_s)

    def _began(self, endpoint: UDPEndpoint) -> float:
        """The start of a call, unless the lease has ended."""
        started = perf_counter()
        if started > self._limit[0] and not self._shared.allows(started):
            self._connections.drop(endpoint)
            raise asyncio.CancelledError
        return started
