"""A TCP proxy before a store, one per member: it cuts, delays and counts.

It runs in a thread with a loop of its own, so that a test in whichever loop, and processes, can
use it. What was swallowed while it was cut never arrives: connections of that time end when it
is joined again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")
CHUNK = 65_536


class CuttingProxy:
    """`address` is where the store is, `host:port`. Change it while it runs."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._mode = "open"
        self._delay_s = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.connections = 0
        """That were ever opened through it."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do_async(self._serve)
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, url: str) -> str:
        """The address of a store, with the proxy in the place of the server."""
        if url.startswith("s3:"):
            before, _, rest = url.partition("endpoint=")
            return f"{before}endpoint=http://{self.address}{rest[len(_endpoint(rest)) :]}"
        return url.replace(urlsplit(url).netloc.rpartition("@")[2], self.address)

    @classmethod
    def before(cls, url: str) -> CuttingProxy:
        if url.startswith("s3:"):
            return cls(urlsplit(_endpoint(url.partition("endpoint=")[2])).netloc)
        return cls(urlsplit(url).netloc.rpartition("@")[2])

    def cut(self) -> None:
        """Nothing gets through and nothing says so, as when a cable is pulled."""
        self._do(lambda: self._switch("cut"))

    def refuse(self) -> None:
        """Connections end and new ones end at once, as when a server is stopped."""
        self._do(lambda: self._switch("refuse"))

    def join(self) -> None:
        self._do(lambda: self._switch("open"))

    def delay(self, seconds: float) -> None:
        """Each answer comes so much later; the order and the rate stay."""
        self._delay_s = seconds

    def close(self) -> None:
        self._do(lambda: self._switch("refuse"))
        self._do(self._server.close)

        async def end() -> None:
            for pump in list(self._pumps):
                pump.cancel()
            if self._pumps:
                await asyncio.wait(set(self._pumps))

        self._do_async(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # In the thread.

    def _do(self, call: Callable[[], object]) -> None:
        async def done() -> None:
            call()

        self._do_async(done)

    def _do_async(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30.0)

    async def _serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def _switch(self, mode: str) -> None:
        was, self._mode = self._mode, mode
        if mode == "refuse" or (mode == "open" and was == "cut"):
            for writer in list(self._writers):
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        self._writers.add(writer)
        try:
            if self._mode != "refuse":
                await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._pumps.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "cut":
            while await reader.read(CHUNK):
                pass
            return
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers.add(far_writer)
        ways = [
            asyncio.ensure_future(self._pump(reader, far_writer, lambda: 0.0)),
            asyncio.ensure_future(self._pump(far_reader, writer, lambda: self._delay_s)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            self._writers.discard(far_writer)
            far_writer.transport.abort()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        delay_s: Callable[[], float],
    ) -> None:
        """Two tasks, so that a delay holds up every chunk by the same time and not the rate."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            while data := await reader.read(CHUNK):
                queue.put_nowait((time.monotonic() + delay_s(), data))
            queue.put_nowait((0.0, b""))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                due, data = await queue.get()
                if not data:
                    return
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if self._mode == "cut":
                    continue
                writer.write(data)
                await writer.drain()
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await reading


def _endpoint(text: str) -> str:
    return text.partition("&")[0]
