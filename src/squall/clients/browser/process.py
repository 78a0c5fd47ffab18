"""Runs Chromium: one browser for each event loop, which is one per core process.

It is started before the run and again after it died, and ends with the last share that uses it. If
the process is killed, its pipe to Playwright's driver closes, and the driver ends the browser.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from playwright.async_api import Browser, Error, Playwright, async_playwright

from squall.api.errors import ConfigError
from squall.clients.browser.screenshots import screenshots

if TYPE_CHECKING:
    from squall.clients.http.shared import HTTPShared

PROGRAM = "SQUALL_CHROMIUM"
"""The environment variable that names another browser."""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # HTTP/3 would be tried beside HTTP/2, which no server of a test expects.
    "--disable-quic",
    "--no-first-run",
    # Nothing but the test goes over the network.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Measured with Chromium 156: the browser with its driver, and one context with a page.
BROWSER_BYTES = 363 << 20
PAGE_BYTES = 56 << 20
_START_TIMEOUT_MS = 30_000
# How long the orderly end of a browser may take; its driver ends one that takes longer.
_GOODBYE_S = 5.0


class BrowserOfLoop:
    """The browser that the shares of one loop have in common. `shares` counts them."""

    def __init__(self) -> None:
        self.shares = 0
        self._starting = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    async def get(self, shared: HTTPShared) -> Browser:
        """The browser; starts it if there is none, or if it died."""
        browser = self._browser
        if browser is not None and browser.is_connected():
            return browser
        async with self._starting:
            if self._browser is None or not self._browser.is_connected():
                await self._stop()
                await self._start(shared)
            assert self._browser is not None
            return self._browser

    async def leave(self) -> None:
        """Ends the browser with the last share."""
        self.shares -= 1
        if self.shares <= 0:
            async with self._starting:
                await self._stop()

    async def _start(self, shared: HTTPShared) -> None:
        proxy = shared.origins.proxy
        self._playwright = await async_playwright().start()
        try:
            self._browser = await self._playwright.chromium.launch(
                executable_path=program(),
                args=[*_FLAGS, *_resolutions(shared)],
                proxy=None if proxy is None else {"server": f"http://{proxy.host}:{proxy.port}"},
                timeout=_START_TIMEOUT_MS,
                # The parent of the core processes decides about signals.
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except BaseException:
            await self._stop()
            raise

    async def _stop(self) -> None:
        browser, self._browser = self._browser, None
        playwright, self._playwright = self._playwright, None
        # Whatever died before, or does not answer, ends with the driver.
        if browser is not None:
            with suppress(Error, TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await browser.close()
        if playwright is not None:
            with suppress(Error):
                await playwright.stop()


_browsers: MutableMapping[asyncio.AbstractEventLoop, BrowserOfLoop] = WeakKeyDictionary()


def browser_of_loop() -> BrowserOfLoop:
    return _browsers.setdefault(asyncio.get_running_loop(), BrowserOfLoop())


def program() -> str:
    """The path of Chromium. Raises a `ConfigError` that says what to install."""
    chosen = os.environ.get(PROGRAM, "")
    names = (chosen,) if chosen else _NAMES
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        if chosen:
            raise ConfigError(f"{PROGRAM}={chosen}: no such program")
        raise ConfigError(
            "self.client.browser needs Chromium, which is not installed: "
            f"apt-get install chromium, or name the program in {PROGRAM}"
        )
    return found


def check_memory(users: int, processes: int) -> None:
    """Raises a `ConfigError` if the pages of so many users, in each of so many processes of this
    machine, do not fit into its memory."""
    free = free_memory()
    needed = processes * (BROWSER_BYTES + users * PAGE_BYTES)
    if free is None or needed <= free:
        return
    fit = max((free // processes - BROWSER_BYTES) // PAGE_BYTES, 0) * processes
    raise ConfigError(
        f"{users * processes} users of self.client.browser need about {needed / 1e9:.1f} GB on "
        f"this machine, and {free / 1e9:.1f} GB are free; {fit} fit: use fewer users or more "
        "machines"
    )


def free_memory(
    *, meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """The bytes of memory that this machine or container has free; None if unknown."""
    known: list[int] = []
    for line in _read(meminfo).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            known.append(int(value.split()[0]) * 1024)
    limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if limit.isdecimal() and used.isdecimal():
        known.append(max(int(limit) - int(used), 0))
    return min(known, default=None)


def _resolutions(shared: HTTPShared) -> list[str]:
    """`--resolve` in the form that Chromium expects."""
    rules = [
        f"MAP {host}:{port} {address}" for (host, port), address in shared.origins.overrides.items()
    ]
    return [f"--host-resolver-rules={', '.join(rules)}"] if rules else []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


class BrowserUse:
    """One share's use of the browser. It is among the live connections of the share and ends with
    them."""

    def __init__(self, shared: HTTPShared) -> None:
        self.future: Any = None
        self.started = self.timeout_s = self.spent_s = 0.0
        self.screenshots = screenshots()
        self.browser = browser_of_loop()
        self.browser.shares += 1
        self._shared = shared
        self._ending: asyncio.Task[None] | None = None
        shared.live.add(self)

    def close(self) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
            self._shared.protocols.setdefault("endings", set()).add(self._ending)

    async def _end(self) -> None:
        try:
            if self.screenshots is not None:
                await self.screenshots.finish()
            await self.browser.leave()
        finally:
            self._shared.live.discard(self)

    def fail(self, reason: str, now: float) -> None:
        self.close()

    def abort(self) -> None:
        """A browser ends later than connections; the share waits for it apart."""
        self.close()
        self._shared.live.discard(self)
