"""A TCP proxy in front of a server, which a test can cut off, bring back and let hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from tests.lab.ports import free_ports


class TCPProxy:
    """`connections` is how many it accepted, `most_open` how many there were at the same time."""

    def __init__(self, target: int) -> None:
        (self.port,) = free_ports(1)
        self.connections = 0
        self.open = 0
        self.most_open = 0
        self.bytes_down = 0
        self._target = target
        self._is_silent = False
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def begin(self) -> None:
        self._thread.start()
        self.restore()

    def end(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """Resets every connection and refuses new ones, as a server does that was killed."""
        self._do(self._reset())

    def restore(self) -> None:
        """Listens again on the same port."""
        self._do(self._listen())

    def silence(self, is_silent: bool) -> None:
        """Passes nothing on to the clients any more, or from now on."""
        self._is_silent = is_silent

    def _do(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _reset(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(tuple(self._serving))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers.add(writer)
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers.add(far_writer)
        try:
            up = asyncio.ensure_future(self._pass(reader, far_writer, 0))
            down = asyncio.ensure_future(self._pass(far_reader, writer, 1))
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            for each in (up, down):
                each.cancel()
            await asyncio.wait([up, down])
        finally:
            self.open -= 1
            for each in (writer, far_writer):
                self._writers.discard(each)
                each.transport.abort()
            self._serving.discard(task)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_down: int
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if self._is_silent and is_down:
                    continue
                self.bytes_down += is_down * len(data)
                sink.write(data)


@contextmanager
def running_tcp_proxy(target: int) -> Generator[TCPProxy]:
    """A proxy to a port of this machine, on a port of its own."""
    proxy = TCPProxy(target)
    proxy.begin()
    try:
        yield proxy
    finally:
        proxy.end()
