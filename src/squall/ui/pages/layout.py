"""Arranges the panels for a terminal size; the only module that knows the whole screen.

There are three layouts. Tiny (under 60x15): header, table, errors. Usual (such as 80x24): plots,
table, errors and thresholds, generator. Wide (from 120x40): taller plots with the users beside
them, and the log on the right from 160 columns. `draw` returns exactly as many lines as the
terminal has, each exactly as wide.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.stats.snapshot import WorkflowSnapshot
from squall.ui.controls import Controls
from squall.ui.pages.chart_selection import main_charts, more_charts
from squall.ui.pages.charts import (
    titled,
)
from squall.ui.pages.datacenter_table import datacenter_table
from squall.ui.pages.header import header
from squall.ui.pages.help import help_pane, log_pane
from squall.ui.pages.overview import workflow_table
from squall.ui.pages.panels import (
    errors_panel,
    generator_panel,
    keys_line,
    thresholds_of,
    thresholds_panel,
    thresholds_width,
)
from squall.ui.pages.step_table import step_table
from squall.ui.selection import ViewSelection, page_name, row_names
from squall.ui.state import RunState
from squall.ui.styled_text import Line, Span, fitted, side_by_side
from squall.ui.terminal_style import TerminalStyle

TINY = (60, 15)
WIDE = (120, 40)
LOG_BESIDE = 160
"""From this many columns the log is beside the rest."""
_LOG_WIDTH = 60
# Least height of a plot: title, three rows and the line of times.
_CHART_LEAST = 5
_CHART_USUAL = 7
_CHART_MOST = 17
_ERRORS_LEAST = 2
_DATACENTERS_USUAL = 4
_DATACENTERS_MOST = 12
_ERRORS_MOST = 12


def draw(
    state: RunState,
    view: ViewSelection,
    controls: Controls,
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    """The whole screen."""
    width, height = max(size[0], 1), max(size[1], 1)
    name = page_name(state, view)
    top = [header(state, name, width, terminal)]
    several = len(state.names) > 1
    bottom = keys_line(
        state, controls, pane=view.pane, several=several, width=width, terminal=terminal
    )
    room = (width, max(height - 2, 0))
    if view.pane == "help":
        body = help_pane(controls, several=several, size=room, terminal=terminal)
    elif view.pane == "log":
        title = titled([Span("log", "strong")], (), width, terminal)
        body = [title, *log_pane(state, view.scroll, (width, room[1] - 1), terminal)]
    elif width < TINY[0] or height < TINY[1]:
        body = _tiny(state, view, name, room, terminal)
    else:
        body = _body(state, view, name, room, terminal)
    empty = fitted((), width)
    body = [*body, *[empty] * (room[1] - len(body))][: room[1]]
    return [*top, *body, bottom][:height]


def _body(
    state: RunState,
    view: ViewSelection,
    name: str | None,
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    width, height = size
    is_wide = width >= WIDE[0] and height + 2 >= WIDE[1]
    if not is_wide or width < LOG_BESIDE:
        return _stacked(state, view, name, size, terminal, is_wide=is_wide)
    left = _stacked(state, view, name, (width - _LOG_WIDTH - 1, height), terminal, is_wide=True)
    left += [fitted((), width - _LOG_WIDTH - 1)] * (height - len(left))
    title = titled([Span("log", "strong")], (), _LOG_WIDTH, terminal)
    right = [title, *log_pane(state, 0, (_LOG_WIDTH, height - 1), terminal)]
    return side_by_side(left, right, terminal.bar)


def _stacked(
    state: RunState,
    view: ViewSelection,
    name: str | None,
    size: tuple[int, int],
    terminal: TerminalStyle,
    *,
    is_wide: bool,
) -> list[Line]:
    width, height = size
    moments = _moments(state, name)
    planned = [each for each in state.manifest.workflows if name in (None, each.name)]
    health = generator_panel(state, planned, moments, (width, 5 if is_wide else 2), terminal)
    rows = len(row_names(state, name))
    wanted_errors = max(
        sum(len(moment.errors) for moment in moments),
        len(thresholds_of(state.snapshot, name))
        + any(m.checks_passed + m.checks_failed for m in moments),
        _ERRORS_LEAST,
    )
    parts = state.snapshot.datacenters if state.snapshot is not None else ()
    room = height - 3 - len(health)
    between = _datacenter_rows(len(parts), room, is_wide=is_wide)
    charts, second, table, errors = _heights(
        room - between, rows, min(wanted_errors, _ERRORS_MOST), is_wide=is_wide
    )
    lines = main_charts(state, view, name, (width, charts), terminal) if charts else []
    lines += datacenter_table(parts, (width, between), terminal) if between else []
    lines += more_charts(state, view, name, (width, second), terminal) if second else []
    lines += _table(state, view, name, (width, table + 1), terminal)
    lines += _judgements(state, moments, name, (width, errors), terminal)
    lines.append(titled([Span("generator", "strong")], (), width, terminal))
    return [*lines, *health]


def _datacenter_rows(count: int, room: int, *, is_wide: bool) -> int:
    """Rows for the title and the lines of the datacenters; plots give way to them."""
    if not count:
        return 0
    most = _DATACENTERS_MOST if is_wide else _DATACENTERS_USUAL
    return min(count + 1, most + 1, max(room - _ERRORS_LEAST - 2, 0))


def _heights(
    room: int, rows: int, wanted_errors: int, *, is_wide: bool
) -> tuple[int, int, int, int]:
    """Rows for plots, more plots, table and errors. `room` is what the titles leave."""
    table = max(min(rows, room - _CHART_LEAST - _ERRORS_LEAST), 2)
    errors = max(min(wanted_errors, room - table - _CHART_LEAST), _ERRORS_LEAST)
    most = max(_CHART_USUAL, _CHART_MOST if is_wide else room * 3 // 5)
    charts = min(room - table - errors, most)
    if charts < _CHART_LEAST:
        return 0, 0, max(min(rows, room - errors), 1), errors
    # An odd number of rows has a middle row, which gets a label.
    charts -= charts % 2 == 0
    second = min(room - charts - table - errors, _CHART_MOST) if is_wide else 0
    second -= second % 2 == 0
    return charts, second if second >= _CHART_USUAL else 0, table, errors


def _tiny(
    state: RunState,
    view: ViewSelection,
    name: str | None,
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    width, height = size
    moments = _moments(state, name)
    rows = len(row_names(state, name))
    has_errors = any(moment.errors for moment in moments)
    errors = min(3, max(height - 4, 0)) if has_errors else 0
    table = max(min(rows + 1, height - errors - (1 if errors else 0)), 1)
    lines = _table(state, view, name, (width, table), terminal)
    if errors:
        lines.append(titled([Span("errors", "strong")], (), width, terminal))
        lines += errors_panel(state, moments, (width, errors), terminal)
    return lines


def _moments(state: RunState, name: str | None) -> list[WorkflowSnapshot]:
    found = state.snapshot.workflows if state.snapshot is not None else ()
    return [moment for moment in found if name in (None, moment.name)]


def _table(
    state: RunState,
    view: ViewSelection,
    name: str | None,
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    if name is None:
        return workflow_table(state, view.row, size, terminal)
    thresholds = thresholds_of(state.snapshot, name)
    names = row_names(state, name)
    return step_table(state.moment(name), names, thresholds, view.row, size, terminal)


def _judgements(
    state: RunState,
    moments: Sequence[WorkflowSnapshot],
    name: str | None,
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    width, height = size
    right = min(max(thresholds_width(state, name), 26), width * 2 // 5 + 4)
    left = width - right - 1
    errors = errors_panel(state, moments, (left, height), terminal)
    thresholds = thresholds_panel(state, moments, name, (right, height), terminal)
    joint = [
        *titled([Span("errors", "strong")], (), left, terminal),
        Span(terminal.tee, "dim"),
        *titled([Span("thresholds", "strong")], (), right, terminal)[0:],
    ]
    body = side_by_side(
        _filled(errors, left, height), _filled(thresholds, right, height), terminal.bar
    )
    return [tuple(joint), *body]


def _filled(lines: Sequence[Line], width: int, height: int) -> list[Line]:
    return [*lines, *[fitted((), width)] * (height - len(lines))][:height]
