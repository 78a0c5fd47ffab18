"""A data directory has one manager at a time, and the next one finds what the last one left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.lab.proxy import free_ports

READY_WITHIN_S = 60.0


class Manager:
    """`squall manager` alone in its datacenter."""

    def __init__(self, folder: Path, number: int) -> None:
        (port,) = free_ports(1)
        secret = folder / "secret"
        secret.write_text("0123456789abcdef" * 4)
        secret.chmod(0o600)
        self.log = folder / f"manager{number}.log"
        address = f"127.0.0.1:{port}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "squall", "manager", "--dc", "lab", "--name", "m1",
                    "--listen", address, "--members", f"m1={address}",
                    "--data", str(folder / "data"), "--no-launcher",
                ],
                stdout=log,
                stderr=log,
                env=os.environ | {"SQUALL_CLUSTER_ID": "lab", "SQUALL_SECRET_FILE": str(secret)},
            )  # fmt: skip

    def said(self) -> list[str]:
        """Whole lines: the last one may still be written."""
        return self.log.read_text().split("\n")[:-1]

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

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def op_in(line: str) -> int:
    return int(re.findall(r" op=(\d+)", line)[0])


def test_a_second_manager_says_whose_directory_it_is_and_leaves_the_first_alone(
    tmp_path: Path,
) -> None:
    first = Manager(tmp_path, 1)
    try:
        assert "last=0 " in first.line("ledger_recovered")
        committed = op_in(first.line("manager_ready"))
        second = Manager(tmp_path, 2)
        assert second.process.wait(READY_WITHIN_S) == 1
        assert second.said() == [f"another process holds this data directory: {tmp_path / 'data'}"]
        assert first.process.poll() is None
    finally:
        first.end()
    third = Manager(tmp_path, 3)
    try:
        found = third.line("ledger_recovered")
        assert op_in(found) >= committed > 0
        assert "closed_in_order=false" in found
        third.line("manager_ready")
    finally:
        third.end()
