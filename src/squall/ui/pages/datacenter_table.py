"""The datacenters of a run: one line each, red while nothing is heard of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from squall.reporting.number_format import percent, percent_cell, three_digits
from squall.stats.snapshot import DatacenterSnapshot
from squall.ui.pages.charts import shown_ms
from squall.ui.pages.step_table import title_cell
from squall.ui.styled_text import Line, Span, Style, cell, fitted, shortened
from squall.ui.terminal_style import TerminalStyle

_NAME_LEAST, _NAME_MOST = 12, 24


@dataclass(frozen=True)
class _Column:
    title: str
    width: int
    show: Callable[[DatacenterSnapshot], str]
    need: int
    """On a narrow terminal, columns with a higher number go first."""


_COLUMNS = (
    _Column("part", 8, lambda part: percent(part.part), 3),
    _Column("rate", 8, lambda part: three_digits(part.iterations_now_per_s), 0),
    _Column("of", 8, lambda part: _planned(part), 4),
    _Column("failed", 9, lambda part: percent_cell(part.failed_now_share), 0),
    _Column("p50", 8, lambda part: _now(part, part.p50_now_s), 6),
    _Column("p95", 8, lambda part: _now(part, part.p95_now_s), 1),
    _Column("p99", 8, lambda part: _now(part, part.p99_now_s), 5),
    _Column("users", 7, lambda part: str(part.users), 2),
    _Column("workers", 9, lambda part: str(part.workers), 7),
)


def datacenter_table(
    parts: Sequence[DatacenterSnapshot], size: tuple[int, int], terminal: TerminalStyle
) -> list[Line]:
    """Title and one row per datacenter, as they were named; the last row counts those that do not
    fit. Silent and lost ones come first then."""
    width, height = size
    if height < 2:
        return []
    columns = list(_COLUMNS)
    while 2 + _NAME_LEAST + sum(column.width for column in columns) > width and columns:
        columns.remove(max(columns, key=lambda column: column.need))
    longest = max(len(part.name) for part in parts)
    numbers = sum(column.width for column in columns)
    name_width = max(min(max(longest, _NAME_LEAST), _NAME_MOST, width - 2 - numbers), 1)
    shown = list(parts)
    if len(shown) > height - 1:
        shown.sort(key=lambda part: not _is_bad(part))
        shown = shown[: max(height - 2, 0)]
    lines = [_title(columns, name_width, width, terminal)]
    lines += [_row(part, columns, name_width, width, terminal) for part in shown]
    if len(shown) < len(parts):
        text = f" {terminal.more} {len(parts) - len(shown)} more datacenters"
        lines.append(fitted([Span(text, "dim")], width))
    return lines


def _title(
    columns: Sequence[_Column], name_width: int, width: int, terminal: TerminalStyle
) -> Line:
    lead = terminal.rule * max(name_width + 2 - 14, 0)
    spans = [
        Span(f"{terminal.rule * 2} ", "dim"),
        Span("datacenter", "strong"),
        Span(f" {lead}", "dim"),
    ]
    for place, column in enumerate(columns):
        spans += title_cell(column.title, column.width, terminal, joined=place == 0)
    spans.append(Span(" " + terminal.rule * width, "dim"))
    return fitted(spans, width)


def _row(
    part: DatacenterSnapshot,
    columns: Sequence[_Column],
    name_width: int,
    width: int,
    terminal: TerminalStyle,
) -> Line:
    is_bad = _is_bad(part)
    name = cell(shortened(terminal.shown(part.name), name_width, terminal.more), name_width)
    spans = [Span(" "), Span(name, "bad" if is_bad else "plain"), Span(" ")]
    if is_bad:
        return fitted([*spans, Span(f" {terminal.mark} {_trouble(part, terminal)}", "bad")], width)
    if not part.samples_now:
        return fitted([*spans, Span(f" {part.state}", "dim")], width)
    for column in columns:
        style: Style = "warn" if column.title == "failed" and part.failed_now_share else "plain"
        spans.append(Span(cell(column.show(part), column.width, right=True), style))
    return fitted(spans, width)


def _is_bad(part: DatacenterSnapshot) -> bool:
    return bool(part.silent_s) or part.state in ("lost", "failed")


def _trouble(part: DatacenterSnapshot, terminal: TerminalStyle) -> str:
    if part.silent_s:
        return f"silent for {part.silent_s:.0f} s"
    return f"{part.state}: {terminal.shown(part.note)}" if part.note else part.state


def _planned(part: DatacenterSnapshot) -> str:
    return "-" if part.target_per_s is None else three_digits(part.target_per_s)


def _now(part: DatacenterSnapshot, seconds: float) -> str:
    return shown_ms(seconds) if part.samples_now else "-"
