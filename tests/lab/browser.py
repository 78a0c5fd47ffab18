"""A real Chromium, driven over its debugging pipe: no port, no further package.

Messages are JSON texts that end with a zero byte, on file descriptors 3 and 4 of the
browser. Every event is kept, so that a test can ask what was fetched or complained about.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)


def browser_program() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def running_browser(program: str, profile: Path) -> Iterator[Browser]:
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    command = [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", *command],
        pass_fds=(to_read, from_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(profile)},
    )
    os.close(to_read)
    os.close(from_write)
    browser = Browser(to_write, from_read)
    try:
        yield browser
    finally:
        with suppress(OSError):
            browser.send("Browser.close", {}, "")
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to_write)
        os.close(from_read)


class Browser:
    def __init__(self, write_fd: int, read_fd: int) -> None:
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._rest = b""
        self._last_id = 0
        self.events: list[dict[str, Any]] = []

    def open(self, url: str, *, script: bool = True, **view: Any) -> Page:
        """A new page, loaded. `view`: width, height, dark."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, attached["sessionId"])
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        if not script:
            page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.look(**view)
        page.call("Page.navigate", url=url)
        self.wait_for(lambda event: _is(event, page.session, "Page.loadEventFired"))
        return page

    def call(self, method: str, params: dict[str, Any], session: str = "") -> dict[str, Any]:
        wanted = self.send(method, params, session)
        answer = self.wait_for(lambda message: message.get("id") == wanted)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def send(self, method: str, params: dict[str, Any], session: str) -> int:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        left = json.dumps(message).encode() + b"\0"
        while left:
            left = left[os.write(self._write_fd, left) :]
        return self._last_id

    def wait_for(self, wanted: Any) -> dict[str, Any]:
        """The first message, already seen or yet to come, that is wanted."""
        for event in self.events:
            if wanted(event):
                return event
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            message = self._next(deadline)
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read_fd], [], [], deadline - time.monotonic())
            assert ready, "the browser does not answer"
            piece = os.read(self._read_fd, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        whole, _, self._rest = self._rest.partition(b"\0")
        return json.loads(whole)


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self.session = session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, params, self.session)

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[dict[str, Any]]:
        """Exceptions, refused resources, everything that the console would show."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [event["params"] for event in self._own() if event["method"] in kinds]

    def fetched(self) -> list[str]:
        sent = "Network.requestWillBeSent"
        return [
            event["params"]["request"]["url"] for event in self._own() if event["method"] == sent
        ]

    def _own(self) -> list[dict[str, Any]]:
        return [event for event in self.browser.events if event.get("sessionId") == self.session]


def _is(event: dict[str, Any], session: str, method: str) -> bool:
    return event.get("sessionId") == session and event.get("method") == method
