"""The connection of one event stream: a request, its head, then events as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from squall.api.errors import TransportError
from squall.clients.http.failure_reasons import no_http_reason, reason_of
from squall.clients.shared.traceparent import with_traceparent
from squall.clients.sse.event_parser import MOST_EVENT_BYTES, EventParser, EventTooLarge

if TYPE_CHECKING:
    from squall.api.sse import SSEEvent
    from squall.clients.http.shared import HTTPShared

# A server that does not want to be asked again answers with this status.
NO_CONTENT = 204


class StreamEnded(TransportError):
    """The server ended the stream: the client may connect again."""


class SSEConnection(asyncio.Protocol):
    """Gives each event to `on_event`, until that returns True or the stream ends. The result of
    `future` is the status of the answer."""

    def __init__(
        self, shared: HTTPShared, parser: EventParser, on_event: Callable[[SSEEvent], bool]
    ) -> None:
        self.shared = shared
        self.counters = shared.counters_of("sse")
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.setup: tuple[float, float, float] | None = None
        self.future: asyncio.Future[int] | None = None
        self.started = 0.0
        self.timeout_s = shared.timeout_s
        self.spent_s = 0.0
        # Whether the time limit is an end like any other, and not a failure.
        self.ends_by_time = False
        self._events = parser
        self._on_event = on_event
        self._http: HttpResponseParser | None = HttpResponseParser(self)
        self._status = 0
        self._reason = b""
        self._type = b""
        self._complete = False
        self._now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.shared.live.add(self)
        self.counters.connections += 1

    def send(self, request: bytes, timeout_s: float, spent_s: float) -> asyncio.Future[int]:
        self._events.begin()
        self.future = future = asyncio.get_running_loop().create_future()
        self.timeout_s = timeout_s
        self.spent_s = spent_s
        self.started = started = perf_counter()
        self.shared.expect_timeout(timeout_s, started + timeout_s - spent_s)
        if self.shared.traces:
            request = with_traceparent(request)
        self.counters.sent += 1
        self.counters.bytes_sent += len(request)
        self.transport.write(request)
        return future

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        self.counters.bytes_received += len(data)
        if self._http is None or self.future is None:
            return
        try:
            self._http.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            reason = "malformed response" if self._status else no_http_reason(data)
            self.fail(reason, self._now)
            return
        if self._complete:
            self._end()

    # Called by llhttp.

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._type = value.lower()

    def on_headers_complete(self) -> None:
        assert self._http is not None
        self._status = self._http.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not self._is_stream or self.future is None:
            return
        try:
            events = self._events.feed(body, self._now)
        except EventTooLarge:
            self.fail(f"event larger than {MOST_EVENT_BYTES >> 20} MiB", self._now)
            return
        self.counters.messages_received += len(events)
        for event in events:
            if self._on_event(event):
                self._finish()
                return

    def on_message_complete(self) -> None:
        if self._status >= 200:
            self._complete = True
        else:
            # 100 Continue and 103 Early Hints are not the answer.
            self._status, self._reason, self._type = 0, b"", b""

    @property
    def _is_stream(self) -> bool:
        return self._status == 200 and self._type.startswith(b"text/event-stream")

    def _finish(self) -> None:
        future, self.future = self.future, None
        if future is not None and not future.done():
            future.set_result(self._status)
        self.abort()

    def _end(self) -> None:
        """Ends the call when the response or the connection is over: the stream ended, or there was
        none."""
        if self._status == NO_CONTENT:
            self._finish()
        elif self._is_stream:
            self._lose(StreamEnded("stream ended by the server"))
        elif self._status == 200:
            self.fail("not an event stream", self._now)
        else:
            text = f"not an event stream: {self._status} {self._reason.decode('latin-1')}"
            self.fail(text.rstrip(), self._now)

    def _lose(self, error: TransportError) -> None:
        future, self.future = self.future, None
        if future is not None and not future.done():
            error.started, error.ended = self.started, perf_counter()
            future.set_exception(error)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.live.discard(self)
        self.transport = cast("asyncio.Transport", None)
        # The parser calls back into this object: break the cycle.
        self._http = None
        if self.future is None:
            return
        if exc is not None:
            self._lose(TransportError(reason_of(exc)))
        elif self._status:
            self._end()
        else:
            self._lose(TransportError("connection closed before a response"))

    def fail(self, reason: str, now: float) -> None:
        """Ends the stream when its time is up: a success if the call asked only for a time, else a
        failure."""
        if self.ends_by_time and reason.startswith("timeout after") and self._is_stream:
            self._finish()
        else:
            self._lose(TransportError(reason))

    def abandon(self) -> None:
        """Closes the connection of a cancelled call."""
        self.future = None
        self.abort()

    def close(self) -> None:
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.abort()
