"""A data directory has one manager at a time, and the next one finds what the last one left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

READY_WITHIN_S = 60.0


class Manager:
    """`squall manager` alone in its datacenter."""

    def __init__(self, folder: Path, number: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        secret = folder / "secret"
        secret.write_text("0123456789abcdef" * 4)
        secret.chmod(0o600)
        self.log = folder / f"manager{number}.log"
        address = f"127.0.0.1:{port}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "squall", "manager", "--dc", "lab", "--name", "m1",
                    "--listen", address, "--members", f"m1={address}", "--data", str(folder / "data"),
                ],
                stdout=log,
                stderr=log,
                env=os.environ | {"SQUALL_CLUSTER_ID": "lab", "SQUALL_SECRET_FILE": str(secret)},
            )  # fmt: skip

    def said(self) -> list[str]:
        return self.log.read_text().splitlines()

    def line(self, event: str) -> str:
        """Waits for the first line about it."""
        until = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < until:
            for line in self.said():
                if event in line:
                    return line
            assert self.process.poll() is None, self.said()
            time.sleep(0.05)
        raise AssertionError(f"no {event} in {self.said()}")

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(READY_WITHIN_S)


def test_a_second_manager_says_whose_directory_it_is_and_leaves_the_first_alone(
    tmp_path: Path,
) -> None:
    first = Manager(tmp_path, 1)
    try:
        assert "last=0" in first.line("ledger_recovered")
        first.line("manager_ready")
        second = Manager(tmp_path, 2)
        assert second.process.wait(READY_WITHIN_S) == 1
        assert second.said() == [f"another process holds this data directory: {tmp_path / 'data'}"]
        assert first.process.poll() is None
    finally:
        first.end()
    third = Manager(tmp_path, 3)
    try:
        # Killed, not closed; what it had committed is there, and nothing is torn.
        found = third.line("ledger_recovered")
        assert "op=1 " in found
        assert "torn_bytes=0" in found
        assert "closed_in_order=false" in found
        third.line("manager_ready")
    finally:
        third.end(signal.SIGTERM)
    fourth = Manager(tmp_path, 4)
    try:
        assert "closed_in_order=true" in fourth.line("ledger_recovered")
    finally:
        fourth.end()
