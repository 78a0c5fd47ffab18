"""The BY DATACENTER block of the summary: the step table of each datacenter under its name."""

from __future__ import annotations

from collections.abc import Sequence

from squall.engine.outcome import DatacenterOutcome
from squall.reporting.number_format import percent, plural
from squall.reporting.text.layout import VERDICT_SHADES, Paint
from squall.reporting.text.steps_table import step_cells
from squall.stats.totals.step_rows import RowStats
from squall.stats.totals.workflow import WorkflowStats

_TITLE = "BY DATACENTER"
_NAME_WIDTH = 16
_COUNT_WIDTH = 8
_CELL_WIDTH = 9
# Index of the failed column among the cells.
_FAILED = 2


def datacenters_block(
    datacenters: Sequence[DatacenterOutcome], columns: Sequence[str], paint: Paint
) -> list[str]:
    if not datacenters:
        return []
    tables = [_table(each, columns) for each in datacenters]
    every = [(name, cells) for table in tables for name, _, cells in table]
    head = ["count", "rate", "failed", *columns]
    widths = [
        max(
            _COUNT_WIDTH if index == 0 else _CELL_WIDTH,
            2 + max((len(cells[index]) for _, cells in every), default=0),
        )
        for index in range(len(head))
    ]
    name_width = max(_NAME_WIDTH, len(_TITLE) + 1, *(4 + len(name) for name, _ in every), 0)
    label = paint(_TITLE, "strong") + " " * (name_width - len(_TITLE))
    lines = [label + "".join(f"{c:>{w}}" for c, w in zip(head, widths, strict=True))]
    for each, table in zip(datacenters, tables, strict=True):
        lines.append(f"  {_head(each, paint)}")
        for name, row, cells in table:
            line = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
            if row.failed:
                line[_FAILED] = paint(line[_FAILED], "bad")
            lines.append(f"    {name}".ljust(name_width) + "".join(line))
    return lines


def _head(datacenter: DatacenterOutcome, paint: Paint) -> str:
    """`us  40 %  completed  VALID  1920 sent`."""
    verdict = datacenter.verdict.state
    sent = sum(each.requests.sent for each in datacenter.stats.workflows.values())
    state = datacenter.state
    parts = [
        paint(datacenter.name, "strong"),
        percent(datacenter.part),
        paint(state, "bad") if state in ("lost", "failed") else state,
        paint(verdict, VERDICT_SHADES[verdict]),
        f"{plural(sent, 'request')} sent",
    ]
    if datacenter.tries > 1:
        parts.append(f"try {datacenter.tries}")
    if datacenter.later_s >= 1.0:
        parts.append(f"began {datacenter.later_s:.1f} s later")
    if datacenter.reason and state != "completed":
        parts.append(datacenter.reason)
    return "  ".join(parts)


def _table(
    datacenter: DatacenterOutcome, columns: Sequence[str]
) -> list[tuple[str, RowStats, list[str]]]:
    shown = [each for each in datacenter.stats.workflows.values() if _has_rows(each)]
    found: list[tuple[str, RowStats, list[str]]] = []
    for workflow in shown:
        rated_s = workflow.rated_s if workflow.has_rates else None
        for row in (*workflow.rows.values(), workflow.iteration):
            name = f"{workflow.name}.{row.name}" if len(shown) > 1 else row.name
            found.append((name, row, step_cells(row, rated_s, columns)))
    return found


def _has_rows(workflow: WorkflowStats) -> bool:
    return workflow.manifest.is_test or any(row.count for row in workflow.rows.values())
