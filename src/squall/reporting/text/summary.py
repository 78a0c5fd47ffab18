"""Renders the summary at the end of a run.

The sections follow a reader's questions: did it pass, how did each step do, what was checked, was
the load as planned, was the generator healthy, what failed. Scripts written for other tools parse
the last two lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.engine.load.profile import describe
from squall.engine.outcome import RunOutcome
from squall.reporting.number_format import (
    brief,
    data_size,
    duration,
    judged,
    length,
    measured,
    percent,
    plural,
    rate,
)
from squall.reporting.text.columns import DEFAULT_COLUMNS
from squall.reporting.text.errors_block import errors_block, workflows_block
from squall.reporting.text.layout import VERDICT_SHADES, Paint, aligned, section
from squall.reporting.text.load_block import generator_block, http_block, load_block
from squall.reporting.text.steps_table import steps_block
from squall.reporting.totals import loaded_workflows, totals_of
from squall.stats.run_notes import always_failed
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.totals.step_rows import CheckStats, MetricStats
from squall.stats.totals.workflow import WorkflowStats

# Width of the expression, so that the values of short ones line up.
_THRESHOLD_WIDTH = 29


def render_summary(
    outcome: RunOutcome, *, columns: tuple[str, ...] | None = None, color: bool = False
) -> str:
    paint = Paint(color)
    stats = outcome.stats
    loaded = loaded_workflows(stats)
    named = len(stats.workflows) > 1
    lines = _head(outcome, loaded, paint)
    lines.append("")
    lines += _thresholds(outcome.thresholds, paint)
    for workflow in _with_rows(outcome):
        lines += steps_block(workflow, columns or DEFAULT_COLUMNS, paint, named=named)
    lines += _checks(outcome, paint, named=named)
    lines += _metrics(list(stats.workflows.values()), paint, named=named)
    everything = totals_of(stats, list(stats.workflows.values()))
    if loaded:
        lines += load_block(loaded, paint)
        lines += http_block(everything, paint)
        lines += generator_block(outcome, loaded, paint)
    lines += workflows_block(outcome, paint)
    lines += errors_block(outcome, paint, named=named)
    lines += section("NOTES", outcome.notes, paint) if outcome.notes else []
    # Without set-up and teardown, whose few requests would lower the rates.
    measured_load = totals_of(stats, loaded)
    received, answered = measured_load.received_per_s, measured_load.answered_per_s
    has_rates = any(workflow.has_rates for workflow in loaded) or not loaded
    lines.append(f"Transfer/sec: {data_size(received) if has_rates else '-'}")
    lines.append(f"Requests/sec: {f'{answered:.1f}' if has_rates else '-'}")
    return "\n".join(lines)


def _head(outcome: RunOutcome, loaded: Sequence[WorkflowStats], paint: Paint) -> list[str]:
    verdict = outcome.verdict
    names = [f"{w.name}  {_model(w)}" for w in loaded] or [w.name for w in outcome.workflows]
    parts = [
        outcome.manifest.path,
        " + ".join(names),
        length(outcome.elapsed_s),
        f"run {outcome.info.id}",
        paint(verdict.state, VERDICT_SHADES[verdict.state]),
    ]
    if outcome.aborted_by:
        parts.append(f"ended early by {outcome.aborted_by}")
    elif outcome.status != "completed":
        parts.append(outcome.status)
    if outcome.info.warmup_s:
        parts.append(f"without the first {length(outcome.info.warmup_s)}")
    lines = ["  ".join(part for part in parts if part)]
    # First of all: a step that never succeeded, perhaps by a mistake in the file, makes the other
    # numbers meaningless.
    lines += [
        f"{paint('RAISED' if step.raised else 'FAILED', 'bad')}  {step.name} {step.text}"
        for step in always_failed(outcome.stats)
    ]
    if verdict.state != "VALID":
        state = paint(verdict.state, VERDICT_SHADES[verdict.state])
        reasons = list(verdict.reasons) or ["no reason given"]
        indent = " " * (len(verdict.state) + 2)
        lines += [f"{state}  {reasons[0]}", *(f"{indent}{reason}" for reason in reasons[1:])]
    return lines


def _model(workflow: WorkflowStats) -> str:
    """The model without the planned length; the actual one is next to it."""
    text = describe(workflow.manifest.profile)
    for mark in (" for ", ", at most "):
        text = text.partition(mark)[0]
    return text


def _thresholds(results: Sequence[ThresholdResult], paint: Paint) -> list[str]:
    # Some failures are shown elsewhere; only a run in which everything failed needs a line.
    shown = [result for result in results if not (result.builtin and result.passed)]
    if not shown:
        return []
    passed = sum(result.passed for result in shown)
    lines = section("THRESHOLDS", [f"{passed} passed, {len(shown) - passed} failed"], paint)
    width = max(_THRESHOLD_WIDTH, 2 + max(len(result.expression) for result in shown))
    for result in shown:
        sign = paint("ok", "good") if result.passed else paint("x", "bad") + " "
        value = judged(result.value, result.unit, result.limit, result.note)
        note = result.note if result.note and result.value is not None else ""
        line = f"  {sign}  {result.expression:<{width}}{value}"
        lines.append(f"{line}  ({note})" if note else line)
    return [*lines, ""]


def _with_rows(outcome: RunOutcome) -> list[WorkflowStats]:
    """Tests always; set-up and teardown only if they made measured calls."""
    return [
        workflow
        for workflow in outcome.stats.workflows.values()
        if workflow.last_second >= 0 and (workflow.manifest.is_test or workflow.count)
    ]


def _checks(outcome: RunOutcome, paint: Paint, *, named: bool) -> list[str]:
    found = [
        (f"{workflow.name}.{check.name}" if named else check.name, check)
        for workflow in outcome.stats.workflows.values()
        for check in workflow.checks.values()
    ]
    if not found:
        return []
    passed = sum(check.passed for _, check in found)
    failed = sum(check.failed for _, check in found)
    total = passed + failed
    head = f"{percent(passed / total)} of {total}" if total else "none made"
    lines = [
        f"{head if index == 0 else '':<{len(head)}}     {name} {_check(check)}"
        for index, (name, check) in enumerate(found)
    ]
    judged = any("checks" in result.expression for result in outcome.thresholds)
    if failed and not judged:
        lines.append('checks do not fail a run; --threshold "checks > 99%" would')
    return section("CHECKS", lines, paint)


def _check(check: CheckStats) -> str:
    if not check.passed and not check.failed:
        return "never made"
    failed = f" ({check.failed} failed)" if check.failed else ""
    return f"{percent(check.passed_share)}{failed}"


def _metrics(workflows: Sequence[WorkflowStats], paint: Paint, *, named: bool) -> list[str]:
    rows = [
        (f"{workflow.name}.{metric.name}" if named else metric.name, _metric(metric, workflow))
        for workflow in workflows
        for metric in workflow.metrics.values()
    ]
    return section("METRICS", aligned(rows), paint) if rows else []


def _metric(metric: MetricStats, workflow: WorkflowStats) -> str:
    if not metric.count:
        return "no values"
    if metric.kind == "counter":
        per_s = metric.sum / workflow.rated_s
        return f"{_amount(metric.sum, metric.unit)}, {rate(per_s)}"
    if metric.kind == "rate":
        return f"{percent(metric.hit_share)} of {metric.count}"
    if metric.kind == "gauge":
        values = (("last", metric.last), ("min", metric.minimum), ("max", metric.maximum))
        return ", ".join(f"{name} {_amount(value, metric.unit)}" for name, value in values)
    quantiles = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    shown = [f"{name} {_sample(metric.sample_quantile(q), metric.unit)}" for name, q in quantiles]
    shown.append(f"max {_sample(metric.maximum, metric.unit)}")
    return f"{', '.join(shown)} ({plural(metric.count, 'sample')})"


def _amount(value: float, unit: str) -> str:
    number = str(int(value)) if value == int(value) else brief(value)
    return f"{number} {unit}" if unit else number


def _sample(value: float, unit: str) -> str:
    return duration(value * 1e-3) if unit == "ms" else measured(value, unit)
