"""The client of one virtual user for server-sent events: `self.client.sse`.

It stands on the user's HTTP client. A stream that the server ends is opened again, as browsers do:
after the time that the server asked for, and with the id of the last event.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, time
from typing import Any, Unpack

from squall.api.arguments import URL
from squall.api.errors import CallError, TransportError
from squall.api.sse import ListenOptions, SSEEvent, SSEResponse
from squall.clients.http.call import build
from squall.clients.http.client import HTTPClient
from squall.clients.http.connect import Dial, dial
from squall.clients.http.encode import field
from squall.clients.http.request import Request
from squall.clients.sse.connection import SSEConnection, StreamEnded
from squall.clients.sse.event_parser import EventParser

# How long to wait before a reconnect if the server says nothing. The HTML standard leaves it open
# ("a few seconds"); Chrome and Firefox take 3 and 5.
RETRY_S = 3.0


class Listener:
    """The state of one `listen`, over all its connections."""

    __slots__ = ("_events", "_until", "ends_by_time", "found", "parser")

    def __init__(self, options: ListenOptions) -> None:
        self._events = options.get("events")
        self._until = options.get("until")
        if self._events is not None and (self._events.__class__ is not int or self._events < 1):
            raise CallError(f"events={self._events!r} is not a number of events")
        self.ends_by_time = self._events is None and self._until is None
        self.parser = EventParser()
        self.found: list[SSEEvent] = []

    def take(self, event: SSEEvent) -> bool:
        """Adds an event; true if it is the last one."""
        self.found.append(event)
        if self._until is not None and self._until(event):
            return True
        return self._events is not None and len(self.found) >= self._events


class SSEClient:
    """Listens to the streams of one user."""

    __slots__ = ("_http",)

    def __init__(self, http: HTTPClient) -> None:
        self._http = http

    async def listen(self, url: URL, **options: Unpack[ListenOptions]) -> SSEResponse:
        """Opens a stream and returns its events."""
        unknown = options.keys() - ListenOptions.__optional_keys__
        if unknown:
            known = ", ".join(sorted(ListenOptions.__optional_keys__))
            raise TypeError(f"listen() takes no {min(unknown)}=; it takes {known}")
        http = self._http
        shared = http.shared
        given: dict[str, Any] = {
            name: options.get(name) for name in ("headers", "params", "cookies", "auth", "path")
        }
        request = build(shared, "GET", shared.url(url), **given)
        timeout = options.get("timeout")
        timeout_s = http.timeout_s if timeout is None else shared.seconds(timeout)
        listener = Listener(options)
        try:
            response = await self._listened(
                request, listener, timeout_s, reconnects=options.get("reconnect", True)
            )
        except TransportError as error:
            error.protocol = "sse"
            error.request = f"SSE {request.address}"
            http.note(error)
            raise
        http.note(response)
        return response

    async def _listened(
        self, request: Request, listener: Listener, timeout_s: float, *, reconnects: bool
    ) -> SSEResponse:
        counters = self._http.shared.counters_of("sse")
        began, started, connections = perf_counter(), 0.0, 0
        while True:
            connections += 1
            conn = await self._connected(request, listener, timeout_s, perf_counter() - began)
            sent = self._bytes(request, listener.parser.last_id)
            future = conn.send(sent, timeout_s, perf_counter() - began)
            started = started or conn.started
            try:
                status = await future
            except StreamEnded as error:
                del future
                wait_s = listener.parser.retry_s
                wait_s = RETRY_S if wait_s is None else wait_s
                is_late = perf_counter() - began + wait_s >= timeout_s
                if not reconnects or (is_late and not listener.ends_by_time):
                    counters.failed += 1
                    raise TransportError(error.reason, started=started, ended=error.ended) from None
                if is_late:
                    counters.statuses[200] += 1
                    break
                counters.reconnects += 1
                await asyncio.sleep(wait_s)
            except BaseException as error:
                # The future holds the error, whose traceback holds this frame: break the cycle.
                del future
                if isinstance(error, TransportError):
                    counters.failed += 1
                    error.started = started
                else:
                    counters.cancelled += 1
                    conn.abandon()
                raise
            else:
                counters.statuses[status] += 1
                break
        found = listener.found
        ended = found[-1].at if found else perf_counter()
        return SSEResponse(found, request.address, started, ended, connections)

    async def _connected(
        self, request: Request, listener: Listener, timeout_s: float, spent_s: float
    ) -> SSEConnection:
        http = self._http
        shared = http.shared
        now = perf_counter()
        if now > shared.limit[0] and not shared.allows(now):
            # The lease has ended: as if the task had been cancelled.
            raise asyncio.CancelledError
        try:
            conn = await dial(
                shared,
                Dial(request.origin),
                lambda: SSEConnection(shared, listener.parser, listener.take),
                http.vu_index,
                timeout_s,
                max(timeout_s - spent_s, 0.0),
            )
        except TransportError:
            counters = shared.counters_of("sse")
            counters.failed += 1
            counters.unsent += 1
            raise
        conn.ends_by_time = listener.ends_by_time
        return conn

    def _bytes(self, request: Request, last_id: str) -> bytes:
        """The request with what a stream needs; headers of the author win."""
        jar = self._http.jar
        found = b"" if jar is None else jar.header(request.origin, request.path, time())
        raw = request.with_cookies(found)
        names = {name for name, line in request.fields if line != b"Accept: */*\r\n"}
        extra = b""
        if "accept" not in names:
            raw = raw.replace(b"Accept: */*\r\n", b"Accept: text/event-stream\r\n", 1)
        if "cache-control" not in names:
            extra += b"Cache-Control: no-cache\r\n"
        if last_id:
            extra += field("Last-Event-ID", last_id)[1]
        return raw[:-2] + extra + b"\r\n"
