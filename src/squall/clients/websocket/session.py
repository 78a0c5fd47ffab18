"""An open WebSocket as the author sees it: asks, sends, receives, pings, closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from squall.api.errors import CallError, TransportError
from squall.api.websocket import WebsocketResponse
from squall.clients.http.body import PreparedBody, data_of
from squall.clients.websocket import frames

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient
    from squall.clients.websocket.connection import Arrival, WebsocketConnection

MESSAGES = (frames.TEXT, frames.BINARY)
# How long `close` waits for the server's goodbye.
_GOODBYE_S = 1.0
_BINARY_TYPE = b"application/octet-stream"


class OpenSession:
    """A session of one user. The first answer takes `setup`: the session was opened for it."""

    __slots__ = (
        "_frames",
        "_http",
        "_timeout_s",
        "connection",
        "sent",
        "setup",
        "subprotocol",
        "url",
    )

    def __init__(
        self,
        http: HTTPClient,
        connection: WebsocketConnection,
        url: str,
        kept: frames.KeptFrames | None,
        timeout_s: float | None,
    ) -> None:
        """`kept` has the frames of earlier messages; None masks each frame with a fresh key."""
        self._http = http
        self._frames = kept
        self._timeout_s = timeout_s
        self.connection = connection
        self.url = url
        self.sent = 0
        self.setup: tuple[float, float, float, float] | None = None
        assert connection.head is not None
        self.subprotocol = connection.head.headers.get("sec-websocket-protocol", "")

    @property
    def close_code(self) -> int:
        return self.connection.close_code

    @property
    def close_reason(self) -> str:
        return self.connection.close_reason

    @property
    def received(self) -> int:
        return self.connection.received

    @property
    def is_open(self) -> bool:
        return not self.connection.lost

    async def ask(
        self,
        message: Any,
        *,
        until: Callable[[WebsocketResponse], bool] | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> WebsocketResponse:
        conn, http = self.connection, self._http
        data = self._frame(message)
        timeout_s = self._limit_s(timeout)
        counters = conn.counters
        self._check_free()
        future = conn.wait(MESSAGES, timeout_s)
        started = conn.started
        shared = http.shared
        if started > shared.limit[0] and not shared.allows(started):
            # The lease has ended: as if the task had been cancelled.
            conn.abandon()
            raise asyncio.CancelledError
        counters.sent += 1
        counters.messages_sent += 1
        self.sent += 1
        # Messages that nobody received before; those that come from here on may be the answer.
        older = len(conn.unread)
        conn.write(data)
        while True:
            try:
                arrival = await future
            except BaseException as error:
                # The future holds the error, whose traceback holds this frame: break the cycle.
                del future
                if isinstance(error, TransportError):
                    counters.failed += 1
                    error.started = started
                    self._note(error)
                else:
                    counters.cancelled += 1
                    conn.abandon()
                raise
            response = self._response(arrival, started)
            is_answer = until is None or until(response)
            while until is not None and not is_answer and len(conn.unread) > older:
                # It came in the same packet, before this task ran.
                response = self._response(conn.unread[older], started)
                del conn.unread[older]
                is_answer = until(response)
            if is_answer:
                break
            future = conn.wait(MESSAGES, timeout_s, perf_counter() - started)
        counters.replies += 1
        response.exchanges = 1
        http.note(response)
        return response

    async def send(self, message: Any) -> None:
        data = self._frame(message)
        self._check_free()
        self.sent += 1
        self.connection.counters.messages_sent += 1
        self.connection.write(data)

    async def receive(self, *, timeout: str | float | None = None) -> WebsocketResponse:  # noqa: ASYNC109
        conn = self.connection
        timeout_s = self._limit_s(timeout)
        if conn.unread:
            arrival = conn.unread.popleft()
            response = self._response(arrival, arrival.at)
        else:
            self._check_free()
            response = await self._awaited(conn.wait(MESSAGES, timeout_s))
        self._http.note(response)
        return response

    async def ping(self, *, timeout: str | float | None = None) -> WebsocketResponse:  # noqa: ASYNC109
        conn = self.connection
        timeout_s = self._limit_s(timeout)
        self._check_free()
        future = conn.wait((frames.PONG,), timeout_s)
        conn.write(frames.frame(frames.PING, b"squall", frames.new_mask()))
        response = await self._awaited(future)
        self._http.note(response)
        return response

    async def close(self, code: int = frames.NORMAL, reason: str = "") -> None:
        goodbye = self.connection.say_goodbye(code, reason)
        if goodbye is not None:
            # Whatever comes now, an answer or an error: the session is over.
            await asyncio.wait([goodbye], timeout=_GOODBYE_S)
            if goodbye.done() and not goodbye.cancelled():
                goodbye.exception()
        self.connection.close()

    def leave(self) -> None:
        """Sends a close frame and does not wait for the server's."""
        goodbye = self.connection.say_goodbye(frames.NORMAL, "")
        if goodbye is not None:
            goodbye.cancel()
        self.connection.close()

    async def _awaited(self, future: asyncio.Future[Arrival]) -> WebsocketResponse:
        conn = self.connection
        started = conn.started
        try:
            arrival = await future
        except BaseException as error:
            # The future holds the error, whose traceback holds this frame: break the cycle.
            del future
            if isinstance(error, TransportError):
                self._note(error)
            else:
                conn.abandon()
            raise
        return self._response(arrival, started)

    def _response(self, arrival: Arrival, started: float) -> WebsocketResponse:
        setup, self.setup = self.setup, None
        is_text = arrival.kind == frames.TEXT
        return WebsocketResponse(arrival.payload, is_text, self.url, started, arrival.at, setup)

    def _note(self, error: TransportError) -> None:
        error.protocol = "websocket"
        error.request = f"WEBSOCKET {self.url}"
        self._http.note(error)

    def _check_free(self) -> None:
        conn = self.connection
        if conn.lost:
            now = perf_counter()
            error = TransportError(conn.lost, started=now, ended=now)
            self._note(error)
            raise error
        if conn.future is not None:
            raise CallError("this session already waits for a message: await one call at a time")

    def _limit_s(self, timeout: str | float | None) -> float:
        http = self._http
        if timeout is not None:
            return http.shared.seconds(timeout)
        return http.timeout_s if self._timeout_s is None else self._timeout_s

    def _frame(self, message: Any) -> bytes:
        if isinstance(message, str):
            kind, payload = frames.TEXT, message.encode()
        elif isinstance(message, bytes):
            kind, payload = frames.BINARY, message
        else:
            body = message if isinstance(message, PreparedBody) else data_of(message)
            kind = frames.BINARY if body.content_type == _BINARY_TYPE else frames.TEXT
            payload = body.content
        if self._frames is None:
            return frames.frame(kind, payload, frames.new_mask())
        return self._frames.get(kind, payload)
