"""Redis servers that belong to one test: stopped, restarted, with their data and without."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.coordination.lab.places import missing


class Server:
    """One redis-server with an append-only file, on a port that stays the same."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("redis-server") is None:
            missing("redis-server is not installed")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            [
                *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", str(self._folder), "--appendonly", "yes", "--appendfsync", "always"),
                *("--save", ""),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20.0
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "redis-server does not start"
                time.sleep(0.05)

    def signal(self, number: int) -> None:
        """SIGSTOP takes its answers away, SIGCONT brings them back."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, *, lose_data: bool = False) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if lose_data:
            shutil.rmtree(self._folder)


class RedisServer:
    """A Redis of our own on a free port, that can be stopped and started empty."""

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._command = [
            *("redis-server", "--port", str(port), "--save", "", "--appendonly", "no"),
            *("--dir", str(folder), *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        import redis

        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        client = redis.Redis.from_url(self.url)
        for _ in range(200):
            with contextlib.suppress(redis.exceptions.RedisError):
                if client.ping():
                    break
            time.sleep(0.02)
        client.close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[type[RedisServer] | object]:
    if shutil.which("redis-server") is None:
        missing("redis-server is not installed")
    servers: list[RedisServer] = []

    def make(*options: str) -> RedisServer:
        server = RedisServer(tmp_path, free_port(), *options)
        server.start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop()
