"""Notes when bytes arrive on the connections of libraries, which only know when their task runs.

Among 64 busy users a task runs 200 us after its answer came. Core processes run on an
`ArrivalLoop`: inside `opening.connecting()` it wraps the library's protocol in one that reads the
clock. The loop also connects to the address that was resolved before the
run.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING, Any

import uvloop

from squall.clients.http.shared import NO_ALPN

if TYPE_CHECKING:
    from squall.clients.calls.address import PreparedAddress
    from squall.clients.http.shared import HTTPCounters, HTTPShared


class Arrivals:
    """When bytes came on the connections of one object of a library, and how many."""

    __slots__ = ("counters", "first", "is_lost", "last", "received")

    def __init__(self, counters: HTTPCounters) -> None:
        self.counters = counters
        # Clock readings; 0 if nothing came. A call sets `first` to 0 when it begins.
        self.first = 0.0
        self.last = 0.0
        self.received = 0
        # Whether a connection has ended.
        self.is_lost = False

    def came(self, size: int) -> None:
        self.last = now = perf_counter()
        if not self.first:
            self.first = now
        self.received += size
        self.counters.bytes_received += size


class LibraryOpening:
    """What a client needs to open a connection. `host` is the name, for TLS; the loop connects to
    `ip` instead. A library that does not connect through the loop takes `ip` itself."""

    __slots__ = ("address", "arrivals", "host", "ip", "port", "shared", "tls")

    def __init__(
        self, shared: HTTPShared, address: PreparedAddress, index: int, counters: HTTPCounters
    ) -> None:
        self.shared = shared
        self.address = address
        addresses = address.origin.addresses
        # Users are spread over the addresses of a name.
        self.ip = addresses[index % len(addresses)].ip
        self.host = address.host
        self.port = address.port
        self.arrivals = Arrivals(counters)
        self.tls: ssl.SSLContext | None = shared.tls_context(NO_ALPN) if address.tls else None

    @contextmanager
    def connecting(self) -> Generator[None]:
        """Connections that are opened inside, and later by tasks that began inside, are noted."""
        token = _opening.set(self)
        try:
            yield
        finally:
            _opening.reset(token)

    def ip_of(self, host: str, port: int) -> str:
        """Where to connect to instead of this name; also of another server that the first one
        named, such as a broker of a cluster."""
        if host == self.host and port == self.port:
            return self.ip
        return self.shared.origins.override(host, port) or host


_opening: ContextVar[LibraryOpening | None] = ContextVar("_opening", default=None)


class ArrivalLoop(uvloop.Loop):
    """The event loop of a process that makes load."""

    def create_connection(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        opening = _opening.get()
        if opening is None:
            return super().create_connection(protocol_factory, *args, **options)
        return self._noted_connection(opening, protocol_factory, *args, **options)

    async def _noted_connection(
        self,
        opening: LibraryOpening,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        inner: list[asyncio.BaseProtocol] = []

        def noted() -> asyncio.BaseProtocol:
            inner.append(protocol_factory())
            return noting(inner[-1], opening.arrivals)

        if host is not None and port is not None:
            if options.get("ssl") and options.get("server_hostname") is None:
                options["server_hostname"] = host
            host = opening.ip_of(host, port)
        create: Any = super().create_connection
        transport, _ = await create(noted, host, port, **options)
        return transport, inner[-1]

    def start_tls(self, transport: Any, protocol: Any, *args: Any, **options: Any) -> Any:
        opening = _opening.get()
        if opening is not None:
            protocol = noting(protocol, opening.arrivals)
        return super().start_tls(transport, protocol, *args, **options)


def noting(inner: Any, arrivals: Arrivals) -> asyncio.BaseProtocol:
    """A protocol around a library's. For a library that changes the protocol of its transport
    itself; the loop puts it around all others."""
    if isinstance(inner, asyncio.BufferedProtocol):
        return _NotingBuffered(inner, arrivals)
    return _Noting(inner, arrivals)


class _Noting(asyncio.Protocol):
    """Passes the calls of a transport on to a library's protocol, and notes when bytes came."""

    def __init__(self, inner: Any, arrivals: Arrivals) -> None:
        came, receive = arrivals.came, inner.data_received

        def data_received(data: bytes) -> None:
            came(len(data))
            receive(data)

        # Attributes of the instance: the transport calls the library without a detour.
        self.data_received = data_received
        self.eof_received = inner.eof_received
        _pass_on(self, inner, arrivals)


class _NotingBuffered(asyncio.BufferedProtocol):
    """The same for a protocol that lends its buffer."""

    def __init__(self, inner: Any, arrivals: Arrivals) -> None:
        came, updated = arrivals.came, inner.buffer_updated

        def buffer_updated(nbytes: int) -> None:
            came(nbytes)
            updated(nbytes)

        self.get_buffer = inner.get_buffer
        self.buffer_updated = buffer_updated
        self.eof_received = inner.eof_received
        _pass_on(self, inner, arrivals)


def _pass_on(outer: Any, inner: Any, arrivals: Arrivals) -> None:
    def connection_lost(error: Exception | None) -> None:
        arrivals.is_lost = True
        inner.connection_lost(error)

    outer.connection_made = inner.connection_made
    outer.connection_lost = connection_lost
    outer.pause_writing = inner.pause_writing
    outer.resume_writing = inner.resume_writing
