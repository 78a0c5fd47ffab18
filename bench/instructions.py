"""User-space instructions per request of a core process, counted by cachegrind.

Two runs of different length; the difference of their instructions over the difference
of their requests. That leaves start-up out and repeats within a few per cent on any
machine of one kind, where requests per second do not. The recorded figure lives in
instructions.json; more than 5 % above it fails.
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
from pathlib import Path

from nginx_target import Nginx

HERE = Path(__file__).resolve().parent
RECORD = HERE / "instructions.json"
USERS = 64
SHORT, LONG = 6_400, 25_600
"""Iterations; at least a hundred per user, so that caches are warm in both runs."""
TOLERANCE = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="exit code 1 if over the record")
    parser.add_argument("--record", action="store_true", help="write the figure as the record")
    options = parser.parse_args()
    with Nginx(core=None) as nginx:
        per_request = instructions_per_request(nginx)
    print(f"instructions per request  {per_request:.0f}")
    if options.record:
        note = {"instructions_per_request": round(per_request), "machine": platform.machine()}
        note["python"] = platform.python_version()
        RECORD.write_text(json.dumps(note, indent=2) + "\n")
        return 0
    if not RECORD.exists():
        print("nothing recorded yet: bench/instructions.py --record")
        return 0
    recorded = json.loads(RECORD.read_text())["instructions_per_request"]
    change = per_request / recorded - 1
    holds = change <= TOLERANCE
    print(f"recorded                  {recorded:.0f}  ({change:+.1%})  {'ok' if holds else 'FAIL'}")
    return 1 if options.check and not holds else 0


def instructions_per_request(nginx: Nginx) -> float:
    short_instructions, short_requests = _counted(nginx, SHORT)
    long_instructions, long_requests = _counted(nginx, LONG)
    return (long_instructions - short_instructions) / (long_requests - short_requests)


def _counted(nginx: Nginx, iterations: int) -> tuple[int, int]:
    """Instructions of one core process, and the requests that nginx saw from it."""
    before = nginx.requests()
    command = [sys.executable, "-m", "squall.engine.run.in_process", str(HERE / "hello.py")]
    command += ["--host", nginx.url, "--vus", str(USERS), "--iterations", str(iterations)]
    instructions = _under_cachegrind(command)
    return instructions, nginx.requests() - before


def _under_cachegrind(command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--branch-sim=no"]
        done = subprocess.run(
            [*valgrind, f"--cachegrind-out-file={folder}/out", *command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONHASHSEED": "0"},
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
