"""`--web` of `squall manager` and `squall gate`, as `squall dev --web` starts them: the page of the
cluster, served beside the node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.node_page import NodePage, is_gone, page_processes
from tests.lab.target import running_target
from tests.runs.lab.command import wait_until

SQUALL = str(Path(sys.executable).with_name("squall"))
FLOW = """
from squall import URL, HTTPResponse, Workflow, step

class Shop(Workflow):
    vus = 2
    think = "50ms"
    duration = "20m"

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
"""


@contextmanager
def dev(folder: Path, *words: str) -> Generator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [SQUALL, "dev", "--timers", "fast", "--json", "--data", str(folder / "dc"), *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_STATE_HOME": str(folder / "state")},
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline()), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(90)
        process.stdout.close()


def main_process(launcher: int) -> int:
    """The node below its launcher."""
    [pid] = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return int(pid)


@pytest.mark.parametrize(
    ("words", "name"),
    [((), "m1"), pytest.param(("--gates", "1"), "g1", marks=pytest.mark.nightly)],
)
def test_the_page_is_one_of_the_cluster_and_no_part_of_the_node(
    words: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    with running_target() as target, dev(tmp_path, "--web", "0", *words) as (facts, process):
        page = NodePage(Path(facts["page_file"]))
        assert page.address.startswith("http://127.0.0.1:")
        reach = ["--to", facts["to"], "--secret-file", facts["secret_file"]]
        submit = [SQUALL, "submit", str(tmp_path / "flow.py"), "--host", target.url, *reach]
        state = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
        submitted = subprocess.run(submit, capture_output=True, text=True, env=state)
        assert submitted.returncode == 0, submitted.stderr
        job = submitted.stdout.strip()
        wait_until(lambda: (job, "running") in page.jobs())

        # Everyone on this machine may look, and the token controls.
        wait_until(lambda: page.asks(f"jobs/{job}/api/change", body={"paused": True})[0] != 0)
        assert page.asks(f"jobs/{job}/api/change", body={"paused": True})[0] == 403
        assert page.asks("api/jobs")[1]["mayControl"] is False
        assert page.asks("api/jobs", token=page.token)[1]["mayControl"] is True

        [launcher] = [each["pid"] for each in facts["nodes"] if each["name"] == name]
        node = main_process(launcher)
        wait_until(lambda: bool(page_processes(node)))
        [first] = page_processes(node)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: page_processes(node) not in ([], [first]))
        # The socket and the tokens are the node's: open pages go on.
        wait_until(lambda: (job, "running") in page.jobs())
        assert main_process(launcher) == node

        def is_stopped() -> bool:
            asked = page.asks(f"jobs/{job}/api/stop", token=page.token, body={"now": True})
            return asked[0] == 200

        wait_until(is_stopped)
        wait_until(lambda: (job, "cancelled") in page.jobs())

        [second] = page_processes(node)
        log = (tmp_path / "dc" / f"{name}.log").read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0
        wait_until(lambda: is_gone(second))
        assert not Path(facts["page_file"]).exists()
    assert "page_served" in log and str(facts["page_file"]) in log
    assert "page_ended" in log
    assert page.token not in log


def test_a_node_that_is_killed_takes_its_page_along_and_serves_another(tmp_path: Path) -> None:
    with dev(tmp_path, "--web", "0") as (facts, _):
        file = Path(facts["page_file"])
        [launcher] = [each["pid"] for each in facts["nodes"] if each["name"] == "m1"]
        node = main_process(launcher)
        wait_until(lambda: bool(page_processes(node)))
        [first] = page_processes(node)
        before = NodePage(file)
        os.kill(node, signal.SIGKILL)
        wait_until(lambda: is_gone(first))
        wait_until(lambda: file.exists() and NodePage(file).token != before.token)
        wait_until(lambda: NodePage(file).asks("api/jobs")[0] == 200)


def test_a_port_that_is_taken_is_found_before_the_nodes_work(tmp_path: Path) -> None:
    ended = subprocess.run(
        [SQUALL, "dev", "--web", "1.2.3.4:1", "--data", str(tmp_path / "dc")],
        capture_output=True,
        text=True,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")},
        timeout=90,
    )
    assert ended.returncode == 1
    assert "squall manager: --web 1.2.3.4:1: cannot listen there" in ended.stderr
