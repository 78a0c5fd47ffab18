"""How each load generator is started and how its own count is read.

Every function runs one generator once, pinned to one core, against one address, and
returns what that generator says of itself. Rates are compared as ratios, never alone.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / ".venv-bench" / "bin"
CORE = 1
# Of squall: passed, and "invalid", which a generator at 100 % of its core may well be.
SQUALL_CODES = (0, 98)


@dataclass(frozen=True)
class Outcome:
    """One run of one generator."""

    requests: int
    seconds: float
    cpu_s: float = 0.0
    """CPU time of the process that makes the load; only wrk and squall have it."""
    failed_checks: int = 0
    """What the generator itself says of the checks of a journey and of failed requests."""
    document: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The results document of squall; empty for the others."""

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def cost_s(self) -> float:
        """CPU time per request. Where a generator has its core for itself, this is the inverse of
        its rate; where it shares the core with others, only this can be compared."""
        return self.cpu_s / self.requests


def wrk(url: str, users: int, seconds: int, *more: str) -> Outcome:
    before = cpu_s()
    text = run(["wrk", "-t1", f"-c{users}", f"-d{seconds}s", *more, f"{url}/"])
    used_s = cpu_s() - before
    count = re.search(r"(\d+) requests in ", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if count is None or rate is None:
        raise RuntimeError(f"wrk said something new:\n{text}")
    requests = int(count[1])
    return Outcome(requests, requests / float(rate[1]), used_s)


def squall(url: str, users: int, seconds: int, *more: str, file: str = "hello.py") -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [str(Path(sys.executable).with_name("squall")), "run", str(HERE / file)]
        command += ["-u", str(users), "-d", f"{seconds}s", "--workers", "1", "--host", url]
        command += ["--json", str(path), "-q", *more]
        run(command, codes=SQUALL_CODES)
        document = json.loads(path.read_text())
    workflow = document["workflows"][0]
    cpu_s = sum(each["cpu"] * each["seconds"] for each in document["generator"]["processes"])
    failed = sum(check["failed"] for check in document["checks"])
    failed += sum(step["failed"] for step in workflow["steps"])
    sent, elapsed_s = workflow["requests"]["sent"], workflow["elapsed_s"]
    return Outcome(sent, elapsed_s, cpu_s, failed, document)


def k6(url: str, users: int, seconds: int, file: str = "hello.js") -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "summary.json"
        command = [str(PEERS / "k6"), "run", "--vus", str(users), "--duration", f"{seconds}s"]
        command += ["--quiet", "--no-usage-report", "--log-output=none", str(HERE / file)]
        run(command, TARGET=url, SUMMARY=str(path))
        summary = json.loads(path.read_text())
    metrics = summary["metrics"]
    requests = metrics["http_reqs"]["values"]["count"]
    failed = metrics["http_req_failed"]["values"]["passes"]
    failed += metrics.get("checks", {"values": {"fails": 0}})["values"]["fails"]
    seconds_run = summary["state"]["testRunDurationMs"] / 1e3
    return Outcome(int(requests), seconds_run, failed_checks=int(failed))


def locust(url: str, users: int, seconds: int, file: str = "hello_locust.py") -> Outcome:
    command = [str(PEERS / "locust"), "-f", str(HERE / file), "--headless"]
    command += ["-u", str(users), "-r", str(users), "-t", f"{seconds}s", "--host", url]
    command += ["--only-summary", "--json", "--loglevel", "ERROR"]
    rows = json.loads(run(command))
    requests = sum(row["num_requests"] for row in rows)
    start = min(row["start_time"] for row in rows)
    end = max(row["last_request_timestamp"] for row in rows)
    return Outcome(requests, end - start, failed_checks=sum(row["num_failures"] for row in rows))


def cpu_s() -> float:
    """CPU time of all generators so far: they are children that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: Sequence[str], codes: Sequence[int] = (0,), **environment: str) -> str:
    variables = {**os.environ, **environment}
    # An installed Squall has its byte code; compiling it anew costs memory in every process.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        ["taskset", "-c", str(CORE), *command],
        capture_output=True,
        text=True,
        check=False,
        env=variables,
    )
    if done.returncode not in codes:
        told = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}:\n{told}")
    return done.stdout
