"""A run on the live screen: from the manifest to a terminal that is as it was before.

The screen shares the loop with whoever tells of the run. If it fails in any way, lines take
over at once; the run never notices. What steps printed is written out once it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from squall.api.quantities import format_duration
from squall.cli.presenting import Interrupt, Lines, is_utf8

if TYPE_CHECKING:
    from squall.stats.manifest import FileManifest
    from squall.stats.reports import ExchangeReport
    from squall.stats.snapshot import Snapshot
    from squall.ui.app import RunScreen
    from squall.ui.state import RunState

T = TypeVar("T")
CLOSE_WAIT_S = 5.0
STUCK_S = 0.01
_RESTORE = "\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l\x1b[?2004l\x1b[?7h"
"""Keyboard, main screen, cursor, focus reports, paste, wrapping."""


class Screen:
    """A presenter that draws; `lines` say what the screen cannot."""

    def __init__(self, lines: Lines) -> None:
        self.redact = lines.redact
        self._lines = lines
        self._planned: tuple[FileManifest, int] | None = None
        self._state: RunState | None = None
        self._app: RunScreen | None = None
        self._task: asyncio.Task[None] | None = None
        self._grace_s = 0.0
        self._before: list[Any] | None = None

    def on_manifest(self, manifest: FileManifest, processes: int) -> None:
        # The header and its warnings stay above the summary when the screen has gone.
        self._lines.on_manifest(manifest, processes)
        self._grace_s = max(each.profile.grace_s for each in manifest.workflows)
        self._planned = (manifest, processes)

    def on_controls(self, interrupt: Interrupt) -> None:
        """The screen begins here: the core processes run, and nothing is loaded yet."""
        if self._planned is None:
            return
        try:
            from squall.ui.app import RunScreen
            from squall.ui.controls import Controls
            from squall.ui.look import Look
            from squall.ui.state import RunState

            manifest, processes = self._planned
            self._state = RunState(self._redacted(manifest), processes)
            controls = Controls(stop=lambda: interrupt(False), stop_now=lambda: interrupt(True))
            look = Look(color=self._lines.color, utf8=is_utf8(sys.stderr))
            self._before = _terminal_settings()
            self._app = RunScreen(self._state, controls, look)
            self._task = asyncio.create_task(self._app.run_async(mouse=False))
            self._task.add_done_callback(self._ended)
        except Exception as error:
            self._give_up(error)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        if self._app is None:
            self._lines.on_snapshot(snapshot)
            return
        try:
            self._app.feed(self._redacted(snapshot))
        except Exception as error:
            self._give_up(error)
            self._lines.on_snapshot(snapshot)

    def on_interrupt(self, times: int) -> None:
        if self._app is None or self._state is None:
            self._lines.on_interrupt(times)
            return
        grace = format_duration(self._grace_s, compact=True)
        self._state.notice = (
            f"stopping; running iterations get up to {grace}, q again ends at once"
            if times == 1
            else "ending at once"
        )
        self._app.stops = max(self._app.stops, times)
        self._app.changed()

    def on_log(self, prefix: str, line: str) -> None:
        if self._app is None or self._state is None:
            self._lines.on_log(prefix, line)
            return
        self._state.note(self.redact(f"{prefix} {line}" if prefix else line))

    def on_exchange(self, exchange: ExchangeReport) -> None:
        """Only single iterations show exchanges, and they have no screen."""
        self._lines.on_exchange(exchange)

    async def close(self) -> None:
        app, self._app = self._app, None
        with _unstuck():
            if app is not None and self._task is not None:
                app.exit()
                await asyncio.wait([self._task], timeout=2.0 * CLOSE_WAIT_S)
            self._restore()
            self._print_log()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The app is gone: as it should be, or long before the run."""
        app = self._app
        error = None if task.cancelled() else task.exception()
        if app is None:
            return
        self._give_up(error or app.failure or RuntimeError("it ended by itself"))

    def _give_up(self, error: BaseException) -> None:
        app, self._app = self._app, None
        if app is not None and self._task is not None and not self._task.done():
            app.exit()
        self._restore()
        self._print_log()
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        self._lines.on_log("", f"squall run: the screen failed ({text}); going on with lines")

    def _restore(self) -> None:
        """What the library restores itself, once more: it may have died half-way."""
        if self._before is None:
            return
        import termios

        stream = sys.__stderr__ or sys.stderr
        # A terminal that has gone needs nothing.
        with contextlib.suppress(OSError, ValueError, termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)
            if self._task is None or not self._task.done() or self._failed:
                stream.write(_RESTORE)
                stream.flush()
        self._before = None

    @property
    def _failed(self) -> bool:
        task = self._task
        return task is not None and task.done() and not task.cancelled() and bool(task.exception())

    def _print_log(self) -> None:
        """What steps printed, once: nothing of it may be lost with the screen."""
        state = self._state
        if state is None:
            return
        printed = [each.text for each in state.log if each.style == "plain"]
        left_out = state.logged - len(state.log)
        if left_out > 0:
            self._lines.on_log("", f"({left_out} earlier lines are left out)")
        for text in printed:
            self._lines.on_log("", text)
        state.log.clear()
        state.logged = 0

    def _redacted(self, data: T) -> T:
        """Every text that the screen may show, without the values of secrets."""
        if not self.redact.has_secrets:
            return data
        import msgspec

        plain = msgspec.json.decode(msgspec.json.encode(data))
        return msgspec.convert(self.redact.document(plain), type=type(data))


def _terminal_settings() -> list[Any] | None:
    import termios

    try:
        return termios.tcgetattr(0)
    except (OSError, termios.error):
        return None


@contextlib.contextmanager
def _unstuck() -> Generator[None]:
    """A terminal that takes nothing must not keep the results: after a while, what waits
    for it is thrown away, from a thread, because the loop itself may stand still."""
    import termios

    done = threading.Event()
    terminal = (sys.__stderr__ or sys.stderr).fileno()

    def throw_away() -> None:
        pause_s = CLOSE_WAIT_S
        while not done.wait(pause_s):
            pause_s = STUCK_S
            with contextlib.suppress(OSError, termios.error):
                termios.tcflush(terminal, termios.TCOFLUSH)
                # Whoever waits to write looks again only when the flow begins anew.
                termios.tcflow(terminal, termios.TCOOFF)
                termios.tcflow(terminal, termios.TCOON)

    threading.Thread(target=throw_away, name="unstuck", daemon=True).start()
    try:
        yield
    finally:
        done.set()
