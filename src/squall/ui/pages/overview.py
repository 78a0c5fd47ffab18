"""The page of all workflows: one row each.

It shows the sum of the rates, and the percentiles of each workflow separately, because
percentiles cannot be added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from squall.reporting.number_format import percent_cell, three_digits
from squall.stats.snapshot import WorkflowSnapshot
from squall.ui.character_plots import Curve
from squall.ui.pages.charts import shown_ms
from squall.ui.pages.header import share_done, time_of
from squall.ui.pages.step_table import title_cell, window
from squall.ui.state import RunState
from squall.ui.styled_text import LINE_STYLES, Line, Span, Style, cell, fitted, shortened
from squall.ui.terminal_style import TerminalStyle

_NAME_LEAST, _NAME_MOST = 10, 30
_LETTERS = "123456789"


@dataclass(frozen=True)
class _Column:
    title: str
    width: int
    show: Callable[[WorkflowSnapshot], str]
    need: int


_COLUMNS = (
    _Column("iterations", 12, lambda moment: str(moment.iterations), 3),
    _Column("rate", 8, lambda moment: three_digits(moment.rate_now_per_s), 0),
    _Column("failed", 9, lambda moment: percent_cell(moment.failed_share), 0),
    _Column("p50", 8, lambda moment: _now(moment, moment.p50_now_s), 4),
    _Column("p95", 8, lambda moment: _now(moment, moment.p95_now_s), 5),
    _Column("p99", 8, lambda moment: _now(moment, moment.p99_now_s), 1),
    _Column("users", 7, lambda moment: str(moment.users), 2),
)
_TIME = 13


def curve_of(index: int) -> Curve:
    """The curve of a workflow in the plots; its row has the same colour and number."""
    style = LINE_STYLES[index % len(LINE_STYLES)]
    return Curve((), style, _LETTERS[index % len(_LETTERS)])


def workflow_table(
    state: RunState, chosen: int, size: tuple[int, int], terminal: TerminalStyle
) -> list[Line]:
    """Title and one row per workflow, as in the file."""
    width, height = size
    columns = list(_COLUMNS)
    while 4 + _NAME_LEAST + _TIME + sum(column.width for column in columns) > width and columns:
        columns.remove(max(columns, key=lambda column: column.need))
    numbers = _TIME + sum(column.width for column in columns)
    longest = max(len(name) for name in state.names)
    name_width = max(min(longest, _NAME_MOST, width - 4 - numbers), 1)
    lines = [_title(columns, name_width, width, terminal)]
    first, last = window(len(state.names), max(height - 1, 0), chosen)
    lines += [
        _row(state, index, columns, name_width, index == chosen, width, terminal)
        for index in range(first, last)
    ]
    if last - first < len(state.names) and height > 1:
        hidden = len(state.names) - (last - first)
        text = f" {terminal.more} {hidden} more workflows: up and down"
        lines.append(fitted([Span(text, "dim")], width))
    return lines


def _title(
    columns: Sequence[_Column], name_width: int, width: int, terminal: TerminalStyle
) -> Line:
    lead = terminal.rule * max(name_width + 3 - 12, 0)
    spans = [
        Span(f"{terminal.rule * 2} ", "dim"),
        Span("workflow", "strong"),
        Span(f" {lead}", "dim"),
    ]
    spans += title_cell("time", _TIME, terminal, joined=True)
    for column in columns:
        spans += title_cell(column.title, column.width, terminal)
    spans.append(Span(" " + terminal.rule * width, "dim"))
    return fitted(spans, width)


def _row(
    state: RunState,
    index: int,
    columns: Sequence[_Column],
    name_width: int,
    is_chosen: bool,
    width: int,
    terminal: TerminalStyle,
) -> Line:
    name = state.names[index]
    moment = state.moment(name)
    lead = terminal.chosen if is_chosen else " "
    number = _LETTERS[index] if index < len(_LETTERS) else " "
    text = cell(shortened(terminal.shown(name), name_width, terminal.more), name_width)
    spans = [Span(lead, "chosen"), Span(f"{number} ", "dim"), Span(text, curve_of(index).style)]
    spans.append(Span(" "))
    if moment is None:
        return fitted([*spans, Span(cell("waiting", _TIME, right=True), "dim")], width)
    spans.append(Span(cell(_time(state, name, moment), _TIME, right=True)))
    broken = any(
        each.workflow == name and each.condition == "failing"
        for each in (state.snapshot.thresholds if state.snapshot is not None else ())
    )
    for column in columns:
        value = column.show(moment)
        style: Style = "dim" if moment.ended else "plain"
        if column.title == "failed" and moment.failed_share:
            style = "warn"
        if column.title == "p99" and broken:
            value, style = f"{terminal.mark} {value}", "bad"
        spans.append(Span(cell(value, column.width, right=True), style))
    return fitted(spans, width)


def _time(state: RunState, name: str, moment: WorkflowSnapshot) -> str:
    if moment.ended:
        return "ended"
    planned = state.planned(name)
    text = time_of(planned, moment)
    share = share_done(planned, moment)
    if planned.profile.model == "iterations" and share is not None:
        return f"{int(min(share, 1.0) * 100)} %"
    return text


def _now(moment: WorkflowSnapshot, seconds: float) -> str:
    return shown_ms(seconds) if moment.samples_now and not moment.ended else "-"
