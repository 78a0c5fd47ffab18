"""HTTP/3 on one core: requests per second of CPU time, against Caddy on core 0.

There is no native load generator with QUIC to compare with, so the bars are rates. A rate is the
inverse of the CPU time per request: what a quiet core makes, also when others use the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import trustme

import generators

CONNECTIONS = 8
BARS = {10: 18_000.0, 1: 9_000.0}
"""Requests per second of CPU time, by streams of a connection."""
START_TIMEOUT_S = 30.0

_CONFIG = """
{{
  admin off
  auto_https disable_redirects
  skip_install_trust
  servers {{
    protocols h1 h2 h3
  }}
}}
https://localhost:{port} {{
  tls {dir}/cert.pem {dir}/key.pem
  respond "hello world"
}}
"""

Row = tuple[str, float, float | None, float]


def rows(seconds: float, rounds: int) -> list[Row]:
    """(Name, our requests per second of CPU time, those of a peer, bar)."""
    found: list[Row] = []
    with _caddy() as (url, ca_file):
        for streams, bar in BARS.items():
            os.environ["STREAMS"] = str(streams)
            rate = median(_rate(url, ca_file, streams, seconds) for _ in range(rounds))
            found.append((f"HTTP/3 Caddy, {CONNECTIONS} x {streams}", rate, None, bar))
    return found


def _rate(url: str, ca_file: str, streams: int, seconds: float) -> float:
    users = CONNECTIONS * streams
    flags = ("--cacert", ca_file)
    done = generators.squall(url, users, max(round(seconds), 1), *flags, file="hello_http3.py")
    if done.failed_checks:
        raise RuntimeError(f"{done.failed_checks} requests over HTTP/3 failed")
    return 1 / done.cost_s


@contextmanager
def _caddy() -> Generator[tuple[str, str]]:
    """(Address, file of its authority) of a Caddy on core 0."""
    if shutil.which("caddy") is None:
        raise RuntimeError("caddy is missing; to install: sudo apt-get install caddy")
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        authority = trustme.CA()
        authority.cert_pem.write_to_path(f"{folder}/ca.pem")
        issued = authority.issue_cert("localhost")
        issued.private_key_pem.write_to_path(f"{folder}/key.pem")
        issued.cert_chain_pems[0].write_to_path(f"{folder}/cert.pem")
        config = Path(folder) / "Caddyfile"
        config.write_text(_CONFIG.format(dir=folder, port=port))
        command = ["taskset", "-c", "0", "caddy", "run", "--adapter", "caddyfile"]
        server = subprocess.Popen(
            [*command, "--config", str(config)],
            env={"PATH": os.environ["PATH"], "HOME": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port)
            yield f"https://localhost:{port}", f"{folder}/ca.pem"
        finally:
            server.terminate()
            server.wait()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="fail below the bars")
    arguments = parser.parse_args()
    below = 0
    for name, ours, _, bar in rows(arguments.seconds, arguments.rounds):
        print(f"{name:60} {ours:10,.0f}   bar {bar:8,.0f}")
        below += ours < bar
    return 1 if arguments.check and below else 0


if __name__ == "__main__":
    sys.exit(main())
