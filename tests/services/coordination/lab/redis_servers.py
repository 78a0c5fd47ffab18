"""Redis servers that belong to one test: stopped, restarted, with their data and without."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.ports import free_ports
from tests.services.coordination.lab.places import missing

STARTS_WITHIN_S = 60.0


class Server:
    """One redis-server with an append-only file, on a port that stays the same."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("redis-server") is None:
            missing("redis-server is not installed")
        (self.port,) = free_ports(1)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        self._process = _started(
            self.port,
            *("--bind", "127.0.0.1", "--dir", str(self._folder)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
        )

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

    def __init__(self, folder: Path, *options: str) -> None:
        (self._port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._options = ("--save", "", "--appendonly", "no", "--dir", str(folder), *options)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = _started(self._port, *self._options)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _started(port: int, *options: str) -> subprocess.Popen[bytes]:
    """Returns when this very process answers: if it lost its port to another server, that one
    would."""
    import redis

    process = subprocess.Popen(
        ["redis-server", "--port", str(port), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client = redis.Redis.from_url(f"redis://127.0.0.1:{port}/0")
    deadline = time.monotonic() + STARTS_WITHIN_S
    try:
        while True:
            with contextlib.suppress(redis.exceptions.RedisError):
                # A server that reads its file says who it is, but does nothing else yet.
                if client.ping() and client.info("server")["process_id"] == process.pid:
                    return process
            assert process.poll() is None, f"redis-server ended: is port {port} taken?"
            assert time.monotonic() < deadline, "redis-server does not start"
            time.sleep(0.02)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        client.close()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[type[RedisServer] | object]:
    if shutil.which("redis-server") is None:
        missing("redis-server is not installed")
    servers: list[RedisServer] = []

    def make(*options: str) -> RedisServer:
        server = RedisServer(tmp_path, *options)
        server.start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop()
