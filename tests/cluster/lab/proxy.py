"""Proxies between the processes of a test, which cut and freeze connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.lab.ports import free_ports
from tests.lab.programs import ROOT, program

DONE = b"done\n"
LINE_MAX = 1024
"""Reads that are under way on one connection."""
HOLDS = ("hold", "only")
TABLE_READS = 5


class Proxy:
    """A proxy in front of one manager: cuts, freezes or delays the traffic of all processes or of
    the named ones."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = program("tests.cluster.lab.proxy", str(self.port), str(self._to_port))
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def cut(self, pids: Sequence[int] = ()) -> None:
        """Every connection is closed, new ones are refused."""
        self._say("cut", pids)

    def hold(self, pids: Sequence[int] = ()) -> None:
        """Connections stay open and nothing passes, as in a broken network."""
        self._say("hold", pids)

    def only(self, pids: Sequence[int]) -> None:
        """Nothing passes except for these processes: the others cannot reach this manager."""
        self._say("only", pids)

    def delay(self, seconds: float) -> None:
        """Each way takes this long, at any rate of traffic: as on a long line."""
        self._say("delay", (seconds,))

    def heal(self) -> None:
        self._say("heal", ())

    def _say(self, word: str, values: Sequence[float]) -> None:
        """Returns when the proxy has done it: what a test does next must meet it."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{' '.join([word, *map(str, values)])}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline() == DONE, f"the proxy does not {word}"


class _Passage:
    """One connection through the proxy."""

    def __init__(self, ports: tuple[int, int], *writers: asyncio.StreamWriter) -> None:
        self.ports = ports
        """From which port to which one: they tell the process that owns the connected socket."""
        self._writers = writers
        self.held = False

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


class _Relay:
    """The proxy's own process."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._mode = "heal"
        self._delay_s = 0.0
        self._pids: list[int] = []
        self._passages: set[_Passage] = set()

    async def serve(self, port: int) -> None:
        await asyncio.start_server(self._accept, "127.0.0.1", port)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self._mode, *values = line.decode().split()
            self._delay_s = float(values[0]) if self._mode == "delay" else 0.0
            self._pids = [] if self._mode == "delay" else [int(value) for value in values]
            for passage in list(self._passages):
                hit = self._hits(passage.ports)
                passage.held = self._mode in HOLDS and hit
                if self._mode == "cut" and hit:
                    passage.abort()
            sys.stdout.buffer.write(DONE)
            sys.stdout.buffer.flush()

    def _hits(self, ports: tuple[int, int]) -> bool:
        if self._mode not in ("cut", *HOLDS):
            # The table of all connections is long, and reading it for each new one would be too
            # slow for a group that has lost its links and dials again and again.
            return False
        named = not self._pids or _inode_of(*ports) in _sockets_of(self._pids)
        return named if self._mode != "only" else not named

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = (writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1])
        hit = self._hits(ports)
        if self._mode == "cut" and hit:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.transport.abort()
            return
        passage = _Passage(ports, writer, back)
        passage.held = self._mode in HOLDS and hit
        self._passages.add(passage)
        await asyncio.gather(self._pass(passage, reader, back), self._pass(passage, there, writer))
        self._passages.discard(passage)

    async def _pass(
        self, passage: _Passage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # Read at once and written when it is due, so that what follows is not delayed by it.
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(LINE_MAX)
        out = asyncio.create_task(self._write(passage, line, writer))
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await line.put((asyncio.get_running_loop().time() + self._delay_s, data))
        await line.put((0.0, b""))
        await out

    async def _write(
        self,
        passage: _Passage,
        line: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        broken = False
        while True:
            due, data = await line.get()
            if not data:
                break
            while passage.held:
                await asyncio.sleep(0.01)
            await asyncio.sleep(max(due - loop.time(), 0.0))
            # A connection that broke takes no more, but its reader must not wait for the line.
            if not broken:
                try:
                    writer.write(data)
                    await writer.drain()
                except OSError:
                    broken = True
        writer.transport.abort()


def _inode_of(port: int, to_port: int) -> str:
    """The socket of this machine that is connected from one port to the other. The first port
    does not suffice: Linux gives it to connections with other destinations too. The table is not
    read in one piece, and a line that moves meanwhile is missed: then it is read again."""
    for _ in range(TABLE_READS):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, _, _, _, _, _, _, inode, *_ = line.split()
            ports = [int(each.rpartition(":")[2], 16) for each in (local, remote)]
            if ports == [port, to_port] and inode != "0":
                return inode
    return ""


def _sockets_of(pids: Sequence[int]) -> set[str]:
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    link = os.readlink(descriptor)
                    if link.startswith("socket:["):
                        found.add(link[8:-1])
    return found


def main(words: Sequence[str]) -> None:
    asyncio.run(_Relay(int(words[1])).serve(int(words[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
