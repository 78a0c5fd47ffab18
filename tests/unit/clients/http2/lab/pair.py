"""A connection and its server in one process, and what tests ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import hpack

from squall.api.errors import TransportError
from squall.api.http import HTTP2Response
from squall.clients.http import HTTPShared
from squall.clients.http.encode import NO_OPENING
from squall.clients.http.origin import Origin
from squall.clients.http.request import Request
from squall.clients.http2 import HTTP2Shared
from squall.clients.http2.connection import HTTP2Connection
from squall.clients.http2.header_blocks import request_block
from squall.clients.http2.stream import Stream

ORIGIN = Origin("http", "a", 80)
OK = [(b":status", b"200"), (b"server", b"h2"), (b"content-length", b"2")]


def request(method: str = "GET", body: bytes = b"") -> Request:
    return Request(method, ORIGIN, b"/", NO_OPENING, [], b"", body)


class Wire:
    """A fake transport: what is written waits in `written`."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_extra_info(self, name: str) -> None:
        return None


class Pair:
    """A connection, and a server of the package `h2` at its other end."""

    def __init__(
        self, *, greets: bool = True, shared: HTTPShared | None = None, **options: Any
    ) -> None:
        self.shared = shared or HTTPShared(**options)
        self.gone: list[HTTP2Connection] = []
        self.conn = HTTP2Connection(
            self.shared, HTTP2Shared.of(self.shared), ORIGIN, self.gone.append
        )
        self.wire = Wire()
        self.conn.connection_made(cast("asyncio.Transport", self.wire))
        self.server = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        if greets:
            self.server.initiate_connection()
            self.deliver()
            self.events()

    def send(
        self, method: str = "GET", body: bytes = b""
    ) -> tuple[Stream, asyncio.Future[HTTP2Response]]:
        sent = request(method, body)
        return self.conn.send(sent, request_block(sent), sent.body, 60.0, 0.0)

    def events(self) -> list[h2.events.Event]:
        """What the server understands of the bytes written so far; answers of its own follow."""
        self.conn._flush()  # pyright: ignore[reportPrivateUsage]
        data, self.wire.written = bytes(self.wire.written), bytearray()
        events = self.server.receive_data(data)
        self.deliver()
        return events

    def deliver(self) -> None:
        self.conn.data_received(self.server.data_to_send())

    def raw(self, *parts: bytes) -> None:
        self.conn.data_received(b"".join(parts))


def run(body: Callable[[], Awaitable[Any]]) -> None:
    async def main() -> None:
        await body()

    asyncio.run(main())


def block(*pairs: tuple[bytes, bytes]) -> bytes:
    return hpack.Encoder().encode(pairs)


def failed(future: asyncio.Future[HTTP2Response]) -> TransportError:
    error = future.exception()
    assert isinstance(error, TransportError)
    return error
