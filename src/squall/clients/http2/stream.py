"""A stream: one exchange of an HTTP/2 connection, from its request to its end.

Stream objects are used again for later exchanges of their connection. While they exist they are in
the `live` set of their share, whose sweep ends exchanges that take too long.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from squall.api.errors import TransportError
from squall.api.http import Addressed, HTTP2Response, ResponseHead
from squall.clients.http.connection import Unanswered
from squall.clients.http.failure_reasons import NOT_HTTP, no_http_reason
from squall.clients.http2 import frames

if TYPE_CHECKING:
    from squall.clients.http2.connection import HTTP2Connection

NOT_HTTP2 = "the server does not speak HTTP/2; use self.client.http"


def no_http2_reason(received: bytes) -> str:
    """The reason of bytes that are no HTTP/2."""
    reason = no_http_reason(received)
    return NOT_HTTP2 if reason == NOT_HTTP else reason


class Refused(Unanswered):
    """The peer promises that it did not handle the request: safe to repeat, whatever it is."""


class StreamListener(Protocol):
    """Receives the body of an answer part by part; `on_sent` reports that data was sent."""

    def on_data(self, payload: bytes, now: float) -> str:
        """Returns why the exchange must end, empty if it goes on."""
        ...

    def on_sent(self) -> None: ...


class Stream:
    """The state of one exchange. `future` is None between two exchanges."""

    __slots__ = (
        "connection",
        "ends",
        "first_byte",
        "future",
        "head",
        "id",
        "listener",
        "parts",
        "size",
        "source",
        "spent_s",
        "started",
        "timeout_s",
        "trailers",
        "unsent",
        "window",
    )

    def __init__(self, connection: HTTP2Connection) -> None:
        self.connection = connection
        self.id = 0
        self.future: asyncio.Future[HTTP2Response] | None = None
        self.source: Addressed = cast("Addressed", None)
        self.started = 0.0
        self.timeout_s = 0.0
        self.spent_s = 0.0
        # Set by the final head; interim responses leave it None.
        self.head: ResponseHead | None = None
        self.first_byte = 0.0
        self.parts: list[bytes] = []
        self.size = 0
        self.trailers: tuple[tuple[bytes, bytes], ...] = ()
        # The part of the request's body that waits for a window, and the window of this stream.
        self.unsent = b""
        self.window = 0
        # Of a stream whose parts are handed on: who takes them, and whether the request is whole.
        self.listener: StreamListener | None = None
        self.ends = False
        connection.shared.live.add(self)

    @property
    def may_differ(self) -> bool:
        """Whether the length in the head may differ from the body received: the body is not sent
        (RFC 9110, 8.6), or a listener got it."""
        assert self.head is not None
        is_bare = self.source.method == "HEAD" or self.head.status in (204, 304)
        return is_bare or self.listener is not None

    def leave(self, error: TransportError) -> bool:
        """Ends the exchange without an answer; false if the call has been cancelled already."""
        future = self.future
        is_waited_for = future is not None and not future.done()
        if future is not None and is_waited_for:
            self.future = None
            future.set_exception(error)
            self.rest()
        return is_waited_for

    def rest(self) -> None:
        """Makes the stream ready for another exchange."""
        self.future = None
        self.head = None
        if self.parts:
            self.parts = []
            self.size = 0
        if self.trailers:
            self.trailers = ()
        if self.unsent:
            self.unsent = b""
        if self.listener is not None:
            self.listener = None
            self.ends = False
            self.size = 0
        if self.connection.transport is None:  # pyright: ignore[reportUnnecessaryComparison]
            self.connection.shared.live.discard(self)
        else:
            self.connection.spare.append(self)

    def fail(self, reason: str, now: float, code: int = frames.CANCEL) -> None:
        """Ends the exchange from our side."""
        self.connection.cancel(self, code)
        error = TransportError(reason, started=self.started, ended=now)
        self.connection.counters.failed += self.leave(error)

    def abandon(self, future: asyncio.Future[HTTP2Response]) -> None:
        """Leaves the exchange of a cancelled task. Does nothing if it had ended."""
        if self.future is future:
            self.connection.counters.cancelled += 1
            self.connection.cancel(self, frames.CANCEL)
            self.rest()

    # In `live` a stream closes with its connection.

    def close(self) -> None:
        self.connection.close()

    def abort(self) -> None:
        self.connection.abort()
