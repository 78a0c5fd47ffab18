"""Percentiles of each protocol against what a server knows of its own delays.

The run is a process of its own. It needs a quiet machine: what others do there is in the latency,
but not in what the server measures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.lab.graphql_server import running_graphql_server
from tests.lab.http2_server import running_http2_server
from tests.lab.http3_server import running_http3_server
from tests.lab.sse_server import running_event_server
from tests.lab.websocket_server import running_websocket_server

# Of 20 calls 18 take 10 ms, one 40 ms and one 100 ms.
FILE = """
from itertools import count

from squall import *

DELAYS = ["0.01"] * 18 + ["0.04", "0.1"]
NUMBERS = count()


class Delays(Workflow):
    vus = 4

    @step()
    async def call(self, url: URL = "{path}") -> {response}:
        seconds = DELAYS[next(NUMBERS) % len(DELAYS)]
        return await self.client.{call}
"""
CALLS = 2000


class Target(NamedTuple):
    url: str
    held_s: list[float]
    flags: tuple[str, ...] = ()


class Protocol(NamedTuple):
    path: str
    response: str
    call: str
    running: Callable[[Path], Any]
    """Runs a server; gives a `Target`."""


def _of(running: Callable[[], Any]) -> Callable[[Path], Any]:
    @contextmanager
    def run(folder: Path) -> Generator[Target]:
        with running() as server:
            yield Target(server.url, server.held_s)

    return run


@contextmanager
def _http3(folder: Path) -> Generator[Target]:
    with running_http3_server(folder) as server:
        yield Target(server.url, server.held_s, ("--cacert", server.ca_file))


_HTTP2 = _of(running_http2_server)
_PATH = '(url, path={"seconds": seconds})'
_QUERY = "query Wait($seconds: Float!) { wait(seconds: $seconds) }"
_DELAY = "/delay/{seconds}"
PROTOCOLS = {
    "http2": Protocol(_DELAY, "HTTP2Response", f"http2.get{_PATH}", _HTTP2),
    "http3": Protocol(_DELAY, "HTTP3Response", f"http3.get{_PATH}", _http3),
    "grpc": Protocol("/delay/", "GRPCResponse", "grpc.unary(f'{url}{seconds}', b'')", _HTTP2),
    "websocket": Protocol(
        "/delay",
        "WebsocketResponse",
        "websocket.ask(url, seconds)",
        _of(running_websocket_server),
    ),
    "sse": Protocol(
        _DELAY,
        "SSEResponse",
        f"sse.listen{_PATH.replace(')', ', events=1)')}",
        _of(running_event_server),
    ),
    "graphql": Protocol(
        "",
        "GraphQLResponse",
        f'graphql.query(url, "{_QUERY}", {{"seconds": float(seconds)}})',
        _of(running_graphql_server),
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROTOCOLS)
def test_percentiles_are_those_of_the_server(tmp_path: Path, name: str) -> None:
    protocol = PROTOCOLS[name]
    with protocol.running(tmp_path) as target:
        file = tmp_path / "delays.py"
        # GraphQL has one path for all operations.
        path = protocol.path or target.url
        text = FILE.format(path=path, response=protocol.response, call=protocol.call)
        file.write_text(text, encoding="utf-8")
        row = _row(file, "--host", target.url.replace("ws://", "http://"), *target.flags)
    held_ms = sorted(1e3 * held_s for held_s in target.held_s)
    assert len(held_ms) == row["count"] == CALLS
    for percentile, share in (("p50", 0.50), ("p99", 0.99)):
        true_ms = held_ms[int(share * CALLS)]
        assert abs(row["latency_ms"][percentile] - true_ms) <= 0.02 * true_ms + 0.5, percentile


def _row(file: Path, *words: str) -> dict[str, Any]:
    path = file.with_suffix(".json")
    squall = str(Path(sys.executable).with_name("squall"))
    command = [squall, "run", str(file), "-i", str(CALLS), "--workers", "1", "-q"]
    done = subprocess.run(
        [*command, "--json", str(path), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())["workflows"][0]["steps"][0]
