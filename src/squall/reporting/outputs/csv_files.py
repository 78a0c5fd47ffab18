"""CSV for spreadsheets and data frames: steps, windows and errors, one table each.

A column never changes its unit or its place; new ones are added at the end. Times are
milliseconds; a time without samples is an empty cell.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_COUNTS = ("started", "count", "ok", "failed", "interrupted")
_TIMES = ("min", "mean", "p50", "p90", "p95", "p99", "p999", "max")
_WINDOW = ("count", "failed", "p50", "p95", "p99")
Row = Sequence[Any]


def render_csv(document: dict[str, Any]) -> dict[str, bytes]:
    """The tables by name: `steps`, `windows`, `errors`."""
    return {
        "steps": _table(
            ("workflow", "step", "protocol", *_COUNTS, "rate_per_s", *_named(_TIMES)),
            _steps(document),
        ),
        "windows": _table(
            ("workflow", "step", "start_s", "every_s", *_WINDOW[:2], *_named(_WINDOW[2:])),
            _windows(document),
        ),
        "errors": _table(
            ("workflow", "step", "reason", "count", "first_at_s", "location"), _errors(document)
        ),
    }


def _named(times: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name}_ms" for name in times)


def _table(head: Row, rows: Iterable[Row]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue().encode()


def rows_of(workflow: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Steps by name, then the iteration."""
    for step in workflow["steps"]:
        yield step["name"], step
    yield "iteration", workflow["iteration"]


def _steps(document: dict[str, Any]) -> Iterator[Row]:
    for workflow in document["workflows"]:
        for name, row in rows_of(workflow):
            times: dict[str, float] = row["latency_ms"] or {}
            yield (
                workflow["name"],
                name,
                row.get("protocol", ""),
                *(row[key] for key in _COUNTS),
                row["rps"],
                *(times.get(key) for key in _TIMES),
            )


def _windows(document: dict[str, Any]) -> Iterator[Row]:
    for workflow in document["workflows"]:
        for name, row in rows_of(workflow):
            windows = row["windows"]
            columns = [windows[key] for key in _WINDOW]
            for index, cells in enumerate(zip(*columns, strict=True)):
                every_s = windows["every_s"]
                yield workflow["name"], name, index * every_s, every_s, *cells


def _errors(document: dict[str, Any]) -> Iterator[Row]:
    keys = ("reason", "count", "first_at_s", "location")
    for workflow in document["workflows"]:
        for step in workflow["steps"]:
            for error in step["errors"]:
                yield workflow["name"], step["name"], *(error[key] for key in keys)
        for error in workflow["hook_errors"]:
            yield workflow["name"], error["hook"], *(error.get(key) for key in keys)
