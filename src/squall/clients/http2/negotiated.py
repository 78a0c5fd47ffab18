"""`self.client.http` of a workflow with `http = "auto"`: HTTP/2 where the server chooses it.

The first connection to an `https://` origin offers both protocols (ALPN, RFC 7301); the answer
holds for the origin. A plain origin is asked in HTTP/1.1, because nothing there can negotiate.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack

from squall.api.arguments import URL
from squall.api.errors import TransportError
from squall.api.http import BodyOptions, CallOptions, HTTPResponse
from squall.clients.http.client import HTTPClient, checked_method, refuse_body
from squall.clients.http.connect import Dial, dial
from squall.clients.http.connection import HTTPConnection
from squall.clients.http.exchange import call, exchange, show
from squall.clients.http.request import Request
from squall.clients.http.url import PreparedURL
from squall.clients.http2.client import HTTP2Client
from squall.clients.http2.connection import HTTP2Connection
from squall.clients.http2.connections import HTTP2Shared

if TYPE_CHECKING:
    from squall.clients.http.origin import Origin
    from squall.clients.http.shared import HTTPCounters, HTTPShared


class NegotiatedConnection(asyncio.Protocol):
    """Becomes an HTTP/2 or HTTP/1 connection when the handshake is over, and forwards to it."""

    future = None
    started = timeout_s = spent_s = 0.0

    def __init__(self, http2: HTTP2Connection, http: HTTPConnection) -> None:
        self._http2 = http2
        self._http = http
        self.chosen: HTTPConnection | HTTP2Connection = http
        self.setup: tuple[float, float, float] | None = None

    @property
    def transport(self) -> asyncio.Transport:
        return self.chosen.transport

    @property
    def counters(self) -> HTTPCounters:
        return self.chosen.counters

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            self.chosen = self._http2
        self.chosen.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.chosen.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.chosen.connection_lost(exc)

    def fail(self, reason: str, now: float) -> None:
        self.chosen.fail(reason, now)

    def close(self) -> None:
        self.chosen.close()

    def abort(self) -> None:
        self.chosen.abort()


class NegotiatingClient(HTTPClient):
    """Sends the calls of one user over the protocol that each origin chose."""

    __slots__ = ("_http2", "_speaks")

    def __init__(self, shared: HTTPShared, vu_index: int) -> None:
        super().__init__(shared, vu_index)
        self._http2 = HTTP2Client(self, via=self._exchanged)
        self._speaks = HTTP2Shared.of(shared).speaks

    async def get(self, url: URL, **options: Unpack[CallOptions]) -> HTTPResponse:
        if not options and type(url) is PreparedURL:
            if not url.origin.tls:
                return await super().get(url)
            if self._speaks.get(url.origin):
                return await self._http2.get(url)
        refuse_body("get", options)
        return await self._negotiated("GET", url, options)

    async def head(self, url: URL, **options: Unpack[CallOptions]) -> HTTPResponse:
        refuse_body("head", options)
        return await self._negotiated("HEAD", url, options)

    async def options(self, url: URL, **options: Unpack[CallOptions]) -> HTTPResponse:
        refuse_body("options", options)
        return await self._negotiated("OPTIONS", url, options)

    async def post(self, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        return await self._negotiated("POST", url, options)

    async def put(self, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        return await self._negotiated("PUT", url, options)

    async def patch(self, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        return await self._negotiated("PATCH", url, options)

    async def delete(self, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        return await self._negotiated("DELETE", url, options)

    async def request(self, method: str, url: URL, **options: Unpack[BodyOptions]) -> HTTPResponse:
        return await self._negotiated(checked_method(method), url, options)

    async def _negotiated(self, method: str, url: URL, options: Any) -> HTTPResponse:
        return await call(self, method, url, via=self._exchanged, **options)

    async def _exchanged(
        self, http: HTTPClient, request: Request, timeout_s: float, spent_s: float
    ) -> HTTPResponse:
        origin = request.origin
        if origin.tls:
            began = perf_counter()
            speaks = self._speaks.get(origin)
            if speaks is None:
                speaks = await self._asked(request, timeout_s, spent_s)
                spent_s += perf_counter() - began
            if speaks:
                return await self._http2.exchange(http, request, timeout_s, spent_s)
        return await exchange(http, request, timeout_s, spent_s)

    async def _asked(self, request: Request, timeout_s: float, spent_s: float) -> bool:
        """Opens the first connection to an origin and keeps it for the call that needs it. Other
        users that call it meanwhile open connections of their own."""
        origin, shared = request.origin, self.shared
        try:
            conn = await dial(
                shared,
                Dial(origin, ("h2", "http/1.1")),
                lambda: self._connection(origin),
                self.vu_index,
                timeout_s,
                max(timeout_s - spent_s, 0.0),
            )
        except TransportError as error:
            self.counters.failed += 1
            self.counters.unsent += 1
            show(self, request, request.raw, "", error)
            raise
        chosen = conn.chosen
        chosen.setup = conn.setup
        speaks = self._speaks[origin] = isinstance(chosen, HTTP2Connection)
        if not shared.reuse:
            chosen.close()
        elif isinstance(chosen, HTTP2Connection):
            self._http2.adopt(chosen)
        else:
            self.pool.add(chosen, shared.most_idle)
        return speaks

    def _connection(self, origin: Origin) -> NegotiatedConnection:
        http = HTTPConnection(self.shared, self.pool, origin)
        return NegotiatedConnection(self._http2.new_connection(origin), http)
