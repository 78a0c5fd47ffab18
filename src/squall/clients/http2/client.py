"""The HTTP/2 client of one virtual user: `self.client.http2`.

It stands on the user's HTTP client, which has the cookies, the limit of the running step and the
last exchange. Redirects, cookies, bodies and names are those of `squall.clients.http`; only the
exchange itself is made here.
"""

from __future__ import annotations

from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Unpack, cast

from squall.api.arguments import URL
from squall.api.errors import TransportError
from squall.api.http import BodyOptions, CallOptions, HTTP2Response, HTTP2Verbs
from squall.clients.http.call import build
from squall.clients.http.client import HTTPClient, checked_method, refuse_body
from squall.clients.http.connection import Unanswered
from squall.clients.http.exchange import Exchanger, call, follow, peer_of, show
from squall.clients.http.request import REPEATABLE, Request
from squall.clients.http.url import PreparedURL
from squall.clients.http2.connection import HTTP2Connection
from squall.clients.http2.connections import Connector, HTTP2Shared
from squall.clients.http2.header_blocks import cookie_block, request_block
from squall.clients.http2.stream import Refused

if TYPE_CHECKING:
    from squall.clients.http.shared import HTTPShared

# How often a request that the peer refused to handle is sent again. A peer that closes its
# connections after some requests refuses those of them that come too late, maybe again.
REFUSALS_MAX = 10


class HTTP2Client:
    """Sends the HTTP/2 calls of one user."""

    __slots__ = ("_connector", "_counters", "_http", "_shared", "_via", "adopt", "new_connection")

    def __init__(self, http: HTTPClient, via: Exchanger | None = None) -> None:
        """`via` follows redirects to origins that may speak another protocol."""
        self._http = http
        self._via = via or self.exchange
        self._shared: HTTPShared = http.shared
        http2 = HTTP2Shared.of(http.shared)
        self._counters = http2.counters
        self._connector = Connector(http2, http.vu_index)
        self.adopt = self._connector.adopt
        self.new_connection = self._connector.new
        http.companions = (*http.companions, self)

    async def get(self, url: URL, **options: Unpack[CallOptions]) -> HTTP2Response:
        http = self._http
        if not options and type(url) is PreparedURL and http.plain:
            # A plain get on an open connection, without what other calls need.
            conn = self._connector.free(url)
            if conn is not None:
                request = url.plain_get or self._plain_request(url)
                timeout_s = http.timeout_s if http.siblings else http.own_timeout_s
                stream, future = conn.send(request, request.header_block, b"", timeout_s, 0.0)
                try:
                    response = await future
                except Unanswered as error:
                    del future
                    return await self._again(http, request, timeout_s, error)
                except BaseException as error:
                    stream.abandon(future)
                    # It holds the error, whose traceback holds this frame: break the cycle.
                    del future
                    if isinstance(error, TransportError):
                        error.request = f"GET {url.address}"
                        http.note(error)
                    raise
                if response.head.special:
                    return await self._follow(http, request, response, timeout_s)
                http.last = response
                if http.siblings:
                    http.note(response)
                return response
        refuse_body("get", options)
        return await self._call("GET", url, options)

    async def head(self, url: URL, **options: Unpack[CallOptions]) -> HTTP2Response:
        refuse_body("head", options)
        return await self._call("HEAD", url, options)

    async def options(self, url: URL, **options: Unpack[CallOptions]) -> HTTP2Response:
        refuse_body("options", options)
        return await self._call("OPTIONS", url, options)

    async def post(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP2Response:
        return await self._call("POST", url, options)

    async def put(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP2Response:
        return await self._call("PUT", url, options)

    async def patch(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP2Response:
        return await self._call("PATCH", url, options)

    async def delete(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP2Response:
        return await self._call("DELETE", url, options)

    async def request(self, method: str, url: URL, **options: Unpack[BodyOptions]) -> HTTP2Response:
        return await self._call(checked_method(method), url, options)

    def begin_iteration(self) -> None:
        """Closes connections that live for one iteration."""
        if self._shared.connections == "iteration":
            self._connector.open.close()

    def close(self) -> None:
        if self._shared.connections != "shared":
            self._connector.open.close()

    async def _call(self, method: str, url: URL, options: Any) -> HTTP2Response:
        response = await call(self._http, method, url, via=self._via, **options)
        return cast("HTTP2Response", response)

    def _plain_request(self, url: PreparedURL) -> Request:
        request = url.plain_get = build(self._shared, "GET", url)
        request.header_block = request_block(request)
        return request

    async def _again(
        self, http: HTTPClient, request: Request, timeout_s: float, error: Unanswered
    ) -> HTTP2Response:
        """Repeats a plain get that was not answered on a reused connection."""
        self._counters.reconnects += 1
        spent_s = error.ended - error.started
        try:
            response = await self.exchange(http, request, timeout_s, spent_s)
        except TransportError as failure:
            failure.request = f"GET {request.address}"
            http.note(failure)
            raise
        if response.head.special:
            return await self._follow(http, request, response, timeout_s)
        http.note(response)
        return response

    async def _follow(
        self, http: HTTPClient, request: Request, response: HTTP2Response, timeout_s: float
    ) -> HTTP2Response:
        try:
            followed = await follow(
                http, request, response, timeout_s, self._shared.redirects, self._via
            )
        except TransportError as error:
            error.request = f"GET {request.address}"
            http.note(error)
            raise
        http.note(followed)
        return cast("HTTP2Response", followed)

    async def exchange(
        self, http: HTTPClient, request: Request, timeout_s: float, spent_s: float
    ) -> HTTP2Response:
        """Sends one request and returns its answer. Repeats it if the peer did not handle it, and
        once if the peer closed a reused connection and the method may be repeated."""
        shared, counters = self._shared, self._counters
        block = self._block(request)
        refusals = 0
        while True:
            conn, reused = await self._connected(request, timeout_s, spent_s)
            if not reused:
                spent_s += sum(conn.setup or ())
            peer = "" if shared.on_exchange is None else peer_of(conn.transport)
            if spent_s:
                shared.expect_timeout(timeout_s, perf_counter() + timeout_s - spent_s)
            stream, future = conn.send(request, block, request.body, timeout_s, spent_s)
            try:
                response = await future
            except Unanswered as error:
                del future
                refusals += 1
                refused = isinstance(error, Refused) and refusals <= REFUSALS_MAX
                if not refused and not (reused and refusals == 1 and request.method in REPEATABLE):
                    raise self._lost(request, peer, error) from None
                spent_s += error.ended - error.started
                counters.reconnects += 1
                continue
            except BaseException as error:
                stream.abandon(future)
                # The future holds the error, whose traceback holds this frame: break the cycle.
                del future
                if isinstance(error, TransportError):
                    self._failed(request, peer, error)
                raise
            finally:
                if not shared.reuse:
                    conn.close()
            if not reused:
                response.setup = conn.setup
            self._show(request, peer, response)
            return response

    def _block(self, request: Request) -> bytes:
        block = request.header_block
        if not block:
            block = request.header_block = request_block(request)
        jar = self._http.jar
        stored = b"" if jar is None else jar.header(request.origin, request.path, time())
        cookie = request.cookies(stored)
        return block + cookie_block(cookie) if cookie else block

    async def _connected(
        self, request: Request, timeout_s: float, spent_s: float
    ) -> tuple[HTTP2Connection, bool]:
        try:
            return await self._connector.get(request.origin, timeout_s, spent_s)
        except TransportError as error:
            self._counters.failed += 1
            self._counters.unsent += 1
            self._failed(request, "", error)
            raise

    def _lost(self, request: Request, peer: str, error: Unanswered) -> TransportError:
        """The error of a call that is not repeated. A function of its own makes it, because a frame
        that holds the error which it raises would keep itself alive."""
        self._counters.failed += 1
        failure = TransportError(error.reason, started=error.started, ended=error.ended)
        self._failed(request, peer, failure)
        return failure

    def _failed(self, request: Request, peer: str, error: TransportError) -> None:
        error.protocol = "http2"
        self._show(request, peer, error)

    def _show(self, request: Request, peer: str, outcome: HTTP2Response | TransportError) -> None:
        if self._shared.on_exchange is not None:
            # As HTTP/1 would write it: people read this.
            head, _, rest = request.raw.partition(b"\r\n")
            raw = head.removesuffix(b"HTTP/1.1") + b"HTTP/2\r\n" + rest
            show(self._http, request, raw, peer, outcome)


# `help(self.client.http2.get)` shows what the author's interface says.
for _verb in ("get", "head", "options", "post", "put", "patch", "delete", "request"):
    getattr(HTTP2Client, _verb).__doc__ = getattr(HTTP2Verbs, _verb).__doc__
