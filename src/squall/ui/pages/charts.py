"""Rate and latency over time, side by side, with axes; users in addition where there is room.

A page shows the last seconds, as many as fit, or the whole run. Percentiles are those of
single seconds (or the highest of a stretch); nothing here computes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from squall.reporting.number_format import clock, three_digits
from squall.ui.character_plots import (
    Curve,
    draw_curves,
    highest,
    mean,
    nice_top,
    resampled,
    slots,
    spread,
)
from squall.ui.history import History, Point
from squall.ui.styled_text import Line, Span, fitted, width_of
from squall.ui.terminal_style import TerminalStyle

AXIS = 6
"""Cells of the labels and the axis in front of a plot."""
_MS = 1e3


class When(NamedTuple):
    """Which time the plots show."""

    now_s: float
    whole: bool = False
    length_s: float | None = None
    """The length of the whole run, if it is known."""


class TimeRange:
    """The points that a plot of this width shows, and the times at its ends.

    The points of a run that is known to be short are spread over the whole width.
    """

    def __init__(self, history: History, width: int, terminal: TerminalStyle, when: When) -> None:
        room = max(slots(width, terminal), 2)
        each_s = history.width if when.whole else 1
        self.points: Sequence[Point] = history.every if when.whole else list(history.recent)[-room:]
        count = len(self.points)
        expected = math.ceil(when.length_s / each_s) if when.length_s else 0
        total = expected if when.whole or 0 < expected <= room else room
        total = max(total, count, 1)
        self.columns = min(math.ceil(count * room / total), room)
        shown_s = history.count if when.whole else count
        self.from_s = max(when.now_s - shown_s, 0.0)
        # The last point of a long run may cover less time than the others.
        self.until_s = self.from_s + max((total - count) * each_s + shown_s, 1)

    def values(
        self,
        pick: Callable[[Point], float | None],
        merge: Callable[[Sequence[float | None]], float | None],
    ) -> list[float | None]:
        picked = [pick(point) for point in self.points]
        if len(picked) > self.columns:
            return resampled(picked, self.columns, merge)
        return spread(picked, self.columns)


def rate_chart(
    history: History,
    title: Sequence[Span],
    size: tuple[int, int],
    terminal: TerminalStyle,
    when: When,
) -> list[Line]:
    """Achieved rate, the planned one behind it, failures in front."""
    width, _ = size
    stretch = TimeRange(history, width - AXIS, terminal, when)
    rate = stretch.values(lambda point: point.rate, mean)
    curves = [Curve(rate, "one", "*")]
    target = stretch.values(lambda point: point.target, mean)
    if any(value is not None for value in target):
        curves.insert(0, Curve(target, "dim", "-"))
    failed = stretch.values(lambda point: point.failed or None, mean)
    if any(value is not None for value in failed):
        curves.append(Curve(failed, "bad", "x"))
    return _chart(curves, title, size, terminal, stretch)


def latency_chart(
    history: History,
    title: Sequence[Span],
    size: tuple[int, int],
    terminal: TerminalStyle,
    when: When,
) -> list[Line]:
    """p99 over p95 over p50, in milliseconds."""
    width, _ = size
    stretch = TimeRange(history, width - AXIS, terminal, when)
    curves = [
        Curve(_ms(stretch.values(lambda point: point.p99, highest)), "three", "#"),
        Curve(_ms(stretch.values(lambda point: point.p95, highest)), "two", "o"),
        Curve(_ms(stretch.values(lambda point: point.p50, highest)), "one", "."),
    ]
    return _chart(curves, title, size, terminal, stretch)


def users_chart(
    history: History,
    title: Sequence[Span],
    size: tuple[int, int],
    terminal: TerminalStyle,
    when: When,
) -> list[Line]:
    stretch = TimeRange(history, size[0] - AXIS, terminal, when)
    curves = [Curve(stretch.values(lambda point: point.users, highest), "four", "*")]
    return _chart(curves, title, size, terminal, stretch)


def generator_chart(
    history: History,
    title: Sequence[Span],
    size: tuple[int, int],
    terminal: TerminalStyle,
    when: When,
) -> list[Line]:
    """CPU of the generator in per cent of its cores."""
    stretch = TimeRange(history, size[0] - AXIS, terminal, when)
    curves = [Curve(stretch.values(lambda point: point.rate, highest), "five", "*")]
    return _chart(curves, title, size, terminal, stretch)


def many_latencies_chart(
    histories: Sequence[tuple[History, Curve]],
    title: Sequence[Span],
    size: tuple[int, int],
    terminal: TerminalStyle,
    when: When,
) -> list[Line]:
    """The p99 of each workflow; its curve defines the style and letter."""
    width, _ = size
    curves: list[Curve] = []
    stretches = [TimeRange(history, width - AXIS, terminal, when) for history, _ in histories]
    longest = max((stretch.columns for stretch in stretches), default=0)
    for stretch, (_, curve) in zip(stretches, histories, strict=True):
        values = _ms(stretch.values(lambda point: point.p99, highest))
        # Workflows that started later begin further right: all end at the present.
        missing = longest - len(values)
        curves.append(curve._replace(values=[*([None] * missing), *values]))
    frame = max(stretches, key=lambda stretch: len(stretch.points)) if stretches else None
    frame = frame or TimeRange(History(), width - AXIS, terminal, when)
    return _chart(curves, title, size, terminal, frame)


def titled(
    left: Sequence[Span], right: Sequence[Span], width: int, terminal: TerminalStyle
) -> Line:
    """A rule with words: `-- rate/s ------------ 498 of 500 -`."""
    head = [Span(terminal.rule * 2 + " ", "dim"), *left, Span(" ", "dim")]
    tail = [Span(" ", "dim"), *right, Span(" " + terminal.rule, "dim")] if right else []
    if tail and width_of(head) + width_of(tail) > width:
        tail = [*right, Span(" ")]
    filling = width - width_of(head) - width_of(tail)
    if filling < 0:
        return titled(left, (), width, terminal) if right else fitted(head, width)
    return fitted([*head, Span(terminal.rule * filling, "dim"), *tail], width)


def _chart(
    curves: Sequence[Curve],
    title: Sequence[Span],
    size: tuple[int, int],
    terminal: TerminalStyle,
    stretch: TimeRange,
) -> list[Line]:
    """Title, rows, and the line of times; `size` counts all of them."""
    width, height = size
    rows = max(height - 2, 1)
    top = nice_top(max((v for c in curves for v in c.values if v is not None), default=0.0))
    lines = [tuple(title)]
    body = draw_curves(curves, width - AXIS, rows, top, terminal)
    for index, row in enumerate(body):
        label = _label(index, rows, top)
        edge = terminal.corner if index == rows - 1 else terminal.tick if label else terminal.bar
        lines.append(fitted([Span(f"{label:>{AXIS - 1}}{edge}", "dim"), *row], width))
    first, last = clock(round(stretch.from_s)), clock(round(stretch.until_s))
    gap = " " * max(width - AXIS - len(first) - len(last), 1)
    lines.append(fitted([Span(f"{'':{AXIS}}{first}{gap}{last}", "dim")], width))
    return lines


def _label(index: int, rows: int, top: float) -> str:
    if index == rows - 1:
        return "0"
    if index == 0:
        return axis_number(top)
    # A row in the middle has a label if it stands for a round number.
    return axis_number(top / 2) if index * 2 == rows - 1 else ""


def axis_number(value: float) -> str:
    """At most five cells: `600`, `1.5`, `20k`."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def shown_ms(seconds: float | None) -> str:
    return "-" if seconds is None else three_digits(seconds * _MS)


def _ms(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else value * _MS for value in values]
