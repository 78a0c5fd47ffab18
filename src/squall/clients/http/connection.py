"""A connection: sends a request, stamps and delivers the response, returns to its pool.

The common response (its head seen before, all of it in one packet) is recognised by a
dictionary lookup on the bytes of its head; everything else goes through a `ResponseParser`.
Stamps are taken when bytes arrive, not when the waiting task runs. A connection that received
anything unexpected is closed and never reused.
"""

from __future__ import annotations

import asyncio
from asyncio import InvalidStateError
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn, cast

from squall.api.errors import TransportError
from squall.api.http import HTTPResponse, ResponseHead
from squall.clients.http.failure_reasons import reason_of
from squall.clients.http.request import Request, RequestTemplate
from squall.clients.http.response_parser import ResponseParser
from squall.clients.shared.traceparent import with_traceparent

if TYPE_CHECKING:
    from squall.clients.http.origin import Origin
    from squall.clients.http.shared import HTTPShared
    from squall.clients.http.url import PreparedURL

# What `loop.create_future()` makes, for half of its instructions.
new_future: Callable[[], asyncio.Future[HTTPResponse]] = asyncio.Future
# Distinct heads kept; a Date header alone makes one a second.
MOST_HEADS = 512
# After this many new heads in a row no two are expected to be equal, and lookups stop.
MISSES_TO_STOP = 2000


class Unanswered(TransportError):
    """The peer closed before the first byte of a response: safe to try again."""


class ConnectionPool:
    """Idle connections of one user (or of all, if they share). `idle` is the fast slot."""

    __slots__ = ("idle", "more")

    def __init__(self) -> None:
        self.idle: HTTPConnection | None = None
        self.more: list[HTTPConnection] | None = None

    def take(self, origin: Origin) -> HTTPConnection | None:
        conn = self.idle
        if conn is not None and conn.origin is origin:
            self.idle = None
            return conn
        more = self.more
        if more:
            for index in range(len(more) - 1, -1, -1):
                if more[index].origin is origin:
                    return more.pop(index)
        return None

    def add(self, conn: HTTPConnection, most_idle: int) -> None:
        if self.idle is None:
            self.idle = conn
            return
        if self.more is None:
            self.more = []
        self.more.append(conn)
        if len(self.more) > most_idle:
            self.more.pop(0).close()

    def forget(self, conn: HTTPConnection) -> None:
        if self.idle is conn:
            self.idle = None
        elif self.more and conn in self.more:
            self.more.remove(conn)

    def close(self) -> None:
        idle, more = self.idle, self.more
        self.idle = self.more = None
        if idle is not None:
            idle.close()
        for conn in more or ():
            conn.close()


class HTTPConnection(asyncio.Protocol):
    """One connection to an origin, with at most one exchange at a time."""

    __slots__ = (
        "counters",
        "future",
        "heads",
        "origin",
        "parser",
        "pool",
        "setup",
        "shared",
        "slow",
        "source",
        "spent_s",
        "started",
        "timeout_s",
        "transport",
    )

    def __init__(self, shared: HTTPShared, pool: ConnectionPool, origin: Origin) -> None:
        self.shared = shared
        self.counters = shared.counters
        self.heads = shared.heads
        self.pool = pool
        self.origin = origin
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        # Set while a response is awaited. None means that the exchange is over: ended by an answer,
        # a timeout sweep, a cancellation or the peer.
        self.future: asyncio.Future[HTTPResponse] | None = None
        self.parser: ResponseParser | None = None
        # True if the next bytes must go through the parser.
        self.slow = True
        self.source: PreparedURL | Request | RequestTemplate = cast("Request", None)
        self.started = 0.0
        # The limit of this call, and how much of it was used before `started`.
        self.timeout_s = shared.timeout_s
        self.spent_s = 0.0
        self.setup: tuple[float, float, float] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.shared.live.add(self)
        self.counters.connections += 1

    def send(
        self, raw: bytes, request: Request | RequestTemplate, timeout_s: float, spent_s: float
    ) -> asyncio.Future[HTTPResponse]:
        """Starts an exchange. `HTTPClient.get` repeats these lines for the plain case."""
        self.future = future = new_future()
        self.source = request
        self.timeout_s = timeout_s
        self.spent_s = spent_s
        self.slow = not (self.shared.caching and self.shared.reuse)
        if request.method == "HEAD":
            self.slow = True
            if self.parser is None:
                self.parser = self._spare_parser()
            self.parser.head_only = True
        counters = self.counters
        shared = self.shared
        self.started = started = perf_counter()
        if started > shared.limit[0] and not shared.allows(started):
            self.withhold()
        if shared.traces:
            raw = with_traceparent(raw)
        counters.sent += 1
        counters.bytes_sent += len(raw)
        self.transport.write(raw)
        return future

    def data_received(self, data: bytes, arrived: float = 0.0) -> None:
        """`arrived` is given for bytes that were set aside (`backlog.py`)."""
        now = arrived or perf_counter()
        if not self.slow:
            source = self.source
            # Most answers to a request have the head of the one before, which saves the lookup.
            head = source.answer
            if head is None or not data.startswith(head.received):
                head = self.heads.get(data[: data.find(b"\r\n\r\n") + 4])
                source.answer = head
            if head is not None and len(data) - (end := len(head.received)) == head.length:
                future = self.future
                if future is not None:
                    try:
                        future.set_result(
                            HTTPResponse(
                                head.status, head, data[end:], source, self.started, now, now
                            )
                        )
                    except InvalidStateError:
                        # Cancelled a moment ago: the waiting task has not run yet, and will
                        # close this connection in `abandon`.
                        return
                    self.future = None
                    counters = self.counters
                    counters.statuses[head.status] += 1
                    counters.bytes_received += len(data)
                    pool = self.pool
                    if pool.idle is None:
                        pool.idle = self
                    else:
                        pool.add(self, self.shared.most_idle)
                    return
        self._receive(data, now)

    def _receive(self, data: bytes, now: float) -> None:
        self.counters.bytes_received += len(data)
        future = self.future
        if future is None:
            # No request is pending: an error page on an idle connection, or surplus bytes.
            self.close()
            return
        if future.cancelled():
            return
        parser = self.parser
        if parser is None:
            parser = self.parser = self._spare_parser()
        self.slow = True
        parser.feed(data, now, self.shared.most_bytes)
        if parser.complete:
            self._deliver(future, parser, now)
        elif parser.error:
            self.fail(parser.error, now)

    def _spare_parser(self) -> ResponseParser:
        parsers = self.shared.parsers
        return parsers.pop() if parsers else ResponseParser()

    def _deliver(
        self, future: asyncio.Future[HTTPResponse], parser: ResponseParser, now: float
    ) -> None:
        shared = self.shared
        caching = shared.caching
        keep = parser.keep_alive and shared.reuse
        response = parser.take(self.source, self.started, now, caching)
        if keep:
            # Idle connections need none: one for each would be 13 MB of 10,000 users.
            self.parser = None
            shared.parsers.append(parser)
        if caching:
            self._learn(response.head)
        self.slow = not shared.caching
        self.future = None
        self.counters.statuses[response.status_code] += 1
        future.set_result(response)
        if not keep or self.transport is None:  # pyright: ignore[reportUnnecessaryComparison]
            self.close()
        elif self.pool.idle is None:
            self.pool.idle = self
        else:
            self.pool.add(self, shared.most_idle)

    def _learn(self, head: ResponseHead) -> None:
        shared, heads = self.shared, self.heads
        if head.received in heads:
            # Known, but this time it came in pieces.
            shared.misses = 0
            return
        shared.misses += 1
        if shared.misses >= MISSES_TO_STOP:
            shared.caching = False
            heads.clear()
        elif head.length >= 0:
            if len(heads) >= MOST_HEADS:
                heads.clear()
            heads[head.received] = head

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.live.discard(self)
        self.pool.forget(self)
        parser, future = self.parser, self.future
        self.transport = cast("asyncio.Transport", None)
        if future is not None and not future.done():
            now = perf_counter()
            if parser is not None and parser.received:
                if exc is None and parser.end_of_stream():
                    self._deliver(future, parser, now)
                else:
                    self.fail("response cut off" if exc is None else reason_of(exc), now)
            else:
                reason = "connection closed before a response" if exc is None else reason_of(exc)
                self.future = None
                # Counted by the client: as a failure, or as a reconnect if it tries again.
                future.set_exception(Unanswered(reason, started=self.started, ended=now))
        if parser is not None:
            parser.close()
            self.parser = None

    def fail(self, reason: str, now: float) -> None:
        """Ends the exchange without an answer and closes the connection."""
        future = self.future
        if future is not None and not future.done():
            self.future = None
            self.counters.failed += 1
            future.set_exception(TransportError(reason, started=self.started, ended=now))
        self.abort()

    def withhold(self) -> NoReturn:
        """Ends the call as if its task had been cancelled, because the lease has ended."""
        self.future = None
        self.close()
        raise asyncio.CancelledError

    def abandon(self, future: asyncio.Future[HTTPResponse]) -> None:
        """Closes the connection of a cancelled task. Does nothing if the answer had arrived."""
        if self.future is future:
            self.future = None
            self.counters.cancelled += 1
            self.abort()

    def close(self) -> None:
        self.pool.forget(self)
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.close()

    def abort(self) -> None:
        self.pool.forget(self)
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.abort()
