"""Pages in a real Chromium, served by the built-in target."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from squall.api.errors import TransportError
from squall.clients.http import HTTPShared
from squall.clients.registry import make_client
from tests.lab.browser import browser_program
from tests.lab.target import TargetHandle, running_target
from tests.services.http.lab.servers import on_uvloop, swept

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        browser_program() is None and not os.environ.get("CI"), reason="needs Chromium"
    ),
]
DELAY_S = 0.3


@pytest.fixture(scope="module")
def target() -> Any:
    with running_target() as target:
        yield target


@on_uvloop
async def test_the_times_of_a_page_have_the_delay_of_its_server(target: TargetHandle) -> None:
    shared = HTTPShared(host=target.url)
    async with swept(shared) as http:
        browser = make_client("browser", http)
        quick = await browser.open("/")
        slow = await browser.open(f"/?delay={int(DELAY_S * 1000)}ms")
        assert (quick.status, quick.ok, slow.ok) == (200, True, True)
        for page in (quick, slow):
            assert 0 < page.ttfb_s <= page.dom_s <= page.load_s
            assert page.ttfb_s <= page.fcp_s <= page.lcp_s and page.cls == 0
            assert page.transferred > 0 and page.requests >= 1
        assert slow.ttfb_s >= DELAY_S and slow.timings.total_s >= DELAY_S
        assert slow.first_byte - slow.started >= DELAY_S
        missing = await browser.goto("/?status=404")
        assert (missing.failure, missing.lcp_s) == ("404 Not Found", 0)
        counters = shared.counters_of("browser")
        assert (counters.sent, counters.answered, counters.connections) == (3, 3, 1)


@on_uvloop
async def test_a_user_acts_on_the_page(target: TargetHandle) -> None:
    page = (
        "<input id=name><button onclick=\"document.body.append('Hello '+"
        "document.getElementById('name').value)\">greet</button>"
    )
    async with swept(HTTPShared(host=target.url)) as http:
        browser = make_client("browser", http)
        await browser.open("/")
        await browser.page.set_content(page)
        await browser.fill("#name", "Ada")
        await browser.click("button")
        assert (await browser.expect("body", "Hello Ada")).ok
        for call in (
            browser.expect("body", "hello ada", timeout="200ms"),
            browser.click("#nothing", timeout="200ms"),
        ):
            with pytest.raises(TransportError, match=r"timeout after 0\.2 s"):
                await call


@on_uvloop
async def test_users_have_cookies_of_their_own(target: TargetHandle) -> None:
    shared = HTTPShared(host=target.url)
    async with swept(shared) as http:
        one = make_client("browser", http)
        other = make_client("browser", http)
        for browser in (one, other):
            await browser.open("/")
        await one.page.evaluate("document.cookie = 'seen=1'")
        assert "seen" in await one.page.evaluate("document.cookie")
        assert "seen" not in await other.page.evaluate("document.cookie")
        await one.open("/", fresh=True)
        assert "seen" not in await one.page.evaluate("document.cookie")


@on_uvloop
async def test_failures_are_counted_by_reason_and_the_next_page_loads(target: TargetHandle) -> None:
    shared = HTTPShared(host=target.url)
    async with swept(shared) as http:
        browser = make_client("browser", http)
        with pytest.raises(TransportError, match=r"timeout after 0\.3 s"):
            await browser.open("/?delay=30s", timeout="300ms")
        with pytest.raises(TransportError, match="connection reset"):
            await browser.open("/?resets=1")
        assert (await browser.open("/")).ok
        counters = shared.counters_of("browser")
        assert (counters.sent, counters.answered, counters.failed) == (3, 1, 2)


@on_uvloop
async def test_a_browser_that_died_is_started_again(target: TargetHandle) -> None:
    shared = HTTPShared(host=target.url)
    async with swept(shared) as http:
        browser = make_client("browser", http)
        await browser.open("/")
        (program,) = [pid for pid in _descendants(os.getpid()) if _is_browser(pid)]
        os.kill(program, signal.SIGKILL)
        with pytest.raises(TransportError, match="ended"):
            await _until_it_fails(browser)
        assert (await browser.open("/")).ok
    await asyncio.sleep(0)


async def _until_it_fails(browser: Any) -> None:
    while True:
        await browser.open("/")


FAILING = """
from squall import URL, PageResult, Workflow, step, then


class Visitor(Workflow):
    vus = 1
    iterations = {iterations}

    @step()
    async def missing(self, url: URL = "/?status=404") -> PageResult:
        return await self.client.browser.open(url)

    @then()
    async def wrong(self, url: URL = "/?size=100") -> PageResult:
        page = await self.client.browser.open(url)
        assert not page.ok, "not what this page should be"
        return page


class Hanging(Workflow):
    vus = 1
    iterations = 1

    @step(timeout="500ms")
    async def hangs(self, url: URL = "/?delay=30s") -> PageResult:
        return await self.client.browser.open(url)
"""


def test_failed_steps_leave_their_first_screenshots(target: TargetHandle, tmp_path: Path) -> None:
    most = 10
    (tmp_path / "visitor.py").write_text(FAILING.format(iterations=most + 2))
    command = [sys.executable, "-m", "squall", "run", "visitor.py", "--host", target.url, "-q"]
    more = {"SQUALL_SCREENSHOTS": "shots/of run"}
    done = subprocess.run(
        [*command, "--workers", "1"], cwd=tmp_path, env=os.environ | more, capture_output=True
    )
    # No step of the two passed.
    assert done.returncode in (98, 99), done.stderr
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "shots/of run").iterdir()}
    numbers = range(1, most + 1)
    wanted = {f"{step}-{number}.png" for step in ("missing", "wrong") for number in numbers}
    assert set(pictures) == wanted | {"hangs-1.png"}
    assert all(each.startswith(b"\x89PNG\r\n") for each in pictures.values())


def test_a_folder_that_cannot_be_made_ends_the_run_before_it_begins(
    target: TargetHandle, tmp_path: Path
) -> None:
    (tmp_path / "visitor.py").write_text(FAILING.format(iterations=1))
    (tmp_path / "shots").write_text("a file")
    command = [sys.executable, "-m", "squall", "run", "visitor.py", "--host", target.url, "-q"]
    more = {"SQUALL_SCREENSHOTS": "shots"}
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | more, capture_output=True, text=True
    )
    assert done.returncode == 104 and "SQUALL_SCREENSHOTS=shots: File exists" in done.stderr


def test_a_killed_process_leaves_no_browser_behind(target: TargetHandle, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\n"
        "from squall.clients.calls.arrivals import ArrivalLoop\n"
        "from squall.clients.http import HTTPClient, HTTPShared\n"
        "from squall.clients.registry import make_client\n"
        "async def main():\n"
        f"    client = make_client('browser', HTTPClient(HTTPShared(), 0))\n"
        f"    await client.open('{target.url}/')\n"
        "    print('open', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "with asyncio.Runner(loop_factory=ArrivalLoop) as runner:\n"
        "    runner.run(main())\n"
    )
    made = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    try:
        assert made.stdout is not None and made.stdout.readline() == b"open\n"
        family = _descendants(made.pid)
        assert sum(map(_is_browser, family)) == 1
    finally:
        made.kill()
        made.wait()
        made.stdout and made.stdout.close()
    deadline = time.monotonic() + 30
    while any(map(_is_alive, family)):
        assert time.monotonic() < deadline, [pid for pid in family if _is_alive(pid)]
        time.sleep(0.05)


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    left = [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def _is_browser(pid: int) -> bool:
    """The first process of Chromium: the others have a type."""
    words = _command(pid)
    return b"--remote-debugging-pipe" in words and not any(
        word.startswith(b"--type=") for word in words
    )


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
