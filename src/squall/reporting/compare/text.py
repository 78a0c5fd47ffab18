"""A comparison as text for a terminal and as Markdown for a pull request.

Both have the same content: what is compared, why it should not be, a line per step, the count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from squall.reporting.compare.changes import (
    COLUMNS,
    ONE_RUN,
    SAMPLES_MIN,
    WINDOWS_MIN,
    ColumnChange,
    Comparison,
    same_machine,
    samples_needed,
)
from squall.reporting.document.read import ResultsFile
from squall.reporting.number_format import length, percent_number, three_digits
from squall.reporting.outputs.markdown import table
from squall.reporting.text.layout import Paint, Shade, aligned

_HEADS = {"rate": "rate /s", "p50": "p50 ms", "p99": "p99 ms", "errors": "errors"}
_MARKS = {"same": "=", "few": "too few samples", "open": ""}
_SHADES: dict[str, Shade] = {"worse": "bad", "better": "good"}
_JUDGED = re.compile(r" (worse|better)(?= [+-]| \|)")
_FORCE = "nothing is judged; add --force to judge anyway"


def render_comparison(result: Comparison, *, color: bool = False) -> str:
    paint = Paint(color)
    lines = [f"{_head(result)}          {_kinds(result)}", *_opening_lines(result)]
    names = ["step", *(_HEADS[column] for column in COLUMNS)]
    rows = [[step.name, *(_cell(each) for each in step.changes)] for step in result.steps]
    if rows:
        lines += _painted(aligned([names, *rows], gap=3), paint)
    else:
        lines.append("no step is in all of the runs")
    return "\n".join([*lines, *_closing_lines(result)])


def render_comparison_markdown(result: Comparison) -> str:
    parts = [f"**{_count(result)}**: {_head(result)}, {_kinds(result)}\n"]
    first = _opening_lines(result)
    parts.append("".join(f"- {line}\n" for line in first))
    names = ["step", *(_HEADS[column] for column in COLUMNS)]
    rows = [[step.name, *(_cell(each) for each in step.changes)] for step in result.steps]
    if rows:
        parts.append(_JUDGED.sub(r" **\1**", table(names, rows, left=len(names))))
    parts.append("".join(f"{line}\n" for line in _closing_lines(result)[:-1]))
    return "\n".join(part for part in parts if part)


def _head(result: Comparison) -> str:
    return f"{_side(result.before)} -> {_side(result.after)}"


def _side(reads: Sequence[ResultsFile]) -> str:
    runs = "1 run" if len(reads) == 1 else f"{len(reads)} runs"
    return f"{reads[0].path} ({runs})"


def _kinds(result: Comparison) -> str:
    states = [read.results.verdict.state for read in (*result.before, *result.after)]
    if set(states) == {"VALID"}:
        verdict = "both VALID"
    else:
        not_valid = [
            f"{n} {state}" for state in ("DEGRADED", "INVALID") if (n := states.count(state))
        ]
        verdict = f"{' and '.join(not_valid)} of {len(states)}"
    different = any("different profiles" in line for line in result.obstacles)
    profile = "different profiles" if different else "same profile"
    machine = "same machine kind" if same_machine(result) else "different machines"
    return f"{verdict}, {profile}, {machine}"


def _opening_lines(result: Comparison) -> list[str]:
    lines = list(result.obstacles)
    if not result.judged:
        lines.append(_FORCE)
    lines += [
        f"{read.path} did not complete: {read.results.status}"
        for read in (*result.before, *result.after)
        if read.results.status != "completed"
    ]
    return lines


def _closing_lines(result: Comparison) -> list[str]:
    lines = list(result.remarks)
    if result.number("few"):
        lines.append(_few(result))
    if result.one_run_each:
        lines.append(ONE_RUN)
    return [*lines, _count(result)]


def _few(result: Comparison) -> str:
    """The rule behind "too few samples", and what would satisfy it."""
    rule = (
        f"too few samples: each side needs {WINDOWS_MIN} whole windows and {SAMPLES_MIN} samples, "
        f"p99 {samples_needed('p99')} samples"
    )
    if math.isinf(result.enough_s):
        return f"{rule}; a step has none at all"
    return f"{rule}; runs of {length(result.enough_s)} would have them"


def _count(result: Comparison) -> str:
    if not result.judged:
        return "not judged"
    parts = [
        f"{result.number('worse')} worse",
        f"{result.number('better')} better",
        f"{result.number('same')} no difference",
    ]
    if few := result.number("few"):
        parts.append(f"{few} with too few samples")
    return ", ".join(parts)


def _cell(change: ColumnChange) -> str:
    mark = _MARKS.get(change.judgement)
    if change.before is None or change.after is None:
        return "-" if mark is None else f"-  {mark}".rstrip()
    values = [_number(change, value) for value in (change.before, change.after)]
    unit = " %" if change.column == "errors" else ""
    text = f"{values[0]} -> {values[1]}{unit}"
    if mark is not None:
        return f"{text}  {mark}".rstrip()
    if change.column == "errors":
        return f"{text}  {change.judgement}"
    bounds = f"[{_signed(change.low)} {_signed(change.high)}]"
    return f"{text}  {change.judgement} {_signed(change.relative)} % {bounds}"


def _number(change: ColumnChange, value: float) -> str:
    if change.column == "errors":
        return percent_number(value)
    return three_digits(value if change.column == "rate" else value * 1e3)


def _signed(fraction: float) -> str:
    percent = fraction * 100.0
    return f"{percent:+.0f}" if abs(percent) >= 9.5 else f"{percent:+.1f}"


def _painted(lines: Sequence[str], paint: Paint) -> list[str]:
    found: list[str] = []
    for line in lines:
        for word, shade in _SHADES.items():
            line = line.replace(f"  {word}", f"  {paint(word, shade)}")
        found.append(line)
    return found
