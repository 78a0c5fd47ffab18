"""An HTTP/2 connection: sends requests as streams, stamps and delivers their responses.

Stamps are taken when bytes arrive, not when the waiting task runs. A fault of one stream (a reset,
a malformed head, a timeout) ends that stream. A fault of the framing or of the header table ends
the connection, and every open stream fails with its reason.

Invariants: a stream is in `streams` as long as its id may get frames that matter. The connection
window is refilled when half of it is used (`_consumed`). A stream's window holds any response, so
only a listener's, whose body may have no end, is refilled. No frame of a body exceeds a window.
"""

from __future__ import annotations

import asyncio
from asyncio import InvalidStateError
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn, cast

from squall.api.errors import TransportError
from squall.api.http import HTTP2Response, ResponseHead
from squall.clients.http.connection import Unanswered
from squall.clients.http.failure_reasons import reason_of
from squall.clients.http2 import frames
from squall.clients.http2.bodies import begin_body, send_body
from squall.clients.http2.header_blocks import trace_block
from squall.clients.http2.header_states import HeaderBlock, HeaderError
from squall.clients.http2.peer_settings import apply_settings
from squall.clients.http2.stream import Refused, Stream, StreamListener, no_http2_reason

if TYPE_CHECKING:
    from squall.api.http import Addressed
    from squall.clients.http.origin import Origin
    from squall.clients.http.shared import HTTPShared
    from squall.clients.http2.connections import HTTP2Shared

# Larger header blocks are an attack or garbage.
MOST_BLOCK_BYTES = 256 * 1024
_WHOLE = frames.END_HEADERS | frames.END_STREAM
# Kind and flags of the frames of most answers, each as one number.
_HEAD = frames.HEADERS << 8 | frames.END_HEADERS
_TRAILERS = frames.HEADERS << 8 | _WHOLE
_FIRST_PART = frames.DATA << 8
_WHOLE_BODY = frames.DATA << 8 | frames.END_STREAM


class HTTP2Connection(asyncio.Protocol):
    """One connection to an origin, with any number of exchanges at a time."""

    # The sweep of a share looks at streams, which are beside their connection in `live`.
    future = None
    started = timeout_s = spent_s = 0.0

    def __init__(
        self,
        shared: HTTPShared,
        http2: HTTP2Shared,
        origin: Origin,
        on_gone: Callable[[HTTP2Connection], None],
    ) -> None:
        self.shared = shared
        self.http2 = http2
        self.counters = http2.counters
        self.origin = origin
        loop = asyncio.get_running_loop()
        self.create_future: Callable[[], asyncio.Future[HTTP2Response]] = loop.create_future
        self._call_soon = loop.call_soon
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.setup: tuple[float, float, float] | None = None
        # Called once, when no further request may use this connection.
        self._on_gone = on_gone
        self.streams: dict[int, Stream] = {}
        # Streams without an exchange, used again.
        self.spare: list[Stream] = []
        self.next_id = 1
        # No new stream: the peer says goodbye, or the ids are used up.
        self.draining = False
        # When bytes arrived last.
        self.received_at = 0.0
        # Calls that wait until the peer allows another stream.
        self.waiting: deque[asyncio.Future[None]] = deque()
        # What the peer allows; these are the values before its first SETTINGS.
        self.most_streams = 1 << 31
        self.most_frame = frames.SMALLEST_MAX_FRAME
        self.first_window = frames.FIRST_WINDOW
        self.send_window = frames.FIRST_WINDOW
        # Streams whose body waits for a window, in the order in which they began to wait.
        self.blocked: dict[int, Stream] = {}
        self._table = http2.states.first
        # Whether the next block must empty the table of the peer's decoder.
        self.shrinks = False
        self._rest = b""
        self._greeted = False
        # A header block that continues in the next frame: (stream, flags, parts).
        self._block: tuple[int, int, list[bytes]] | None = None
        self._consumed = 0
        # Why the peer or we ended the connection.
        self._reason = ""
        self._out: list[bytes] = []
        # Answers in the bytes that arrived last.
        self._answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.shared.live.add(self)
        self.counters.connections += 1
        self.counters.bytes_sent += len(frames.OPENING)
        self.transport.write(frames.OPENING)

    @property
    def speaks_http2(self) -> bool:
        """Whether the peer chose HTTP/2 in the handshake; a plain connection assumes it."""
        tls = self.transport.get_extra_info("ssl_object")
        return tls is None or tls.selected_alpn_protocol() == "h2"

    @property
    def is_usable(self) -> bool:
        return not self.draining and self.transport is not None  # pyright: ignore[reportUnnecessaryComparison]

    @property
    def is_full(self) -> bool:
        return len(self.streams) >= self.most_streams

    # Requests.

    def send(
        self,
        source: Addressed,
        block: bytes,
        body: bytes,
        timeout_s: float,
        spent_s: float,
        listener: StreamListener | None = None,
    ) -> tuple[Stream, asyncio.Future[HTTP2Response]]:
        """Starts an exchange. With a listener, `send_more` sends and ends its body."""
        stream = self.spare.pop() if self.spare else Stream(self)
        stream.id = stream_id = self.next_id
        self.next_id = stream_id + 2
        if stream_id >= frames.LARGEST_STREAM:
            self.drain()
        stream.source = source
        stream.timeout_s = timeout_s
        stream.spent_s = spent_s
        stream.future = future = self.create_future()
        # Also without a body: updates for this stream must not add to the window of a former one.
        stream.window = self.first_window
        if self.shrinks:
            # A table size of 0; the tables of both sides agree from here on.
            block = b"\x20" + block
            self.shrinks = False
        shared = self.shared
        if shared.traces:
            block += trace_block(block)
        stream.started = started = perf_counter()
        if started > shared.limit[0] and not shared.allows(started):
            self._withhold(stream)
        self.streams[stream_id] = stream
        self.counters.sent += 1
        most, size, length = self.most_frame, len(body), len(block)
        stream.listener = listener
        if listener is not None or length > most:
            begin_body(self, stream, block, body)
        elif not size:
            self.write(frames.pack_head(length << 8 | frames.HEADERS, _WHOLE, stream_id) + block)
        elif size > most or size > self.send_window or size > stream.window:
            begin_body(self, stream, block, body)
        else:
            # All of it at once: the usual request with a body.
            self.send_window -= size
            stream.window -= size
            head = frames.pack_head(length << 8 | frames.HEADERS, frames.END_HEADERS, stream_id)
            part = frames.pack_head(size << 8 | frames.DATA, frames.END_STREAM, stream_id)
            self.write(head + block + part + body)
        return stream, future

    def _send_blocked(self) -> None:
        blocked, self.blocked = self.blocked, {}
        for stream in blocked.values():
            send_body(self, stream)

    def write(self, data: bytes) -> None:
        """Joins the writes of one turn of the loop, if several exchanges run: each costs a system
        call or a TLS record."""
        if self._out:
            self._out.append(data)
        elif len(self.streams) > 1 or self._answers > 1:
            self._out.append(data)
            self._call_soon(self._flush)
        elif self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.counters.bytes_sent += len(data)
            self.transport.write(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self.transport is not None and out:  # pyright: ignore[reportUnnecessaryComparison]
            data = b"".join(out)
            self.counters.bytes_sent += len(data)
            self.transport.write(data)

    # Received frames.

    def data_received(self, data: bytes) -> None:
        now = self.received_at = perf_counter()
        self._answers = 0
        self.counters.bytes_received += len(data)
        if self._rest:
            data = self._rest + data
        position, size = 0, len(data)
        read_head, streams = frames.read_head, self.streams
        while size - position >= frames.HEAD_BYTES:
            word, flags, stream_id = read_head(data, position)
            start = position + frames.HEAD_BYTES
            length = word >> 8
            end = start + length
            if not self._greeted and not self._greets(data):
                return
            if length > frames.SMALLEST_MAX_FRAME:
                self._break(frames.FRAME_SIZE_ERROR, "a frame larger than allowed")
                return
            if end > size:
                break
            position = end
            stream = streams.get(stream_id)
            if stream is not None and self._block is None:
                # What most answers consist of, without the calls that other frames need.
                what, head = (word & 0xFF) << 8 | flags, stream.head
                if head is None:
                    known = self._table.blocks.get(data[start:end]) if what == _HEAD else None
                    if known is not None and known[0].final is not None:
                        stream.head, stream.first_byte = known[0].final, now
                        self._table = known[1]
                        continue
                elif what == _TRAILERS:
                    known = self._table.blocks.get(data[start:end])
                    if known is not None and known[0].is_trailer:
                        stream.trailers = known[0].pairs
                        self._table = known[1]
                        self._deliver(stream, now)
                        continue
                elif stream.size or stream.listener is not None:
                    # `_data` adds to what there is, or hands it on.
                    pass
                elif what == _WHOLE_BODY and length == head.length:
                    self._consumed += length
                    self._complete(stream, head, data[start:end], now)
                    continue
                elif what == _FIRST_PART:
                    self._consumed += length
                    stream.parts.append(data[start:end])
                    stream.size = length
                    continue
            self._frame(word & 0xFF, flags, stream_id, data[start:end], now)
            if self.transport is None:  # pyright: ignore[reportUnnecessaryComparison]
                return
        self._rest = data[position:] if position < size else b""
        if self._consumed > frames.WINDOW >> 1:
            self.write(frames.window_update(0, self._consumed))
            self._consumed = 0

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        stream_id &= frames.LARGEST_STREAM
        if self._block is not None:
            self._continued(kind, flags, stream_id, payload, now)
        elif kind == frames.HEADERS:
            self._headers(flags, stream_id, payload, now)
        elif kind == frames.DATA:
            self._data(flags, stream_id, payload, now)
        else:
            self._control(kind, flags, stream_id, payload)

    def _greets(self, data: bytes) -> bool:
        """Whether the first frame is SETTINGS, as it must be (RFC 9113, 3.4)."""
        if data[3] == frames.SETTINGS and not data[4] & frames.ACK:
            self._greeted = True
            return True
        self.end(no_http2_reason(data))
        return False

    def _headers(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if flags & (frames.PADDED | frames.PRIORITIZED):
            bare = frames.without_padding(payload, flags)
            if bare is None or (flags & frames.PRIORITIZED and len(bare) < 5):
                self._break(frames.PROTOCOL_ERROR, "more padding than frame")
                return
            payload = bare[5:] if flags & frames.PRIORITIZED else bare
        if flags & frames.END_HEADERS:
            self._head(stream_id, flags, payload, now)
        else:
            self._block = (stream_id, flags, [payload])

    def _continued(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        assert self._block is not None
        begun_id, begun_flags, parts = self._block
        if kind != frames.CONTINUATION or stream_id != begun_id:
            self._break(frames.PROTOCOL_ERROR, "another frame inside a header block")
            return
        parts.append(payload)
        if sum(map(len, parts)) > MOST_BLOCK_BYTES or len(parts) > MOST_BLOCK_BYTES >> 8:
            self._break(frames.PROTOCOL_ERROR, f"a head over {MOST_BLOCK_BYTES >> 10} KiB")
        elif flags & frames.END_HEADERS:
            self._block = None
            self._head(begun_id, begun_flags, b"".join(parts), now)

    def _head(self, stream_id: int, flags: int, block: bytes, now: float) -> None:
        known = self._table.blocks.get(block)
        if known is None:
            try:
                known = self.http2.states.decode(self._table, block)
            except HeaderError as error:
                self._break(frames.COMPRESSION_ERROR, str(error))
                return
        found, self._table = known
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_closed(stream_id)
        elif stream.head is not None:
            self._trailers(stream, flags, found, now)
        elif found.head is None:
            self._malformed(stream, now)
        elif found.status >= 200:
            stream.head = found.head
            stream.first_byte = now
            if flags & frames.END_STREAM:
                self._deliver(stream, now)
        elif flags & frames.END_STREAM or found.status == 101:
            # RFC 9113, 8.1 and 8.6: an interim response ends nothing, and nothing is upgraded.
            self._malformed(stream, now)

    def _trailers(self, stream: Stream, flags: int, found: HeaderBlock, now: float) -> None:
        if not flags & frames.END_STREAM or not found.is_trailer:
            self._malformed(stream, now)
            return
        stream.trailers = found.pairs
        self._deliver(stream, now)

    def _data(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        self._consumed += len(payload)
        if flags & frames.PADDED:
            bare = frames.without_padding(payload, flags)
            if bare is None:
                self._break(frames.PROTOCOL_ERROR, "more padding than frame")
                return
            payload = bare
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_closed(stream_id)
        elif stream.head is None:
            self._malformed(stream, now)
        elif stream.listener is not None:
            self._heard(stream, stream.listener, flags, payload, now)
        else:
            stream.parts.append(payload)
            stream.size += len(payload)
            if stream.size > self.shared.most_bytes:
                stream.fail(f"response larger than {self.shared.most_bytes >> 20} MiB", now)
            elif flags & frames.END_STREAM:
                self._deliver(stream, now)

    def _heard(
        self, stream: Stream, listener: StreamListener, flags: int, payload: bytes, now: float
    ) -> None:
        """Gives a part of a body to the listener. Such a body may have no end, so the stream's own
        window is refilled, too."""
        stream.size += len(payload)
        if stream.size > frames.WINDOW >> 1:
            self.write(frames.window_update(stream.id, stream.size))
            stream.size = 0
        fault = listener.on_data(payload, now)
        if fault:
            stream.fail(fault, now)
        elif flags & frames.END_STREAM:
            self._deliver(stream, now)

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handles frames that carry no part of a response. Ignores unknown ones (RFC 9113, 4.1)."""
        fault = frames.control_fault(kind, flags, stream_id, payload)
        if fault is not None:
            self._break(*fault)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == frames.SETTINGS:
            if not flags & frames.ACK:
                self._settings(payload)
        elif kind == frames.PING:
            if not flags & frames.ACK:
                self.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.RST_STREAM:
            self._reset(stream_id, payload)
        elif kind == frames.GOAWAY:
            self._goaway(payload)
        elif kind in (frames.PUSH_PROMISE, frames.CONTINUATION):
            self._break(frames.PROTOCOL_ERROR, "a frame that is not allowed here")

    def _settings(self, payload: bytes) -> None:
        fault = apply_settings(self, payload)
        if fault is not None:
            self._break(*fault)
            return
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._send_blocked()
        self._wake()

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        increment = frames.read_number(payload) & frames.LARGEST_WINDOW
        code = frames.FLOW_CONTROL_ERROR if increment else frames.PROTOCOL_ERROR
        if not stream_id:
            self.send_window += increment
            if not increment or self.send_window > frames.LARGEST_WINDOW:
                self._break(code, "a window that is not allowed")
                return
        else:
            stream = self.streams.get(stream_id)
            if stream is None:
                self._check_closed(stream_id)
                return
            stream.window += increment
            if not increment or stream.window > frames.LARGEST_WINDOW:
                reason = f"HTTP/2 {frames.error_name(code)}: a window that is not allowed"
                stream.fail(reason, self.received_at, code)
                return
        if self.blocked:
            self._send_blocked()

    def _reset(self, stream_id: int, payload: bytes) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_closed(stream_id)
            return
        code = frames.read_number(payload)
        reason = f"stream reset: {frames.error_name(code)}"
        self._drop(stream)
        if code == frames.REFUSED_STREAM:
            stream.leave(Refused(reason, started=stream.started, ended=self.received_at))
        else:
            error = TransportError(reason, started=stream.started, ended=self.received_at)
            self.counters.failed += stream.leave(error)

    def _goaway(self, payload: bytes) -> None:
        last_id, code = frames.read_goaway(payload)
        if code:
            self._reason = f"connection ended by the server: {frames.error_name(code)}"
        self.drain()
        for stream in [each for each in self.streams.values() if each.id > last_id]:
            self._drop(stream)
            reason = self._reason or "connection ended by the server"
            stream.leave(Refused(reason, started=stream.started, ended=self.received_at))
        self._close_if_done()

    # Ends of streams.

    def _deliver(self, stream: Stream, now: float) -> None:
        head = stream.head
        assert head is not None
        parts = stream.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if head.length >= 0 and head.length != len(body) and not stream.may_differ:
            self._malformed(stream, now)
            return
        self._complete(stream, head, body, now)

    def _complete(self, stream: Stream, head: ResponseHead, body: bytes, now: float) -> None:
        """Gives a call its answer."""
        response = HTTP2Response(
            head.status, head, body, stream.source, stream.started, stream.first_byte, now
        )
        if stream.trailers:
            response.raw_trailers = stream.trailers
        try:
            cast("asyncio.Future[HTTP2Response]", stream.future).set_result(response)
        except InvalidStateError:
            # Cancelled a moment ago: the waiting task has not run yet, and will leave this stream
            # in `abandon`.
            return
        self.counters.statuses[head.status] += 1
        self._answers += 1
        if stream.unsent or (stream.listener is not None and not stream.ends):
            # The peer answered without reading all of the body (RFC 9113, 8.1).
            self.write(frames.reset(stream.id, frames.CANCEL))
        del self.streams[stream.id]
        stream.rest()
        if self.blocked:
            self.blocked.pop(stream.id, None)
        if self.waiting:
            self._wake()
        if self.draining:
            self._close_if_done()

    def _malformed(self, stream: Stream, now: float) -> None:
        stream.fail("malformed response", now, frames.PROTOCOL_ERROR)

    def _drop(self, stream: Stream) -> None:
        """Takes a stream out of the connection; another call may have its place."""
        del self.streams[stream.id]
        if self.blocked:
            self.blocked.pop(stream.id, None)
        if self.waiting:
            self._wake()

    def cancel(self, stream: Stream, code: int) -> None:
        """Resets a stream whose call has ended here. If the peer has been silent since the stream
        began, the connection gets no further request: it may never answer."""
        if self.streams.get(stream.id) is not stream:
            return
        self.write(frames.reset(stream.id, code))
        self._drop(stream)
        if self.received_at < stream.started:
            self.drain()
        self._close_if_done()

    def _check_closed(self, stream_id: int) -> None:
        """Ignores a frame of a stream that is over; ends the connection for one that never was."""
        if stream_id >= self.next_id or not stream_id & 1:
            self._break(frames.PROTOCOL_ERROR, "a frame of a stream that was never opened")

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
        room = len(self.waiting) if self.draining else self.most_streams - len(self.streams)
        while self.waiting and room > 0:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1

    def _break(self, code: int, what: str) -> None:
        """Ends the connection because the peer broke the protocol."""
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self._flush()
            self.transport.write(frames.goaway(code))
        self.end(f"HTTP/2 {frames.error_name(code)}: {what}")

    def end(self, reason: str) -> None:
        """Fails every open stream and closes."""
        self._reason = reason
        self.drain()
        now = perf_counter()
        for stream in tuple(self.streams.values()):
            del self.streams[stream.id]
            error = TransportError(reason, started=stream.started, ended=now)
            self.counters.failed += stream.leave(error)
        self.blocked.clear()
        self.close()
        self.transport = cast("asyncio.Transport", None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.live.discard(self)
        self.shared.live.difference_update(self.spare)
        self.drain()
        self.transport = cast("asyncio.Transport", None)
        now = perf_counter()
        if self._rest and not self._greeted:
            self._reason = self._reason or no_http2_reason(self._rest)
        for stream in tuple(self.streams.values()):
            begun = stream.head is not None
            reason = self._reason or ("" if exc is None else reason_of(exc))
            if begun or self._reason:
                reason = reason or "response cut off"
                error = TransportError(reason, started=stream.started, ended=now)
                self.counters.failed += stream.leave(error)
            else:
                reason = reason or "connection closed before a response"
                # Counted by the client: as a failure, or as a reconnect if it tries again.
                stream.leave(Unanswered(reason, started=stream.started, ended=now))
        self.streams.clear()
        self.blocked.clear()
        self.shared.live.difference_update(self.spare)
        self.spare.clear()

    def _withhold(self, stream: Stream) -> NoReturn:
        """Ends the call as if its task had been cancelled, because the lease has ended."""
        stream.rest()
        raise asyncio.CancelledError

    def fail(self, reason: str, now: float) -> None:
        """Ends the connection with all its streams."""
        self.end(reason)

    def close(self) -> None:
        self.drain()
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self._flush()
            self.transport.close()

    def abort(self) -> None:
        self.drain()
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.abort()
