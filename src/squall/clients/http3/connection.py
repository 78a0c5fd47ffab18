"""An HTTP/3 connection: sends requests as streams, stamps and delivers their responses.

`qh3` decides what the datagrams contain; this module moves them. Stamps are taken when datagrams
arrive, not when the waiting task runs. A fault of one stream (a reset, a timeout) ends that stream;
the end of the connection fails every open stream with its reason.

A turn of the loop sends once: responses wake their users, who send their next requests, and
`_transmit` runs after them, so acknowledgments and requests share datagrams.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, cast

from qh3.h3 import events as h3_events
from qh3.h3.connection import ErrorCode, H3Connection
from qh3.quic import events
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError

from squall.api.errors import TransportError
from squall.api.http import HTTP3Response
from squall.clients.http.connection import Unanswered
from squall.clients.http3.headers import Fields, ResponseHeads, is_trailer
from squall.clients.http3.reasons import NOT_HTTP3, closed_reason, error_name
from squall.clients.http3.stream import HTTP3Stream
from squall.clients.shared.traceparent import NAME, new_traceparent

if TYPE_CHECKING:
    from squall.clients.http.origin import Origin
    from squall.clients.http.request import Request
    from squall.clients.http.shared import HTTPShared

# The library warns about every connection that a server ends. Failures are counted here.
logging.getLogger("quic").setLevel(logging.CRITICAL)

# The timers of uvloop have a resolution of a millisecond. A timer that is due within one is due:
# otherwise the loop would spin until then.
_TIMER_SLACK_S = 0.001
MALFORMED = "malformed response"


class RequestRejected(Unanswered):
    """The peer promises that it did not handle the request: safe to repeat, whatever it is."""


class HTTP3Connection(asyncio.DatagramProtocol):
    """One connection to an origin, with any number of exchanges at a time."""

    # The sweep of a share looks at streams, which are beside their connection in `live`.
    future = None
    started = timeout_s = spent_s = 0.0

    def __init__(
        self,
        shared: HTTPShared,
        heads: ResponseHeads,
        origin: Origin,
        configuration: QuicConfiguration,
        on_gone: Callable[[HTTP3Connection], None],
    ) -> None:
        self.shared = shared
        self.counters = shared.counters_of("http3")
        self.origin = origin
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.setup: tuple[float, float, float] | None = None
        # Called once, when no further request may use this connection.
        self._on_gone = on_gone
        self.streams: dict[int, HTTP3Stream] = {}
        # No new stream: the peer says goodbye, or the connection is over.
        self.draining = False
        # When a datagram arrived last.
        self.received_at = 0.0
        # Calls that wait until the peer allows another stream.
        self.waiting: deque[asyncio.Future[None]] = deque()
        self._heads = heads
        self._quic = QuicConnection(configuration=configuration)
        # None until the handshake has chosen the protocol.
        self._h3: H3Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._create_future: Callable[[], asyncio.Future[HTTP3Response]] = self._loop.create_future
        # Set while the handshake runs.
        self._connected: asyncio.Future[None] | None = None
        # Requests so far, against the number that the peer allows in all.
        self._opened = 0
        self._will_transmit = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    # Opening.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.shared.live.add(self)

    async def handshake(self, where: tuple[str, int]) -> None:
        """Raises an `OSError` if no peer is there, and a `TransportError` if it refuses."""
        self._connected = self._loop.create_future()
        self._quic.connect(where, now=perf_counter())
        self._transmit()
        try:
            await self._connected
        finally:
            self._connected = None
        self.counters.connections += 1

    @property
    def is_usable(self) -> bool:
        return not self.draining

    @property
    def is_full(self) -> bool:
        return self._opened >= self._quic.max_concurrent_bidi_streams

    # Requests.

    def send(
        self, request: Request, fields: Fields, timeout_s: float, spent_s: float
    ) -> tuple[HTTP3Stream, asyncio.Future[HTTP3Response]]:
        """Starts an exchange on a new stream."""
        h3 = self._h3
        assert h3 is not None
        future = self._create_future()
        stream = HTTP3Stream(self, future, request, timeout_s, spent_s)
        stream.started = started = perf_counter()
        shared = self.shared
        if started > shared.limit[0] and not shared.allows(started):
            # The lease has ended: as if the task had been cancelled.
            raise asyncio.CancelledError
        stream.id = stream_id = self._quic.get_next_available_stream_id()
        self.streams[stream_id] = stream
        shared.live.add(stream)
        self.counters.sent += 1
        self._opened += 1
        body = request.body
        if shared.traces and all(name != NAME for name, _ in fields):
            fields = [*fields, (NAME, new_traceparent())]
        h3.send_headers(stream_id, fields, end_stream=not body)
        if body:
            h3.send_data(stream_id, body, end_stream=True)
        self._transmit_soon()
        return stream, future

    def _transmit_soon(self) -> None:
        if not self._will_transmit:
            self._will_transmit = True
            self._loop.call_soon(self._transmit)

    def _transmit(self) -> None:
        """Sends what is due and sets the timer of the library: for lost datagrams, late
        acknowledgments and silent peers."""
        self._will_transmit = False
        transport = cast("asyncio.DatagramTransport | None", self.transport)
        if transport is None:
            return
        sent = 0
        for datagram, _ in self._quic.datagrams_to_send(now=perf_counter()):
            sent += len(datagram)
            transport.sendto(datagram)
        self.counters.bytes_sent += sent
        due = self._quic.get_timer()
        # A timer that fires too early only looks again: cheaper than a new one for each datagram.
        if due is not None and (self._timer is None or due < self._timer_due):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            self._timer = self._loop.call_later(max(due - perf_counter(), 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        due, now = self._quic.get_timer(), perf_counter()
        if due is not None and due <= now + _TIMER_SLACK_S:
            self._quic.handle_timer(now=max(due, now))
            self._on_events(now)
        self._transmit()

    # Received datagrams.

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        now = self.received_at = perf_counter()
        self.counters.bytes_received += len(data)
        try:
            # After the handshake this is the shorter way of the library, also for one datagram.
            self._quic.receive_many_datagrams([data], addr, now=now)
        except QuicConnectionError as error:
            self._lose(f"QUIC {error}".lower(), now)
            return
        self._on_events(now)
        if self.waiting:
            self._wake()
        self._transmit_soon()

    def error_received(self, exc: Exception) -> None:
        """The kernel reports that the peer's port is closed or its host cannot be reached."""
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(exc)
        else:
            self._lose("", perf_counter())

    def _on_events(self, now: float) -> None:
        quic = self._quic
        while (event := quic.next_event()) is not None:
            if isinstance(event, events.StreamDataReceived | events.StreamReset):
                if self._h3 is not None:
                    for each in self._h3.handle_event(event):
                        self._on_http(each, now)
            elif isinstance(event, events.HandshakeCompleted):
                self._on_handshake(event.alpn_protocol)
        # The event of an end comes only after a time for stragglers; the reason is there at once.
        closed = quic._close_event  # pyright: ignore[reportPrivateUsage]
        if closed is not None:
            self._on_closed(closed, now)

    def _on_handshake(self, protocol: str | None) -> None:
        connected = self._connected
        if connected is None or connected.done():
            return
        if protocol != "h3":
            connected.set_exception(TransportError(NOT_HTTP3))
            return
        self._h3 = H3Connection(self._quic)
        connected.set_result(None)

    def _on_http(self, event: h3_events.H3Event, now: float) -> None:
        if isinstance(event, h3_events.HeadersReceived):
            stream = self.streams.get(event.stream_id)
            if stream is None or event.push_id is not None:
                return
            if stream.head is not None:
                self._on_trailers(stream, event, now)
                return
            stream.head = head = self._heads.get(event.headers)
            stream.first_byte = now
            if head is None:
                stream.fail(MALFORMED, now)
            elif event.stream_ended:
                self._deliver(stream, now)
        elif isinstance(event, h3_events.DataReceived):
            stream = self.streams.get(event.stream_id)
            if stream is not None and event.push_id is None:
                self._on_data(stream, event, now)
        elif isinstance(event, h3_events.StreamReset):
            self._on_reset(event.stream_id, event.error_code, now)
        elif isinstance(event, h3_events.GoawayReceived):
            self._on_goaway(event.stream_id, now)

    def _on_trailers(
        self, stream: HTTP3Stream, event: h3_events.HeadersReceived, now: float
    ) -> None:
        if not is_trailer(event.headers):
            stream.fail(MALFORMED, now)
            return
        stream.trailers = tuple(event.headers)
        if event.stream_ended:
            self._deliver(stream, now)

    def _on_data(self, stream: HTTP3Stream, event: h3_events.DataReceived, now: float) -> None:
        if event.data:
            stream.parts.append(event.data)
            stream.size += len(event.data)
            most_bytes = self.shared.most_bytes
            if stream.size > most_bytes:
                stream.fail(f"response larger than {most_bytes >> 20} MiB", now)
                return
        if event.stream_ended:
            self._deliver(stream, now)

    def _on_reset(self, stream_id: int, code: int, now: float) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        self._drop(stream)
        reason = f"stream reset: {error_name(code)}"
        if code == ErrorCode.H3_REQUEST_REJECTED:
            stream.leave(RequestRejected(reason, started=stream.started, ended=now))
        else:
            error = TransportError(reason, started=stream.started, ended=now)
            self.counters.failed += stream.leave(error)
        self._close_if_done()

    def _on_goaway(self, first_unhandled: int, now: float) -> None:
        self.drain()
        for stream in [each for each in self.streams.values() if each.id >= first_unhandled]:
            self._drop(stream)
            reason = "connection ended by the server"
            stream.leave(RequestRejected(reason, started=stream.started, ended=now))
        self._close_if_done()

    def _on_closed(self, event: events.ConnectionTerminated, now: float) -> None:
        broken = self._h3 is not None and self._h3._is_done  # pyright: ignore[reportPrivateUsage]
        if broken:
            # Our goodbye names what the peer did wrong.
            self._transmit()
        reason = closed_reason(event, ours=broken)
        connected = self._connected
        if connected is not None and not connected.done():
            reason = reason or "connection closed before a response"
            connected.set_exception(TransportError(reason))
        self._lose(reason, now)

    # Ends of streams.

    def _deliver(self, stream: HTTP3Stream, now: float) -> None:
        head, future = stream.head, stream.future
        assert head is not None
        if future is None:
            return
        parts = stream.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if head.length >= 0 and head.length != len(body) and not stream.has_no_body:
            stream.fail(MALFORMED, now)
            return
        if future.done():
            # Cancelled a moment ago: the waiting task will leave this stream in `abandon`.
            return
        response = HTTP3Response(
            head.status, head, body, stream.source, stream.started, stream.first_byte, now
        )
        if stream.trailers:
            response.raw_trailers = stream.trailers
        stream.future = None
        future.set_result(response)
        self.counters.statuses[head.status] += 1
        self._drop(stream)
        self._close_if_done()

    def _drop(self, stream: HTTP3Stream) -> None:
        del self.streams[stream.id]
        self.shared.live.discard(stream)

    def cancel(self, stream: HTTP3Stream) -> None:
        """Asks the peer to stop a stream whose call has ended here. If the peer has been silent
        since the stream began, the connection gets no further request: it may never answer."""
        if self.streams.get(stream.id) is not stream:
            return
        self._drop(stream)
        for stop in (self._quic.stop_stream, self._quic.reset_stream):
            # The library refuses what is already over: the answer, or the sending of the request.
            with suppress(ValueError, QuicConnectionError):
                stop(stream.id, ErrorCode.H3_REQUEST_CANCELLED)
        self._transmit_soon()
        if self.received_at < stream.started:
            self.drain()
        self._close_if_done()

    # The end of the connection.

    def drain(self) -> None:
        """Lets no further request use this connection."""
        if not self.draining:
            self.draining = True
            self._on_gone(self)
            self._wake()

    def _close_if_done(self) -> None:
        if self.draining and not self.streams:
            self.close()

    def _wake(self) -> None:
        """Lets waiting calls look again: as many as may open a stream, or all to leave."""
        room = len(self.waiting)
        if not self.draining:
            room = self._quic.max_concurrent_bidi_streams - self._opened
        while self.waiting and room > 0:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1

    def _lose(self, reason: str, now: float) -> None:
        """Ends the connection because the peer did. A call whose answer had not begun may be
        repeated, unless the peer gave a reason."""
        self.drain()
        for stream in tuple(self.streams.values()):
            self._drop(stream)
            if stream.head is not None or reason:
                text = reason or "response cut off"
                error = TransportError(text, started=stream.started, ended=now)
                self.counters.failed += stream.leave(error)
            else:
                text = "connection closed before a response"
                # Counted by the client: as a failure, or as a reconnect if it tries again.
                stream.leave(Unanswered(text, started=stream.started, ended=now))
        self.abort()

    def fail(self, reason: str, now: float) -> None:
        """Ends the connection with all its streams."""
        self._lose(reason, now)

    def close(self) -> None:
        """Says goodbye without waiting for an answer."""
        self.drain()
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self._quic.close(error_code=ErrorCode.H3_NO_ERROR)
            self._transmit()
            self.abort()

    def abort(self) -> None:
        self.drain()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        transport, self.transport = self.transport, cast("asyncio.Transport", None)
        if transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.shared.live.discard(self)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("", perf_counter())
