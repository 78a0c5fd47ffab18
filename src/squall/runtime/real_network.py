"""TCP streams and UDP sockets of the real world, as `interfaces.Network` describes them.

Decides: Nagle's delay is off; an aborted stream is reset, so that the peer cannot take
it for a clean end; a close that the peer does not let finish becomes an abort; a
datagram that the kernel does not take at once is lost, as the network might have lost
it. A handler that raises loses its connection and nothing else.

It must never call a handler from inside a call of its owner, nor call it again after
`on_closed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from squall.runtime.interfaces import (
    Address,
    Connection,
    DatagramHandler,
    DatagramSocket,
    Listener,
    StreamHandler,
    TLSContext,
)
from squall.runtime.real_tls import RealTLS, names_in

BACKLOG = 1024
"""A thousand workers may dial at once after a restart of their manager."""
HANDSHAKE_S = 10.0
FLUSH_S = 30.0
"""How long a close waits for a peer that does not take what is queued."""
DRAIN_S = 2.0
"""How long it then waits for the peer's own end."""
DATAGRAMS_PER_TURN = 64
LARGEST_DATAGRAM = 65_536
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

T = TypeVar("T")


class RealNetwork:
    """Knows every socket that it opened, so that `close` leaves none."""

    def __init__(self) -> None:
        self._streams: dict[_Stream, None] = {}
        self._listeners: dict[_Listener, None] = {}
        self._datagrams: dict[_DatagramSocket, None] = {}

    @property
    def open_count(self) -> int:
        """Streams, listeners and datagram sockets that are open."""
        return len(self._streams) + len(self._listeners) + len(self._datagrams)

    async def listen(
        self,
        address: Address,
        accept: Callable[[], StreamHandler],
        *,
        tls: TLSContext | None = None,
    ) -> Listener:
        secured = _real(tls)
        server = await _resolving(
            asyncio.get_running_loop().create_server(
                lambda: _Stream(self._streams, accept=accept, tls=secured is not None),
                *address,
                backlog=BACKLOG,
                ssl=secured.context if secured else None,
                ssl_handshake_timeout=HANDSHAKE_S if secured else None,
            )
        )
        return _Listener(server, self._listeners)

    async def dial(
        self,
        address: Address,
        handler: StreamHandler,
        *,
        timeout_s: float,
        tls: TLSContext | None = None,
    ) -> Connection:
        secured = _real(tls)
        stream = _Stream(self._streams, handler=handler, tls=secured is not None)
        try:
            async with asyncio.timeout(timeout_s):
                await _resolving(
                    asyncio.get_running_loop().create_connection(
                        lambda: stream,
                        *address,
                        ssl=secured.context if secured else None,
                        server_hostname=(secured.server_name or None) if secured else None,
                    )
                )
        except TimeoutError as error:
            stream.forsake()
            host, port = address
            raise TimeoutError(f"{host}:{port} did not answer in {timeout_s:g} s") from error
        except BaseException:
            stream.forsake()
            raise
        stream.begin()
        return stream

    async def bind_datagrams(self, address: Address, handler: DatagramHandler) -> DatagramSocket:
        loop = asyncio.get_running_loop()
        found = await _resolving(
            loop.getaddrinfo(*address, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
        )
        family, kind, protocol, _, resolved = found[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setblocking(False)
            opened.bind(resolved)
            return _DatagramSocket(opened, handler, self._datagrams)
        except BaseException:
            opened.close()
            raise

    async def close(self) -> None:
        """Aborts everything and returns when all handlers were told."""
        for listener in list(self._listeners):
            await listener.close()
        for datagrams in list(self._datagrams):
            datagrams.close()
        ending = [stream.ended for stream in self._streams]
        for stream in list(self._streams):
            stream.abort()
        if ending:
            await asyncio.wait(ending)


class _Stream(asyncio.Protocol):
    """A connection and the protocol of its transport in one.

    An accepted stream gets its handler when it is established. A dialled one is held
    back, unread, until `begin`: a dial that fails late has called nobody.
    """

    def __init__(
        self,
        registry: dict[_Stream, None],
        *,
        tls: bool,
        handler: StreamHandler | None = None,
        accept: Callable[[], StreamHandler] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._registry = registry
        self._accept = accept
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._tls = tls
        # uvloop joins the writes of a turn itself; records of TLS are joined by nobody.
        self._gathers = tls or type(self._loop).__module__.partition(".")[0] != "uvloop"
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._told = False
        self._forsaken = False
        self._finishing = False
        self._lost = False
        self._paused = False
        self._error: Exception | None = None
        self._grace: asyncio.TimerHandle | None = None
        self.local: Address = ("", 0)
        self.peer: Address = ("", 0)
        self.peer_names: tuple[str, ...] = ()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    # What the owner calls.

    def send(self, data: bytes) -> None:
        if self._finishing or self._transport is None or not data:
            return
        if not self._gathers:
            self._transport.write(data)
            return
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(data)
        self._gathered_bytes += len(data)

    @property
    def unsent(self) -> int:
        if self._lost or self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + self._gathered_bytes

    def pause_reading(self) -> None:
        if not self._paused and not self._finishing and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and not self._finishing and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        if self._finishing:
            return
        self._finishing = True
        # In a turn of its own: the end of a TLS stream may deliver what it still holds.
        self._loop.call_soon(self._finish)

    def abort(self) -> None:
        if self._lost or self._transport is None:
            return
        self._finishing = True
        self._gathered.clear()
        self._gathered_bytes = 0
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            # It fails when the socket is already gone: by the peer's reset, or because the
            # loop closed it itself under a dial that was cancelled.
            with contextlib.suppress(OSError, ValueError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._transport.abort()

    # What the network calls.

    def begin(self) -> None:
        """The dial is done: tell the owner, then read."""
        if self._lost or self._transport is None:
            raise self._error or ConnectionResetError("the peer closed while it was dialled")
        self._registry[self] = None
        self._open()
        self.resume_reading()

    def forsake(self) -> None:
        """The dial failed: whatever still arrives is nobody's."""
        self._forsaken = True
        self.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._forsaken:
            self.abort()
            return
        self.local = _address(transport.get_extra_info("sockname"))
        self.peer = _address(transport.get_extra_info("peername"))
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls:
            self.peer_names = names_in(transport.get_extra_info("peercert"))
        if self._accept is None:
            self.pause_reading()
            return
        self._registry[self] = None
        try:
            self._handler = self._accept()
        except Exception as error:
            self._blame("a listener's handler could not be made", error)
            return
        self._open()

    def data_received(self, data: bytes) -> None:
        if self._finishing or self._handler is None:
            return
        try:
            self._handler.on_data(data)
        except Exception as error:
            self._blame("a handler failed in on_data", error)

    def eof_received(self) -> None:
        """Nothing returned: the transport sends what is queued and closes."""
        self._flush()
        if not self._finishing:
            self._finishing = True
            self._linger(FLUSH_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._finishing = True
        self._error = self._error or exc
        if self._grace is not None:
            self._grace.cancel()
        self._registry.pop(self, None)
        self.ended.set_result(None)
        if self._told and self._handler is not None:
            try:
                self._handler.on_closed(self._error)
            except Exception as error:
                self._report("a handler failed in on_closed", error)

    # Inside.

    def _open(self) -> None:
        if self._handler is None:
            return
        self._told = True
        try:
            self._handler.on_open(self)
        except Exception as error:
            self._blame("a handler failed in on_open", error)

    def _flush(self) -> None:
        if self._gathered and self._transport is not None:
            data = b"".join(self._gathered)
            self._gathered.clear()
            self._gathered_bytes = 0
            self._transport.write(data)

    def _finish(self) -> None:
        if self._lost or self._transport is None:
            return
        self._flush()
        if self._tls:
            self._transport.close()
        else:
            # A socket closed with unread bytes resets the stream, and the peer loses what
            # we sent last; so we end our direction and throw away what still comes.
            self._transport.write_eof()
            self._transport.resume_reading()
        self._linger(FLUSH_S)

    def _linger(self, remaining_s: float) -> None:
        """Ends a stream whose peer neither takes the rest nor closes its side."""
        if self._lost or self._transport is None:
            return
        if remaining_s <= 0.0:
            self._transport.abort()
            return
        remaining_s = remaining_s - DRAIN_S if self.unsent else 0.0
        self._grace = self._loop.call_later(DRAIN_S, self._linger, remaining_s)

    def _blame(self, what: str, error: Exception) -> None:
        """The owner's handler raised: its connection ends with that error."""
        self._error = error
        self._report(what, error)
        self.abort()

    def _report(self, what: str, error: Exception) -> None:
        self._loop.call_exception_handler({"message": what, "exception": error})


class _Listener:
    def __init__(self, server: asyncio.Server, registry: dict[_Listener, None]) -> None:
        self._server = server
        self._registry = registry
        self.address: Address = _address(server.sockets[0].getsockname())
        registry[self] = None

    async def close(self) -> None:
        # Not `wait_closed`: from Python 3.12 on it waits for the connections too.
        self._server.close()
        self._registry.pop(self, None)
        await asyncio.sleep(0)


class _DatagramSocket:
    """Reads and writes the socket itself: the loops' own transports queue without bound."""

    def __init__(
        self,
        opened: socket.socket,
        handler: DatagramHandler,
        registry: dict[_DatagramSocket, None],
    ) -> None:
        self._socket = opened
        self._handler = handler
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._open = True
        self.address: Address = _address(opened.getsockname())
        registry[self] = None
        self._loop.add_reader(opened.fileno(), self._readable)

    def send(self, data: bytes, to: Address) -> None:
        if not self._open:
            return
        host, port = to
        try:
            # A name would make the kernel's caller wait for DNS, on the loop.
            socket.inet_pton(self._socket.family, host)
            self._socket.sendto(data, (host, port))
        except (OSError, OverflowError):
            return

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._registry.pop(self, None)

    def _readable(self) -> None:
        for _ in range(DATAGRAMS_PER_TURN):
            if not self._open:
                return
            try:
                data, sender = self._socket.recvfrom(LARGEST_DATAGRAM)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # The echo of an earlier datagram that nobody took.
            try:
                self._handler.on_datagram(data, _address(sender))
            except Exception as error:
                self._loop.call_exception_handler(
                    {"message": "a handler failed in on_datagram", "exception": error}
                )


def _address(name: Any) -> Address:
    """Host and port of a socket name, which has four parts in IPv6 and none when gone."""
    return (str(name[0]), int(name[1])) if name else ("", 0)


def _real(tls: TLSContext | None) -> RealTLS | None:
    if tls is None or isinstance(tls, RealTLS):
        return tls
    raise TypeError(f"TLS of the real network is made by squall.runtime.real_tls, not {tls!r}")


async def _resolving(opening: Coroutine[Any, Any, T]) -> T:
    """A name that cannot even be asked for is a refusal like any other."""
    try:
        return await opening
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
