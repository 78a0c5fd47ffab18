"""The page of a real run in a real browser: it draws, controls the load, and keeps the report."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.browser import Browser, Page, browser_program, running_browser
from tests.lab.target import TargetHandle, running_target
from tests.runs.lab.command import CommandLab, Started, wait_until

FLOW = """
class Shop(Workflow):
    rate = "30/s"
    duration = "20m"
    thresholds = ["pay.p(99) < 60s"]

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        print("<img src=x onerror=alert(1)>")
        return await self.client.http.get(url)

    @step()
    async def pay(self, url: URL = "/?status=503") -> HTTPResponse:
        return await self.client.http.get(url, name="<b>pay</b>")
"""
POINTS = "Number(document.getElementById('rate').dataset.points)"
ROWS = "[...document.querySelectorAll('#steps tr[data-row]')].map(row => row.dataset.row)"
PAUSED = "document.documentElement.dataset.paused === 'true'"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = browser_program()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    with running_browser(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def target() -> Iterator[TargetHandle]:
    with running_target([]) as handle:
        yield handle


def address_of(run: Started) -> str:
    """The address with the token, which the command prints once."""
    wait_until(lambda: "#token=" in run.said)
    found = re.search(r"^page  (http://127\.0\.0\.1:\d+/#token=\S+)$", run.said, re.MULTILINE)
    assert found is not None, run.said
    return found[1]


def reaches(page: Page, expression: str) -> None:
    wait_until(lambda: bool(page.ask(expression)))


def draws_more(page: Page, seconds: int) -> None:
    """Waits for so many further seconds of the run on the page."""
    reaches(page, f"{POINTS} >= {page.ask(POINTS) + seconds}")


def nothing_arrives(page: Page, target: TargetHandle) -> bool:
    before = target.counts()["total"]
    draws_more(page, 2)
    return target.counts()["total"] == before


def click(page: Page, element: str) -> None:
    page.ask(f"document.getElementById('{element}').click()")


def test_a_run_is_watched_paused_stopped_and_reported_in_a_browser(
    browser: Browser, target: TargetHandle, tmp_path: Path
) -> None:
    command = CommandLab(tmp_path, target)
    flow = command.write(FLOW)
    words = ("run", flow, "--host", target.url, "--workers", "1", "--web", "0", "-q")
    run = command.start(*words, XDG_STATE_HOME=str(tmp_path / "state"))
    try:
        address = address_of(run)
        page = browser.open(address)
        reaches(page, f"{POINTS} >= 2")
        assert "token" not in page.ask("location.href")

        # Charts, tables and texts of others, which are text and nothing else.
        reaches(page, "document.querySelectorAll('.plot canvas').length >= 4")
        reaches(page, "Number(document.getElementById('heat').dataset.cells) > 0")
        names = {"home", "pay", "<b>pay</b>", "iteration"}
        wait_until(lambda: set(page.ask(ROWS)) == names)
        reaches(page, "document.getElementById('log').textContent.includes('<img src=x')")
        reaches(page, "document.getElementById('errors').textContent.includes('503')")
        assert page.ask("document.querySelectorAll('#steps b, #log img').length") == 0
        page.ask("document.querySelector('#steps tr[data-row=home]').click()")
        assert page.ask("document.getElementById('rate-name').textContent") == "Shop.home"

        # One who has no token only looks.
        other = browser.open(address.partition("#")[0], width=390, dark=True)
        reaches(other, f"{POINTS} >= 1")
        assert other.ask("document.getElementById('controls').hidden") is True
        assert other.ask("document.getElementById('read-only').hidden") is False
        # On a phone, too, nothing but tables with many columns is wider than the page.
        reaches(other, "document.getElementById('errors').textContent.includes('503')")
        assert other.ask("document.documentElement.scrollWidth") <= 390

        # A pause reaches the target: at some moment nothing arrives for two seconds of the run.
        click(page, "pause")
        reaches(page, PAUSED)
        wait_until(lambda: nothing_arrives(page, target))
        counted = target.counts()["total"]
        reaches(other, PAUSED)
        assert other.ask("document.getElementById('paused').hidden") is False
        click(page, "pause")
        wait_until(lambda: target.counts()["total"] > counted)

        # The report stays in the page when the command has ended.
        click(page, "stop")
        reaches(page, "document.getElementById('report').dataset.loaded === 'true'")
        ended = run.end()
        assert page.ask("document.getElementById('results').href").startswith("blob:")
        assert re.search(r"Shop: paused at [\d.]+ s", ended.out)
        for each in (page, other):
            assert [found for found in each.complaints() if "Content Security" in str(found)] == []
        assert not list((tmp_path / "state" / "squall" / "pages").glob("*.json"))
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
