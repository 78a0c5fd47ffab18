"""`squall dev` and the commands around it: what a person meets in the first two minutes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import squall
from squall.cli.dev.node_process import NodeProcess
from tests.lab.exit_codes import check_code
from tests.lab.target import TargetHandle, running_target

SQUALL = str(Path(sys.executable).with_name("squall"))
FLOW = """
from squall import URL, Feed, HTTPResponse, Workflow, step
from names import STEP

class Shop(Workflow):
    vus = 4
    iterations = 200
    user = Feed("data/users.csv")
    thresholds = ["errors < 1%"]

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
"""
LATER = """
import asyncio
import os

from squall import depends

@depends("Shop")
class Later(Workflow):
    vus = 2
    iterations = 20

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        while not os.path.exists(GO):
            await asyncio.sleep(0.05)
        return await self.client.http.get(url)
"""


class Finished(NamedTuple):
    """A run as `check_code` wants it."""

    code: int
    err: str
    document: dict[str, Any]


@dataclass
class Dev:
    folder: Path
    facts: dict[str, Any]
    process: subprocess.Popen[str]
    target: TargetHandle

    @property
    def environment(self) -> dict[str, str]:
        own = {"SQUALL_TO": self.facts["to"], "SQUALL_SECRET_FILE": self.facts["secret_file"]}
        return os.environ | own | {"XDG_STATE_HOME": str(self.folder / "state"), "CI": "1"}

    def squall(self, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SQUALL, *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment | changes,
            timeout=60,
            check=False,
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`squall run` on this datacenter."""
        return self.squall(
            "run", "flow.py", "--to", self.facts["to"], "--host", self.target.url, *words
        )

    def ask(self, *words: str) -> Any:
        return json.loads(self.squall(*words, "--json").stdout)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Generator[Dev]:
    folder = tmp_path_factory.mktemp("dev")
    (folder / "data").mkdir()
    (folder / "data" / "users.csv").write_text("name\nada\nbob\n")
    (folder / "names.py").write_text("STEP = 'home'\n")
    (folder / "flow.py").write_text(FLOW)
    process = subprocess.Popen(
        [SQUALL, "dev", "--timers", "fast", "--json", "--data", str(folder / "dc")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_STATE_HOME": str(folder / "state")},
    )
    assert process.stdout is not None
    with running_target() as target:
        try:
            yield Dev(folder, json.loads(process.stdout.readline()), process, target)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(90)
            process.stdout.close()


def test_the_name_dev_needs_neither_address_nor_secret(dev: Dev) -> None:
    found = dev.squall("nodes", "--to", "dev", "--json", SQUALL_TO="", SQUALL_SECRET_FILE="")
    assert found.returncode == 0, found.stderr
    assert len(json.loads(found.stdout)["nodes"]) == 3


def test_a_run_on_the_cluster_is_the_run_on_this_machine(dev: Dev) -> None:
    dev.target.reset()
    remote = dev.run("--json", "remote.json", "-q")
    assert dev.target.counts()["total"] == 200, remote.stderr
    local = dev.squall(
        "run", "flow.py", "--host", dev.target.url, "--workers", "2", "--json", "local.json", "-q"
    )
    there, here = (
        json.loads((dev.folder / name).read_text()) for name in ("remote.json", "local.json")
    )
    check_code(Finished(remote.returncode, remote.stderr, there))
    check_code(Finished(local.returncode, local.stderr, here))
    assert there.keys() == here.keys()
    for key in ("status", "losses", "notes", "checks", "metrics"):
        assert there[key] == here[key], key
    for each, ended in ((there, remote), (here, local)):
        # Also if a busy machine made the verdict INVALID (98).
        assert (each["passed"], each["exit_code"]) == (True, ended.returncode)
    ours, theirs = here["workflows"][0], there["workflows"][0]
    assert ours.keys() == theirs.keys()
    for each in (ours, theirs):
        # How often a user reconnected is the target's and the moment's matter.
        for key in ("connections", "reconnects", "bytes_sent", "bytes_received"):
            del each["requests"][key]
    for key in ("name", "status", "shape", "profile", "starts", "requests"):
        assert ours[key] == theirs[key], key
    assert theirs["steps"][0]["count"] == ours["steps"][0]["count"] == 200
    assert [t["expression"] for t in there["thresholds"]] == ["errors < 1%"]


def test_a_detached_job_is_followed_and_cancelled(dev: Dev) -> None:
    words = ("flow.py", "--host", dev.target.url, "-u", "2", "-d", "60s")
    job = dev.squall("submit", *words).stdout.strip()
    assert dev.ask("status", job)["state"] in ("queued", "preparing", "running")
    assert dev.squall("why", job).stdout.startswith(job)
    assert dev.ask("jobs")["jobs"][0]["job"] == job
    cancelled = dev.ask("cancel", job)
    assert cancelled.pop("read")["level"] == "strong"
    assert cancelled == {"job": job, "state": "stopping", "repeated": False}
    watched = dev.squall("watch", job, "-q")
    assert watched.returncode == 105, watched.stderr
    assert "interrupted" in watched.stdout.splitlines()[0]
    again = dev.squall("cancel", job)
    assert (again.returncode, again.stdout) == (0, f"job {job} has already ended: cancelled\n")


def test_the_same_key_is_the_same_job(dev: Dev) -> None:
    words = ("submit", "flow.py", "--host", dev.target.url, "--key", "nightly")
    first, second = dev.squall(*words), dev.squall(*words)
    assert first.stdout == second.stdout != ""
    assert "submitted before with this key" in second.stderr
    other = dev.squall(*words, "-u", "3")
    assert other.returncode == 2 and "choose another key" in other.stderr


def test_bad_input_is_one_line_each(dev: Dev) -> None:
    (dev.folder / "broken.py").write_text("raise ValueError('no')\n")
    elsewhere = dev.folder / "env" / "site-packages"
    elsewhere.mkdir(parents=True)
    (elsewhere / "farlib.py").write_text("")
    (dev.folder / "far.py").write_text(f"import farlib\n{FLOW}")
    to = ("--to", dev.facts["to"], "--host", dev.target.url, "-q")
    cases = [
        (dev.squall("status", "x-1"), 2, "no job x-1 here"),
        (dev.squall("cancel", "x-1"), 2, "no job x-1 here"),
        (dev.squall("drain", "w9"), 2, "w9"),
        (dev.squall("jobs", "--to", "127.0.0.1:1"), 3, "nothing listens there"),
        (dev.squall("jobs", SQUALL_SECRET_FILE="", SQUALL_SECRET="x" * 20), 3, "wrong secret"),
        (dev.squall("jobs", "--cluster", "other"), 3, "wrong secret or not a Squall node"),
        (dev.squall("run", "broken.py", *to), 107, "broken.py:1  ValueError: no"),
        (dev.squall("run", "far.py", *to, PYTHONPATH=str(elsewhere)), 104, "farlib"),
    ]
    for ended, code, text in cases:
        assert ended.returncode == code, ended
        assert len(ended.stderr.strip().splitlines()) == 1 and text in ended.stderr, ended


def test_python_submits_streams_and_gets_the_result(
    dev: Dev, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(dev.folder / "state"))
    facts = dev.facts

    states: list[str] = []
    results: list[tuple[str, int]] = []
    go = dev.folder / "go"
    (dev.folder / "two.py").write_text(f"{FLOW}\nGO = {str(go)!r}\n{LATER}")

    async def main() -> None:
        async with squall.Client([facts["to"]], secret_file=facts["secret_file"]) as client:
            job = await client.submit(
                dev.folder / "two.py",
                host=dev.target.url,
                on_status_update=lambda view: states.append(view.state),
                on_workflow_result=lambda each: results.append((each.name, each.requests["sent"])),
            )
            order: list[str] = []
            async for each in job.workflow_results():
                order.append(f"{each.name} {(await job.status()).state}")
                # The second workflow goes on only when the result of the first has come.
                go.touch()
            assert order[0] == "Shop running" and order[1].startswith("Later ")
            seen = [snapshot async for snapshot in job.stream()]
            result = await job.result()
            assert results == [(each.name, each.requests["sent"]) for each in result.workflows]
            assert states[-1] == result.status == "completed"
            assert [snapshot.final for snapshot in seen] == [False] * (len(seen) - 1) + [True]
            assert sum(each.made for each in seen[-1].workflows) == sum(
                each.iteration.count + each.iteration.interrupted for each in result.workflows
            )
            check_code(Finished(result.exit_code, "", result.document))
            assert (
                result.passed == (result.exit_code == 0) and result.step("home", "Shop").count > 0
            )
            assert seen and all(a.elapsed_s <= b.elapsed_s for a, b in pairwise(seen))
            assert (await job.status()).state == "completed"
            assert {node.role for node in await client.nodes()} == {"manager", "worker"}

    asyncio.run(main())


def descendants(pid: int) -> list[int]:
    """Launchers, main processes and core processes."""
    found: list[int] = []
    # Spare core processes come and go.
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def left(pids: list[int], within_s: float) -> list[int]:
    """What still lives of them after a while."""
    until = time.monotonic() + within_s
    while time.monotonic() < until and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.05)
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_killed_node_is_started_again(dev: Dev) -> None:
    def pid() -> int:
        (found,) = [node["pid"] for node in dev.ask("nodes")["nodes"] if node["name"] == "w1"]
        return found

    before = pid()
    os.kill(before, signal.SIGKILL)
    until = time.monotonic() + 60.0
    while pid() == before:
        assert time.monotonic() < until, "no other main process registers"
        time.sleep(0.1)
    assert pid() in descendants(dev.process.pid)


def test_ctrl_c_ends_all_of_it(dev: Dev) -> None:
    """The last one: it ends the datacenter of this module."""
    until = time.monotonic() + 60.0
    while len(pids := descendants(dev.process.pid)) <= 6:
        assert time.monotonic() < until, "three launchers, three main processes, and core processes"
        time.sleep(0.1)
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(90) == 0
    assert left(pids, within_s=40.0) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_datacenter_that_is_killed(tmp_path: Path, number: int) -> None:
    words = ["dev", "--timers", "fast", "--json", "--data", str(tmp_path / "dc"), "--workers", "1"]
    process = subprocess.Popen([SQUALL, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline()
        pids = descendants(process.pid)
        process.send_signal(number)
        process.wait(90)
    assert left(pids, within_s=40.0) == []


def test_a_node_that_does_not_end_is_killed_below_its_launcher(tmp_path: Path) -> None:
    main = (
        "import time, signal; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(99)"
    )
    launcher = (
        "import sys; from squall.runtime.real.launcher import launch; "
        "launch([sys.executable, '-c', sys.argv[1]])"
    )
    process = subprocess.Popen([sys.executable, "-c", launcher, main], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        pids = [process.pid, *descendants(process.pid)]
        node = NodeProcess("w1", "worker", [], tmp_path / "log", {}, process=process)
        node.terminate()
        node.wait(0.2)
        assert node.ended is None
        node.kill()
        assert left(pids, within_s=40.0) == []
