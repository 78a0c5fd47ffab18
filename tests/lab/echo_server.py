"""A server that returns what it gets, over TCP and UDP on one port, in a thread of its own.

Over TCP it says nothing by itself. Over UDP it does not answer `silent`, and answers `late` twice.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tests.lab.ports import free_ports


class EchoServer:
    """What the server saw."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.connections = 0
        self.bytes_received = 0
        self.datagrams = 0
        self.open: set[Any] = set()

    @property
    def tcp(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def udp(self) -> str:
        return f"udp://127.0.0.1:{self.port}"


class _Echo(asyncio.Protocol):
    def __init__(self, server: EchoServer) -> None:
        self._server = server

    def connection_made(self, transport: Any) -> None:
        self._transport, self._write = transport, transport.write
        self._server.open.add(transport)
        self._server.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._server.bytes_received += len(data)
        self._write(data)


class _EchoDatagrams(asyncio.DatagramProtocol):
    def __init__(self, server: EchoServer) -> None:
        self._server = server

    def connection_made(self, transport: Any) -> None:
        self._send = transport.sendto

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._server.datagrams += 1
        if data == b"silent":
            return
        self._send(data, addr)
        if data == b"late":
            self._send(data, addr)


@contextmanager
def running_echo_server(tls: ssl.SSLContext | None = None) -> Generator[EchoServer]:
    server = EchoServer()
    ready, loop = threading.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        where = ("127.0.0.1", server.port)
        listener = await loop.create_server(lambda: _Echo(server), *where, ssl=tls)
        datagrams, _ = await loop.create_datagram_endpoint(
            lambda: _EchoDatagrams(server), local_addr=where
        )
        ready.set()
        await over.wait()
        datagrams.close()
        for transport in tuple(server.open):
            transport.abort()
        listener.close()
        await asyncio.sleep(0)

    over = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(60.0), "the echo server does not start"
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
