"""Percentiles of HTTP/2 and HTTP/3 against what a server knows of its own delays.

The run is a process of its own. It needs a quiet machine: what others do there is in the latency,
but not in what the server measures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.http2_server import running_http2_server
from tests.lab.http3_server import running_http3_server

# Of 20 calls 18 take 10 ms, one 40 ms and one 100 ms.
FILE = """
from itertools import count

from squall import URL, VERSIONResponse, Workflow, step

DELAYS = ["0.01"] * 18 + ["0.04", "0.1"]
NUMBERS = count()


class Delays(Workflow):
    vus = 4

    @step()
    async def page(self, url: URL = "/delay/{seconds}") -> VERSIONResponse:
        seconds = DELAYS[next(NUMBERS) % len(DELAYS)]
        return await self.client.CLIENT.get(url, path={"seconds": seconds})
"""
CALLS = 2000


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", ["http2", "http3"])
def test_percentiles_are_those_of_the_server(tmp_path: Path, protocol: str) -> None:
    file = tmp_path / "delays.py"
    file.write_text(FILE.replace("VERSION", protocol.upper()).replace("CLIENT", protocol))
    if protocol == "http2":
        with running_http2_server() as server:
            row = _row(file, "--host", server.url)
    else:
        with running_http3_server(tmp_path) as server:
            row = _row(file, "--host", server.url, "--cacert", server.ca_file)
    held_ms = sorted(1e3 * held_s for held_s in server.held_s)
    assert len(held_ms) == row["count"] == CALLS
    for name, share in (("p50", 0.50), ("p99", 0.99)):
        true_ms = held_ms[int(share * CALLS)]
        assert abs(row["latency_ms"][name] - true_ms) <= 0.02 * true_ms + 0.5, name


def _row(file: Path, *words: str) -> dict[str, Any]:
    path = file.with_suffix(".json")
    squall = str(Path(sys.executable).with_name("squall"))
    command = [squall, "run", str(file), "-i", str(CALLS), "--workers", "1", "-q"]
    done = subprocess.run(
        [*command, "--json", str(path), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())["workflows"][0]["steps"][0]
