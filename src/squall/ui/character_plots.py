"""Draws plots with characters: curves over time, sparklines, bars.

In UTF-8 a cell holds two columns and four rows of braille dots; in ASCII it holds one
character that names its line. A value of None is a gap. The functions are pure, and their
cost depends on the size of the plot only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from squall.ui.styled_text import Line, Span, Style
from squall.ui.terminal_style import TerminalStyle

# Bits of a braille character: rows from the top, then left and right.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800

Values = Sequence[float | None]


class Curve(NamedTuple):
    values: Values
    style: Style
    letter: str = "*"
    """Stands for the curve in ASCII."""


def slots(width: int, terminal: TerminalStyle) -> int:
    """How many values fit side by side."""
    return width * 2 if terminal.utf8 else width


def draw_curves(
    curves: Sequence[Curve], width: int, height: int, top: float, terminal: TerminalStyle
) -> list[Line]:
    """Curves from 0 to `top`, the first value at the left; later curves lie on top."""
    columns, rows = slots(width, terminal), height * (4 if terminal.utf8 else 1)
    marks = [[0] * width for _ in range(height)]
    owners: list[list[Curve | None]] = [[None] * width for _ in range(height)]
    for curve in curves:
        before: int | None = None
        for column, value in enumerate(curve.values[:columns]):
            if value is None:
                before = None
                continue
            level = _level(value, top, rows)
            for step in _joined(before, level):
                row, x = rows - 1 - step, column // 2 if terminal.utf8 else column
                y = row // 4 if terminal.utf8 else row
                marks[y][x] |= _DOTS[row % 4][column % 2] if terminal.utf8 else 1
                owners[y][x] = curve
            before = level
    return [_spans(row, owner, terminal.utf8) for row, owner in zip(marks, owners, strict=True)]


def sparkline(values: Sequence[float], width: int, terminal: TerminalStyle) -> str:
    """The last values, scaled to the highest; any value above 0 is visible."""
    shown = resampled(list(values), width, lambda part: max(_numbers(part), default=0.0))
    most = max((value or 0.0 for value in shown), default=0.0)
    levels = terminal.levels
    text = "".join(
        levels[0 if not value else max(1, round(value / most * (len(levels) - 1)))]
        for value in shown
    )
    return text.rjust(width)


def bar(share: float, width: int, terminal: TerminalStyle) -> str:
    """A bar that is filled from the left, in eighths of a cell."""
    share = min(max(share, 0.0), 1.0)
    parts = terminal.parts
    steps = len(parts) - 1
    filled = int(share * width * steps)
    whole, rest = divmod(filled, steps)
    if whole >= width:
        return parts[-1] * width
    return parts[-1] * whole + parts[rest] + " " * (width - whole - 1)


def nice_top(highest: float) -> float:
    """The end of an axis: 1, 2, 3, 4, 5, 6 or 8 times a power of ten, with a small margin."""
    if highest <= 0.0 or not math.isfinite(highest):
        return 1.0
    wanted = highest * 1.05
    power = 10.0 ** math.floor(math.log10(wanted))
    for step in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0):
        if step * power >= wanted * (1 - 1e-9):
            return step * power
    return 10.0 * power


def resampled(
    values: Sequence[float | None],
    columns: int,
    merge: Callable[[Sequence[float | None]], float | None],
) -> list[float | None]:
    """At most `columns` values, each for an equal number of the given ones."""
    count = len(values)
    if count <= columns:
        return list(values)
    return [
        merge(values[index * count // columns : (index + 1) * count // columns])
        for index in range(columns)
    ]


def spread(values: Values, columns: int) -> list[float | None]:
    """As many values as columns, interpolated linearly between the given ones."""
    count = len(values)
    if count == columns or count == 0:
        return list(values)
    made: list[float | None] = []
    for column in range(columns):
        place = column * count / columns
        index = int(place)
        value = values[index]
        after = values[index + 1] if index + 1 < count else None
        if value is not None and after is not None:
            value += (after - value) * (place - index)
        made.append(value)
    return made


def mean(part: Sequence[float | None]) -> float | None:
    numbers = _numbers(part)
    return sum(numbers) / len(numbers) if numbers else None


def highest(part: Sequence[float | None]) -> float | None:
    return max(_numbers(part), default=None)


def _numbers(part: Sequence[float | None]) -> list[float]:
    return [value for value in part if value is not None]


def _level(value: float, top: float, rows: int) -> int:
    return min(max(round(value / top * (rows - 1)), 0), rows - 1)


def _joined(before: int | None, level: int) -> range:
    """The rows that a step from the last value covers, without the last value's own."""
    if before is None or before == level:
        return range(level, level + 1)
    return range(before + 1, level + 1) if level > before else range(level, before)


def _spans(marks: Sequence[int], owners: Sequence[Curve | None], utf8: bool) -> Line:
    """Joins neighbours of one style into one span, so that a colour is written once."""
    spans: list[Span] = []
    for mark, curve in zip(marks, owners, strict=True):
        style: Style = "plain" if curve is None else curve.style
        char = " "
        if curve is not None:
            char = chr(_BRAILLE | mark) if utf8 else curve.letter
        if spans and spans[-1].style == style:
            spans[-1] = Span(spans[-1].text + char, style)
        else:
            spans.append(Span(char, style))
    return tuple(spans)
