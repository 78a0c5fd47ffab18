"""Are the numbers true? Rates, percentiles and frozen servers against what is known.

- An open run at 5,000/s against nginx holds its rate within 0.5 % on at most 60 % of a
  core; one that cannot be held says so.
- Percentiles lie within 2 % plus 0.5 ms of what the target measured of itself.
- A target that freezes for 1 s shows it in the response time of an open run.

Every measurement is repeated and the best attempt counts, because other work on a shared
machine can only make these numbers worse.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nginx_target import Nginx

HERE = Path(__file__).parent
SQUALL = str(Path(sys.executable).parent / "squall")
ATTEMPTS = 3
RATE_PER_S = 5000
HELD_WITHIN = 0.005
MOST_CPU = 0.60
IMPOSSIBLE_PER_S = 400_000


@dataclass(frozen=True)
class Finding:
    what: str
    shown: str
    holds: bool


class Target:
    """`squall target` on core 0; it counts and times its own answers."""

    def __init__(self) -> None:
        command = ["taskset", "-c", "0", SQUALL, "target", "--port", "0", "--seed", "1"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None, "the process was started with a pipe"
        self.url = self._process.stdout.readline().split()[-1]

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as answer:
            return json.loads(answer.read() or b"null")

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def squall(file: str, url: str, *flags: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = ["taskset", "-c", "1", SQUALL, "run", str(HERE / file), "--workers", "1"]
        command += ["--host", url, "--json", str(path), "-q", *flags]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        return json.loads(path.read_text())


def rate_is_held(seconds: int) -> list[Finding]:
    with Nginx(core=0) as nginx:
        document = squall("hello.py", nginx.url, "-r", f"{RATE_PER_S}/s", "-d", f"{seconds}s")
    starts = document["workflows"][0]["starts"]
    windows = document["workflows"][0]["steps"][0]["windows"]["count"]
    inner = windows[1 : seconds - 1]
    rate = sum(inner) / len(inner)
    cpu = document["generator"]["processes"][0]["cpu"]
    off = abs(rate / RATE_PER_S - 1)
    return [
        Finding(f"rate of an open run at {RATE_PER_S}/s", f"{rate:.0f}/s", off <= HELD_WITHIN),
        Finding("its planned starts", str(starts["planned"]), starts["made"] == starts["planned"]),
        Finding("its CPU, of one core", f"{cpu:.0%}", cpu <= MOST_CPU),
    ]


def impossible_rate_is_told(seconds: int) -> list[Finding]:
    with Nginx(core=0) as nginx:
        flags = ("-r", f"{IMPOSSIBLE_PER_S}/s", "-d", f"{min(seconds, 3)}s")
        document = squall("hello.py", nginx.url, *flags)
    verdict = document["verdict"]
    shown = verdict["state"] + ": " + "; ".join(verdict["reasons"])[:60]
    return [Finding(f"an open run at {IMPOSSIBLE_PER_S}/s", shown, verdict["state"] != "VALID")]


def percentiles_are_the_targets(seconds: int) -> list[Finding]:
    with Target() as target:
        document = squall("slow.py", target.url, "-r", "200/s", "-d", f"{seconds}s")
        own = target.ask("/counts")["delays"]["/slow"]
    row = document["workflows"][0]["steps"][0]["service_ms"]
    findings: list[Finding] = []
    for name in ("p50", "p95", "p99"):
        ours, theirs = row[name], own[f"{name}_ms"]
        holds = abs(ours - theirs) <= 0.02 * theirs + 0.5
        shown = f"{ours:.2f} of {theirs:.2f} ms"
        findings.append(Finding(f"{name} of a known delay", shown, holds))
    return findings


def frozen_target_shows(seconds: int) -> list[Finding]:
    with Target() as target:
        target.ask("/freeze?for=1s&after=2s")
        document = squall("hello.py", target.url, "-r", "200/s", "-d", f"{max(seconds, 5)}s")
    row = document["workflows"][0]["steps"][0]
    p99 = row["latency_ms"]["p99"]
    return [Finding("response time p99, 1 s frozen", f"{p99:.0f} ms", p99 > 500)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=6, help="length of one run (6)")
    parser.add_argument("--check", action="store_true", help="exit code 1 if something fails")
    options = parser.parse_args()
    measurements: list[Callable[[int], list[Finding]]] = [
        rate_is_held,
        impossible_rate_is_told,
        percentiles_are_the_targets,
        frozen_target_shows,
    ]
    print("\nare the numbers true?")
    failed = False
    for measure in measurements:
        findings: list[Finding] = []
        for _ in range(ATTEMPTS):
            findings = measure(options.seconds)
            if all(finding.holds for finding in findings):
                break
        for finding in findings:
            failed = failed or not finding.holds
            mark = "ok" if finding.holds else "FAIL"
            print(f"  {finding.what:<36}{finding.shown:<44}{mark}", flush=True)
    return 1 if options.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
