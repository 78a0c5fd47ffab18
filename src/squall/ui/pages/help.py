"""The help pane, which explains keys and words, and the log pane."""

from __future__ import annotations

from squall.ui.controls import Controls
from squall.ui.state import RunState
from squall.ui.styled_text import Line, Span, fitted, shortened
from squall.ui.terminal_style import TerminalStyle

_WORDS = (
    ("rate", "iterations or executions that ended in the last second"),
    ("latency", "plots: of each second; tables: since the start (open models:"),
    ("", "root steps and iterations from their planned start)"),
    ("verdict", "whether the generator could measure: VALID, DEGRADED, INVALID"),
    ("late, dropped", "starts of an open model that came late, or found no free user"),
    ("loop lag", "how late the generator was to see answers; high: too busy"),
)


def help_pane(
    controls: Controls, *, several: bool, size: tuple[int, int], terminal: TerminalStyle
) -> list[Line]:
    width, height = size
    keys = [
        ("q, ctrl+c", "stop gracefully and report; twice: at once"),
        ("up, down", "choose a row"),
        ("enter", "plots of the chosen row; again: of all"),
        ("w", "plots of the last seconds, or of the whole run"),
        ("l", "log: what steps print, new errors, failing thresholds"),
        ("esc", "back"),
    ]
    if several:
        keys.insert(
            1, ("tab, shift+tab", "next and previous workflow; 0 is the overview, 1..9 one")
        )
    if controls.can_pause:
        keys.append(("p", "pause and resume"))
    if controls.adjust is not None:
        keys.append(("+, -", "a tenth more or less load"))
    lines = [fitted([Span("")], width), fitted([Span(" keys", "strong")], width)]
    lines += [_entry(key, text, width, "chosen") for key, text in keys]
    lines += [fitted([Span("")], width), fitted([Span(" words", "strong")], width)]
    lines += [_entry(word, text, width, "plain") for word, text in _WORDS]
    return lines[:height]


def log_pane(
    state: RunState, scroll: int, size: tuple[int, int], terminal: TerminalStyle
) -> list[Line]:
    """The newest lines at the bottom; `scroll` moves back in time."""
    width, height = size
    if not state.log:
        return [fitted([Span(" nothing was printed", "dim")], width)]
    end = max(len(state.log) - scroll, min(height, len(state.log)))
    kept = list(state.log)[max(end - height, 0) : end]
    return [
        fitted(
            [
                Span(
                    " " + shortened(terminal.shown(each.text), width - 1, terminal.more), each.style
                )
            ],
            width,
        )
        for each in kept
    ]


def _entry(key: str, text: str, width: int, style: str) -> Line:
    shade = "chosen" if style == "chosen" else "plain"
    return fitted([Span(f"   {key:<16}", shade), Span(text)], width)
