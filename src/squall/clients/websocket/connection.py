"""A WebSocket connection: the upgrade, then frames in both directions.

States: upgrading -> open -> closing (this side sent a close frame) -> gone. Arrival is stamped when
bytes come, not when the waiting task runs. A message without a waiting call is kept in `unread`.
A close frame of the server becomes the reason with which waiting and later calls fail.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, cast

from squall.api.errors import TransportError
from squall.api.http import ResponseHead
from squall.clients.http.failure_reasons import no_http_reason, reason_of
from squall.clients.websocket import frames

if TYPE_CHECKING:
    from squall.clients.http.shared import HTTPShared

# RFC 6455, 1.3: what a server adds to the key before it hashes it.
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MOST_HEAD_BYTES = 64 * 1024
# Messages kept that nobody received. A step that only sends must not fill the memory.
MOST_UNREAD = 10_000


class Arrival(NamedTuple):
    """A message, and when its last byte came."""

    kind: int
    payload: bytes
    at: float


class WebsocketConnection(asyncio.Protocol):
    """One connection, which has at most one waiting call."""

    def __init__(self, shared: HTTPShared) -> None:
        self.shared = shared
        self.counters = shared.counters_of("websocket")
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.setup: tuple[float, float, float] | None = None
        # Set while a call waits: for the upgrade, a message or a pong.
        self.future: asyncio.Future[Arrival] | None = None
        self.started = 0.0
        self.timeout_s = shared.timeout_s
        self.spent_s = 0.0
        # Kinds of frames that the waiting call takes.
        self._awaited = (frames.TEXT, frames.BINARY)
        self.unread: deque[Arrival] = deque(maxlen=MOST_UNREAD)
        self.head: ResponseHead | None = None
        self.close_code = 0
        self.close_reason = ""
        self.received = 0
        # Why no further message will come; empty while the connection is open.
        self.lost = ""
        self._decoder = frames.Decoder(shared.most_bytes)
        self._buffer = b""
        self._key = base64.b64encode(os.urandom(16))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.shared.live.add(self)
        self.counters.connections += 1

    def upgrade(
        self, request: bytes, protocols: bytes, timeout_s: float, spent_s: float
    ) -> asyncio.Future[Arrival]:
        """Sends the opening request; `request` ends with its blank line."""
        offered = b"Sec-WebSocket-Protocol: %b\r\n" % protocols if protocols else b""
        future = self.wait((), timeout_s, spent_s)
        self.write(
            b"%bUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: %b\r\n%b\r\n" % (request[:-2], self._key, offered)
        )
        return future

    def write(self, data: bytes) -> None:
        self.counters.bytes_sent += len(data)
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.write(data)

    def wait(
        self, kinds: tuple[int, ...], timeout_s: float, spent_s: float = 0.0
    ) -> asyncio.Future[Arrival]:
        """Returns the future of the next frame of one of these kinds. The call starts here, with
        `spent_s` of its limit used already."""
        self.future = future = asyncio.get_running_loop().create_future()
        self._awaited = kinds
        self.timeout_s = timeout_s
        self.spent_s = spent_s
        self.started = started = perf_counter()
        self.shared.expect_timeout(timeout_s, started + timeout_s - spent_s)
        return future

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        self.counters.bytes_received += len(data)
        if self.head is None:
            data = self._read_head(data, now)
            if self.head is None:
                return
        fault: frames.FrameError | None = None
        try:
            found = self._decoder.feed(data)
        except frames.FrameError as error:
            found, fault = error.before, error
        try:
            for kind, payload in found:
                self._received(kind, payload, now)
                if kind == frames.CLOSE:
                    # Nothing counts after a goodbye (RFC 6455, 5.5.1).
                    return
        except frames.FrameError as error:
            fault = error
        if fault is not None:
            self._break(fault, now)

    def _received(self, kind: int, payload: bytes, now: float) -> None:
        if kind == frames.PING:
            self.write(frames.frame(frames.PONG, payload, frames.new_mask()))
            return
        if kind == frames.CLOSE:
            self._closed_by_peer(payload, now)
            return
        future = self.future
        if kind != frames.PONG:
            self.received += 1
            self.counters.messages_received += 1
        if future is not None and kind in self._awaited and not future.done():
            self.future = None
            future.set_result(Arrival(kind, payload, now))
            return
        if kind != frames.PONG:
            self.unread.append(Arrival(kind, payload, now))

    def _closed_by_peer(self, payload: bytes, now: float) -> None:
        self.close_code, self.close_reason = frames.read_close(payload)
        if not self.lost:
            # The answer to a goodbye repeats its code (RFC 6455, 5.5.1).
            code = frames.NORMAL if self.close_code == frames.NO_CODE else self.close_code
            self.write(frames.frame(frames.CLOSE, frames.close_payload(code), frames.new_mask()))
            self.lost = f"closed by the server: {frames.code_text(self.close_code)}"
        self._lose(self.lost, now)
        self.close()

    def _read_head(self, data: bytes, now: float) -> bytes:
        """Reads the answer to the upgrade; returns what follows it."""
        self._buffer += data
        head, blank_line, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank_line:
            if not self._buffer.startswith(b"HTTP/1."[: len(self._buffer)]):
                self.fail(no_http_reason(self._buffer), now)
            elif len(self._buffer) > _MOST_HEAD_BYTES:
                self.fail(f"response head larger than {_MOST_HEAD_BYTES >> 10} KiB", now)
            return b""
        status = head.split(b"\r\n", 1)[0].split(b" ", 2)[1:2]
        if not head.startswith(b"HTTP/1.") or not status or not status[0].isdigit():
            self.fail(no_http_reason(head), now)
            return b""
        read = ResponseHead(head + blank_line, int(status[0]), -1, False)
        reason = self._refusal(read)
        if reason:
            self.fail(reason, now)
            return b""
        self.head = read
        self._buffer = b""
        future = self.future
        if future is not None and not future.done():
            self.future = None
            future.set_result(Arrival(0, b"", now))
        return rest

    def _refusal(self, head: ResponseHead) -> str:
        """Why the answer did not accept the upgrade; empty if it did (RFC 6455, 4.1)."""
        headers = head.headers
        if head.status != 101:
            line = head.received.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")[2]
            return f"upgrade refused: {line}".strip()
        expected = base64.b64encode(hashlib.sha1(self._key + _ACCEPT).digest()).decode()
        if (
            headers.get("upgrade", "").lower() != "websocket"
            or "upgrade" not in headers.get("connection", "").lower()
            or headers.get("sec-websocket-accept") != expected
        ):
            return "upgrade refused: the answer is not one of a WebSocket server"
        if "sec-websocket-extensions" in headers:
            return "upgrade refused: the server uses an extension that was not offered"
        return ""

    def say_goodbye(self, code: int, reason: str) -> asyncio.Future[Arrival] | None:
        """Sends a close frame; the future ends when the server's goodbye or the end comes. None if
        the connection is over already."""
        if self.lost or self.transport is None:  # pyright: ignore[reportUnnecessaryComparison]
            return None
        self.lost = "closed"
        self.write(
            frames.frame(frames.CLOSE, frames.close_payload(code, reason), frames.new_mask())
        )
        return self.wait((), self.timeout_s)

    def _break(self, error: frames.FrameError, now: float) -> None:
        """Ends the connection because the server broke the protocol."""
        self.write(frames.frame(frames.CLOSE, frames.close_payload(error.code), frames.new_mask()))
        self.lost = self.lost or f"WebSocket protocol: {error}"
        self._lose(self.lost, now)
        self.close()

    def _lose(self, reason: str, now: float) -> None:
        self.lost = self.lost or reason
        future, self.future = self.future, None
        if future is not None and not future.done():
            future.set_exception(TransportError(reason, started=self.started, ended=now))

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.live.discard(self)
        self.transport = cast("asyncio.Transport", None)
        reason = "connection closed without a goodbye" if exc is None else reason_of(exc)
        if self.head is None and exc is None:
            reason = "connection closed before a response"
        self._lose(self.lost or reason, perf_counter())

    def fail(self, reason: str, now: float) -> None:
        """Ends the waiting call and the connection: after a timeout, the next message could answer
        either this call or the next one."""
        self.lost = self.lost or reason
        self._lose(reason, now)
        self.abort()

    def abandon(self) -> None:
        """Closes the connection of a cancelled call."""
        self.lost = self.lost or "cancelled"
        self.future = None
        self.abort()

    def close(self) -> None:
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.abort()
