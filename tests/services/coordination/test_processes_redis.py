"""Member processes on a Redis server of their own, which is restarted with its data and
without."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordination_places import missing
from process_lab import Lab

MEMBERS = ["a", "b", "c"]


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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "redis")
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("lose_data", [False, True])
def test_a_restarted_server_is_lived_through(
    server: Server, tmp_path: Path, lose_data: bool
) -> None:
    folder = tmp_path / "journals"
    folder.mkdir()
    lab = Lab(server.url, "test", folder, MEMBERS)
    try:
        for member in MEMBERS:
            lab.start(member)
        lab.until_acts(0.0, within_s=30.0)
        lab.until_acked(0.0)
        lab.kill(lab.leader())
        lab.until_acts(time.monotonic() + 0.5, within_s=lab.failover_s)
        epoch = lab.lines("acts")[-1]["epoch"]
        server.stop(lose_data=lose_data)
        time.sleep(0.5)
        server.start()
        back = time.monotonic()
        lab.until(
            lambda: any(
                line["at"] > back and (line["epoch"] > epoch or not lose_data)
                for line in lab.lines("acts")
            ),
            2 * lab.failover_s + lab.timing.lease_ttl,
            "somebody acts again",
        )
        lab.until_acked(back)
        time.sleep(1.0)
        dead = {line["dead"] for line in lab.lines("dead")}
        assert len(dead) <= 1
    finally:
        lab.close()
    lab.check()
