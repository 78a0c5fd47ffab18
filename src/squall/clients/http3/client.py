"""The HTTP/3 client of one virtual user: `self.client.http3`.

It stands on the user's HTTP client, which has the cookies, the limit of the running step and the
last exchange. Redirects, cookies, bodies and names are those of `squall.clients.http`; only the
exchange itself is made here.
"""

from __future__ import annotations

from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Unpack, cast

from squall.api.arguments import URL
from squall.api.errors import CallError, ConfigError, TransportError
from squall.api.http import BodyOptions, CallOptions, HTTP3Response, HTTP3Verbs
from squall.clients.http.call import build
from squall.clients.http.client import HTTPClient, checked_method, refuse_body
from squall.clients.http.connection import Unanswered
from squall.clients.http.exchange import call, follow, peer_of, show
from squall.clients.http.request import REPEATABLE, Request
from squall.clients.http.url import PreparedURL
from squall.clients.http3.connection import HTTP3Connection, RequestRejected
from squall.clients.http3.connections import HTTP3Connector, HTTP3Shared
from squall.clients.http3.headers import Fields, cookie_fields, request_fields

if TYPE_CHECKING:
    from squall.clients.http.shared import HTTPShared

# How often a request that the peer refused to handle is sent again. A peer that closes its
# connections after some requests refuses those of them that come too late, maybe again.
REFUSALS_MAX = 10


class HTTP3Client:
    """Sends the HTTP/3 calls of one user."""

    __slots__ = ("_connector", "_counters", "_http", "_http3", "_shared")

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._shared: HTTPShared = http.shared
        self._http3 = HTTP3Shared.of(http.shared)
        self._counters = self._http3.counters
        self._connector = HTTP3Connector(self._http3, http.vu_index)
        http.companions = (*http.companions, self)

    @staticmethod
    async def start(shared: HTTPShared) -> None:
        """Does before the run what else the first call would do: it holds the loop for 50 ms."""
        try:
            HTTP3Shared.of(shared).warm_up()
        except CallError as error:
            raise ConfigError(error.reason) from error

    async def get(self, url: URL, **options: Unpack[CallOptions]) -> HTTP3Response:
        http = self._http
        if not options and type(url) is PreparedURL and http.plain:
            # A plain get on an open connection, without what other calls need.
            conn = self._connector.free(url)
            if conn is not None:
                request, fields = self._http3.plain.get(url) or self._plain_request(url)
                timeout_s = http.timeout_s if http.siblings else http.own_timeout_s
                stream, future = conn.send(request, fields, timeout_s, 0.0)
                try:
                    response = await future
                except Unanswered as error:
                    del future
                    return await self._again(http, request, timeout_s, error)
                except BaseException as error:
                    stream.abandon()
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

    async def head(self, url: URL, **options: Unpack[CallOptions]) -> HTTP3Response:
        refuse_body("head", options)
        return await self._call("HEAD", url, options)

    async def options(self, url: URL, **options: Unpack[CallOptions]) -> HTTP3Response:
        refuse_body("options", options)
        return await self._call("OPTIONS", url, options)

    async def post(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP3Response:
        return await self._call("POST", url, options)

    async def put(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP3Response:
        return await self._call("PUT", url, options)

    async def patch(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP3Response:
        return await self._call("PATCH", url, options)

    async def delete(self, url: URL, **options: Unpack[BodyOptions]) -> HTTP3Response:
        return await self._call("DELETE", url, options)

    async def request(self, method: str, url: URL, **options: Unpack[BodyOptions]) -> HTTP3Response:
        return await self._call(checked_method(method), url, options)

    def begin_iteration(self) -> None:
        """Closes connections that live for one iteration."""
        if self._shared.connections == "iteration":
            self._connector.open.close()

    def close(self) -> None:
        if self._shared.connections != "shared":
            self._connector.open.close()

    async def _call(self, method: str, url: URL, options: Any) -> HTTP3Response:
        response = await call(self._http, method, url, via=self.exchange, **options)
        return cast("HTTP3Response", response)

    def _plain_request(self, url: PreparedURL) -> tuple[Request, Fields]:
        request = build(self._shared, "GET", url)
        found = self._http3.plain[url] = (request, request_fields(request))
        return found

    async def _again(
        self, http: HTTPClient, request: Request, timeout_s: float, error: Unanswered
    ) -> HTTP3Response:
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
        self, http: HTTPClient, request: Request, response: HTTP3Response, timeout_s: float
    ) -> HTTP3Response:
        try:
            followed = await follow(
                http, request, response, timeout_s, self._shared.redirects, self.exchange
            )
        except TransportError as error:
            error.request = f"GET {request.address}"
            http.note(error)
            raise
        http.note(followed)
        return cast("HTTP3Response", followed)

    async def exchange(
        self, http: HTTPClient, request: Request, timeout_s: float, spent_s: float
    ) -> HTTP3Response:
        """Sends one request and returns its answer. Repeats it if the peer did not handle it, and
        once if the peer closed a reused connection and the method may be repeated."""
        shared, counters = self._shared, self._counters
        fields = self._fields(request)
        refusals = 0
        while True:
            conn, reused = await self._connected(request, timeout_s, spent_s)
            if not reused:
                spent_s += sum(conn.setup or ())
            peer = "" if shared.on_exchange is None else peer_of(conn.transport)
            if spent_s:
                shared.expect_timeout(timeout_s, perf_counter() + timeout_s - spent_s)
            stream, future = conn.send(request, fields, timeout_s, spent_s)
            try:
                response = await future
            except Unanswered as error:
                del future
                refusals += 1
                refused = isinstance(error, RequestRejected) and refusals <= REFUSALS_MAX
                if not refused and not (reused and refusals == 1 and request.method in REPEATABLE):
                    raise self._lost(request, peer, error) from None
                spent_s += error.ended - error.started
                counters.reconnects += 1
                continue
            except BaseException as error:
                stream.abandon()
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

    def _fields(self, request: Request) -> Fields:
        fields = request_fields(request)
        jar = self._http.jar
        stored = b"" if jar is None else jar.header(request.origin, request.path, time())
        cookie = request.cookies(stored)
        return fields + cookie_fields(cookie) if cookie else fields

    async def _connected(
        self, request: Request, timeout_s: float, spent_s: float
    ) -> tuple[HTTP3Connection, bool]:
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
        error.protocol = "http3"
        self._show(request, peer, error)

    def _show(self, request: Request, peer: str, outcome: HTTP3Response | TransportError) -> None:
        if self._shared.on_exchange is not None:
            # As HTTP/1 would write it: people read this.
            head, _, rest = request.raw.partition(b"\r\n")
            raw = head.removesuffix(b"HTTP/1.1") + b"HTTP/3\r\n" + rest
            show(self._http, request, raw, peer, outcome)


# `help(self.client.http3.get)` shows what the author's interface says.
for _verb in ("get", "head", "options", "post", "put", "patch", "delete", "request"):
    getattr(HTTP3Client, _verb).__doc__ = getattr(HTTP3Verbs, _verb).__doc__
