"""Pages of jobs on a datacenter of real processes, one of which is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab.nodes import Cluster
from tests.lab.browser import Browser, Page, browser_program, running_browser
from tests.lab.target import TargetHandle, running_target
from tests.runs.lab.command import wait_until

pytestmark = pytest.mark.nightly

FLOW = """
class Shop(Workflow):
    vus = 4
    think = "50ms"
    duration = "20m"

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
"""
POINTS = "Number(document.getElementById('rate').dataset.points)"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = browser_program()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    with running_browser(program, tmp_path / "profile") as started:
        yield started


@pytest.fixture
def target() -> Iterator[TargetHandle]:
    with running_target([]) as handle:
        yield handle


def reaches(page: Page, expression: str) -> None:
    wait_until(lambda: bool(page.ask(expression)))


def test_a_killed_worker_shows_and_the_job_is_controlled_from_three_places(
    browser: Browser, target: TargetHandle, tmp_path: Path
) -> None:
    with Cluster(tmp_path, target, workers=2) as cluster:
        run = cluster.run(cluster.write(FLOW), "--web", "0", "-q")
        pages = tmp_path / "state" / "squall" / "pages"
        wait_until(lambda: bool(list(pages.glob("*.json"))))
        (file,) = pages.glob("*.json")
        known = json.loads(file.read_text())
        page = browser.open(f"{known['address']}#token={known['token']}")
        reaches(page, f"{POINTS} >= 3")

        cluster.kill("w1")
        reaches(page, "document.querySelectorAll('#losses li').length > 0")
        assert "w1" in page.ask("document.getElementById('losses').textContent")

        paused = cluster.squall("adjust", "local", "--pause")
        assert paused.code == 0, paused.err
        reaches(page, "document.documentElement.dataset.paused === 'true'")

        web = cluster.begin("web", *cluster.reach, "--listen", "0")
        assert web.process.stderr is not None
        address = web.process.stderr.readline().split()[1]
        jobs = browser.open(address)
        reaches(jobs, "document.querySelectorAll('#live a').length === 1")
        job = jobs.ask("document.querySelector('#live a').href")
        of_job = browser.open(job + "#" + address.partition("#")[2])
        reaches(of_job, f"{POINTS} >= 1")
        reaches(of_job, "document.documentElement.dataset.paused === 'true'")
        of_job.ask("document.getElementById('pause').click()")
        reaches(page, "document.documentElement.dataset.paused === 'false'")

        of_job.ask("document.getElementById('stop').click()")
        reaches(page, "document.getElementById('report').dataset.loaded === 'true'")
        reaches(of_job, "document.getElementById('report').dataset.loaded === 'true'")
        ended = run.end()
        notes = ended.document["notes"]
        assert any("paused" in note for note in notes) and any("resumed" in note for note in notes)
        reaches(jobs, "document.querySelectorAll('#past tbody tr').length === 1")
        web.interrupt()
        assert web.end().code == 0
