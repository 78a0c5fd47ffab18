"""The protocols of Squall against native clients: operations per second of CPU time.

Generators run one after the other on core 1 and servers on core 0, all in one run. What is compared
is the CPU time per operation, so a machine that others use, too, changes little. A row without a
peer has a rate of its own as its bar.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import generators
import protocols_brokers
import protocols_databases
import protocols_files
import protocols_grpc
import protocols_http3
import protocols_sockets
from protocol_servers import Servers, running

Row = tuple[str, float, float | None, float]
"""(Name, our operations per second of CPU time, those of a peer or None, bar: of the ratio to the
peer, or of our rate if there is none)."""
SECONDS, ROUNDS = 5, 5
QUICK_SECONDS, QUICK_ROUNDS = 1, 1
USERS = 64
# Connections and streams of each.
SHAPES = ((64, 1), (8, 10))
HTTP2_BARS = {("nginx", 1): 0.80, ("nginx", 10): 0.75, ("nghttpd", 1): 0.80, ("nghttpd", 10): 0.45}
K6_BAR = 2.2
EVENTS_BAR = 400_000.0
# The rows of other protocols. The annotation lets the type checker compare their parameters.
MORE: tuple[Callable[[float, int], list[Row]], ...] = (
    protocols_brokers.rows,
    protocols_databases.rows,
    protocols_files.rows,
    protocols_grpc.rows,
    protocols_http3.rows,
    protocols_sockets.rows,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"interleaved rounds ({ROUNDS})")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"of one run ({SECONDS})")
    parser.add_argument("--quick", action="store_true", help="one round of 1 s, to see it work")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a bar is missed")
    options = parser.parse_args()
    rounds, seconds = options.rounds, options.seconds
    if options.quick:
        rounds, seconds = QUICK_ROUNDS, QUICK_SECONDS
    print(f"{'':<32}{'ours':>10}{'peer':>10}{'ratio':>8}{'bar':>10}   operations/s of CPU time")
    holds = True
    with running() as servers:
        for measure in (_http2, _websocket, _events):
            for row in _medians(measure, servers, rounds, seconds):
                holds = _shown(row) and holds
    for rows in MORE:
        for row in rows(seconds, rounds):
            holds = _shown(row) and holds
    if options.quick:
        print("quick: one short round shows that it works, not how fast it is")
        return 0
    return 1 if options.check and not holds else 0


def _medians(
    measure: Callable[[Servers, int], list[Row]], servers: Servers, rounds: int, seconds: int
) -> list[Row]:
    """Rows in which each round has both generators, one after the other. The ratio is the median
    of the rounds, as the generators of one round had the same machine."""
    made = [measure(servers, seconds) for _ in range(rounds)]
    rows: list[Row] = []
    for same in zip(*made, strict=True):
        name, _, _, bar = same[0]
        ours = median(row[1] for row in same)
        ratios = [row[1] / row[2] for row in same if row[2]]
        rows.append((name, ours, ours / median(ratios) if ratios else None, bar))
    return rows


def _shown(row: Row) -> bool:
    name, ours, peer, bar = row
    value = ours / peer if peer else ours
    columns = f"{peer:>10.0f}{value:>8.2f}{bar:>10.2f}" if peer else f"{'':>18}{bar:>10.0f}"
    print(f"{name:<32}{ours:>10.0f}{columns}   {'ok' if value >= bar else 'MISSED'}", flush=True)
    return value >= bar


def _http2(servers: Servers, seconds: int) -> list[Row]:
    rows: list[Row] = []
    for server, tls in (("nginx", False), ("nginx", True), ("nghttpd", False), ("nghttpd", True)):
        port = getattr(servers, f"{server}_tls" if tls else server)
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        for connections, streams in SHAPES:
            os.environ["STREAMS"] = str(streams)
            users = connections * streams
            more = ("--insecure",) if tls else ()
            done = generators.squall(url, users, seconds, *more, file="hello_http2.py")
            name = f"HTTP/2 {server}{' TLS' if tls else ''}, {connections} x {streams}"
            peer = _h2load(url, connections, streams, seconds)
            rows.append((name, 1 / done.cost_s, peer, HTTP2_BARS[server, streams]))
    return rows


def _h2load(url: str, connections: int, streams: int, seconds: int) -> float:
    """Requests per second of CPU time of h2load."""
    command = ["h2load", f"-c{connections}", f"-m{streams}", "-t1", f"-D{seconds}", f"{url}/"]
    before = generators.cpu_s()
    text = generators.run(command)
    found = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", text)
    if found is None or found[2] != "0" or found[3] != "0":
        raise RuntimeError(f"h2load had failures:\n{text}")
    return int(found[1]) / (generators.cpu_s() - before)


def _websocket(servers: Servers, seconds: int) -> list[Row]:
    url = f"ws://127.0.0.1:{servers.websocket}"
    done = generators.squall(url, USERS, seconds, file="hello_websocket.py")
    return [("WebSocket against k6, 64 B echo", 1 / done.cost_s, _k6(url, seconds), K6_BAR)]


def _k6(url: str, seconds: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "summary.json"
        command = [str(generators.PEERS / "k6"), "run", "--vus", str(USERS)]
        command += ["--iterations", str(USERS), "--quiet", "--no-usage-report"]
        command += ["--log-output=none", str(generators.HERE / "hello_websocket.js")]
        before = generators.cpu_s()
        generators.run(command, TARGET=url, SUMMARY=str(path), SECONDS=str(seconds))
        used_s = generators.cpu_s() - before
        metrics = json.loads(path.read_text())["metrics"]
    return float(metrics["echoes"]["values"]["count"]) / used_s


def _events(servers: Servers, seconds: int) -> list[Row]:
    url = f"http://127.0.0.1:{servers.events}"
    done = generators.squall(url, 2, seconds, file="hello_sse.py")
    (found,) = (
        each for each in done.document["workflows"][0]["protocols"] if each["name"] == "sse"
    )
    return [("SSE events", found["messages_received"] / done.cpu_s, None, EVENTS_BAR)]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
        sys.exit(f"bench/protocols.py: {problem}")
