"""A connected UDP socket: datagrams out, and those that the server sends back.

The loop watches the socket itself, which is cheaper than a datagram transport. A connected socket
reports a closed port. Arrival is stamped when the datagram is read.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, cast

from squall.api.errors import TransportError
from squall.api.protocols.udp import UDPResponse
from squall.clients.http.failure_reasons import connect_reason

if TYPE_CHECKING:
    from squall.clients.calls.address import PreparedAddress
    from squall.clients.calls.payload import SentData
    from squall.clients.http.shared import HTTPShared

_MOST_BYTES = 65536
# Datagrams kept that nobody received.
_MOST_UNREAD = 1000


class Datagram(NamedTuple):
    """What came, and when."""

    body: bytes
    at: float


class UDPEndpoint:
    """The socket of one user for one address, which has at most one waiting call."""

    __slots__ = (
        "_receive",
        "_send",
        "_sent",
        "_socket",
        "_source",
        "_unread",
        "address",
        "connect_s",
        "counters",
        "create_future",
        "future",
        "is_open",
        "shared",
        "spent_s",
        "started",
        "timeout_s",
    )

    def __init__(self, shared: HTTPShared, address: PreparedAddress, index: int) -> None:
        """Raises an `OSError` if there is no route, or no socket left."""
        self.shared = shared
        self.address = address
        self.counters = shared.counters_of("udp")
        self.connect_s = 0.0
        self.is_open = True
        # Set while a call waits for a datagram.
        self.future: asyncio.Future[UDPResponse] | None = None
        self.started = 0.0
        self.timeout_s = shared.timeout_s
        self.spent_s = 0.0
        self._unread: deque[Datagram] = deque(maxlen=_MOST_UNREAD)
        loop = asyncio.get_running_loop()
        self.create_future = loop.create_future
        addresses = address.origin.addresses
        where = addresses[index % len(addresses)]
        self._socket = socket.socket(where.family, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect((where.ip, address.port))
            loop.add_reader(self._socket, self._readable)
        except BaseException:
            self._socket.close()
            raise
        self._receive = self._socket.recv
        self._send = self._socket.send
        # What the waiting call sent; -1 if it only waits.
        self._source: SentData = cast("SentData", None)
        self._sent = -1
        shared.live.add(self)
        self.counters.connections += 1

    def send(self, data: bytes) -> str:
        """Sends a datagram; returns why it could not be sent, or an empty text."""
        try:
            self._send(data)
        except ConnectionRefusedError:
            # Of an earlier datagram: the socket reports it once, and sends nothing.
            try:
                self._send(data)
            except OSError as error:
                return self._reason(error)
        except OSError as error:
            # Also a full buffer: a datagram that does not fit is lost in any network.
            return self._reason(error)
        counters = self.counters
        counters.bytes_sent += len(data)
        counters.messages_sent += 1
        return ""

    def _reason(self, error: OSError) -> str:
        return connect_reason(error, self.address.origin.where)

    def ask(
        self, source: SentData, data: bytes, timeout_s: float, started: float
    ) -> asyncio.Future[UDPResponse]:
        """Sends a datagram; the future ends with the next that comes, or when the time is up.
        Raises `TransportError` if it cannot be sent."""
        if self._unread:
            # They came before, and are no answer to what is sent now.
            self._unread.clear()
        self.started = started
        try:
            self._send(data)
        except OSError:
            if reason := self.send(data):
                raise TransportError(reason, started=started, ended=perf_counter()) from None
        else:
            counters = self.counters
            counters.bytes_sent += len(data)
            counters.messages_sent += 1
        self._source = source
        self._sent = len(data)
        self.timeout_s = timeout_s
        self.future = future = self.create_future()
        return future

    def wait(
        self, source: SentData, timeout_s: float, started: float
    ) -> asyncio.Future[UDPResponse]:
        """The future ends with the next datagram, or without one when the time is up."""
        self.future = future = self.create_future()
        self.timeout_s = timeout_s
        self.started = started
        self._source = source
        self._sent = -1
        if self._unread:
            self.future = None
            body, at = self._unread.popleft()
            future.set_result(self._response(body, max(at, started), ""))
        return future

    def _response(self, body: bytes, now: float, error: str) -> UDPResponse:
        sent = self._sent
        return UDPResponse(
            self._source,
            self.started,
            now,
            now,
            self.connect_s,
            error,
            sent if sent > 0 else 0,
            len(body),
            True,
            0 if sent < 0 else 1,
            body,
        )

    def _readable(self) -> None:
        now = perf_counter()
        try:
            data = self._receive(_MOST_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            future, self.future = self.future, None
            if future is not None and not future.done():
                reason = self._reason(error)
                future.set_exception(TransportError(reason, started=self.started, ended=now))
            return
        counters, size = self.counters, len(data)
        counters.bytes_received += size
        counters.messages_received += 1
        future = self.future
        if future is None or future.done():
            self._unread.append(Datagram(data, now))
            return
        self.future = None
        sent = self._sent
        future.set_result(
            UDPResponse(
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

    def fail(self, reason: str, now: float) -> None:
        """Called when the time of the waiting call is up: its datagram is lost."""
        future, self.future = self.future, None
        if future is None or future.done():
            return
        if self.shared.closed:
            future.set_exception(TransportError(reason, started=self.started, ended=now))
            self.abort()
        else:
            error = f"lost: no datagram within {self.timeout_s:g} s"
            response = self._response(b"", now, error)
            response.lost = True
            future.set_result(response)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self.future = None
        self.shared.live.discard(self)
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
