"""`interfaces.Network` on TCP and UDP sockets.

Nagle's delay is off. An aborted stream is reset, so that the peer cannot take it for a clean
end. A close that the peer does not let finish becomes an abort. A datagram that the kernel
does not take at once is dropped, as the network might have dropped it. A handler that raises
loses its connection and nothing else. No handler is called from inside a call of its owner,
nor after `on_closed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from squall.runtime.backoff import Backoff, Retries
from squall.runtime.interfaces import (
    Address,
    Connection,
    DatagramHandler,
    DatagramSocket,
    Listener,
    StreamHandler,
    TLSContext,
)
from squall.runtime.real.tls import RealTLS, names_in, refusal_of

# A thousand workers may dial at once after a restart of their manager.
BACKLOG = 1024
HANDSHAKE_S = 10.0
ACCEPT_AGAIN = Backoff(0.1, cap_s=1.0)
"""After a failed accept: the process is out of descriptors until some connection ends."""
PLAIN_ANSWER = bytes.fromhex("15030300020246")
"""The TLS alert "protocol version": a dialler without TLS recognizes it and says so."""
FLUSH_S = 30.0
"""The longest a close waits for a peer that does not take the queued bytes."""
DRAIN_S = 2.0
"""How long it then waits for the peer to close its side."""
DATAGRAMS_PER_TURN = 64
LARGEST_DATAGRAM = 65_536
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

T = TypeVar("T")


class RealNetwork:
    """The sockets of one process; `close` leaves none of them open."""

    def __init__(self) -> None:
        self._streams: dict[_Stream, None] = {}
        self._listeners: dict[_Listener | _TLSListener, None] = {}
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

        def stream() -> _Stream:
            return _Stream(self._streams, accept=accept, tls=secured is not None)

        if secured is not None:
            return _TLSListener(await _bound(address), secured, stream, self._listeners)
        server = await _resolving(
            asyncio.get_running_loop().create_server(stream, *address, backlog=BACKLOG)
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
                    )
                )
        except (ssl.SSLError, ConnectionResetError) as error:
            stream.give_up()
            raise (refusal_of(error) if secured is not None else error) from None
        except TimeoutError as error:
            stream.give_up()
            host, port = address
            raise TimeoutError(f"{host}:{port} did not answer in {timeout_s:g} s") from error
        except BaseException:
            stream.give_up()
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
        """Aborts everything and returns after every `on_closed`."""
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

    An accepted stream gets its handler when it is established. A dialled one is not read
    until `begin`, so that a dial which fails late has made no callback.
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
        # uvloop joins the writes of a turn itself, but nothing joins TLS records.
        self._gathers = tls or type(self._loop).__module__.partition(".")[0] != "uvloop"
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._opened = False
        self._given_up = False
        self._finishing = False
        self._lost = False
        self._paused = False
        self._error: Exception | None = None
        self._grace: asyncio.TimerHandle | None = None
        self.local: Address = ("", 0)
        self.peer: Address = ("", 0)
        self.peer_names: tuple[str, ...] = ()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    # Called by the owner.

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

    # Called by the network.

    def begin(self) -> None:
        """The dial succeeded: call the owner, then read."""
        if self._lost or self._transport is None:
            raise self._error or ConnectionResetError("the peer closed while it was dialled")
        self._registry[self] = None
        self._open()
        self.resume_reading()

    def give_up(self) -> None:
        """The dial failed: ignore whatever still arrives."""
        self._given_up = True
        self.abort()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._given_up:
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
        if self._opened and self._handler is not None:
            try:
                self._handler.on_closed(self._error)
            except Exception as error:
                self._report("a handler failed in on_closed", error)

    # Inside.

    def _open(self) -> None:
        if self._handler is None:
            return
        self._opened = True
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
            # Closing a socket with unread bytes resets the stream, and the peer loses what
            # we sent last; so we end our direction and discard what still arrives.
            self._transport.write_eof()
            self._transport.resume_reading()
        self._linger(FLUSH_S)

    def _linger(self, remaining_s: float) -> None:
        """Aborts a stream whose peer neither takes the rest nor closes its side."""
        if self._lost or self._transport is None:
            return
        if remaining_s <= 0.0:
            self._transport.abort()
            return
        remaining_s = remaining_s - DRAIN_S if self.unsent else 0.0
        self._grace = self._loop.call_later(DRAIN_S, self._linger, remaining_s)

    def _blame(self, what: str, error: Exception) -> None:
        """The handler raised: its connection ends with that error."""
        self._error = error
        self._report(what, error)
        self.abort()

    def _report(self, what: str, error: Exception) -> None:
        self._loop.call_exception_handler({"message": what, "exception": error})


class _Listener:
    def __init__(
        self, server: asyncio.Server, registry: dict[_Listener | _TLSListener, None]
    ) -> None:
        self._server = server
        self._registry = registry
        self.address: Address = _address(server.sockets[0].getsockname())
        registry[self] = None

    async def close(self) -> None:
        # Not `wait_closed`: from Python 3.12 on it waits for the connections too.
        self._server.close()
        self._registry.pop(self, None)
        await asyncio.sleep(0)


class _TLSListener:
    """Accepts and secures connections itself: the servers of the event loops do not report a failed
    TLS handshake, and an operator has to know why a node is refused."""

    def __init__(
        self,
        sockets: list[socket.socket],
        tls: RealTLS,
        stream: Callable[[], _Stream],
        registry: dict[_Listener | _TLSListener, None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._tls = tls
        self._stream = stream
        self._registry = registry
        self.address: Address = _address(sockets[0].getsockname())
        self._tasks = {self._loop.create_task(self._accept(each)) for each in sockets}
        registry[self] = None

    async def close(self) -> None:
        self._registry.pop(self, None)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()

    async def _accept(self, listening: socket.socket) -> None:
        retries = Retries(ACCEPT_AGAIN)
        while True:
            try:
                accepted, peer = await self._loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(retries.next_delay_s() or 0.0)
                continue
            retries.succeeded()
            task = self._loop.create_task(self._secure(accepted, _address(peer)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _secure(self, accepted: socket.socket, peer: Address) -> None:
        # The loop closes `accepted` when the handshake fails; the copy can still answer.
        with accepted.dup() as copy:
            try:
                await self._loop.connect_accepted_socket(
                    self._stream,
                    accepted,
                    ssl=self._tls.context,
                    ssl_handshake_timeout=HANDSHAKE_S,
                )
            except OSError as error:
                if getattr(error, "reason", "") == "WRONG_VERSION_NUMBER":
                    with contextlib.suppress(OSError):
                        copy.send(PLAIN_ANSWER)
                self._tls.refused(peer, refusal_of(error))


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
                # The ICMP error of an earlier datagram whose port was closed.
                continue
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
    raise TypeError(f"TLS of the real network is made by squall.runtime.real.tls, not {tls!r}")


async def _bound(address: Address) -> list[socket.socket]:
    """Listening sockets for every address that the host name stands for."""
    loop = asyncio.get_running_loop()
    found = await _resolving(
        loop.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, resolved in dict.fromkeys(found):
            opened = socket.socket(family, kind, protocol)
            sockets.append(opened)
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened.bind(resolved)
            opened.listen(BACKLOG)
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets


async def _resolving(opening: Coroutine[Any, Any, T]) -> T:
    """Turns an invalid host name into an OSError, as every other failed dial."""
    try:
        return await opening
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
