"""The row model: the tables and columns in which a run is stored, the same in every backend.

A name never changes and never gets another unit. New columns and tables are added at the end;
`relational/schema.py` adds them to databases. docs/reference/rows.md shows the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA = "squall.rows/1"

ColumnKind = Literal["text", "integer", "real", "flag", "time", "json"]


@dataclass(frozen=True)
class Column:
    name: str
    kind: ColumnKind
    meaning: str
    is_optional: bool = False
    """May be null: a time without samples, for example."""


@dataclass(frozen=True)
class Table:
    """One kind of row. Rows are identified by `key`, whose last part counts the rows of a run in
    the order of the document."""

    name: str
    meaning: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


_RUN_ID = Column("run_id", "text", "the id of the run, `run.id` of the document")
_POSITION = Column("position", "integer", "place among the rows of this table and run, from 0")
_WORKFLOW = Column("workflow", "text", "name of the workflow")


def _texts(**meanings: str) -> tuple[Column, ...]:
    return tuple(Column(name, "text", meaning) for name, meaning in meanings.items())


def _counts(**meanings: str) -> tuple[Column, ...]:
    return tuple(Column(name, "integer", meaning) for name, meaning in meanings.items())


def _optional(kind: ColumnKind, **meanings: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, meaning, True) for name, meaning in meanings.items())


def _of_run(name: str, meaning: str, *columns: Column) -> Table:
    """One row per run."""
    return Table(name, meaning, ("run_id",), (_RUN_ID, *columns))


def _several(name: str, meaning: str, *columns: Column) -> Table:
    """Any number of rows per run."""
    return Table(name, meaning, ("run_id", "position"), (_RUN_ID, _POSITION, *columns))


_ITERATIONS = _counts(
    iterations_started="iterations that began",
    iterations="iterations that ended",
    iterations_ok="of them without a failure",
    iterations_failed="of them with a failure",
    iterations_interrupted="iterations that still ran when the grace time was over",
    starts_planned="starts that an open model planned",
    starts_late="of them made late",
    starts_dropped="of them never made, because all users were busy",
)
_REQUESTS = _counts(
    requests_sent="requests sent",
    requests_answered="requests with an answer",
    requests_failed="requests that failed",
    redirects="redirects followed",
    reconnects="connections opened again",
    connections="connections opened",
    bytes_sent="bytes sent",
    bytes_received="bytes received",
)
_EXECUTIONS = _counts(
    started="executions that began",
    count="executions that ended",
    ok="of them without a failure",
    failed="of them with a failure",
    interrupted="executions that still ran when the grace time was over",
)
LATENCY = ("min", "mean", "p50", "p90", "p95", "p99", "p999", "max")
SERVICE = ("mean", "p50", "p95", "p99", "max")
WINDOW_TIMES = ("p50", "p95", "p99")

RUNS = _of_run(
    "runs",
    "the run and its judgement",
    Column("started_at", "time", "when it began, UTC"),
    Column("status", "text", "completed, partial, failed, interrupted or timeout"),
    Column("passed", "flag", "whether it completed and all thresholds held"),
    Column("exit_code", "integer", "exit code of the command"),
    Column("verdict", "text", "VALID, DEGRADED or INVALID: whether the generator could measure"),
    Column("verdict_reasons", "json", "list of texts"),
    Column("elapsed_s", "real", "length of the run"),
    Column("warmup_s", "real", "length of the warm-up, which counts in no number"),
    *_optional("text", aborted_by="the threshold that ended it"),
    *_texts(file="workflow file or URL"),
    Column("command", "json", "list of the words of the command, without secrets"),
    Column("tags", "json", "object of the tags given with --tag"),
    Column("seed", "text", "seed of the random numbers"),
    *_optional("text", git="commit of the file"),
    *_texts(squall="version of Squall", python="version of Python"),
    Column("host_os", "text", "system of the machine"),
    Column("host_cores", "integer", "cores that it may use"),
    Column("host_memory_mb", "integer", "its memory"),
    Column("document_schema", "text", "schema of the results document"),
)
TOTALS = _of_run(
    "totals",
    "sums over all workflows of the run",
    *_ITERATIONS,
    *_REQUESTS,
    *_counts(
        checks_passed="checks that passed",
        checks_failed="checks that failed",
        thresholds_passed="thresholds that held, built-in ones included",
        thresholds_failed="thresholds that did not hold",
    ),
)
WORKFLOWS = _several(
    "workflows",
    "one row for each workflow",
    _WORKFLOW,
    *_texts(status="how it ended"),
    *_optional("text", error="why it failed or was skipped"),
    Column("is_test", "flag", "whether its numbers count as load"),
    *_texts(shape="the order of its steps"),
    *_counts(vus="most virtual users at a time"),
    Column("started_at_s", "real", "when it began, after the start of the run"),
    Column("elapsed_s", "real", "its length"),
    Column("measured_s", "real", "its length without the warm-up"),
    *_ITERATIONS,
    *_REQUESTS,
)
STEPS = _several(
    "steps",
    "one row for each step and named call, then one for the whole iteration",
    _WORKFLOW,
    *_texts(step="name of the step; `iteration` for the iteration"),
    Column("is_iteration", "flag", "whether the row is that of the iteration"),
    *_texts(protocol="protocol of its requests; empty if it sends none"),
    *_EXECUTIONS,
    Column("rate_per_s", "real", "executions per second"),
    *_optional("real", **{f"{each}_ms": f"latency: {each}" for each in LATENCY}),
    *_optional("real", **{f"service_{each}_ms": f"service time: {each}" for each in SERVICE}),
    Column("statuses", "json", "object of counts by status"),
)
CHECKS = _several(
    "checks",
    "one row for each check",
    _WORKFLOW,
    *_texts(name="name of the check"),
    *_counts(passed="times that it passed", failed="times that it failed"),
)
THRESHOLDS = _several(
    "thresholds",
    "one row for each threshold",
    *_optional("text", workflow="name of the workflow; null for the whole run"),
    *_texts(expression="the threshold"),
    Column("passed", "flag", "whether it held"),
    *_optional("real", value="the value it was compared with", limit_value="its limit"),
    *_texts(unit="unit of the value"),
    *_counts(samples="samples behind the value"),
    *_optional("real", first_failed_at_s="when it first failed"),
    *_texts(note="a remark"),
    Column("builtin", "flag", "whether Squall added it"),
)
METRICS = _several(
    "metrics",
    "one row for each metric of your own",
    _WORKFLOW,
    *_texts(name="name of the metric", kind="counter, gauge, rate or sample", unit="its unit"),
    *_counts(count="how often it was recorded"),
    *_optional(
        "real",
        sum="counter: its sum",
        rate_per_s="counter: its sum per second",
        last="gauge: its last value",
        hits="rate: how often it was true",
        share="rate: that share, 0 to 1",
        minimum="gauge, sample: lowest value",
        maximum="gauge, sample: highest value",
        mean="sample: mean",
        p50="sample: median",
        p90="sample: 90th percentile",
        p95="sample: 95th percentile",
        p99="sample: 99th percentile",
    ),
)
ERRORS = _several(
    "errors",
    "one row for each reason of failures of a step or hook",
    _WORKFLOW,
    *_texts(step="step or hook", reason="why it failed"),
    *_optional("integer", count="how often; null for a hook"),
    *_optional("real", first_at_s="when first"),
    *_optional("text", location="the line of your file"),
)
LOSSES = _several(
    "losses",
    "one row for each loss of load with a process, worker or datacenter",
    _WORKFLOW,
    *_texts(datacenter="its datacenter", worker="its worker", reason="why"),
    *_counts(process="its process", users="users that stopped"),
    Column("at_s", "real", "when, after the start of the run"),
    Column("below_target_s", "real", "how long its part of the load was missing"),
    *_texts(refilled_by="the worker that continued; empty if none did"),
    *_counts(unknown_requests="up to so many requests may be uncounted"),
)
DATACENTERS = _several(
    "datacenters",
    "one row for each datacenter of a run in several",
    *_texts(datacenter="its name"),
    Column("part", "real", "its part of the load, 0 to 1"),
    *_counts(tries="handovers"),
    *_texts(state="how it ended"),
    *_optional("text", reason="why it was lost"),
    Column("later_s", "real", "how long after the first it began"),
    Column("elapsed_s", "real", "length of its part"),
    *_texts(verdict="VALID, DEGRADED or INVALID"),
    *_counts(
        requests_sent="requests sent",
        requests_answered="requests with an answer",
        requests_failed="requests that failed",
    ),
)
WINDOWS = _several(
    "windows",
    "one row for each step and window of time, for plots",
    Column("at", "time", "when the window began, UTC"),
    _WORKFLOW,
    *_texts(step="name of the step; `iteration` for the iteration"),
    Column("is_iteration", "flag", "whether the row is that of the iteration"),
    Column("start_s", "real", "its begin, after the start of the run"),
    *_counts(every_s="its length", count="executions that ended", failed="of them with a failure"),
    *_optional("real", **{f"{each}_ms": f"latency: {each}" for each in WINDOW_TIMES}),
)

TABLES = (
    WORKFLOWS,
    STEPS,
    CHECKS,
    THRESHOLDS,
    METRICS,
    ERRORS,
    LOSSES,
    DATACENTERS,
    WINDOWS,
    TOTALS,
    RUNS,
)
"""In the order in which they are written: a store without transactions has the row in `runs` last,
so a run that is listed there is complete."""
