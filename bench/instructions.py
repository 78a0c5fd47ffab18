"""User-space instructions per iteration of a core process, counted by cachegrind.

Two runs of different length; the difference of their instructions over the difference
of their iterations. That leaves start-up out and repeats within a few per cent on any
machine of one kind, where requests per second do not. The recorded figures live in
instructions.json; more than 5 % above one of them fails. nginx's own count of requests is held
against the iterations.

What a core process does by the clock (heartbeat, folds, watchdog) is left out (`in_process`). In a
run it is next to nothing, but under valgrind it was a tenth of the figure on an idle machine and a
third on a busy one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nginx_target import Nginx

HERE = Path(__file__).resolve().parent
RECORD = HERE / "instructions.json"
USERS = 64
TOLERANCE = 0.05


@dataclass(frozen=True)
class Case:
    """A workflow file, and how many requests an iteration of it sends."""

    file: str
    requests: int
    short: int
    """Iterations of the short run, at least 25 per user, so that caches are warm in both."""
    tls: bool = False


CASES = {
    "get": Case("hello.py", 1, 3_200),
    "get over TLS": Case("hello.py", 1, 1_600, tls=True),
    "journey": Case("journey.py", 3, 1_600),
}
# The long run has this many times the iterations of the short one.
LONG = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="exit code 1 if over the record")
    parser.add_argument("--record", action="store_true", help="write the figures as the record")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)} (all)")
    options = parser.parse_args()
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    with Nginx(core=None) as nginx:
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        recorded: dict[str, int] = record.get("instructions_per_iteration", {})
        counted: dict[str, int] = {}
        holds: list[bool] = []
        # The first run after a change compiles modules, which would spoil a difference.
        subprocess.run(_command(nginx, CASES["get"], USERS), check=True, capture_output=True)
        for name in options.cases or CASES:
            counted[name] = round(instructions_per_iteration(nginx, CASES[name]))
            holds.append(_told(name, counted[name], recorded.get(name)))
    if options.record:
        note = {"instructions_per_iteration": recorded | counted}
        note |= {"machine": platform.machine(), "python": platform.python_version()}
        RECORD.write_text(json.dumps(note, indent=2) + "\n")
        return 0
    return 1 if options.check and not all(holds) else 0


def _told(name: str, figure: int, recorded: int | None) -> bool:
    """Prints a figure; false if it is over the record."""
    if recorded is None:
        print(f"{name:<16}{figure:>8} instructions per iteration, nothing recorded (--record)")
        return True
    change = figure / recorded - 1
    holds = change <= TOLERANCE
    shown = f"recorded {recorded} ({change:+.1%})  {'ok' if holds else 'FAIL'}"
    print(f"{name:<16}{figure:>8} instructions per iteration, {shown}", flush=True)
    return holds


def instructions_per_iteration(nginx: Nginx, case: Case) -> float:
    short, long = case.short, case.short * LONG
    return (_counted(nginx, case, long) - _counted(nginx, case, short)) / (long - short)


def _counted(nginx: Nginx, case: Case, iterations: int) -> int:
    """Instructions of one core process that makes so many iterations."""
    before = nginx.requests()
    instructions = _under_cachegrind(_command(nginx, case, iterations))
    requests = nginx.requests() - before
    if requests != iterations * case.requests:
        raise RuntimeError(f"{iterations} iterations of {case.file} sent {requests} requests")
    return instructions


def _command(nginx: Nginx, case: Case, iterations: int) -> list[str]:
    command = [sys.executable, "-m", "squall.engine.run.in_process", str(HERE / case.file)]
    command += ["--host", nginx.tls_url if case.tls else nginx.url, "--insecure"]
    return [*command, "--vus", str(USERS), "--iterations", str(iterations)]


def _under_cachegrind(command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--branch-sim=no"]
        done = subprocess.run(
            [*valgrind, f"--cachegrind-out-file={folder}/out", *command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
        )
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"valgrind ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return int(found[1].replace(",", ""))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError) as problem:
        sys.exit(f"bench/instructions.py: {problem}")
