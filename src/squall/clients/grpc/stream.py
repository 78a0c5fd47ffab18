"""Calls with many messages: stamps and counts each message that arrives.

A `Collector` keeps all replies of a call. An `OpenStream` hands each to the author's code; its
waiting `receive` is in the `live` set of the share, whose sweep ends it when its time is up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from squall.api.errors import CallError, TransportError
from squall.api.protocols.grpc import INTERNAL, GRPCResponse, status_of
from squall.clients.grpc.framing import FramingError, MessageDecoder
from squall.clients.http.connection import Unanswered
from squall.clients.http2.bodies import send_more

if TYPE_CHECKING:
    from squall.api.http import HTTP2Response
    from squall.clients.grpc.calls import MethodCall
    from squall.clients.http.client import HTTPClient
    from squall.clients.http.shared import HTTPCounters
    from squall.clients.http2.connection import HTTP2Connection
    from squall.clients.http2.stream import Stream

CUT_OFF = "a message that is cut off"
# What a stream may have written that the peer has no room for yet.
_MOST_UNSENT_BYTES = 64 * 1024


class Collector:
    """Keeps the replies of a call that sends all its messages at once."""

    __slots__ = ("_counters", "decoder", "replies", "stamps", "stream")

    def __init__(self, decoder: MessageDecoder, counters: HTTPCounters) -> None:
        self.decoder = decoder
        self.replies: list[bytes] = []
        self.stamps: list[float] = []
        self.stream: Stream = cast("Stream", None)
        self._counters = counters

    def on_data(self, payload: bytes, now: float) -> str:
        found = decoded(self.decoder, self.stream, payload)
        if isinstance(found, str):
            return found
        self.replies += found
        self.stamps += [now] * len(found)
        self._counters.messages_received += len(found)
        return ""

    def on_sent(self) -> None: ...


def decoded(decoder: MessageDecoder, stream: Stream, payload: bytes) -> list[bytes] | str:
    """The messages that are complete now, or why the call must end."""
    if not decoder.encoding and stream.head is not None:
        decoder.encoding = stream.head.headers.get("grpc-encoding", "identity")
    try:
        return decoder.feed(payload)
    except FramingError as error:
        return f"gRPC: {error}"


class OpenStream:
    """A stream that the author's code sends and receives on, one call of it at a time.

    States: open, half closed (`finish`), over (`_end` is done), left. `future` is set while
    `receive` waits; `_room` while `send` does.
    """

    def __init__(
        self,
        http: HTTPClient,
        counters: HTTPCounters,
        call: MethodCall,
        setup: tuple[float, float, float] | None,
    ) -> None:
        self.sent = 0
        self.received = 0
        self.future: asyncio.Future[None] | None = None
        self.started = 0.0
        self.timeout_s = inf
        self.spent_s = 0.0
        self._http = http
        self._counters = counters
        self._call = call
        self._setup = setup
        self._decoder = MessageDecoder(http.shared.most_bytes)
        self._unread: deque[tuple[bytes, float]] = deque()
        self._room: asyncio.Future[None] | None = None
        self._response: GRPCResponse | None = None
        self._conn: HTTP2Connection
        self._stream: Stream
        self._end: asyncio.Future[HTTP2Response]

    def begin(
        self, conn: HTTP2Connection, stream: Stream, end: asyncio.Future[HTTP2Response]
    ) -> None:
        self._conn, self._stream, self._end = conn, stream, end
        end.add_done_callback(self._over)
        self._http.shared.live.add(self)

    # What the connection calls.

    def on_data(self, payload: bytes, now: float) -> str:
        found = decoded(self._decoder, self._stream, payload)
        if isinstance(found, str):
            return found
        self.received += len(found)
        self._counters.messages_received += len(found)
        self._unread.extend([(each, now) for each in found])
        if found:
            _wake(self.future)
        return ""

    def on_sent(self) -> None:
        if len(self._stream.unsent) <= _MOST_UNSENT_BYTES:
            _wake(self._room)

    def _over(self, end: asyncio.Future[HTTP2Response]) -> None:
        _wake(self.future)
        _wake(self._room)
        # Raised by the next call on this stream, if there is one. HTTP/2 leaves it to the client
        # to count what was not answered, because another client would send it again.
        if not end.cancelled() and isinstance(end.exception(), Unanswered):
            self._counters.failed += 1

    # What the author calls.

    async def send(self, message: Any) -> None:
        data = self._call.body(message)
        self._check_open()
        self.sent += 1
        self._counters.messages_sent += 1
        send_more(self._conn, self._stream, data, ends=False)
        while len(self._stream.unsent) > _MOST_UNSENT_BYTES and not self._end.done():
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def receive(self, *, timeout: str | float | None = None) -> Any:  # noqa: ASYNC109
        if not self._unread and not self._end.done():
            await self._wait(timeout)
        if self._unread:
            return self._call.decoded(self._unread.popleft()[0])
        # The status is the author's to read in `finish`; a lost connection is raised here.
        self._answer()
        return None

    async def ask(self, message: Any, *, timeout: str | float | None = None) -> Any:  # noqa: ASYNC109
        await self.send(message)
        return await self.receive(timeout=timeout)

    async def finish(self) -> GRPCResponse:
        if self._response is not None:
            return self._response
        if not self._end.done() and not self._stream.ends:
            send_more(self._conn, self._stream, b"", ends=True)
        while not self._end.done():
            await self._wait(None)
        answer = self._answer()
        code, _ = status_of(answer.head, answer.raw_trailers)
        fault = "" if self._decoder.is_between else CUT_OFF
        response = GRPCResponse(
            INTERNAL if fault and not code else code,
            [each for each, _ in self._unread],
            answer.head,
            answer.raw_trailers,
            self._call,
            answer.started,
            answer.first_byte,
            answer.ended,
        )
        response.stamps = [at for _, at in self._unread]
        response.setup = self._setup
        if self._http.shared.on_exchange is not None:
            response.shown = self._call.text
        response.fault = fault
        self._unread.clear()
        self._http.note(response)
        self._response = response
        return response

    async def _iterate(self) -> AsyncIterator[Any]:
        while (reply := await self.receive()) is not None:
            yield reply

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate()

    def leave(self) -> None:
        """Cancels the call if it still runs."""
        self._http.shared.live.discard(self)
        if not self._end.done():
            self._stream.abandon(self._end)
            self._end.cancel()

    async def _wait(self, timeout: str | float | None) -> None:  # noqa: ASYNC109
        if self.future is not None:
            raise CallError("this stream already waits for a reply: await one call at a time")
        http = self._http
        self.timeout_s = http.timeout_s if timeout is None else http.shared.seconds(timeout)
        self.started = started = perf_counter()
        self.future = asyncio.get_running_loop().create_future()
        http.shared.expect_timeout(self.timeout_s, started + self.timeout_s)
        try:
            await self.future
        finally:
            self.future = None

    def _check_open(self) -> None:
        if self._end.done():
            self._answer()
            raise CallError("the server has ended this stream: read its status with finish()")
        if self._stream.ends:
            raise CallError("this stream is finished: no further message can be sent")

    def _answer(self) -> HTTP2Response:
        """The end of the call; raises an error if the call ended without a status."""
        try:
            return self._end.result()
        except TransportError as error:
            error.protocol = "grpc"
            error.request = f"GRPC {self._call.address}"
            self._http.note(error)
            raise
        except asyncio.CancelledError:
            raise CallError("this stream is closed") from None

    # In `live`, like a connection.

    def fail(self, reason: str, now: float) -> None:
        """Ends the call because a reply did not come in time."""
        self._stream.fail(reason, now)

    def close(self) -> None:
        self._conn.close()

    def abort(self) -> None:
        self._conn.abort()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
