"""How busy this machine is, measured now and then, for timers that must fit it.

A process that gets its core late misses heartbeats, and its peers declare it dead. Tests with
real processes multiply their short timers by `factor()`, and the deadlines that follow from
them; on an idle machine it is 1. It never changes within a test: the nodes of a group must have
the same timers.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time

SLEEPS = 50
SLEEP_S = 0.005
BEARABLE_S = 0.005
"""A tenth of the shortest timer of a test, the heartbeat round of the `fast` profile: 50 ms."""
MOST = 4.0
MEASURED_EVERY_S = 20.0
STEP = 0.5


def lag_s() -> float:
    """How late a process wakes from a short sleep, but for the latest of all: a single delay of
    some milliseconds says nothing of the next seconds."""
    late: list[float] = []
    for _ in range(SLEEPS):
        began = time.perf_counter()
        time.sleep(SLEEP_S)
        late.append(time.perf_counter() - began - SLEEP_S)
    return sorted(late)[-2]


def factor_of(lag: float) -> float:
    """In steps of a half, so that the timers of a failed test are easy to read."""
    return min(MOST, max(1.0, math.ceil(lag / BEARABLE_S / STEP) * STEP))


class _Measured:
    """The last measurement."""

    factor = 1.0
    at = -math.inf


def measure() -> None:
    """Called before each test with real processes; measures if the last time is long ago."""
    if time.monotonic() - _Measured.at > MEASURED_EVERY_S:
        _Measured.factor = factor_of(lag_s())
        _Measured.at = time.monotonic()


def factor() -> float:
    if _Measured.at == -math.inf:
        measure()
    return _Measured.factor


def start_s() -> float:
    """How long this machine takes now to start a main process."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import squall.cluster.worker.main"], check=True)
    return time.monotonic() - began
