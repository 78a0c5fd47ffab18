"""Presents a run on the live screen, and restores the terminal afterwards.

The screen shares the event loop with the run. If it fails in any way, lines take over at once and
the run is not affected. What steps printed is written out when the screen closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from squall.api.quantities import format_duration
from squall.cli.shared.presenters import is_utf8
from squall.reporting.text.progress_lines import ProgressLines

if TYPE_CHECKING:
    from squall.cli.shared.load_keys import LoadKeys
    from squall.engine.run_controls import RunControls
    from squall.stats.manifest import FileManifest
    from squall.stats.reports import ExchangeReport
    from squall.stats.snapshot import Snapshot
    from squall.ui.app import RunScreen
    from squall.ui.state import RunState

T = TypeVar("T")
CLOSE_WAIT_S = 5.0
STUCK_S = 0.01
# Keyboard, main screen, cursor, focus reports, paste, wrapping.
_RESTORE = "\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l\x1b[?2004l\x1b[?7h"


class LiveScreen:
    """A presenter that draws; `lines` prints what the screen cannot show."""

    wants_histograms = False

    def __init__(self, lines: ProgressLines) -> None:
        self.redact = lines.redact
        self._lines = lines
        self._planned: tuple[FileManifest, int] | None = None
        self._state: RunState | None = None
        self._app: RunScreen | None = None
        self._task: asyncio.Task[None] | None = None
        self._keys: LoadKeys | None = None
        self._grace_s = 0.0
        self._before: list[Any] | None = None

    def on_run(self, run: str) -> None:
        self._lines.on_run(run)

    def on_manifest(self, manifest: FileManifest, processes: int) -> None:
        # The header and its warnings stay above the summary when the screen has closed.
        self._lines.on_manifest(manifest, processes)
        self._grace_s = max(each.profile.grace_s for each in manifest.workflows)
        self._planned = (manifest, processes)

    def on_controls(self, controls: RunControls) -> None:
        """Starts the screen here: the core processes already run, so loading Textual delays
        nothing."""
        if self._planned is None:
            return
        try:
            from squall.cli.shared.load_keys import LoadKeys
            from squall.ui.app import RunScreen
            from squall.ui.controls import Controls
            from squall.ui.state import RunState
            from squall.ui.terminal_style import TerminalStyle

            manifest, processes = self._planned
            self._state = RunState(self._redacted(manifest), processes)
            keys = self._keys = LoadKeys(manifest, controls, self._say)
            offered = Controls(
                stop=lambda: controls.interrupt(False),
                stop_now=lambda: controls.interrupt(True),
                pause=keys.pause,
                resume=keys.resume,
                adjust=keys.multiply,
            )
            terminal = TerminalStyle(color=self._lines.color, utf8=is_utf8(sys.stderr))
            self._before = _terminal_settings()
            self._app = RunScreen(self._state, offered, terminal)
            self._task = asyncio.create_task(self._app.run_async(mouse=False))
            self._task.add_done_callback(self._ended)
        except Exception as error:
            self._give_up(error)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        if self._app is None:
            self._lines.on_snapshot(snapshot)
            return
        try:
            if self._keys is not None:
                self._keys.feed(snapshot)
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

    def _say(self, text: str) -> None:
        self.on_log("", text)
        if self._app is not None:
            self._app.changed()

    def on_exchange(self, exchange: ExchangeReport) -> None:
        """Only `--once` shows exchanges, and it has no screen."""
        self._lines.on_exchange(exchange)

    async def close(self) -> None:
        app, self._app = self._app, None
        if self._keys is not None:
            self._keys.close()
        with _discard_stuck_output():
            if app is not None and self._task is not None:
                app.exit()
                await asyncio.wait([self._task], timeout=2.0 * CLOSE_WAIT_S)
            self._restore()
            self._print_log()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The app has ended: after `close`, or too early because it failed."""
        app = self._app
        error = None if task.cancelled() else task.exception()
        if app is None:
            return
        self._give_up(error or app.failure or RuntimeError("it ended unexpectedly"))

    def _give_up(self, error: BaseException) -> None:
        app, self._app = self._app, None
        if app is not None and self._task is not None and not self._task.done():
            app.exit()
        self._restore()
        self._print_log()
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        self._lines.on_log("", f"squall run: the screen failed ({text}); continuing with lines")

    def _restore(self) -> None:
        """Restores the terminal once more: Textual may have died while doing so."""
        if self._before is None:
            return
        import termios

        stream = sys.__stderr__ or sys.stderr
        # A terminal that has gone needs no restoring.
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
        """Prints what steps printed, once, so that nothing is lost with the screen."""
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
        """The data without the values of secrets, in every text that the screen may show."""
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
def _discard_stuck_output() -> Generator[None]:
    """A stuck terminal must not delay the results: after a while a thread discards the queued
    output, because the event loop itself may be blocked by it."""
    import termios

    done = threading.Event()
    terminal = (sys.__stderr__ or sys.stderr).fileno()

    def discard() -> None:
        pause_s = CLOSE_WAIT_S
        while not done.wait(pause_s):
            pause_s = STUCK_S
            with contextlib.suppress(OSError, termios.error):
                termios.tcflush(terminal, termios.TCOFLUSH)
                # A blocked writer notices the free space only when the flow restarts.
                termios.tcflow(terminal, termios.TCOOFF)
                termios.tcflow(terminal, termios.TCOON)

    threading.Thread(target=discard, name="unstuck", daemon=True).start()
    try:
        yield
    finally:
        done.set()
