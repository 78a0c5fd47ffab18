"""Shows the live screen on a terminal and handles keys.

Draws a frame when a snapshot arrives (once a second), a key is pressed or the size changes, and
writes only changed lines. It must never print, and an error in it must never reach the run: the
app stores it as `failure` and ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from squall.reporting.text.control_characters import cell_text
from squall.stats.snapshot import Snapshot
from squall.ui.controls import Controls
from squall.ui.pages.layout import draw
from squall.ui.selection import ViewSelection, page_name, row_names
from squall.ui.state import RunState
from squall.ui.styled_text import Line, Style
from squall.ui.terminal_style import TerminalStyle

_COLOURS: dict[Style, RichStyle] = {
    "plain": RichStyle(),
    "dim": RichStyle(dim=True),
    "strong": RichStyle(bold=True),
    "good": RichStyle(color="green", bold=True),
    "warn": RichStyle(color="yellow"),
    "bad": RichStyle(color="red", bold=True),
    "chosen": RichStyle(color="cyan", bold=True),
    "one": RichStyle(color="cyan"),
    "two": RichStyle(color="yellow"),
    "three": RichStyle(color="magenta"),
    "four": RichStyle(color="blue"),
    "five": RichStyle(color="green"),
}
_NO_COLOURS: dict[Style, RichStyle] = {
    name: RichStyle(bold=True) if name in ("strong", "bad", "chosen") else RichStyle()
    for name in _COLOURS
}
_MORE, _LESS = 1.1, 1 / 1.1
_PAGE_LINES = 10


class Canvas(Widget):
    """Shows lines and remembers them, to write only what changed."""

    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; }"

    def __init__(self, styles: dict[Style, RichStyle], drawn: Callable[[], None]) -> None:
        super().__init__()
        self._lines: list[Line] = []
        self._shades = styles
        self._drawn = drawn

    @property
    def lines(self) -> list[Line]:
        return self._lines

    def show(self, lines: list[Line]) -> None:
        before, self._lines = self._lines, lines
        width = self.size.width
        if len(before) != len(lines):
            self.refresh()
            return
        changed = [
            Region(0, index, width, 1)
            for index, (old, new) in enumerate(zip(before, lines, strict=True))
            if old != new
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width)
        shades = self._shades
        return Strip([Segment(cell_text(span.text), shades[span.style]) for span in self._lines[y]])

    def on_resize(self) -> None:
        self._drawn()


def _key(keys: str, action: str) -> Binding:
    # With priority, because Textual's own screen binds tab and ctrl+c.
    return Binding(keys, action, show=False, priority=True)


class RunScreen(App[None]):
    """The app: `feed` takes snapshots, and keys call the controls."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; color: ansi_default; overflow: hidden; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("q,ctrl+c,ctrl+q", "stop_run"),
        _key("tab,right", "page(1)"),
        _key("shift+tab,left", "page(-1)"),
        _key("up,k", "row(-1)"),
        _key("down,j", "row(1)"),
        _key("pageup", "scroll(1)"),
        _key("pagedown", "scroll(-1)"),
        _key("enter", "step"),
        _key("w", "whole"),
        _key("l", "pane('log')"),
        _key("question_mark,h,f1", "pane('help')"),
        _key("escape", "leave"),
        _key("p", "pause"),
        _key("plus,equals_sign", "adjust(True)"),
        _key("minus", "adjust(False)"),
        *(_key(str(number), f"goto({number})") for number in range(10)),
    ]

    def __init__(self, state: RunState, controls: Controls, terminal: TerminalStyle) -> None:
        super().__init__(ansi_color=True)
        self.run_state = state
        self.view = ViewSelection()
        self.controls = controls
        self.terminal = terminal
        self.stops = 0
        self.frames = 0
        self._panic: Exception | None = None
        self._canvas = Canvas(_COLOURS if terminal.color else _NO_COLOURS, self.redraw)
        # Textual makes all tasks of its loop eager; the run's own tasks must stay as they are.
        self._task_factory = asyncio.get_running_loop().get_task_factory()

    @property
    def failure(self) -> Exception | None:
        """The error that ended the screen early; None if there was none."""
        return self._exception or self._panic

    @property
    def lines(self) -> list[Line]:
        """The lines on the screen now."""
        return self._canvas.lines

    def feed(self, snapshot: Snapshot) -> None:
        """Takes a snapshot. Call it from the app's event loop; the app draws later."""
        self.run_state.feed(snapshot)
        if self.is_running and not self._is_behind():
            self.call_later(self.redraw)

    def changed(self) -> None:
        """Redraws after a change without a snapshot, such as a notice."""
        if self.is_running:
            self.call_later(self.redraw)

    def redraw(self) -> None:
        size = self._canvas.size
        if size.width and size.height:
            self.frames += 1
            here = (size.width, size.height)
            self._canvas.show(draw(self.run_state, self.view, self.controls, here, self.terminal))

    def compose(self) -> ComposeResult:
        yield self._canvas

    def on_mount(self) -> None:
        asyncio.get_running_loop().set_task_factory(self._task_factory)

    # Keys.

    def action_stop_run(self) -> None:
        self.stops += 1
        if self.stops == 1:
            self.controls.stop()
        else:
            self.controls.stop_now()
        self.redraw()

    def action_page(self, by: int) -> None:
        pages = len(self.run_state.names) + 1
        if pages > 2:
            self._turn_to((self.view.page + by) % pages)

    def action_goto(self, page: int) -> None:
        if len(self.run_state.names) > 1 and page <= len(self.run_state.names):
            self._turn_to(page)

    def action_row(self, by: int) -> None:
        if self.view.pane == "log":
            self._scroll(-by)
            return
        rows = len(row_names(self.run_state, page_name(self.run_state, self.view)))
        self.view.row = min(max(self.view.row + by, 0), max(rows - 1, 0))
        self.redraw()

    def action_scroll(self, pages: int) -> None:
        self._scroll(pages * _PAGE_LINES)

    def action_step(self) -> None:
        """Opens the chosen workflow's page on the overview; elsewhere toggles the row's plots."""
        if self.view.pane:
            return
        if page_name(self.run_state, self.view) is None:
            self._turn_to(self.view.row + 1)
            return
        self.view.step = not self.view.step
        self.redraw()

    def action_whole(self) -> None:
        self.view.whole = not self.view.whole
        self.redraw()

    def action_pane(self, pane: str) -> None:
        wanted = "log" if pane == "log" else "help"
        self.view.pane = "" if self.view.pane == wanted else wanted
        self.view.scroll = 0
        self.redraw()

    def action_leave(self) -> None:
        if self.view.pane:
            self.view.pane = ""
        elif self.view.step:
            self.view.step = False
        elif self.view.page:
            self._turn_to(0)
        self.redraw()

    def action_pause(self) -> None:
        change = self.controls.resume if self.run_state.paused else self.controls.pause
        if change is not None and self.controls.can_pause:
            self.run_state.paused = not self.run_state.paused
            change()
            self.redraw()

    def action_adjust(self, more: bool) -> None:
        if self.controls.adjust is not None:
            self.controls.adjust(_MORE if more else _LESS)

    def _turn_to(self, page: int) -> None:
        self.view = ViewSelection(page=page, whole=self.view.whole)
        self.redraw()

    def _scroll(self, by: int) -> None:
        most = max(len(self.run_state.log) - 1, 0)
        self.view.scroll = min(max(self.view.scroll + by, 0), most)
        self.redraw()

    def _is_behind(self) -> bool:
        """Whether the terminal accepts no more output (a stalled connection): a write would block
        the event loop."""
        writer: Any = getattr(self._driver, "_writer_thread", None)
        queue: Any = getattr(writer, "_queue", None)
        return queue is not None and queue.qsize() > 5

    def panic(self, *renderables: object) -> None:
        """Textual calls this when it can no longer read the keyboard."""
        self._panic = OSError("the terminal cannot be read")
        self._close_messages_no_wait()

    def _fatal_error(self) -> None:
        """Overrides Textual, which would print a traceback over the run's own output."""
        self._close_messages_no_wait()
