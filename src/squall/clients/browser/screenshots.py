"""Screenshots of the pages of failed steps, as PNG files in the folder that `SQUALL_SCREENSHOTS`
names.

Each process takes the first ones of a step only: a target that fails every call must neither fill
the disk nor spend the processor on pictures. A picture that cannot be taken or written is left out,
since the run and its counts are worth more.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.async_api import Error

from squall.api.errors import ConfigError

if TYPE_CHECKING:
    from playwright.async_api import Page

FOLDER = "SQUALL_SCREENSHOTS"
"""The environment variable that names the folder; without it no picture is taken."""
MOST_PER_STEP = 10
# A page that is drawn without end gives no picture.
_WITHIN_MS = 5_000


class Screenshots:
    """The pictures of one share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken: Counter[str] = Counter()
        self._running: set[asyncio.Task[None]] = set()

    def take(self, page: Page, step: str, *, stops: bool) -> asyncio.Task[None] | None:
        """Begins a picture of the page; None if the step has all of its pictures. `stops` ends the
        loading of a page that is used no more: Chromium waits for it otherwise."""
        if self._taken[step] >= MOST_PER_STEP:
            return None
        self._taken[step] += 1
        task = asyncio.get_running_loop().create_task(self._taken_of(page, step, stops=stops))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def finish(self) -> None:
        """Waits for the pictures that have begun."""
        if self._running:
            await asyncio.wait(self._running)

    async def _taken_of(self, page: Page, step: str, *, stops: bool) -> None:
        # The page or the browser may have ended; the disk may be full.
        with suppress(Error, OSError):
            if stops:
                session: Any = await page.context.new_cdp_session(page)
                await session.send("Page.stopLoading")
            picture = await page.screenshot(timeout=_WITHIN_MS)
            self._write(picture, re.sub(r"[^\w.-]", "_", step))

    def _write(self, picture: bytes, step: str) -> None:
        """Under the first free number: other processes write into the same folder."""
        number = 1
        while True:
            try:
                with (self._folder / f"{step}-{number}.png").open("xb") as file:
                    file.write(picture)
                return
            except FileExistsError:
                number += 1


def screenshots() -> Screenshots | None:
    """None if no folder is named. Raises a `ConfigError` if it cannot be written."""
    name = os.environ.get(FOLDER, "")
    if not name:
        return None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{FOLDER}={name}: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{FOLDER}={name}: no permission to write to the folder")
    return Screenshots(folder)
