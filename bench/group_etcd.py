"""etcd beside a group of `bench/group.py`: three members, and clients that cost little.

The clients speak gRPC (`etcdserverpb.KV/Put`) in clear text over HTTP/2 connections of
their own making: a request is constant bytes but for its stream's number, an answer is
read by its frames. So nearly all of the machine is left to etcd. What was put is checked
against the revision of the store, which counts every commit.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, cast

import uvloop

from group_member import measured

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW = 65_535
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
KEYS = 1_000
"""Puts go to so many keys in turn."""
STARTS_WITHIN_S = 20.0


class Etcd:
    """Three members on loopback with etcd's own settings; fsync is on."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self._clients, self._peers = ports[:3], ports[3:6]
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def version() -> str:
        """Empty: it is not installed."""
        if shutil.which("etcd") is None:
            return ""
        said = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True)
        return said.stdout.split("\n")[0].rpartition(" ")[2]

    def start(self) -> None:
        peers = [f"http://127.0.0.1:{port}" for port in self._peers]
        cluster = ",".join(f"e{number}={url}" for number, url in enumerate(peers))
        for number, port in enumerate(self._clients):
            url = f"http://127.0.0.1:{port}"
            words = {
                "name": f"e{number}",
                "data-dir": str(self._folder / f"e{number}"),
                "listen-client-urls": url,
                "advertise-client-urls": url,
                "listen-peer-urls": peers[number],
                "initial-advertise-peer-urls": peers[number],
                "initial-cluster": cluster,
                "initial-cluster-token": "bench",
                "log-level": "error",
            }
            flags = [word for key, value in words.items() for word in (f"--{key}", value)]
            self._processes.append(
                subprocess.Popen(
                    ["etcd", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )

    def leader(self) -> int:
        """The client port of the member that leads."""
        until = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < until:
            for port in self._clients:
                try:
                    said = self._ask(port, "maintenance/status", {})
                except OSError:
                    continue
                if said.get("leader") and said["leader"] == said["header"]["member_id"]:
                    return port
            time.sleep(0.1)
        raise SystemExit("etcd has no leader")

    def revision(self, port: int) -> int:
        key = base64.b64encode(b"k").decode()
        return int(self._ask(port, "kv/range", {"key": key})["header"]["revision"])

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _ask(self, port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v3/{path}", data=json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=2.0) as answer:
            return json.load(answer)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def text(value: str) -> bytes:
    """A string of HPACK, not compressed."""
    data = value.encode()
    assert len(data) < 127
    return bytes((len(data),)) + data


def put_headers(port: int) -> bytes:
    """Literals that no table remembers, so that they are the same for every request."""
    return b"".join(
        (
            b"\x83\x86",  # :method POST, :scheme http
            b"\x04" + text("/etcdserverpb.KV/Put"),
            b"\x01" + text(f"127.0.0.1:{port}"),
            b"\x0f\x10" + text("application/grpc"),
            b"\x00" + text("te") + text("trailers"),
        )
    )


def put_message(key: bytes, value: bytes) -> bytes:
    """PutRequest{key, value} behind gRPC's prefix."""
    size = len(value)
    varint = bytes((size & 0x7F | 0x80, size >> 7)) if size > 127 else bytes((size,))
    body = b"\x0a" + bytes((len(key),)) + key + b"\x12" + varint + value
    return b"\x00" + len(body).to_bytes(4, "big") + body


class Connection(asyncio.Protocol):
    """Some clients on one HTTP/2 connection; each has one request under way."""

    def __init__(self, port: int, clients: int, size: int, end: float) -> None:
        headers = put_headers(port)
        value = random.Random(1).randbytes(size)
        self._bodies = [put_message(b"key-%06d" % number, value) for number in range(KEYS)]
        self._headers = len(headers).to_bytes(3, "big") + bytes((HEADERS, END_HEADERS)), headers
        self._clients = clients
        self._end = end
        self._stream = -1
        self._window = WINDOW
        self._buffer = b""
        self._began: dict[int, float] = {}
        self._answered: set[int] = set()
        self.taken: list[float] = []
        self._transport: asyncio.WriteTransport
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        grow = ((1 << 31) - 1 - WINDOW).to_bytes(4, "big")
        out = [PREFACE, frame(SETTINGS, 0, 0, b""), frame(WINDOW_UPDATE, 0, 0, grow)]
        out += [self._put() for _ in range(self._clients)]
        self._transport.write(b"".join(out))

    def _put(self) -> bytes:
        self._stream += 2
        stream = self._stream.to_bytes(4, "big")
        body = self._bodies[self._stream // 2 % KEYS]
        self._window -= len(body)
        if self._window < 0:
            raise RuntimeError("the server's window is full: too many clients on a connection")
        self._began[self._stream] = time.perf_counter()
        head, fields = self._headers
        data = len(body).to_bytes(3, "big") + bytes((DATA, END_STREAM)) + stream
        return b"".join((head, stream, fields, data, body))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        out: list[bytes] = []
        place = 0
        while len(buffer) - place >= 9:
            size = int.from_bytes(buffer[place : place + 3], "big")
            if len(buffer) - place < 9 + size:
                break
            kind, flags = buffer[place + 3], buffer[place + 4]
            stream = int.from_bytes(buffer[place + 5 : place + 9], "big")
            self._on_frame(kind, flags, stream, buffer[place + 9 : place + 9 + size], out)
            place += 9 + size
        self._buffer = buffer[place:]
        if out:
            self._transport.write(b"".join(out))
        if not self._began and not self.over.done():
            self.over.set_result(None)

    def _on_frame(
        self, kind: int, flags: int, stream: int, payload: bytes, out: list[bytes]
    ) -> None:
        if kind == DATA:
            self._answered.add(stream)
        elif kind == HEADERS and flags & END_STREAM:
            now = time.perf_counter()
            self.taken.append(now - self._began.pop(stream))
            # An answer without a message is an error.
            self._answered.remove(stream)
            if now < self._end:
                out.append(self._put())
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind in (SETTINGS, PING) and not flags & ACK:
            out.append(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind in (RST_STREAM, GOAWAY):
            self.over.set_exception(RuntimeError(f"etcd ended stream {stream}: {payload!r}"))


async def load(port: int, clients: int, connections: int, seconds: float, size: int) -> None:
    loop = asyncio.get_running_loop()
    began, cpu = time.perf_counter(), time.process_time()
    end = began + seconds
    made: list[Connection] = []
    for number in range(connections):
        share = clients // connections + (number < clients % connections)
        _, connection = await loop.create_connection(
            lambda share=share: Connection(port, share, size, end), "127.0.0.1", port
        )
        made.append(connection)
    await asyncio.gather(*(each.over for each in made))
    taken = [one for each in made for one in each.taken]
    print(json.dumps(measured(taken, time.perf_counter() - began, time.process_time() - cpu)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--size", type=int, default=256)
    options = parser.parse_args()
    work = load(options.port, options.clients, options.connections, options.seconds, options.size)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


if __name__ == "__main__":
    main()
