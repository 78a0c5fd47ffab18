"""A redis-server of a test: killed, started again on its port, asked for its own counts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest

from tests.lab.ports import free_ports

STARTS_WITHIN_S = 60.0


class OwnRedis:
    """One redis-server without files, on a port that stays the same."""

    def __init__(self, *options: str, password: str = "") -> None:
        (self.port,) = free_ports(1)
        self._options = options
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no"]
        password = ["--requirepass", self._password] if self._password else []
        self._process = subprocess.Popen(
            [*command, *password, *self._options],
            cwd=tempfile.gettempdir(),
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            # If the port belongs to another server, that one would answer.
            with suppress(OSError):
                if f"process_id:{self._process.pid}\r" in self.info("server"):
                    return
            assert self._process.poll() is None, "redis-server ended"
            assert time.monotonic() < deadline, "redis-server does not start"
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def info(self, section: str) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10.0) as connection:
            if self._password:
                connection.sendall(f"AUTH {self._password}\r\n".encode())
                connection.recv(100)
            connection.sendall(f"INFO {section}\r\n".encode())
            stream = connection.makefile("rb")
            length = int(stream.readline()[1:] or b"0")
            return stream.read(length).decode()

    def calls(self) -> dict[str, int]:
        """How often each command was called, as the server counts."""
        found: dict[str, int] = {}
        for line in self.info("commandstats").splitlines():
            name, _, rest = line.partition(":calls=")
            if rest:
                found[name.removeprefix("cmdstat_")] = int(rest.partition(",")[0])
        return found


@contextmanager
def running_redis(*options: str, password: str = "") -> Generator[OwnRedis]:
    if shutil.which("redis-server") is None:
        if os.environ.get("CI"):
            pytest.fail("redis-server is not installed")
        pytest.skip("redis-server is not installed")
    server = OwnRedis(*options, password=password)
    server.start()
    try:
        yield server
    finally:
        server.stop()
