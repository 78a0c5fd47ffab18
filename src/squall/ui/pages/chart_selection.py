"""The plots of a page: which histories they show and what their titles say."""

from __future__ import annotations

from squall.reporting.number_format import three_digits, whole_percent
from squall.ui.history import History, Point
from squall.ui.pages.charts import (
    When,
    generator_chart,
    latency_chart,
    many_latencies_chart,
    rate_chart,
    shown_ms,
    titled,
    users_chart,
)
from squall.ui.pages.overview import curve_of
from squall.ui.selection import ViewSelection, row_names
from squall.ui.state import RunState
from squall.ui.styled_text import Line, Span, side_by_side
from squall.ui.terminal_style import TerminalStyle


def main_charts(
    state: RunState,
    view: ViewSelection,
    name: str | None,
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    """Rate and latency: of all workflows, of one, or of its chosen row."""
    width, height = size
    # The title of the latencies is longer than that of the rate.
    left = max(width * 45 // 100 - 1, 1)
    right = width - left - 1
    when = _when(state, view, name)
    row = ""
    if name is None:
        history = state.total
    else:
        names = row_names(state, name)
        row = names[min(view.row, len(names) - 1)] if view.step and names else ""
        history = state.rows.get((name, row), History()) if row else state.workflows[name]
    point = history.recent[-1] if history.recent else Point()
    (what, now), (title, times) = _titles(name, row, point, terminal)
    rates = rate_chart(history, titled(what, now, left, terminal), (left, height), terminal, when)
    heading = titled(title, times, right, terminal)
    if name is not None:
        latencies = latency_chart(history, heading, (right, height), terminal, when)
    else:
        histories = [
            (state.workflows[each], curve_of(index))
            for index, each in enumerate(state.names)
            if state.workflows[each].count
        ]
        latencies = many_latencies_chart(histories, heading, (right, height), terminal, when)
    return _pair(rates, latencies, terminal)


def more_charts(
    state: RunState,
    view: ViewSelection,
    name: str | None,
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    """Users, and how busy the generator is."""
    width, height = size
    left = max(width * 45 // 100 - 1, 1)
    right = width - left - 1
    history = state.total if name is None else state.workflows[name]
    users = history.recent[-1].users if history.recent else 0.0
    title = titled([Span("users", "strong")], [Span(f"{users:.0f}", "four")], left, terminal)
    first = users_chart(history, title, (left, height), terminal, _when(state, view, name))
    cpu = state.snapshot.cpu if state.snapshot is not None else 0.0
    title = titled(
        [Span("generator cpu %", "strong")], [Span(whole_percent(cpu), "five")], right, terminal
    )
    when = _when(state, view, None)
    return _pair(
        first, generator_chart(state.generator, title, (right, height), terminal, when), terminal
    )


def _pair(left: list[Line], right: list[Line], terminal: TerminalStyle) -> list[Line]:
    joined = side_by_side(left, right, terminal.bar)
    return [(*left[0], Span(terminal.tee, "dim"), *right[0]), *joined[1:]]


def _when(state: RunState, view: ViewSelection, name: str | None) -> When:
    now_s = state.snapshot.elapsed_s if state.snapshot is not None else 0.0
    moment = state.moment(name) if name is not None else None
    length_s = _length_s(state, name or state.names[0]) if len(state.names) == 1 or name else None
    return When(moment.elapsed_s if moment is not None else now_s, view.whole, length_s)


def _length_s(state: RunState, name: str) -> float | None:
    """The length of a workflow; None if it ends by itself."""
    profile = state.planned(name).profile
    return None if profile.model in ("iterations", "once") else profile.duration_s


def _titles(
    name: str | None, row: str, point: Point, terminal: TerminalStyle
) -> tuple[tuple[list[Span], list[Span]], tuple[list[Span], list[Span]]]:
    """The words of the two titles, left and right; they explain the colours."""
    of = f" {terminal.shown(row)}" if row else ""
    rate = three_digits(point.rate)
    now = [Span(rate, "one")]
    if point.target is not None:
        now.append(Span(f" of {three_digits(point.target)}", "dim"))
    if point.failed:
        now.append(Span(f"  failed {three_digits(point.failed)}", "bad"))
    what = [Span("rate/s", "strong"), Span(of)]
    if name is None:
        return (what, now), (
            [Span("latency p99 ms", "strong"), Span(" of each workflow", "dim")],
            [],
        )
    marks = ("", "", "") if terminal.utf8 else (".", "o", "#")
    times = [
        Span(f"{marks[0]}p50 {shown_ms(point.p50)}", "one"),
        Span("  "),
        Span(f"{marks[1]}p95 {shown_ms(point.p95)}", "two"),
        Span("  "),
        Span(f"{marks[2]}p99 {shown_ms(point.p99)}", "three"),
    ]
    return (what, now), ([Span("latency ms", "strong"), Span(of)], times)
