"""Derives the rows of a run from its results document, which may be of an earlier version.

It removes characters that some backend cannot store: NUL, and halves of surrogate pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from squall.reporting.outputs.csv_files import rows_of as steps_of
from squall.reporting.outputs.rows.model import (
    CHECKS,
    DATACENTERS,
    ERRORS,
    LATENCY,
    LOSSES,
    METRICS,
    RUNS,
    SERVICE,
    STEPS,
    TABLES,
    THRESHOLDS,
    TOTALS,
    WINDOW_TIMES,
    WINDOWS,
    WORKFLOWS,
    Column,
    Table,
)

Document = Mapping[str, Any]
Row = tuple[Any, ...]
"""The values of the columns of its table: str, int, float, bool, an aware datetime, a list or a
dict for `json`, or None."""


class RunRows:
    """The rows of one run."""

    def __init__(self, document: Document) -> None:
        self.run_id: str = clean(document["run"]["id"])
        self.started_at = _moment(document["started_at"])
        self._rows = {table.name: list(self._of(table, document)) for table in TABLES}

    def of(self, table: Table) -> list[Row]:
        return self._rows[table.name]

    def all(self) -> Iterator[tuple[Table, list[Row]]]:
        """The tables in the order of writing, `runs` last."""
        for table in TABLES:
            yield table, self._rows[table.name]

    @property
    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        return {name: len(rows) for name, rows in self._rows.items()}

    def _of(self, table: Table, document: Document) -> Iterator[Row]:
        for position, values in enumerate(_READERS[table.name](document)):
            values |= {"run_id": self.run_id, "position": position}
            yield tuple(_value(column, values[column.name]) for column in table.columns)


def clean(text: Any) -> str:
    # PostgreSQL refuses NUL, and none of the backends takes what is not UTF-8.
    return str(text).replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _value(column: Column, value: Any) -> Any:
    if value is None:
        return None if column.is_optional else ""
    if column.kind == "text":
        return clean(value)
    if column.kind == "json":
        return _clean_json(value)
    if column.kind == "real":
        return float(value)
    return value


def _clean_json(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value)
        return {clean(key): _clean_json(each) for key, each in items.items()}
    if isinstance(value, list | tuple):
        return [_clean_json(each) for each in cast(Sequence[Any], value)]
    return value


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _runs(document: Document) -> Iterator[dict[str, Any]]:
    run: Document = document["run"]
    host: Document = run["host"]
    same = ("status", "passed", "exit_code", "elapsed_s", "aborted_by")
    of_run = ("warmup_s", "file", "command", "tags", "seed", "git", "squall", "python")
    yield {
        **{name: document[name] for name in same},
        **{name: run[name] for name in of_run},
        "started_at": _moment(document["started_at"]),
        "verdict": document["verdict"]["state"],
        "verdict_reasons": document["verdict"]["reasons"],
        "host_os": host["os"],
        "host_cores": host["cores"],
        "host_memory_mb": host["memory_mb"],
        "document_schema": document["schema"],
    }


def _totals(document: Document) -> Iterator[dict[str, Any]]:
    sums: dict[str, int] = dict.fromkeys(TOTALS.names, 0)
    for workflow in document["workflows"]:
        for name, count in (_iterations(workflow) | _requests(workflow)).items():
            sums[name] += count
    for check in document["checks"]:
        sums["checks_passed"] += check["passed"]
        sums["checks_failed"] += check["failed"]
    for threshold in document["thresholds"]:
        sums["thresholds_passed" if threshold["passed"] else "thresholds_failed"] += 1
    yield dict(sums)


def _iterations(workflow: Document) -> dict[str, int]:
    row, starts = workflow["iteration"], workflow["starts"]
    return {
        "iterations_started": row["started"],
        "iterations": row["count"],
        "iterations_ok": row["ok"],
        "iterations_failed": row["failed"],
        "iterations_interrupted": row["interrupted"],
        "starts_planned": starts["planned"],
        "starts_late": starts["late"],
        "starts_dropped": starts["dropped"],
    }


def _requests(workflow: Document) -> dict[str, int]:
    requests: Document = workflow["requests"]
    own = ("redirects", "reconnects", "connections", "bytes_sent", "bytes_received")
    counted = {f"requests_{name}": requests[name] for name in ("sent", "answered", "failed")}
    return counted | {name: requests[name] for name in own}


def _workflows(document: Document) -> Iterator[dict[str, Any]]:
    same = ("status", "error", "is_test", "shape", "vus", "started_at_s", "elapsed_s", "measured_s")
    for workflow in document["workflows"]:
        yield {
            "workflow": workflow["name"],
            **{name: workflow[name] for name in same},
            **_iterations(workflow),
            **_requests(workflow),
        }


def _steps(document: Document) -> Iterator[dict[str, Any]]:
    same = ("started", "count", "ok", "failed", "interrupted")
    for workflow in document["workflows"]:
        for name, row in steps_of(workflow):
            latency: Document = row["latency_ms"] or {}
            service: Document = row.get("service_ms") or {}
            yield {
                "workflow": workflow["name"],
                "step": name,
                "is_iteration": row is workflow["iteration"],
                "protocol": row.get("protocol", ""),
                **{name: row[name] for name in same},
                "rate_per_s": row["rps"],
                **{f"{each}_ms": latency.get(each) for each in LATENCY},
                **{f"service_{each}_ms": service.get(each) for each in SERVICE},
                "statuses": row.get("statuses", {}),
            }


def _checks(document: Document) -> Iterator[dict[str, Any]]:
    for check in document["checks"]:
        yield {name: check[name] for name in ("workflow", "name", "passed", "failed")}


def _thresholds(document: Document) -> Iterator[dict[str, Any]]:
    same = ("workflow", "expression", "passed", "value", "unit", "samples", "first_failed_at_s")
    for threshold in document["thresholds"]:
        yield {
            **{name: threshold[name] for name in same},
            "limit_value": threshold.get("limit"),
            "note": threshold["note"],
            "builtin": threshold["builtin"],
        }


def _metrics(document: Document) -> Iterator[dict[str, Any]]:
    same = ("sum", "last", "hits", "share", "mean", "p50", "p90", "p95", "p99")
    for metric in document["metrics"]:
        yield {
            **{name: metric[name] for name in ("workflow", "name", "kind", "unit", "count")},
            **{name: metric.get(name) for name in same},
            "rate_per_s": metric.get("rate"),
            "minimum": metric.get("min"),
            "maximum": metric.get("max"),
        }


def _errors(document: Document) -> Iterator[dict[str, Any]]:
    for workflow in document["workflows"]:
        failures = [(step["name"], error) for step in workflow["steps"] for error in step["errors"]]
        failures += [(error["hook"], error) for error in workflow["hook_errors"]]
        for step, error in failures:
            same = {name: error.get(name) for name in ("count", "first_at_s", "location")}
            yield {"workflow": workflow["name"], "step": step, "reason": error["reason"], **same}


def _losses(document: Document) -> Iterator[dict[str, Any]]:
    texts, counts = ("worker", "datacenter", "refilled_by"), ("users", "unknown_requests")
    for loss in document.get("losses", ()):
        yield {
            **{name: loss[name] for name in ("workflow", "reason", "process", "at_s")},
            **{name: loss.get(name, "") for name in texts},
            **{name: loss.get(name, 0) for name in (*counts, "below_target_s")},
        }


def _datacenters(document: Document) -> Iterator[dict[str, Any]]:
    same = ("part", "tries", "state", "reason", "later_s", "elapsed_s")
    for each in document.get("datacenters", ()):
        requests: Document = each["requests"]
        yield {
            "datacenter": each["name"],
            **{name: each[name] for name in same},
            "verdict": each["verdict"]["state"],
            **{f"requests_{name}": requests[name] for name in ("sent", "answered", "failed")},
        }


def _windows(document: Document) -> Iterator[dict[str, Any]]:
    began = _moment(document["started_at"])
    names = ("count", "failed", *WINDOW_TIMES)
    columns = ("count", "failed", *(f"{each}_ms" for each in WINDOW_TIMES))
    for workflow in document["workflows"]:
        # Windows count from the start of their workflow.
        first_s: float = workflow["started_at_s"]
        for step, row in steps_of(workflow):
            windows: Document = row["windows"]
            every_s: int = windows["every_s"]
            cells = zip(*(windows[name] for name in names), strict=True)
            for index, values in enumerate(cells):
                start_s = first_s + index * every_s
                yield {
                    "at": began + timedelta(seconds=start_s),
                    "workflow": workflow["name"],
                    "step": step,
                    "is_iteration": row is workflow["iteration"],
                    "start_s": start_s,
                    "every_s": every_s,
                    **dict(zip(columns, values, strict=True)),
                }


_READERS: dict[str, Callable[[Document], Iterator[dict[str, Any]]]] = {
    RUNS.name: _runs,
    TOTALS.name: _totals,
    WORKFLOWS.name: _workflows,
    STEPS.name: _steps,
    CHECKS.name: _checks,
    THRESHOLDS.name: _thresholds,
    METRICS.name: _metrics,
    ERRORS.name: _errors,
    LOSSES.name: _losses,
    DATACENTERS.name: _datacenters,
    WINDOWS.name: _windows,
}
