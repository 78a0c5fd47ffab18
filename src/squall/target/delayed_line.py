"""A line between two sockets that delays what passes, each way by the same time, at any rate of
traffic: as a long line does. `squall dev --far` puts one in front of a datacenter.
"""

from __future__ import annotations

import asyncio
import contextlib

READS_MAX = 1024
"""Reads that are under way on one connection."""
READ_BYTES = 65536

Address = tuple[str, int]


class DelayedLine:
    """Listens, and passes every connection on to another address with a delay."""

    def __init__(self, to: Address, delay_s: float) -> None:
        self._to = to
        self._delay_s = delay_s
        self._server: asyncio.Server | None = None
        # Connections are tasks of their own: the loop keeps no reference to them.
        self._passing: set[asyncio.Task[None]] = set()

    async def listen(self, at: Address) -> None:
        self._server = await asyncio.start_server(self._accept, *at)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._passing):
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connect(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*self._to)
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(
                pass_delayed(reader, back, self._delay_s),
                pass_delayed(there, writer, self._delay_s),
            )
        finally:
            writer.transport.abort()
            back.transport.abort()


async def pass_delayed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    """Passes everything on in order, `delay_s` after it came. Closes the writer at the end."""
    # Read at once and written when it is due, so that what follows is not delayed by it.
    line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(READS_MAX)
    out = asyncio.ensure_future(_write(line, writer))
    loop = asyncio.get_running_loop()
    try:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                await line.put((loop.time() + delay_s, data))
        await line.put((0.0, b""))
        await out
    finally:
        out.cancel()


async def _write(line: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    is_broken = False
    while True:
        due, data = await line.get()
        if not data:
            break
        await asyncio.sleep(max(due - loop.time(), 0.0))
        # A connection that broke takes no more, but its reader must not wait for the line.
        if not is_broken:
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                is_broken = True
    writer.transport.abort()
