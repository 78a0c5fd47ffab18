"""Redis, TCP and UDP on one core against redis-benchmark and a client in C.

Compared is the number of operations per second of CPU time. `redis-server` and the echo server have
core 0. The client in C (`echo_client.c`) is compiled for each run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import uvloop

import generators

USERS = 50
CORE = "0"
START_TIMEOUT_S = 20.0
BARS = {"Redis": 1.0, "Tcp": 0.60, "Udp": 0.60}
"""Of the ratio to redis-benchmark, and to the client in C."""
NAMES = {"Redis": "Redis GET", "Tcp": "TCP, 64 B echo", "Udp": "UDP, 64 B echo"}
ROUNDS = 5

Row = tuple[str, float, float | None, float]


class Ports(NamedTuple):
    redis: int
    echo: int


def rows(seconds: float, rounds: int) -> list[Row]:
    """(Name, our operations per second of CPU time, those of the peer, bar)."""
    whole = max(round(seconds), 1)
    found: list[Row] = []
    with _running() as (ports, client):
        peers: dict[str, Callable[[], float]] = {
            "Redis": lambda: _redis_benchmark(ports.redis, whole),
            "Tcp": lambda: _native(client, "tcp", ports.echo, whole),
            "Udp": lambda: _native(client, "udp", ports.echo, whole),
        }
        for name, peer in peers.items():
            port = ports.redis if name == "Redis" else ports.echo
            # Each round has both, one after the other: they had the same machine.
            pairs = [(_ours(name, port, whole), peer()) for _ in range(rounds)]
            ours = median(pair[0] for pair in pairs)
            ratio = median(pair[0] / pair[1] for pair in pairs)
            found.append((NAMES[name], ours, ours / ratio, BARS[name]))
    return found


def _ours(name: str, port: int, seconds: int) -> float:
    os.environ["TARGET"] = f"127.0.0.1:{port}"
    done = generators.squall(
        "http://127.0.0.1", USERS, seconds, "--only", name, file="hello_sockets.py"
    )
    if done.failed_checks:
        raise RuntimeError(f"{name}: {done.failed_checks} calls failed")
    return 1 / done.cost_s


def _redis_benchmark(port: int, seconds: int) -> float:
    """Requests per second of CPU time."""
    # About as long as ours; it has no limit of time.
    count = 60_000 * seconds
    command = ["redis-benchmark", "-p", str(port), "--dbnum", "3", "-t", "get", "-c", str(USERS)]
    command += ["-n", str(count), "-P", "1", "-q"]
    before = generators.cpu_s()
    text = generators.run(command)
    if re.search(r"GET: [\d.]+ requests per second", text) is None:
        raise RuntimeError(f"redis-benchmark said something new:\n{text}")
    return count / (generators.cpu_s() - before)


def _native(client: Path, kind: str, port: int, seconds: int) -> float:
    before = generators.cpu_s()
    text = generators.run([str(client), kind, str(port), str(USERS), str(seconds)])
    return int(text) / (generators.cpu_s() - before)


@contextmanager
def _running() -> Generator[tuple[Ports, Path]]:
    folder = Path(tempfile.mkdtemp(prefix="squall-bench-"))
    ports = Ports(_free_port(), _free_port())
    client = folder / "echo_client"
    source = Path(__file__).with_name("echo_client.c")
    subprocess.run(["cc", "-O2", "-o", str(client), str(source)], check=True)
    commands = [
        ["redis-server", "--port", str(ports.redis), "--save", "", "--dir", str(folder)],
        [sys.executable, __file__, "--echo", str(ports.echo)],
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += [
            subprocess.Popen(["taskset", "-c", CORE, *command], stdout=subprocess.DEVNULL)
            for command in commands
        ]
        for port in ports:
            _wait_for(port)
        with socket.create_connection(("127.0.0.1", ports.redis)) as redis:
            redis.sendall(b"SELECT 3\r\nSET key:0 xxx\r\n")
            redis.recv(64)
        yield ports, client
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no server listens on port {port}") from error
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._write = transport.write

    def data_received(self, data: bytes) -> None:
        self._write(data)


class _EchoDatagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self._send = transport.sendto

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._send(data, addr)


async def _echo(port: int) -> None:
    loop = asyncio.get_running_loop()
    where = ("127.0.0.1", port)
    await loop.create_datagram_endpoint(_EchoDatagrams, local_addr=where)
    server = await loop.create_server(_Echo, *where)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--echo", type=int, help="serve echoes on this port")
    options = parser.parse_args()
    if options.echo:
        uvloop.run(_echo(options.echo))
        return
    for name, ours, peer, bar in rows(options.seconds, options.rounds):
        assert peer is not None
        print(f"{name:<20}{ours:>10.0f}{peer:>10.0f}{ours / peer:>8.2f}{bar:>8.2f}")


if __name__ == "__main__":
    main()
