"""The table of steps: totals so far, one row each, units in the title only.

A cell that violates a threshold has a sign and a colour. Rows stay in the order of the file, so
that a step stays at the same place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from squall.reporting.number_format import percent_cell, three_digits
from squall.stats.snapshot import RowSnapshot, ThresholdState, WorkflowSnapshot
from squall.ui.pages.charts import shown_ms
from squall.ui.styled_text import Line, Span, Style, cell, fitted, shortened
from squall.ui.terminal_style import TerminalStyle

_NAME_LEAST, _NAME_MOST = 10, 40
_QUANTILE = re.compile(r"\bp\((\d+(?:\.\d+)?)\)")


@dataclass(frozen=True)
class StepColumn:
    title: str
    width: int
    show: Callable[[RowSnapshot], str]
    need: int
    """On a narrow terminal, columns with a higher number go first."""


_COLUMNS = (
    StepColumn("count", 10, lambda row: str(row.count), 1),
    StepColumn("rate", 8, lambda row: three_digits(row.rate_now_per_s), 2),
    StepColumn("failed", 9, lambda row: percent_cell(_share(row)), 0),
    StepColumn("p50", 9, lambda row: shown_ms(row.p50_s), 4),
    StepColumn("p95", 9, lambda row: shown_ms(row.p95_s), 3),
    StepColumn("p99", 9, lambda row: shown_ms(row.p99_s), 0),
    StepColumn("p99.9", 9, lambda row: shown_ms(row.p999_s), 7),
    StepColumn("max", 9, lambda row: shown_ms(row.max_s), 5),
    StepColumn("first byte p99", 18, lambda row: shown_ms(row.first_byte_p99_s), 6),
)
_STATS = {"med": "p50", "max": "max", "errors": "failed", "rps": "rate", "count": "count"}


def step_table(
    moment: WorkflowSnapshot | None,
    names: Sequence[str],
    thresholds: Sequence[ThresholdState],
    chosen: int | None,
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    """Title and rows in `size`; `names` are shown before the first numbers arrive."""
    width, height = size
    rows = moment.rows if moment is not None else ()
    shown = [row.name for row in rows] or list(names)
    columns, name_width = _that_fit(shown, width)
    lines = [_title(columns, name_width, width, terminal)]
    room = max(height - 1, 0)
    first, last = window(len(shown), room, chosen)
    broken = _broken(thresholds, shown)
    for index in range(first, last):
        marks = broken.get(shown[index], set())
        row = rows[index] if rows else None
        is_chosen = index == chosen
        lines.append(
            _row(shown[index], row, columns, name_width, marks, is_chosen, width, terminal)
        )
    if last - first < len(shown) and room:
        text = f" {terminal.more} {len(shown) - (last - first)} more rows: up and down"
        lines.append(fitted([Span(text, "dim")], width))
    return lines


def title_cell(
    title: str, width: int, terminal: TerminalStyle, *, joined: bool = False
) -> tuple[Span, Span]:
    """A rule with a word at its right end, over a column of numbers; `joined` to the
    rule at its left."""
    rule = terminal.rule * max(width - len(title) - 2, 0)
    edge = terminal.rule if joined else " "
    return Span(f"{edge}{rule} ", "dim"), Span(title)


def window(count: int, room: int, chosen: int | None) -> tuple[int, int]:
    """The visible rows; the chosen one is among them, above the note about the rest."""
    if count <= room:
        return 0, count
    usable = max(room - 1, 0)
    wanted = chosen or 0
    first = max(0, min(wanted - usable + 1, count - usable))
    return first, first + usable


def stat_of(expression: str) -> str:
    """The column that a threshold is about; empty if no column shows it."""
    subject = re.split(r"[<>=!]", expression, maxsplit=1)[0].strip()
    if "service." in subject or "connect." in subject:
        return ""
    found = _QUANTILE.search(subject)
    if found is not None:
        prefix = "first byte p" if "first_byte." in subject else "p"
        return prefix + found[1]
    return _STATS.get(subject.rsplit(".", 1)[-1], "")


def _broken(thresholds: Sequence[ThresholdState], names: Sequence[str]) -> dict[str, set[str]]:
    """The columns whose cells violate a threshold, by row; "" marks the name."""
    found: dict[str, set[str]] = {}
    titles = {column.title for column in _COLUMNS}
    for state in thresholds:
        if state.condition == "failing" and state.row in names:
            stat = stat_of(state.expression)
            found.setdefault(state.row, set()).add(stat if stat in titles else "")
    return found


def _that_fit(names: Sequence[str], width: int) -> tuple[list[StepColumn], int]:
    longest = max((len(name) for name in names), default=0)
    name_width = min(max(longest, _NAME_LEAST), _NAME_MOST)
    kept = list(_COLUMNS)
    # Names shrink to their least width first; then columns of numbers go.
    while kept and 2 + _NAME_LEAST + sum(column.width for column in kept) > width:
        kept.remove(max(kept, key=lambda column: column.need))
    room = width - 2 - sum(column.width for column in kept)
    return kept, max(min(name_width, room), 1)


def _title(
    columns: Sequence[StepColumn], name_width: int, width: int, terminal: TerminalStyle
) -> Line:
    spans = [Span(f"{terminal.rule * 2} ", "dim"), Span("step", "strong"), Span(" ", "dim")]
    spans.append(Span(terminal.rule * max(name_width - 6, 0), "dim"))
    for index, column in enumerate(columns):
        spans += title_cell(column.title, column.width, terminal, joined=index == 0)
    used = 2 + name_width + sum(column.width for column in columns)
    unit = " ms " if width - used >= 6 else " "
    spans.append(Span(unit, "dim"))
    spans.append(Span(terminal.rule * max(width - used - len(unit), 0), "dim"))
    return fitted(spans, width)


def _row(
    name: str,
    row: RowSnapshot | None,
    columns: Sequence[StepColumn],
    name_width: int,
    marks: set[str],
    is_chosen: bool,
    width: int,
    terminal: TerminalStyle,
) -> Line:
    lead = terminal.chosen if is_chosen else " "
    text = shortened(terminal.shown(name), name_width, terminal.more)
    name_style: Style = "bad" if "" in marks else "chosen" if is_chosen else "plain"
    sign = terminal.mark if "" in marks else " "
    spans = [Span(lead, "chosen"), Span(cell(text, name_width), name_style), Span(sign, "bad")]
    for column in columns:
        value = "-" if row is None or not row.count else column.show(row)
        style: Style = "plain" if row is not None and row.count else "dim"
        if column.title == "failed" and row is not None and row.failed:
            style = "warn"
        if column.title in marks and row is not None:
            value, style = f"{terminal.mark} {value}", "bad"
        spans.append(Span(cell(value, column.width, right=True), style))
    return fitted(spans, width)


def _share(row: RowSnapshot) -> float:
    return row.failed / row.count if row.count else 0.0
