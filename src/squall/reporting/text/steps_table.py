"""The STEPS block of the summary: one row per step, named call and iteration."""

from __future__ import annotations

from collections.abc import Sequence

from squall.reporting.number_format import brief_duration, duration, percent_cell, rate
from squall.reporting.text.columns import quantile_of
from squall.reporting.text.layout import Paint
from squall.stats.histogram import Histogram
from squall.stats.totals.step_rows import RowStats
from squall.stats.totals.workflow import WorkflowStats

_NAME_WIDTH = 16
_COUNT_WIDTH = 8
_CELL_WIDTH = 9
# Index of the failed column among the cells.
_FAILED = 2


def steps_block(
    workflow: WorkflowStats, columns: Sequence[str], paint: Paint, *, named: bool
) -> list[str]:
    """`named` adds the workflow's name to the header, for files with several workflows."""
    rows = [*workflow.rows.values(), workflow.iteration]
    rated_s = workflow.rated_s if workflow.has_rates else None
    table = [step_cells(row, rated_s, columns) for row in rows]
    head = ["count", "rate", "failed", *columns]
    widths = [
        max(
            _COUNT_WIDTH if index == 0 else _CELL_WIDTH,
            2 + max(len(cells[index]) for cells in table),
        )
        for index in range(len(head))
    ]
    title = f"STEPS {workflow.name}" if named else "STEPS"
    name_width = max(_NAME_WIDTH, len(title), 2 + max(len(row.name) for row in rows))
    label = paint(title, "strong") + " " * (name_width - len(title))
    lines = [label + "".join(f"{c:>{w}}" for c, w in zip(head, widths, strict=True))]
    for row, cells in zip(rows, table, strict=True):
        line = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
        if row.failed:
            line[_FAILED] = paint(line[_FAILED], "bad")
        lines.append(f"  {row.name}".ljust(name_width) + "".join(line))
    return lines + _planned_start_note(workflow)


def quantile_value(histogram: Histogram, column: str) -> float:
    """The value of a column in seconds."""
    q = quantile_of(column)
    if q is not None:
        return histogram.quantile(q)
    return {"min": histogram.min_s, "mean": histogram.mean, "max": histogram.max_s}[column]


def step_cells(row: RowStats, rated_s: float | None, columns: Sequence[str]) -> list[str]:
    """Count, rate, failed share and times of a row; `rated_s` None: it has no rate."""
    latency = row.latency
    per_s = "-" if rated_s is None else rate(row.count / rated_s)
    # A dash without samples: 0 would read as "very fast".
    times = [
        duration(quantile_value(latency, column)) if latency.count else "-" for column in columns
    ]
    return [str(row.count), per_s, percent_cell(row.failed_share), *times]


def _planned_start_note(workflow: WorkflowStats) -> list[str]:
    """The rows of open models show response times; this line adds the service time."""
    if not workflow.manifest.profile.is_open:
        return []
    roots = [row for row in workflow.rows.values() if row.has_response]
    shown = roots or [row for row in (workflow.iteration,) if row.has_response]
    if not shown:
        return []
    service = ", ".join(
        f"{row.name}: p99 {brief_duration(row.service.quantile(0.99))}" for row in shown
    )
    return [f"  times from the planned start; service time of {service}"]
