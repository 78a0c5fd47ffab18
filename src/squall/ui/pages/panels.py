"""Errors, thresholds, the generator's own health, and the line of keys.

Each panel keeps to its size: rows that do not fit are counted, never dropped silently.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.reporting.number_format import (
    brief_duration,
    data_size,
    judged,
    percent,
    plural,
    rate,
    whole_percent,
)
from squall.stats.manifest import WorkflowManifest
from squall.stats.snapshot import (
    ErrorLine,
    ProtocolSnapshot,
    Snapshot,
    ThresholdState,
    WorkflowSnapshot,
)
from squall.ui.character_plots import sparkline
from squall.ui.controls import Controls
from squall.ui.state import RunState
from squall.ui.styled_text import Line, Span, Style, cell, fitted, shortened
from squall.ui.terminal_style import TerminalStyle

_SPARK = 8
_GAP = "   "


def errors_panel(
    state: RunState,
    moments: Sequence[WorkflowSnapshot],
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    """The most frequent first: count, row, reason, place in the file, the last minute."""
    width, height = size
    found = [(line, moment.name) for moment in moments for line in moment.errors]
    found.sort(key=lambda pair: -pair[0].count)
    if not found:
        return [fitted([Span(" none so far", "dim")], width)]
    shown = found if len(found) <= height else found[: max(height - 1, 0)]
    several = len(state.names) > 1 and len(moments) != 1
    names = [_row_name(line, name, several, terminal) for line, name in shown]
    name_width = min(max((len(name) for name in names), default=0), max(width // 4, 6))
    spark = _SPARK if width >= 40 else 0
    digits = max(len(str(shown[0][0].count)) if shown else 1, 3)
    lines: list[Line] = []
    for (line, workflow), name in zip(shown, names, strict=True):
        trace = state.errors.get((workflow, line.row, line.reason))
        reason = terminal.shown(line.reason)
        if trace is not None and trace.location:
            reason += f" {terminal.shown(trace.location)}"
        room = width - digits - 3 - name_width - 2 - (spark + 2 if spark else 0)
        spans = [
            Span(f" {line.count:>{digits}}  ", "bad"),
            Span(cell(shortened(name, name_width, terminal.more), name_width) + "  "),
            Span(cell(shortened(reason, room, terminal.more), room)),
        ]
        if spark and trace is not None:
            spans += [Span(" "), Span(sparkline(trace.per_second, spark, terminal), "bad")]
        lines.append(fitted(spans, width))
    if len(found) > len(shown):
        rest = sum(line.count for line, _ in found[len(shown) :])
        text = f" {rest:>{digits}}  in {len(found) - len(shown)} more kinds"
        lines.append(fitted([Span(text, "dim")], width))
    return lines


def thresholds_panel(
    state: RunState,
    moments: Sequence[WorkflowSnapshot],
    name: str | None,
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    """The thresholds, failing ones first if not all fit; then the checks."""
    width, height = size
    snapshot = state.snapshot
    states = thresholds_of(snapshot, name)
    checks = _checks(moments)
    room = height - (1 if checks else 0)
    if len(states) > room:
        states = sorted(states, key=lambda each: each.condition != "failing")
    lines = [_threshold(each, width, terminal) for each in states[: max(room, 0)]]
    if len(states) > room and lines:
        hidden = len(states) - len(lines) + 1
        lines[-1] = fitted([Span(f" {terminal.more} {hidden} more", "dim")], width)
    if not states:
        lines = [fitted([Span(" none set", "dim")], width)][: max(room, 0)]
    if checks:
        lines.append(fitted([Span(f"   {checks}")], width))
    return lines


def thresholds_width(state: RunState, name: str | None) -> int:
    """The width that the panel needs to show everything."""
    sizes = [
        len(each.expression) + max(len(_value(each)), 6) + 7
        for each in thresholds_of(state.snapshot, name)
    ]
    return max(sizes, default=0)


def thresholds_of(snapshot: Snapshot | None, name: str | None) -> list[ThresholdState]:
    """The thresholds of a page; the built-in one only while it fails."""
    states = snapshot.thresholds if snapshot is not None else ()
    return [
        state
        for state in states
        if (not state.builtin or state.condition == "failing")
        and (name is None or state.workflow in ("", name))
    ]


def generator_panel(
    state: RunState,
    planned: Sequence[WorkflowManifest],
    moments: Sequence[WorkflowSnapshot],
    size: tuple[int, int],
    terminal: TerminalStyle,
) -> list[Line]:
    """The generator's own health in `size`, after the reason why it is not VALID."""
    width, height = size
    snapshot = state.snapshot
    if snapshot is None:
        return [fitted([Span(" waiting for the first second", "dim")], width)]
    first: list[Line] = []
    if snapshot.reasons:
        style: Style = "bad" if snapshot.verdict == "INVALID" else "warn"
        reason = shortened(terminal.shown(snapshot.reasons[0]), width - 1, terminal.more)
        first.append(fitted([Span(f" {reason}", style)], width))
    first += [
        fitted(
            [Span(" " + shortened(terminal.shown(text), width - 1, terminal.more), "warn")], width
        )
        for text in snapshot.losses[-2:]
    ]
    facts = _facts(snapshot, planned, moments)
    return [*first, *_flowing(facts, width)[:height]]


def keys_line(
    state: RunState,
    controls: Controls,
    *,
    pane: str,
    several: bool,
    width: int,
    terminal: TerminalStyle,
) -> Line:
    """What the user waits for, or the available keys."""
    if state.notice:
        return fitted([Span(f" {terminal.shown(state.notice)}", "warn")], width)
    keys = [("q", "stop and report", 0)]
    if pane:
        keys.insert(0, ("esc", "back", 0))
    if controls.can_pause:
        keys.append(("p", "resume" if state.paused else "pause", 2))
    if controls.adjust is not None:
        keys.append(("+/-", "rate", 2))
    if several:
        keys.append(("tab", "next workflow", 2))
    keys += [("enter", "step", 4), ("w", "whole run", 5), ("l", "log", 3), ("?", "help", 1)]
    # The help key goes last, because the help names all the others.
    while len(keys) > 1 and sum(len(key) + len(word) + 4 for key, word, _ in keys) - 2 > width:
        keys.remove(max(keys, key=lambda entry: entry[2]))
    spans: list[Span] = [Span(" ")]
    for key, word, _ in keys:
        spans += [Span(key, "chosen"), Span(f" {word}   ", "dim")]
    return fitted(spans, width)


def _row_name(line: ErrorLine, workflow: str, several: bool, terminal: TerminalStyle) -> str:
    return terminal.shown(f"{workflow}.{line.row}" if several else line.row)


def _threshold(state: ThresholdState, width: int, terminal: TerminalStyle) -> Line:
    signs: dict[str, tuple[str, Style]] = {
        "failing": (terminal.bad, "bad"),
        "passing": (terminal.good, "good"),
        "pending": ("-" if not terminal.utf8 else "·", "dim"),
    }
    sign, style = signs[state.condition]
    value = _value(state)
    room = max(width - 5 - len(value) - 1, 4)
    text = cell(shortened(terminal.shown(state.expression), room, terminal.more), room)
    shade: Style = "bad" if state.condition == "failing" else "plain"
    spans = [Span(f" {cell(sign, 2)} ", style), Span(text, shade), Span(f" {value} ", shade)]
    return fitted(spans, width)


def _value(state: ThresholdState) -> str:
    if state.value is not None:
        return judged(state.value, state.unit, state.limit)
    return "later" if state.condition == "pending" else "no samples"


def _checks(moments: Sequence[WorkflowSnapshot]) -> str:
    passed = sum(moment.checks_passed for moment in moments)
    whole = passed + sum(moment.checks_failed for moment in moments)
    return f"checks {percent(passed / whole)} of {whole}" if whole else ""


def _facts(
    snapshot: Snapshot, planned: Sequence[WorkflowManifest], moments: Sequence[WorkflowSnapshot]
) -> list[str]:
    cores = plural(snapshot.processes, "core")
    facts = [
        *_protocols(moments),
        f"cpu {whole_percent(snapshot.cpu)} of {cores}",
        f"loop lag p99 {brief_duration(snapshot.lag_p99_s)}",
    ]
    users, busy = sum(each.users for each in moments), sum(each.busy for each in moments)
    most = sum(each.profile.max_vus for each in planned if each.profile.is_open)
    facts.append(f"users {busy} busy of {users}" + (f" (max {most})" if most else ""))
    if any(each.profile.is_open for each in planned):
        late = sum(each.late for each in moments)
        worst = max((each.late_max_s for each in moments), default=0.0)
        facts.append(f"late starts {late}" + (f" (max {brief_duration(worst)})" if late else ""))
        facts.append(f"dropped {sum(each.dropped for each in moments)}")
    facts.append(f"sent {data_size(sum(each.bytes_sent for each in moments))}")
    facts.append(f"received {data_size(sum(each.bytes_received for each in moments))}")
    facts.append(f"gc {brief_duration(snapshot.gc_max_s)} at most")
    connections = sum(each.connections for each in moments)
    if connections:
        worst = max(each.connect_p99_s for each in moments)
        facts.append(f"connect p99 {brief_duration(worst)} ({plural(connections, 'connection')})")
    return facts


def _protocols(moments: Sequence[WorkflowSnapshot]) -> list[str]:
    """What each protocol does now, if there is another than HTTP/1."""
    found: dict[str, list[ProtocolSnapshot]] = {}
    for moment in moments:
        for each in moment.protocols:
            found.setdefault(each.name, []).append(each)
    return [_protocol(name, parts) for name, parts in found.items()]


def _protocol(name: str, parts: Sequence[ProtocolSnapshot]) -> str:
    facts: list[str] = []
    answered = sum(each.answered_now_per_s for each in parts)
    messages = sum(each.messages_now_per_s for each in parts)
    if answered or not messages:
        facts.append(rate(answered))
    if messages:
        facts.append(f"{rate(messages)} {'events' if name == 'sse' else 'messages'}")
    failed = sum(each.failed for each in parts)
    if failed:
        facts.append(f"{failed} failed")
    connections = plural(sum(each.connections for each in parts), "connection")
    return f"{name} {', '.join(facts)} ({connections})"


def _flowing(facts: Sequence[str], width: int) -> list[Line]:
    """Fills each line with as many facts as fit."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + len(_GAP) + len(fact) <= width:
            lines[-1] += _GAP + fact
        else:
            lines.append(f" {fact}")
    return [fitted([Span(line)], width) for line in lines]
