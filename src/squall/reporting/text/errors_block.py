"""The ERRORS and WORKFLOWS blocks of the summary: what failed, how often, where.

Each reason is shown once with its count; the first tracebacks of a few follow, shortened to the
lines nearest to the mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from squall.engine.outcome import RunOutcome
from squall.reporting.text.layout import Paint, section
from squall.stats.reports import ErrorSample
from squall.stats.totals.run import RunStats
from squall.stats.totals.step_rows import reason_text

_LINES_MAX = 20
_BODIES_MAX = 3
_BODY_CHARS = 200
_TRACEBACKS_MAX = 3
_TRACEBACK_LINES = 8
_REASON_CHARS = 100


@dataclass
class FailureGroup:
    """Failures of one row with one reason; `count` is None for those that are not counted (checks,
    metrics and end actions that raised)."""

    workflow: str
    row: str
    reason: str
    count: int | None
    samples: list[ErrorSample]

    @property
    def first(self) -> ErrorSample | None:
        return self.samples[0] if self.samples else None


def failures_of(stats: RunStats) -> list[FailureGroup]:
    """The failures of a run, the most frequent first, those without a count last."""
    found: dict[tuple[str, str, str], FailureGroup] = {}
    for workflow in stats.workflows.values():
        for row in workflow.rows.values():
            for reason, count in row.reasons.items():
                key = (workflow.name, row.name, reason)
                found[key] = FailureGroup(*key, count, [])
    for sample in sorted(stats.errors.values(), key=lambda each: each.at_s):
        key = (sample.workflow, sample.row, reason_text(sample.reason))
        found.setdefault(key, FailureGroup(*key, None, [])).samples.append(sample)
    return sorted(found.values(), key=lambda failure: -(failure.count or 0))


def errors_block(outcome: RunOutcome, paint: Paint, *, named: bool) -> list[str]:
    failures = failures_of(outcome.stats)
    if not failures:
        return []
    shown = failures[:_LINES_MAX]
    names = [f"{f.workflow}.{f.row}" if named else f.row for f in shown]
    counts = ["-" if f.count is None else str(f.count) for f in shown]
    name_width = max(map(len, names))
    count_width = max(4, *map(len, counts))
    lines = [
        f"{count:>{count_width}}  {name:<{name_width}}  {_reason(failure)}"
        for failure, name, count in zip(shown, names, counts, strict=True)
    ]
    if len(failures) > len(shown):
        lines.append(f"... and {len(failures) - len(shown)} more kinds (--json has them all)")
    return section("ERRORS", lines, paint) + _bodies(shown, paint) + _tracebacks(shown, paint)


def workflows_block(outcome: RunOutcome, paint: Paint) -> list[str]:
    """The workflows that did not complete."""
    lines = [
        f"{paint(f'{each.name} {each.status}', 'bad')}{f': {each.error}' if each.error else ''}"
        for each in outcome.workflows
        if each.status != "completed" and (each.error or each.status in ("failed", "skipped"))
    ]
    return section("WORKFLOWS", lines, paint) if lines else []


def _reason(failure: FailureGroup) -> str:
    text = failure.reason
    if len(text) > _REASON_CHARS:
        text = text[: _REASON_CHARS - 3] + "..."
    locations = list(dict.fromkeys(s.location for s in failure.samples if s.location))
    if not locations:
        return text
    more = f" and {len(locations) - 1} more" if len(locations) > 1 else ""
    return f"{text}   {locations[0]}{more}"


def _bodies(failures: Sequence[FailureGroup], paint: Paint) -> list[str]:
    """What the target answered to the first of some failures: it often says why."""
    lines: list[str] = []
    answered = [f for f in failures if f.first is not None and f.first.status and f.first.body]
    for failure in answered[:_BODIES_MAX]:
        first = failure.first
        assert first is not None, "only failures with a sample are here"
        text = " ".join(first.body.split())
        text = text if len(text) <= _BODY_CHARS else text[: _BODY_CHARS - 3] + "..."
        lines.append(f"  first answer {first.status} in {failure.row}: {first.request}")
        lines.append(paint(f"    {text}", "dim"))
    return lines


def _tracebacks(failures: Sequence[FailureGroup], paint: Paint) -> list[str]:
    lines: list[str] = []
    shown = 0
    for failure in failures:
        if failure.first is None or not failure.first.traceback or shown == _TRACEBACKS_MAX:
            continue
        shown += 1
        lines.append(f"  first {failure.reason.partition(':')[0]} in {failure.row}:")
        lines += [paint(f"    {line}", "dim") for line in _shortened(failure.first.traceback)]
    return lines


def _shortened(traceback: str) -> list[str]:
    lines = traceback.rstrip().splitlines()
    if lines and lines[0].startswith("Traceback ("):
        lines = lines[1:]
    if len(lines) <= _TRACEBACK_LINES:
        return lines
    return ["  ...", *lines[-_TRACEBACK_LINES:]]
