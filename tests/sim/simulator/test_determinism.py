"""Same seed, same trace, byte for byte; and the speed of the simulator."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lab.scenarios.registry import find
from lab.sim.run import run_seed

SPEED_FLOOR = 50.0
"""Simulated seconds per second: far below what a quiet machine does (over 200)."""

PROGRAM = """
import sys
from lab.scenarios.registry import find
from lab.sim.run import run_seed
garbage = [object() for _ in range(int(sys.argv[1]))]
for name in ("ping", "wal", "group"):
    for seed in (1, 2, 3, 4):
        outcome = run_seed(find(name), seed, parameters={"seconds": "10"})
        print(name, seed, outcome.failure, outcome.lines, outcome.digest)
"""


def traces(hash_seed: str, garbage: int) -> str:
    """In another process, with other string hashes and other addresses in memory."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(garbage)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    first = traces("1", 0)
    assert first == traces("4242", 100_000)
    assert len(set(first.splitlines())) == 12


@pytest.mark.parametrize("name", ["ping", "wal", "group", "coordination"])
def test_a_seed_gives_the_same_trace_again_and_another_seed_another(name: str) -> None:
    scenario = find(name)
    short = {"seconds": "10"}
    first = run_seed(scenario, 7, parameters=short)
    run_seed(scenario, 8, parameters=short)
    again = run_seed(scenario, 7, parameters=short)
    other = run_seed(scenario, 8, parameters=short)
    assert first.clean, first.failure
    assert (first.digest, first.lines) == (again.digest, again.lines)
    assert first.digest != other.digest


def test_ten_pinging_nodes_run_much_faster_than_real_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario = find("ping")
    run_seed(scenario, 1, parameters={"seconds": "5"})
    outcomes = [run_seed(scenario, seed) for seed in (1, 2, 3)]
    assert all(outcome.clean for outcome in outcomes)
    speed = max(outcome.simulated_s / outcome.real_s for outcome in outcomes)
    with capsys.disabled():
        print(f"\n10 pinging nodes: {speed:.0f} simulated s per s")
    assert speed >= SPEED_FLOOR
