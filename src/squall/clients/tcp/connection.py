"""A TCP connection: bytes out, and answers cut out of the bytes that come.

Arrival is stamped when bytes come, not when the waiting task runs. Bytes that no call waits for are
kept for the next one.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, cast

from squall.api.errors import TransportError
from squall.api.protocols.tcp import LengthPrefix, TCPResponse, Until
from squall.clients.http.failure_reasons import reason_of

if TYPE_CHECKING:
    from squall.clients.calls.address import PreparedAddress
    from squall.clients.calls.payload import SentData
    from squall.clients.http.shared import HTTPShared


class TCPConnection(asyncio.Protocol):
    """One connection, which has at most one waiting call."""

    __slots__ = (
        "_buffer",
        "_drained",
        "_first_byte",
        "_last_byte",
        "_searched",
        "_sent",
        "_source",
        "_until",
        "address",
        "connect_s",
        "counters",
        "create_future",
        "future",
        "is_open",
        "lost",
        "setup",
        "shared",
        "spent_s",
        "started",
        "timeout_s",
        "transport",
    )

    def __init__(self, shared: HTTPShared, address: PreparedAddress) -> None:
        self.shared = shared
        self.address = address
        self.counters = shared.counters_of("tcp")
        self.create_future = asyncio.get_running_loop().create_future
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.setup: tuple[float, float, float] | None = None
        self.connect_s = 0.0
        self.is_open = False
        # Set while a call waits: for an answer, or for room in the transport.
        self.future: asyncio.Future[TCPResponse] | None = None
        self.started = 0.0
        self.timeout_s = shared.timeout_s
        self.spent_s = 0.0
        # Why no further byte will come; empty while the connection is open.
        self.lost = ""
        self._until: Until | None = None
        # What the waiting call sent.
        self._source: SentData = cast("SentData", None)
        self._sent = 0
        # Bytes that belong to no answer yet; no delimiter begins before `_searched`.
        self._buffer = bytearray()
        self._searched = 0
        self._first_byte = 0.0
        self._last_byte = 0.0
        self._drained = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self.shared.live.add(self)
        self.counters.connections += 1

    def write(self, data: bytes) -> None:
        counters = self.counters
        counters.bytes_sent += len(data)
        counters.messages_sent += 1
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.write(data)

    def ask(
        self,
        source: SentData,
        data: bytes,
        until: Until | None,
        timeout_s: float,
        started: float,
    ) -> asyncio.Future[TCPResponse]:
        """Sends bytes; the future ends with their answer."""
        self.future = future = self.create_future()
        self._source = source
        self._sent = size = len(data)
        self._until = until
        self.timeout_s = timeout_s
        self.spent_s = self.connect_s
        self.started = started
        counters = self.counters
        counters.bytes_sent += size
        counters.messages_sent += 1
        if self.is_open:
            self.transport.write(data)
        if self._buffer or self.lost:
            self._look(started)
        return future

    def wait(
        self, source: SentData, until: Until | None, timeout_s: float, started: float
    ) -> asyncio.Future[TCPResponse]:
        """The future ends with the next bytes of the server, which answer nothing."""
        self.future = future = self.create_future()
        self._sent = -1
        self._until = until
        self._source = source
        self.timeout_s = timeout_s
        self.spent_s = self.connect_s
        self.started = started
        self._look(started)
        return future

    def _look(self, started: float) -> None:
        """Takes the answer from bytes that are here already."""
        if self._buffer:
            # They came before the call began.
            self._first_byte = self._last_byte = max(self._last_byte, started)
            self._deliver(self._last_byte)
        if self.lost and self.future is not None:
            self._end(self.lost, perf_counter())

    def wait_for_room(self, timeout_s: float, started: float) -> asyncio.Future[TCPResponse] | None:
        """None if the transport takes more bytes; else the future ends when it does."""
        if self._drained:
            return None
        self.future = future = self.create_future()
        self._until = -1
        self.timeout_s, self.spent_s, self.started = timeout_s, self.connect_s, started
        return future

    def pause_writing(self) -> None:
        self._drained = False

    def resume_writing(self) -> None:
        self._drained = True
        future = self.future
        if future is not None and self._until == -1:
            self.future = None
            if not future.done():
                now = perf_counter()
                future.set_result(self._response(now, now, 0, b""))

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        size, counters = len(data), self.counters
        counters.bytes_received += size
        future, until = self.future, self._until
        if future is not None and not self._buffer and not future.done():
            # The usual answer comes alone and in one piece.
            if until.__class__ is bytes:
                whole = data.find(cast("bytes", until)) + len(cast("bytes", until)) == size
                whole = whole and data.endswith(cast("bytes", until))
            else:
                whole = until is None or until == size
            if whole:
                self.future = None
                counters.messages_received += 1
                sent = self._sent
                future.set_result(
                    TCPResponse(
                        self._source,
                        self.started,
                        now,
                        now,
                        self.connect_s,
                        "",
                        sent if sent > 0 else 0,
                        size,
                        True,
                        0 if sent < 0 else 1,
                        data,
                    )
                )
                return
        if not self._buffer:
            self._first_byte = now
        self._last_byte = now
        self._buffer += data
        if future is not None and until != -1:
            self._deliver(now)
        if len(self._buffer) > self.shared.most_bytes:
            self.fail(f"answer larger than {self.shared.most_bytes >> 20} MiB", now)

    def _deliver(self, now: float) -> None:
        """Gives the waiting call its answer, if all of it is here."""
        future = self.future
        if future is None or future.done():
            return
        try:
            begin, end = self._bounds()
        except ValueError as error:
            self.fail(str(error), now)
            return
        if end < 0:
            return
        answer = self._response(self._first_byte, now, end, bytes(self._buffer[begin:end]))
        del self._buffer[:end]
        # What is left came with this answer's last bytes.
        self._searched, self._first_byte = 0, now
        self.future = None
        self.counters.messages_received += 1
        future.set_result(answer)

    def _response(self, first_byte: float, now: float, size: int, body: bytes) -> TCPResponse:
        sent = self._sent
        return TCPResponse(
            self._source,
            self.started,
            first_byte,
            now,
            self.connect_s,
            "",
            sent if sent > 0 else 0,
            size,
            True,
            0 if sent < 0 else 1,
            body,
        )

    def _bounds(self) -> tuple[int, int]:
        """Where the content of the answer begins and ends; the end is -1 if it is not here."""
        until, size = self._until, len(self._buffer)
        if until is None:
            return 0, size
        if isinstance(until, bytes):
            found = self._buffer.find(until, max(self._searched - len(until) + 1, 0))
            self._searched = size
            return 0, found + len(until) if found >= 0 else -1
        if isinstance(until, int):
            return 0, until if size >= until else -1
        return prefixed(self._buffer, until, self.shared.most_bytes)

    def eof_received(self) -> bool:
        self.lost = self.lost or "connection closed by the server"
        self.is_open = False
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.live.discard(self)
        self.transport = cast("asyncio.Transport", None)
        self.is_open = False
        reason = "connection closed by the server" if exc is None else reason_of(exc)
        self.lost = self.lost or reason
        self._end(self.lost, perf_counter())

    def _end(self, reason: str, now: float) -> None:
        future, self.future = self.future, None
        if future is not None and not future.done():
            future.set_exception(TransportError(reason, started=self.started, ended=now))

    def fail(self, reason: str, now: float) -> None:
        """Ends the waiting call and the connection: a late answer could belong to any call."""
        self.lost = self.lost or reason
        self._end(reason, now)
        self.abort()

    def close(self) -> None:
        self.is_open = False
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.close()

    def abort(self) -> None:
        self.future = None
        self.is_open = False
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.abort()


def prefixed(buffer: bytearray, prefix: LengthPrefix, most_bytes: int) -> tuple[int, int]:
    """Where the content behind a length begins and ends; the end is -1 if it is not all here.
    Raises a `ValueError` for an impossible length."""
    size = prefix.size
    if len(buffer) < size:
        return 0, -1
    length = int.from_bytes(buffer[:size], prefix.order)
    if not prefix.includes_itself:
        length += size
    if length < size:
        raise ValueError(f"length prefix {length} is smaller than itself")
    if length > most_bytes:
        raise ValueError(f"answer larger than {most_bytes >> 20} MiB")
    return size, length if len(buffer) >= length else -1
