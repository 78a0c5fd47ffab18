"""Can `squall compare` be relied on? Real runs of the same code, and of slower code.

Pairs of runs with nothing changed must show no difference in 19 of 20, and a step that is
slower by a tenth must be found in 19 of 20. The target's answers are delays, so that the
machine matters little. `--quick` makes two pairs of short runs and asks for both.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from squall.reporting.compare.changes import WINDOWS_MIN, Comparison, compare
from squall.reporting.compare.text import render_comparison
from squall.reporting.document.read import ResultsFile, read_results

HERE = Path(__file__).parent
SQUALL = str(Path(sys.executable).parent / "squall")
PAIRS = 20
SECONDS = 60
QUICK_PAIRS = 2
QUICK_SECONDS = WINDOWS_MIN + 1
WANTED = 0.95
ATTEMPTS = 3
"""A run may be INVALID on a machine that others use; it is made again then."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two pairs of short runs")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"of each kind ({PAIRS})")
    parser.add_argument("--check", action="store_true", help="exit 1 if it falls short")
    arguments = parser.parse_args()
    pairs, seconds = (arguments.pairs, SECONDS)
    if arguments.quick:
        pairs, seconds = QUICK_PAIRS, QUICK_SECONDS
    quiet = found = 0
    with tempfile.TemporaryDirectory() as folder, Target() as target:
        runs = Runs(Path(folder), target.url, seconds)
        before = runs.make("40ms")
        for number in range(pairs):
            same, slow = runs.make("40ms"), runs.make("44ms")
            quiet += _is_quiet(_told(f"same code, pair {number + 1}", before, same))
            found += _is_found(_told(f"pay 10 % slower, pair {number + 1}", before, slow))
            before = same
    print(f"no difference in {quiet} of {pairs} pairs, slower step found in {found} of {pairs}")
    enough = min(quiet, found) >= WANTED * pairs
    return 1 if arguments.check and not enough else 0


class Runs:
    """Makes runs and reads what they wrote."""

    def __init__(self, folder: Path, url: str, seconds: int) -> None:
        self._folder = folder
        self._url = url
        self._seconds = seconds
        self._made = 0

    def make(self, pay: str) -> ResultsFile:
        read: ResultsFile | None = None
        for _ in range(ATTEMPTS):
            self._made += 1
            path = str(self._folder / f"{self._made}.json")
            flow = str(HERE / "compare_flow.py")
            words = ["run", flow, "-H", self._url, "-d", f"{self._seconds}s", "-e", f"PAY={pay}"]
            command = [SQUALL, *words, "--workers", "1", "-q", "--json", path]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            read = read_results(path) if Path(path).exists() else None
            if read is not None and read.results.verdict.state != "INVALID":
                return read
        if read is None:
            raise SystemExit(f"this wrote no results: {' '.join(command)}")
        return read


class Target:
    """`squall target` until the block is left."""

    def __enter__(self) -> Target:
        command = [SQUALL, "target", "--port", "0", "--seed", "1"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None, "the process was started with a pipe"
        self.url = self._process.stdout.readline().split()[-1]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _told(title: str, before: ResultsFile, after: ResultsFile) -> Comparison:
    result = compare([before], [after])
    print(f"{title}\n{render_comparison(result)}\n", flush=True)
    return result


def _is_quiet(result: Comparison) -> bool:
    return result.judged and not result.number("worse") and not result.number("better")


def _is_found(result: Comparison) -> bool:
    pay = next(step for step in result.steps if step.name == "pay")
    return any(change.judgement == "worse" for change in pay.changes)


if __name__ == "__main__":
    sys.exit(main())
