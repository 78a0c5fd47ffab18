"""The gRPC client of one virtual user: `self.client.grpc`.

It stands on the user's HTTP client and opens its own HTTP/2 connections, by the same policies. A
unary call on an open connection is written out in full, because a run spends most of its time
there. Messages are encoded before the clock starts and replies are decoded when they are read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from time import perf_counter
from typing import Any, Unpack, cast

from squall.api.arguments import URL, Protobuf
from squall.api.errors import CallError, TransportError
from squall.api.http import HTTP2Response
from squall.api.protocols.grpc import INTERNAL, GRPCOptions, GRPCResponse, GRPCStream, status_of
from squall.clients.grpc.calls import (
    MethodCall,
    accepted_codes,
    default_fields,
    metadata_fields,
)
from squall.clients.grpc.framing import FramingError, MessageDecoder, single
from squall.clients.grpc.methods import find_method
from squall.clients.grpc.stream import CUT_OFF, Collector, OpenStream
from squall.clients.http.client import HTTPClient
from squall.clients.http.connection import Unanswered
from squall.clients.http.exchange import peer_of
from squall.clients.http.url import PreparedURL
from squall.clients.http2.bodies import send_more
from squall.clients.http2.connection import HTTP2Connection
from squall.clients.http2.connections import Connector, HTTP2Shared
from squall.clients.http2.stream import Refused, Stream

# How often a call that the peer refused to handle is sent again, as in HTTP/2.
REFUSALS_MAX = 10
_COMPRESSIONS = (None, "gzip", "deflate")
_OK = accepted_codes(("OK",))
# Calls that are kept, over all URLs and options of a share.
_MOST_CALLS = 1024

CallKey = tuple[PreparedURL, Any, Any, Any]


class GRPCShared:
    """What the gRPC clients of a share have in common: connections, and what calls look like.
    `plain` has the calls without options, which need a shorter key."""

    __slots__ = ("calls", "http2", "plain")

    def __init__(self, http: HTTPClient) -> None:
        self.http2 = HTTP2Shared.of(http.shared, "grpc")
        self.calls: dict[CallKey, MethodCall] = {}
        self.plain: dict[PreparedURL, MethodCall] = {}

    @classmethod
    def of(cls, http: HTTPClient) -> GRPCShared:
        found = http.shared.protocols.get("grpc calls")
        if found is None:
            found = http.shared.protocols["grpc calls"] = cls(http)
        return found


class GRPCClient:
    """Makes the calls of one user."""

    __slots__ = ("_calls", "_connector", "_counters", "_http", "_plain", "_shared", "peer")

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._shared = http.shared
        own = GRPCShared.of(http)
        self._calls = own.calls
        self._plain = own.plain
        self._counters = own.http2.counters
        self._connector = Connector(own.http2, http.vu_index)
        # Address and port that answered last, if exchanges are shown.
        self.peer = ""
        http.companions = (*http.companions, self)

    async def unary(
        self, url: URL, message: Protobuf, **options: Unpack[GRPCOptions]
    ) -> GRPCResponse:
        """Sends one message and returns the response with its reply."""
        http = self._http
        if not options and type(url) is PreparedURL:
            call = self._plain.get(url)
            conn = self._connector.free(url)
            if call is not None and conn is not None:
                timeout_s = http.timeout_s if http.siblings else http.own_timeout_s
                body = call.body(message)
                block = call.first[1] if call.first[0] == timeout_s else call.block_for(timeout_s)
                stream, future = conn.send(call, block, body, timeout_s, 0.0)
                try:
                    answer = await future
                except BaseException as error:
                    answer = await self._ended(call, body, stream, future, timeout_s, error)
                # `_response` for a reply as most are, without its calls.
                reply = single(answer.raw_body)
                if reply is None or answer.raw_trailers != _PLAIN_OK:
                    response = self._response(call, answer, body)
                else:
                    response = GRPCResponse(
                        0,
                        (reply,),
                        answer.head,
                        _PLAIN_OK,
                        call,
                        answer.started,
                        answer.first_byte,
                        answer.ended,
                    )
                http.last = response
                if http.siblings:
                    http.note(response)
                return response
        return await self._unary(url, message, options)

    async def stream(
        self,
        url: URL,
        messages: Protobuf | Iterable[Protobuf],
        **options: Unpack[GRPCOptions],
    ) -> GRPCResponse:
        """Sends all messages and returns all replies."""
        call, timeout_s = self._call(url, options)
        given: list[Any] = [messages]
        if isinstance(messages, Iterable) and not isinstance(messages, (bytes, Mapping)):
            given = list(cast("Iterable[Any]", messages))
        bodies = [call.body(each) for each in given]
        try:
            answer, collector = await self._collected(call, bodies, timeout_s)
        except TransportError as error:
            self._noted(call, error)
            raise
        code = status_of(answer.head, answer.raw_trailers)[0]
        fault = "" if collector.decoder.is_between else CUT_OFF
        response = self._made(call, answer, code, collector.replies, fault)
        response.stamps = collector.stamps
        self._show(call, response, bodies)
        self._http.note(response)
        return response

    def open(
        self, url: URL, **options: Unpack[GRPCOptions]
    ) -> AbstractAsyncContextManager[GRPCStream]:
        return self._opened(url, options)

    @asynccontextmanager
    async def _opened(self, url: URL, options: GRPCOptions) -> AsyncGenerator[GRPCStream]:
        call, timeout_s = self._call(url, options)
        deadline_s = timeout_s if options.get("timeout") is not None else inf
        try:
            conn, setup, spent_s = await self._connected(call, timeout_s, 0.0)
        except TransportError as error:
            self._noted(call, error)
            raise
        block = call.block if deadline_s == inf else call.block_for(timeout_s)
        opened = OpenStream(self._http, self._counters, call, setup)
        opened.begin(conn, *conn.send(call, block, b"", deadline_s, spent_s, opened))
        if deadline_s < inf:
            self._shared.expect_timeout(deadline_s, perf_counter() + deadline_s)
        try:
            yield opened
        finally:
            opened.leave()
            if not self._shared.reuse:
                conn.close()

    def begin_iteration(self) -> None:
        """Closes connections that live for one iteration."""
        if self._shared.connections == "iteration":
            self._connector.open.close()

    def close(self) -> None:
        if self._shared.connections != "shared":
            self._connector.open.close()

    # Calls.

    def _call(self, url: Any, options: Any) -> tuple[MethodCall, float]:
        """The prepared call and its limit in seconds."""
        http, shared = self._http, self._shared
        timeout_s = http.timeout_s if http.siblings else http.own_timeout_s
        metadata = compression = expect = None
        if options:
            unknown = options.keys() - GRPCOptions.__optional_keys__
            if unknown:
                known = ", ".join(sorted(GRPCOptions.__optional_keys__))
                raise TypeError(f"a gRPC call takes no {min(unknown)}=; it takes {known}")
            if options.get("timeout") is not None:
                timeout_s = shared.seconds(options["timeout"])
                shared.expect_timeout(timeout_s, perf_counter() + timeout_s)
            metadata, compression = options.get("metadata"), options.get("compression")
            expect = options.get("expect")
            expect = (
                None if expect is None else tuple([expect] if isinstance(expect, str) else expect)
            )
        prepared = shared.url(url)
        is_kept = not isinstance(metadata, Mapping)
        key = (prepared, metadata if is_kept else None, compression, expect)
        call = self._calls.get(key) if is_kept else None
        if call is None:
            call = self._new_call(prepared, metadata, compression, expect)
            if is_kept:
                if len(self._calls) >= _MOST_CALLS:
                    self._calls.clear()
                    self._plain.clear()
                self._calls[key] = call
                if key[1:] == (None, None, None):
                    self._plain[prepared] = call
        return call, timeout_s

    def _new_call(
        self, url: PreparedURL, metadata: Any, compression: Any, expect: Any
    ) -> MethodCall:
        if url.pieces or url.target.count(b"/") != 2 or url.target.endswith(b"/"):
            raise CallError(f'"{url.value}" names no method: write /package.Service/Method')
        if compression not in _COMPRESSIONS:
            raise CallError(f'compression={compression!r}: write "gzip" or "deflate"')
        fields = () if metadata is None else metadata_fields(metadata)
        return MethodCall(
            url,
            find_method(self._shared.protos, url.target.decode()),
            [*default_fields(self._shared.defaults, fields), *fields],
            compression or "",
            _OK if expect is None else accepted_codes(expect),
        )

    async def _unary(self, url: Any, message: Any, options: Any) -> GRPCResponse:
        call, timeout_s = self._call(url, options)
        body = call.body(message)
        try:
            answer = await self._exchanged(call, body, timeout_s, 0.0)
            response = self._response(call, answer, body)
        except TransportError as error:
            self._noted(call, error)
            raise
        self._http.note(response)
        return response

    async def _exchanged(
        self, call: MethodCall, body: bytes, timeout_s: float, spent_s: float
    ) -> HTTP2Response:
        """Sends one message. Repeats it only if the peer did not handle it."""
        refusals = 0
        while True:
            conn, setup, spent_s = await self._connected(call, timeout_s, spent_s)
            block = call.block_for(timeout_s if not spent_s else max(timeout_s - spent_s, 0.0))
            stream, future = conn.send(call, block, body, timeout_s, spent_s)
            try:
                answer = await future
            except Refused as error:
                del future
                refusals += 1
                if refusals > REFUSALS_MAX:
                    raise self._lost(error) from None
                spent_s += error.ended - error.started
                self._counters.reconnects += 1
                continue
            except BaseException as error:
                stream.abandon(future)
                # The future holds the error, whose traceback holds this frame: break the cycle.
                del future
                if isinstance(error, Unanswered):
                    raise self._lost(error) from None
                raise
            finally:
                if not self._shared.reuse:
                    conn.close()
            answer.setup = setup
            return answer

    async def _ended(
        self,
        call: MethodCall,
        body: bytes,
        stream: Stream,
        future: Any,
        timeout_s: float,
        error: BaseException,
    ) -> HTTP2Response:
        """Gives up a call of the fast path, or makes it again if the peer did not handle it."""
        if isinstance(error, Refused):
            self._counters.reconnects += 1
            spent_s = error.ended - error.started
            try:
                return await self._exchanged(call, body, timeout_s, spent_s)
            except TransportError as again:
                self._noted(call, again)
                raise
        stream.abandon(future)
        if isinstance(error, Unanswered):
            error = self._lost(error)
        if isinstance(error, TransportError):
            self._noted(call, error)
        raise error

    async def _collected(
        self, call: MethodCall, bodies: list[bytes], timeout_s: float
    ) -> tuple[HTTP2Response, Collector]:
        spent_s, refusals = 0.0, 0
        while True:
            conn, setup, spent_s = await self._connected(call, timeout_s, spent_s)
            collector = Collector(MessageDecoder(self._shared.most_bytes), self._counters)
            block = call.block_for(timeout_s if not spent_s else max(timeout_s - spent_s, 0.0))
            stream, future = conn.send(call, block, b"", timeout_s, spent_s, collector)
            collector.stream = stream
            try:
                send_more(conn, stream, b"".join(bodies), ends=True)
                self._counters.messages_sent += len(bodies)
                answer = await future
            except Refused as error:
                del future
                refusals += 1
                if refusals > REFUSALS_MAX:
                    raise self._lost(error) from None
                spent_s += error.ended - error.started
                self._counters.reconnects += 1
                self._counters.messages_sent -= len(bodies)
                continue
            except BaseException as error:
                stream.abandon(future)
                del future
                if isinstance(error, Unanswered):
                    raise self._lost(error) from None
                raise
            finally:
                if not self._shared.reuse:
                    conn.close()
            answer.setup = setup
            return answer, collector

    async def _connected(
        self, call: MethodCall, timeout_s: float, spent_s: float
    ) -> tuple[HTTP2Connection, tuple[float, float, float] | None, float]:
        """(Connection, its setup if it was opened for this call, the limit that is used up)."""
        try:
            conn, reused = await self._connector.get(call.origin, timeout_s, spent_s)
        except TransportError:
            self._counters.failed += 1
            self._counters.unsent += 1
            raise
        if self._shared.on_exchange is not None:
            self.peer = peer_of(conn.transport)
        setup = None if reused else conn.setup
        spent_s += sum(setup or ())
        if spent_s:
            self._shared.expect_timeout(timeout_s, perf_counter() + timeout_s - spent_s)
        return conn, setup, spent_s

    # Answers.

    def _response(self, call: MethodCall, answer: HTTP2Response, body: bytes) -> GRPCResponse:
        """The response of a unary call."""
        code, _ = status_of(answer.head, answer.raw_trailers)
        replies: list[bytes] = []
        fault = ""
        # The body of another status of HTTP is a page.
        if answer.raw_body and (answer.head.status == 200 and (not code or answer.raw_trailers)):
            decoder = MessageDecoder(self._shared.most_bytes)
            decoder.encoding = answer.head.headers.get("grpc-encoding", "")
            try:
                replies = decoder.feed(answer.raw_body)
            except FramingError as error:
                fault = str(error)
            if not decoder.is_between:
                fault = CUT_OFF
        response = self._made(call, answer, code, replies, fault)
        self._show(call, response, [body])
        return response

    def _made(
        self,
        call: MethodCall,
        answer: HTTP2Response,
        code: int,
        replies: list[bytes],
        fault: str,
    ) -> GRPCResponse:
        response = GRPCResponse(
            INTERNAL if fault and not code else code,
            replies,
            answer.head,
            answer.raw_trailers,
            call,
            answer.started,
            answer.first_byte,
            answer.ended,
        )
        response.setup = answer.setup
        response.fault = fault
        return response

    def _show(self, call: MethodCall, response: GRPCResponse, bodies: list[bytes]) -> None:
        """Keeps the text of the messages for `--once`."""
        if self._shared.on_exchange is not None:
            response.shown = call.text + call.shown(bodies)

    def _lost(self, error: Unanswered) -> TransportError:
        """The error of a call that is not repeated. A function of its own makes it, because a frame
        that holds the error which it raises would keep itself alive."""
        self._counters.failed += 1
        return TransportError(error.reason, started=error.started, ended=error.ended)

    def _noted(self, call: MethodCall, error: TransportError) -> None:
        error.protocol = "grpc"
        error.request = f"GRPC {call.address}"
        self._http.note(error)


_PLAIN_OK = ((b"grpc-status", b"0"),)
