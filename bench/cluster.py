"""A datacenter of real processes on this machine, measured: `make bench-cluster`.

- submission to first request: from sending the job, to idle workers, to its first arrival
  at the target;
- CPU of core processes per request, beside `squall run` in the same run;
- 200 queued jobs of one second each: they drain without a stall;
- one job of 20,000 users over two workers;
- with `--users 50000` nothing but one job of so many users over two workers of four cores.

Ratios and counts are judged (`--check`); absolute times are printed, and judged only
where a bound was promised.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

from msgspec import UNSET

from squall.cluster.client.cluster_client import TERMINAL, ClusterClient
from squall.cluster.client.submission_journal import SubmissionJournal
from squall.cluster.protocol.bundle import make_bundle
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import Submission, Targets
from squall.cluster.results.job_result import JobResult
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.engine.run.local_run import load_manifest
from squall.engine.run_options import RunOptions
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner

SQUALL = Path(sys.executable).with_name("squall")
FIRST_REQUEST_S = 0.3
CPU_RATIO = 1.1
IDLE_S = 2.0
"""After a job its workers start new core processes for the next one: then they are idle."""
STEP = """
    @step()
    async def get(self, url: URL = "/{query}") -> HTTPResponse:
        return await self.client.http.get(url)
"""
HEAD = "from squall import URL, HTTPResponse, Workflow, step\n\n\nclass Load(Workflow):\n"


def flow(attributes: str, query: str = "") -> str:
    return (
        HEAD + "".join(f"    {line}\n" for line in attributes.split(";")) + STEP.format(query=query)
    )


class Lab:
    """A target and a datacenter, as `squall dev` starts it."""

    def __init__(self, folder: Path, url: str, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.url = url
        self.facts = facts
        self.secret = Path(facts["secret_file"]).read_text().strip()

    def counts(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/counts") as answer:
            return json.load(answer)

    def reset(self) -> None:
        urllib.request.urlopen(f"{self.url}/reset").close()

    def write(self, text: str) -> Path:
        path = self.folder / "flow.py"
        path.write_text(text)
        return path

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncGenerator[tuple[ClusterClient, SubmissionJournal]]:
        runtime = RealRuntime("bench", None, self.folder, None)
        tasks = TaskRunner(runtime.clock, runtime.random)
        addresses = [text.rpartition(":") for text in self.facts["addresses"]]
        client = ClusterClient(
            runtime,
            tasks,
            addresses=[(host, int(port)) for host, _, port in addresses],
            secrets=Secrets.of_credential(client_credential(self.secret, "bench")),
            cluster=self.facts["cluster"],
        )
        try:
            yield client, SubmissionJournal(runtime, str(os.getpid()), lambda owner: False)
        finally:
            await client.close()
            await tasks.shutdown(2.0)
            await runtime.close()

    async def packed(self, text: str, targets: Targets | None = None) -> tuple[Submission, bytes]:
        path = self.write(text)
        options = RunOptions(file=str(path), host=self.url)
        manifest = await load_manifest(options)
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        bundle = make_bundle({"flow.py": path.read_bytes()}, entry="flow.py", python=python)
        options = RunOptions(file="flow.py", host=self.url)
        return (
            Submission(
                bundle=bundle.digest,
                bundle_size=len(bundle.data),
                contents=bundle.manifest,
                manifest=manifest,
                options=options,
                targets=targets or UNSET,
            ),
            bundle.data,
        )


@contextlib.contextmanager
def lab(workers: int, cores: int, targets: int = 1, host: str = "127.0.0.1") -> Generator[Lab]:
    with running(
        ["--workers", str(workers), "--cores", str(cores)], targets=targets, host=host
    ) as at:
        yield at


@contextlib.contextmanager
def running(words: list[str], *, targets: int = 1, host: str = "127.0.0.1") -> Generator[Lab]:
    """What `squall dev` starts with these flags, and a target."""
    with tempfile.TemporaryDirectory(prefix="squall-bench-") as folder:
        listen = ["--host", host, "--port", "0", "--workers", str(targets)]
        target = subprocess.Popen(
            [str(SQUALL), "target", "--exit-with-stdin", *listen],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        command = [str(SQUALL), "dev", *words, "--json"]
        dev = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert target.stdout is not None
            assert dev.stdout is not None
            url = target.stdout.readline().split()[-1].replace("0.0.0.0", "127.0.0.1")
            yield Lab(Path(folder), url, json.loads(dev.stdout.readline()))
        finally:
            dev.terminate()
            dev.wait(20)
            target.kill()
            target.wait()


async def ended(client: ClusterClient, job: JobId) -> JobResult:
    async for _ in client.follow(job):
        pass
    return await client.result(job)


async def first_request(at: Lab, rounds: int, targets: Targets | None = None) -> list[float]:
    found: list[float] = []
    async with at.client() as (client, journal):
        await client.nodes()
        for number in range(rounds):
            submission, data = await at.packed(
                flow(f"vus = 2;duration = '{500 + number}ms'"), targets
            )
            at.reset()
            await asyncio.sleep(IDLE_S)
            began = time.perf_counter()
            accepted, _ = await client.submit(submission, data, journal)
            await ended(client, accepted.job)
            found.append(at.counts()["first_arrival_s"] - began)
    return found


async def cpu_per_request(at: Lab, seconds: int) -> tuple[float, float]:
    """Microseconds of the core process per request: in the datacenter, and locally."""
    text = flow(f"vus = 32;duration = '{seconds}s'")
    async with at.client() as (client, journal):
        submission, data = await at.packed(text)
        accepted, _ = await client.submit(submission, data, journal)
        result = await ended(client, accepted.job)
    requests = sum(report.requests.sent for report in result.reports)
    cpu_s = sum(each.cpu_seconds for each in result.generator.processes)
    path = at.folder / "local.json"
    words = [str(SQUALL), "run", str(at.write(text)), "--host", at.url, "--workers", "1"]
    process = await asyncio.create_subprocess_exec(
        *words, "--json", str(path), "--ui", "none", stdout=subprocess.DEVNULL
    )
    await process.wait()
    document = json.loads(path.read_text())
    local_s = sum(each["seconds"] * each["cpu"] for each in document["generator"]["processes"])
    local = sum(each["requests"]["sent"] for each in document["workflows"])
    return cpu_s / requests * 1e6, local_s / local * 1e6


async def queued(at: Lab, jobs: int) -> tuple[float, float]:
    """(seconds for all, longest time in which none ended)."""
    async with at.client() as (client, journal):
        submission, data = await at.packed(flow("vus = 1;duration = '1s'", "?delay=20ms"))
        began = time.perf_counter()
        names: list[JobId] = []
        for number in range(jobs):
            accepted, _ = await client.submit(submission, data, journal, f"queued-{number}-{began}")
            names.append(accepted.job)
        left, last, gap = set(names), time.perf_counter(), 0.0
        while left:
            views = await client.jobs(limit=jobs + 50)
            over = {view.job for view in views if view.state in TERMINAL} & left
            now = time.perf_counter()
            if over:
                left -= over
                gap, last = max(gap, now - last), now
            if now - last > 60.0:
                raise SystemExit(f"stalled with {len(left)} jobs left")
            await asyncio.sleep(0.1)
        return time.perf_counter() - began, gap


async def many_users(at: Lab, users: int, seconds: int) -> tuple[int, int, int]:
    """(users at the target at once, counted, the target's own count)."""
    at.reset()
    async with at.client() as (client, journal):
        text = flow(f"vus = {users};duration = '{seconds}s';think = '5s'", "?delay=1ms")
        submission, data = await at.packed(text)
        accepted, _ = await client.submit(submission, data, journal)
        result = await ended(client, accepted.job)
    counts = at.counts()
    sent = sum(report.requests.sent for report in result.reports)
    return counts["connections"]["max_open"], sent, counts["total"]


async def very_many_users(users: int, seconds: int) -> int:
    """One job; a person who waits sees that all users are there, then that all is over."""
    with lab(workers=2, cores=4, targets=4, host="0.0.0.0") as at:
        # A machine has some 28,000 ports towards one address.
        text = flow(f"vus = {users};duration = '{seconds}s';think = '10s..30s'")
        port = at.url.rpartition(":")[2]
        own = f'self.client.http.get(f"http://127.0.0.{{1 + self.vu.id % 8}}:{port}/")'
        text = text.replace("self.client.http.get(url)", own)
        async with at.client() as (client, journal):
            submission, data = await at.packed(text)
            accepted, _ = await client.submit(submission, data, journal)
            watched = asyncio.create_task(all_there(at, users))
            began = time.perf_counter()
            result = await ended(client, accepted.job)
            whole_s = time.perf_counter() - began
            watched.cancel()
            nodes = await client.nodes()
        counts = at.counts()
    there_s = watched.result() if watched.done() and not watched.cancelled() else None
    sent = sum(report.requests.sent for report in result.reports)
    free = all(node.free == node.cores for node in nodes.nodes if node.role == "worker")
    print(
        f"{users} users over 8 cores of 2 workers: {counts['connections']['max_open']} connections"
        f" (all there after {there_s or 0.0:.1f} s), {sent} counted, {counts['total']} at the"
        f" target, {result.status} after {whole_s:.0f} s of {seconds} s, cores free: {free}"
    )
    lost = len(result.losses)
    good = there_s is not None and sent == counts["total"] and free and not lost
    print("ok" if good else f"FAILED very many users ({lost} losses)")
    return 0 if good else 1


async def all_there(at: Lab, users: int) -> float:
    """Seconds until so many connections were open at once."""
    began = time.perf_counter()
    while True:
        counts = await asyncio.to_thread(at.counts)
        if counts["connections"]["max_open"] >= users:
            return time.perf_counter() - began
        await asyncio.sleep(0.5)


async def measure(options: argparse.Namespace) -> int:
    if options.users:
        return await very_many_users(options.users, 20 if options.quick else 90)
    bad: list[str] = []
    with lab(workers=1, cores=1) as at:
        there, here = await cpu_per_request(at, 4 if options.quick else 10)
        print(f"CPU per request: {there:.1f} us in the datacenter, {here:.1f} us with squall run")
        print(f"  ratio {there / here:.2f} (at most {CPU_RATIO})")
        if there / here > CPU_RATIO:
            bad.append("CPU per request")
    with lab(workers=2, cores=1) as at:
        times = await first_request(at, 3 if options.quick else 9)
        middle = statistics.median(times)
        print(
            f"submission to first request: median {middle * 1000:.0f} ms, "
            f"worst {max(times) * 1000:.0f} ms (bound {FIRST_REQUEST_S * 1000:.0f} ms)"
        )
        if middle > FIRST_REQUEST_S:
            bad.append("submission to first request")
        jobs = 20 if options.quick else 200
        whole_s, gap_s = await queued(at, jobs)
        print(f"{jobs} queued jobs of 1 s on 2 cores: {whole_s:.0f} s, longest gap {gap_s:.1f} s")
        if gap_s > 10.0:
            bad.append("queued jobs stall")
    # A process may often hold no more than 20,000 descriptors: the target is two.
    with lab(workers=2, cores=1, targets=2) as at:
        users = 2_000 if options.quick else 20_000
        most, sent, total = await many_users(at, users, 10 if options.quick else 30)
        print(
            f"{users} users over 2 workers: {most} connections, {sent} counted, "
            f"{total} at the target"
        )
        if sent != total or most != users:
            bad.append("many users")
    for what in bad:
        print(f"FAILED {what}")
    return 1 if bad and options.check else 0


def _allow_files(count: int) -> None:
    """The target holds a connection for every user; all processes inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), max(hard, count)))


def main() -> int:
    _allow_files(65_536)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--users", type=int, default=0, help="only one job, of so many users")
    return asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
