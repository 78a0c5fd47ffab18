"""The wire against gRPC on loopback, and what it costs: requests, latency, seal, intake.

Each measurement runs in two processes of its own. Squall and gRPC take turns within a
round, because a shared machine changes its speed between minutes: the ratio is taken
within a round and the median is shown. gRPC runs without TLS, Squall is always sealed. The
ratio is taken with a coroutine per request on both sides; a plain function, which only
Squall can have as a handler, is measured too and does not count for it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from squall.cluster.wire.header import PREFIX_SIZE
from squall.cluster.wire.seal.ciphers import SessionSeal

HERE = Path(__file__).parent
PEERS = HERE.parent / ".venv-bench/bin/python"
RATE_BAR = 20_000.0
RATIO_BAR = 2.0
SIZE = 300
CALLERS = 64


def main() -> int:
    options = _options()
    if not PEERS.exists():
        print("the peer is not installed: run `make bench-install` once", file=sys.stderr)
        return 1
    ours: list[dict[str, float]] = []
    alike: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(options.rounds):
        ours.append(_load(sys.executable, "wire_echo.py", options.seconds, "--paced"))
        alike.append(_load(sys.executable, "wire_echo.py", options.seconds, server=("--tasks",)))
        theirs.append(_load(str(PEERS), "wire_grpc.py", options.seconds))
    with _server(sys.executable, "wire_echo.py") as port:
        intake = _ask(sys.executable, "wire_echo.py", "intake", port, "--connections", "1000")
    seal_ns, open_ns = _seal_cost()
    rate, p50, p99, cpu_us = (
        _median(ours, name) for name in ("rate", "p50_ms", "p99_ms", "cpu_us")
    )
    ratio = statistics.median(
        our["rate"] / their["rate"] for our, their in zip(alike, theirs, strict=True)
    )
    rows = [
        ("requests per second", f"{rate:,.0f}", _bar(rate, RATE_BAR, f"{RATE_BAR:,.0f}")),
        ("the same, a coroutine each", f"{_median(alike, 'rate'):,.0f}", ""),
        ("gRPC, a coroutine each", f"{_median(theirs, 'rate'):,.0f}", ""),
        ("times gRPC, a coroutine each", f"{ratio:.1f}", _bar(ratio, RATIO_BAR, f"{RATIO_BAR:g}")),
        (
            "CPU of the caller, Squall / gRPC",
            f"{cpu_us:.0f} / {_median(theirs, 'cpu_us'):.0f} us",
            "",
        ),
        ("at half of that load, p50 / p99", f"{p50:.2f} / {p99:.2f} ms", ""),
        ("seal / open a message", f"{seal_ns:.0f} / {open_ns:.0f} ns", ""),
        ("1,000 links, all handshakes", f"{intake['connected_s']:.2f} s", ""),
        ("and an answer on each", f"{intake['answered_s']:.2f} s", ""),
    ]
    print(f"one sealed link, {SIZE} bytes, {CALLERS} callers, {options.rounds} rounds")
    for what, shown, bar in rows:
        print(f"  {what:<34}{shown:<20}{bar}")
    return 1 if options.check and (rate < RATE_BAR or ratio < RATIO_BAR) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (3)")
    parser.add_argument("--quick", action="store_true", help="1 round of 1 s, to see it work")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a bar is missed")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    return options


def _bar(value: float, bar: float, shown: str) -> str:
    return f"at least {shown}: {'holds' if value >= bar else 'MISSED'}"


def _median(outcomes: list[dict[str, float]], name: str) -> float:
    return statistics.median(outcome[name] for outcome in outcomes)


def _load(
    python: str, program: str, seconds: float, *more: str, server: tuple[str, ...] = ()
) -> dict[str, float]:
    with _server(python, program, *server) as port:
        arguments = ("--seconds", str(seconds), "--callers", str(CALLERS), "--size", str(SIZE))
        return _ask(python, program, "load", port, *arguments, *more)


@contextmanager
def _server(python: str, program: str, *more: str) -> Iterator[int]:
    """Says its port, ends when its standard input does."""
    process = subprocess.Popen(
        [python, str(HERE / program), "serve", *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait()


def _ask(python: str, program: str, part: str, port: int, *more: str) -> dict[str, Any]:
    command = [python, str(HERE / program), part, "--port", str(port), *more]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def _seal_cost() -> tuple[float, float]:
    """Nanoseconds to seal and to open a message, the best of some tries."""
    count, body = 20_000, b"x" * SIZE
    near, far = SessionSeal(b"1" * 32, b"2" * 32), SessionSeal(b"2" * 32, b"1" * 32)
    frame = b"".join(near.seal(2, 1, 100, 1, 5_000, body))[PREFIX_SIZE:]

    def best(work: str) -> float:
        names = {"near": near, "far": far, "frame": frame, "body": body}
        return min(timeit.repeat(work, number=count, repeat=5, globals=names)) / count * 1e9

    return best("near.seal(2, 1, 100, 1, 5000, body)"), best("far.open(frame)")


if __name__ == "__main__":
    sys.exit(main())
