"""The UDP client of one virtual user: `self.client.udp`.

`exchange` counts as a request, and one whose answer does not come as failed; `send` and `receive`
count messages only.
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
from squall.clients.calls.probe import Probe
from squall.clients.http.failure_reasons import connect_reason
from squall.clients.udp.endpoint import UDPEndpoint

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient


class UDPClient:
    """The sockets of one user, and what goes over them."""

    __slots__ = ("_connections", "_counters", "_http", "_limit", "_shared")

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._shared = http.shared
        self._limit = http.limit
        self._connections: Connections[UDPEndpoint] = Connections(http, "udp", self._open)
        self._counters = self._connections.counters

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
        content = data if isinstance(data, bytes) else payload_of(data)
        call, socket = await self._taken(url, "exchange", content)
        timeout_s = 1.0 if timeout == "1s" else self._shared.seconds(timeout)
        socket.forget_unread()
        started = self._began(socket, timeout_s)
        self._counters.sent += 1
        self._send(socket, content, call, started, 1)
        return await self._answered(socket, call, started, timeout_s, len(content), 1)

    async def send(self, url: URL, data: Data) -> UDPResponse:
        content = payload_of(data)
        call, socket = await self._taken(url, "send", content)
        started = self._began(socket, 0.0)
        self._send(socket, content, call, started, 0)
        now = perf_counter()
        self._connections.give_back(socket)
        response = UDPResponse(
            call, started, now, now, socket.connect_s, bytes_sent=len(content), exchanges=0
        )
        self._connections.show(response)
        return response

    async def receive(
        self,
        url: URL,
        *,
        timeout: str | float = "1s",  # noqa: ASYNC109
    ) -> UDPResponse:
        call, socket = await self._taken(url, "receive", b"")
        timeout_s = self._shared.seconds(timeout)
        started = self._began(socket, timeout_s)
        return await self._answered(socket, call, started, timeout_s, 0, 0)

    async def probe(self, url: URL) -> Probe:
        """Sends an empty datagram. Few servers answer it, but the machine of the server reports a
        port where nothing listens."""
        response = await self.exchange(url, b"", timeout="0.5s")
        if response.lost:
            response.error = ""
            return Probe("sent", response, ["no answer to an empty datagram, and no refusal"])
        return Probe("answered", response)

    async def _taken(self, url: Any, verb: str, data: bytes) -> tuple[SentData, UDPEndpoint]:
        connections = self._connections
        address = connections.address_of(url)
        call = SentData(address, verb, data)
        socket = connections.idle(address)
        if socket is None:
            socket = await connections.take(address, call.operation, self._http.timeout_s)
        return call, socket

    def _began(self, socket: UDPEndpoint, timeout_s: float) -> float:
        """The start of a call, unless the lease has ended."""
        started = perf_counter()
        if started > self._limit[0] and not self._shared.allows(started):
            self._connections.drop(socket)
            raise asyncio.CancelledError
        if timeout_s:
            self._shared.expect_timeout(timeout_s, started + timeout_s)
        return started

    def _send(
        self, socket: UDPEndpoint, content: bytes, call: SentData, started: float, count: int
    ) -> None:
        reason = socket.send(content)
        if reason:
            error = TransportError(reason, started=started, ended=perf_counter())
            raise self._connections.broken(socket, error, call.operation, count)

    async def _answered(
        self,
        socket: UDPEndpoint,
        call: SentData,
        started: float,
        timeout_s: float,
        sent: int,
        count: int,
    ) -> UDPResponse:
        """Waits for a datagram; `count` is the number of requests that it answers."""
        connections = self._connections
        future = socket.wait(timeout_s, started)
        try:
            body, at = await future
        except BaseException as error:
            # The future holds the error, whose traceback holds this frame: break the cycle.
            del future
            raise connections.broken(socket, error, call.operation, count) from None
        at = max(at, started)
        if body is None:
            self._counters.failed += count
            if count:
                # Its answer may still come, and must not be taken for the next one.
                connections.drop(socket)
            else:
                connections.give_back(socket)
            return connections.done(
                UDPResponse(
                    call,
                    started,
                    at,
                    at,
                    socket.connect_s,
                    f"lost: no datagram within {timeout_s:g} s",
                    bytes_sent=sent,
                    exchanges=count,
                    lost=True,
                )
            )
        self._counters.replies += count
        connections.give_back(socket)
        return connections.done(
            UDPResponse(
                call,
                started,
                at,
                at,
                socket.connect_s,
                "",
                sent,
                len(body),
                True,
                count,
                body,
            )
        )
