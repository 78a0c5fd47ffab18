"""The unit files in deploy/systemd: systemd understands them, and what they start is a
datacenter. The comment at the top of each is followed as an operator would.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.lab.nodes import SQUALL
from tests.lab.ports import free_ports
from tests.lab.programs import ROOT

UNITS = ROOT / "deploy" / "systemd"
PATH = f"{SQUALL.parent}:/usr/bin:/bin"


def settings(unit: str, name: str) -> list[str]:
    text = (UNITS / f"{unit}.service").read_text(encoding="utf-8")
    return re.findall(rf"^{name}=(.*)$", text, flags=re.MULTILINE)


def told_variables(unit: str) -> list[str]:
    """The names in the comment that says what to write into the file of the environment."""
    text = (UNITS / f"{unit}.service").read_text(encoding="utf-8")
    return re.findall(r"^#   (SQUALL_\w+)=", text, flags=re.MULTILINE)


@contextmanager
def started(
    unit: str, variables: dict[str, str], secret: Path, folder: Path
) -> Generator[subprocess.Popen[bytes]]:
    """As systemd starts it: its words with the variables in place, nothing else around it."""
    assert set(told_variables(unit)) == variables.keys()
    (secret_file,) = settings(unit, "Environment")
    assert secret_file == "SQUALL_SECRET_FILE=%d/secret"
    (line,) = settings(unit, "ExecStart")
    (state,) = settings(unit, "StateDirectory")
    words = line.replace("%H", "host-1").replace(f"/var/lib/{state}", str(folder / state)).split()
    words = [re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], word) for word in words]
    with (folder / f"{unit}.log").open("wb") as log:
        process = subprocess.Popen(
            words,
            stdout=log,
            stderr=log,
            env=variables | {"SQUALL_SECRET_FILE": str(secret), "PATH": PATH},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, (folder / f"{unit}.log").read_text()


def squall(secret: Path, *words: str) -> str:
    environment = {"SQUALL_SECRET_FILE": str(secret), "SQUALL_CLUSTER_ID": "load-eu", "PATH": PATH}
    ended = subprocess.run(
        [str(SQUALL), *words], capture_output=True, text=True, env=environment, check=False
    )
    return ended.stdout


def test_what_they_start_is_a_datacenter(tmp_path: Path) -> None:
    secret, credential = tmp_path / "secret", tmp_path / "worker"
    squall(secret, "secret", "new", "-o", str(secret))
    squall(secret, "secret", "worker", "--secret-file", str(secret), "-o", str(credential))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    manager = {
        "SQUALL_DC": "eu",
        "SQUALL_NAME": "m1",
        "SQUALL_LISTEN": address,
        "SQUALL_MEMBERS": f"m1={address}",
        "SQUALL_CLUSTER_ID": "load-eu",
    }
    worker = {"SQUALL_DC": "eu", "SQUALL_TO": address, "SQUALL_CLUSTER_ID": "load-eu"}
    with (
        started("squall-manager", manager, secret, tmp_path),
        started("squall-worker", worker, credential, tmp_path),
    ):
        found: dict[str, str] = {}
        until = time.monotonic() + 60.0
        while found.get("host-1") != "idle":
            assert time.monotonic() < until, (tmp_path / "squall-worker.log").read_text()
            told = squall(secret, "nodes", "--to", address, "--json") or '{"nodes": []}'
            found = {node["name"]: node["state"] for node in json.loads(told)["nodes"]}
        assert found == {"m1": "leads", "host-1": "idle"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_them() -> None:
    files = [str(path) for path in sorted(UNITS.glob("*.service"))]
    told = subprocess.run(
        ["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False
    )
    assert len(files) == 2 and told.returncode == 0, told.stderr
    assert not [line for line in told.stderr.splitlines() if "squall" in line], told.stderr
