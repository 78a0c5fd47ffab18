"""The metrics of a run, as every live output sends them: names, units, labels, and their values.

One table has all metrics; a backend only spells them its own way. Counters are cumulative and never
fall, not even when another manager becomes the leader of a job and at first knows less than the
former one. The totals of the results document are the last values sent, and they decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from squall.api.reporting import LiveRun
from squall.stats.histogram import make_data
from squall.stats.manifest import ITERATION
from squall.stats.reports import HistogramData
from squall.stats.snapshot import DatacenterSnapshot, Snapshot, WorkflowSnapshot

Labels = tuple[tuple[str, str], ...]
MetricType = Literal["counter", "gauge", "histogram"]


class MetricSpec(NamedTuple):
    """One metric. `unit` as Prometheus spells it, empty for plain numbers."""

    name: str
    type: MetricType
    unit: str
    labels: tuple[str, ...]
    """Besides `run` and the tags."""
    text: str


_STEP = ("workflow", "step")
_ALL = (
    MetricSpec("executions", "counter", "", (*_STEP, "result"), "Finished executions of a step."),
    MetricSpec("iterations", "counter", "", ("workflow", "result"), "Finished iterations."),
    MetricSpec("starts", "counter", "", ("workflow", "state"), "Starts of iterations."),
    MetricSpec("checks", "counter", "", ("workflow", "result"), "Checks that passed or failed."),
    MetricSpec("errors", "counter", "", (*_STEP, "reason"), "Failed executions by reason."),
    MetricSpec("connections", "counter", "", ("workflow",), "Connections that were opened."),
    MetricSpec("sent", "counter", "bytes", ("workflow",), "Bytes sent."),
    MetricSpec("received", "counter", "bytes", ("workflow",), "Bytes received."),
    MetricSpec("latency", "histogram", "seconds", _STEP, "Latencies of a step or the iteration."),
    MetricSpec("latency_now", "gauge", "seconds", (*_STEP, "quantile"), "Of the last second."),
    MetricSpec("users", "gauge", "", ("workflow",), "Virtual users."),
    MetricSpec("users_busy", "gauge", "", ("workflow",), "Users in an iteration."),
    MetricSpec("target_rate", "gauge", "", ("workflow",), "Planned starts a second (open models)."),
    MetricSpec("elapsed", "gauge", "seconds", (), "Time since the start of the run."),
    MetricSpec("generator_cpu", "gauge", "", (), "CPU of core processes, as a share of a core."),
    MetricSpec("generator_lag", "gauge", "seconds", (), "Loop lag of the worst core process, p99."),
    MetricSpec("verdict", "gauge", "", (), "0 VALID, 1 DEGRADED, 2 INVALID."),
    MetricSpec("threshold_ok", "gauge", "", ("expression",), "1 while it holds, 0 while it fails."),
    MetricSpec("datacenter_executions", "counter", "", ("datacenter", "result"), "By datacenter."),
    MetricSpec("datacenter_users", "gauge", "", ("datacenter",), "Users of a datacenter."),
    MetricSpec("datacenter_workers", "gauge", "", ("datacenter",), "Workers of a datacenter."),
)
METRICS = {each.name: each for each in _ALL}
_VERDICTS = {"VALID": 0.0, "DEGRADED": 1.0, "INVALID": 2.0}
_RESERVED = {"run", "le", *(label for each in METRICS.values() for label in each.labels)}


class Value(NamedTuple):
    """The value of a counter or a gauge."""

    metric: MetricSpec
    labels: Labels
    value: float


class Distribution(NamedTuple):
    """All values of a histogram so far."""

    metric: MetricSpec
    labels: Labels
    data: HistogramData


@dataclass(frozen=True)
class Points:
    """All metrics at one moment."""

    values: list[Value]
    distributions: list[Distribution]
    is_final: bool = False


class MetricSource:
    """Turns the snapshots and the document of one run into metrics."""

    def __init__(self, run: LiveRun) -> None:
        self._common = common_labels(run)
        self._counters: dict[tuple[str, Labels], float] = {}
        self._distributions: dict[Labels, HistogramData] = {}

    def of_snapshot(self, snapshot: Snapshot) -> Points:
        return self._points(_snapshot_values(snapshot), _snapshot_distributions(snapshot))

    def of_document(self, document: dict[str, Any]) -> Points:
        """The final totals. They replace the live values, even where a live value was higher."""
        self._counters.clear()
        self._distributions.clear()
        points = self._points(_document_values(document), _document_distributions(document))
        return Points(points.values, points.distributions, is_final=True)

    def _points(
        self,
        values: Iterable[tuple[str, Labels, float]],
        distributions: Iterable[tuple[Labels, HistogramData]],
    ) -> Points:
        sent: list[Value] = []
        for name, own, value in values:
            metric = METRICS[name]
            labels = (*self._common, *own)
            if metric.type == "counter":
                value = max(value, self._counters.get((name, labels), 0.0))
                self._counters[name, labels] = value
            sent.append(Value(metric, labels, value))
        found: list[Distribution] = []
        for own, data in distributions:
            labels = (*self._common, *own)
            former = self._distributions.get(labels)
            if former is not None and former.count > data.count:
                data = former
            self._distributions[labels] = data
            found.append(Distribution(METRICS["latency"], labels, data))
        return Points(sent, found)


class Deltas:
    """The growth of each counter since its last delivery, for protocols that add up themselves.

    The growth of a failed delivery is part of the next one."""

    def __init__(self) -> None:
        self._delivered: dict[tuple[str, Labels], float] = {}
        self._pending: dict[tuple[str, Labels], float] = {}

    def of(self, points: Points) -> list[Value]:
        found: list[Value] = []
        for each in points.values:
            if each.metric.type != "counter":
                continue
            key = (each.metric.name, each.labels)
            self._pending[key] = each.value
            grown = each.value - self._delivered.get(key, 0.0)
            if grown:
                found.append(each._replace(value=grown))
        return found

    def delivered(self) -> None:
        """Notes that the backend has the last values that `of` returned."""
        self._delivered |= self._pending


def gauges(points: Points) -> list[Value]:
    return [each for each in points.values if each.metric.type == "gauge"]


def common_labels(run: LiveRun) -> Labels:
    """The first labels of every value: the run and its tags. A tag with the name of one of Squall's
    labels gets a prefix."""
    found: dict[str, str] = {"run": run.id}
    for key, value in run.tags.items():
        name = re.sub(r"\W", "_", key, flags=re.ASCII)
        if name in _RESERVED or not name[:1].isalpha():
            name = f"tag_{name}"
        found[name] = value
    return tuple(found.items())


# Of a snapshot.


def _snapshot_values(snapshot: Snapshot) -> Iterator[tuple[str, Labels, float]]:
    yield "elapsed", (), snapshot.elapsed_s
    yield "generator_cpu", (), snapshot.cpu
    yield "generator_lag", (), snapshot.lag_p99_s
    yield "verdict", (), _VERDICTS[snapshot.verdict]
    for each in snapshot.thresholds:
        if each.condition != "pending":
            holds = float(each.condition == "passing")
            yield "threshold_ok", (("expression", each.expression),), holds
    for workflow in snapshot.workflows:
        yield from _workflow_values(workflow)
    for datacenter in snapshot.datacenters:
        yield from _datacenter_values(datacenter)


def _workflow_values(workflow: WorkflowSnapshot) -> Iterator[tuple[str, Labels, float]]:
    own: Labels = (("workflow", workflow.name),)
    yield "users", own, workflow.users
    yield "users_busy", own, workflow.busy
    if workflow.target_per_s is not None:
        yield "target_rate", own, workflow.target_per_s
    for state in ("planned", "made", "late", "dropped"):
        yield "starts", (*own, ("state", state)), getattr(workflow, state)
    yield from _results("checks", own, workflow.checks_passed, workflow.checks_failed)
    yield "connections", own, workflow.connections
    yield "sent", own, workflow.bytes_sent
    yield "received", own, workflow.bytes_received
    for error in workflow.errors:
        yield "errors", (*own, ("step", error.row), ("reason", error.reason)), error.count
    for row in workflow.rows:
        step = (*own, ("step", row.name))
        name, labels = ("iterations", own) if row.name == ITERATION else ("executions", step)
        yield from _results(name, labels, row.count - row.failed, row.failed)
        if row.samples_now:
            now = (("0.5", row.p50_now_s), ("0.95", row.p95_now_s), ("0.99", row.p99_now_s))
            for quantile, seconds in now:
                yield "latency_now", (*step, ("quantile", quantile)), seconds


def _datacenter_values(each: DatacenterSnapshot) -> Iterator[tuple[str, Labels, float]]:
    own: Labels = (("datacenter", each.name),)
    yield from _results("datacenter_executions", own, each.executions - each.failed, each.failed)
    yield "datacenter_users", own, each.users
    yield "datacenter_workers", own, each.workers


def _results(
    name: str, labels: Labels, ok: float, failed: float
) -> Iterator[tuple[str, Labels, float]]:
    yield name, (*labels, ("result", "ok")), ok
    yield name, (*labels, ("result", "failed")), failed


def _snapshot_distributions(snapshot: Snapshot) -> Iterator[tuple[Labels, HistogramData]]:
    for workflow in snapshot.workflows:
        for row in workflow.rows:
            if row.latency is not None:
                yield (("workflow", workflow.name), ("step", row.name)), row.latency


# Of the results document.


def _document_values(document: dict[str, Any]) -> Iterator[tuple[str, Labels, float]]:
    yield "elapsed", (), document["elapsed_s"]
    yield "verdict", (), _VERDICTS[document["verdict"]["state"]]
    for each in document["thresholds"]:
        yield "threshold_ok", (("expression", each["expression"]),), float(each["passed"])
    for workflow in document["workflows"]:
        own: Labels = (("workflow", workflow["name"]),)
        yield "users", own, 0.0
        yield "users_busy", own, 0.0
        for state in ("planned", "made", "late", "dropped"):
            yield "starts", (*own, ("state", state)), workflow["starts"][state]
        checks = [each for each in document["checks"] if each["workflow"] == workflow["name"]]
        passed = sum(each["passed"] for each in checks)
        yield from _results("checks", own, passed, sum(each["failed"] for each in checks))
        requests = workflow["requests"]
        yield "connections", own, requests["connections"]
        yield "sent", own, requests["bytes_sent"]
        yield "received", own, requests["bytes_received"]
        iteration = workflow["iteration"]
        yield from _results("iterations", own, iteration["ok"], iteration["failed"])
        for step in workflow["steps"]:
            labels = (*own, ("step", step["name"]))
            yield from _results("executions", labels, step["ok"], step["failed"])
            for error in step["errors"]:
                yield "errors", (*labels, ("reason", error["reason"])), error["count"]
    for each in document.get("datacenters", ()):
        yield from _document_datacenter(each)


def _document_datacenter(each: dict[str, Any]) -> Iterator[tuple[str, Labels, float]]:
    own: Labels = (("datacenter", each["name"]),)
    yield "datacenter_users", own, 0.0
    yield "datacenter_workers", own, 0.0
    steps = [step for step in each["steps"] if step["name"] != ITERATION]
    ok = sum(step["count"] - step["failed"] for step in steps)
    yield from _results("datacenter_executions", own, ok, sum(step["failed"] for step in steps))


def _document_distributions(document: dict[str, Any]) -> Iterator[tuple[Labels, HistogramData]]:
    for workflow in document["workflows"]:
        rows: list[dict[str, Any]] = [*workflow["steps"], workflow["iteration"]]
        for row in rows:
            entry = row["histogram"]
            data = make_data(
                entry["count"],
                entry["sum_ms"] / 1e3,
                entry["min_ms"] / 1e3,
                entry["max_ms"] / 1e3,
                [index for index, _ in entry["buckets"]],
                [count for _, count in entry["buckets"]],
            )
            yield (("workflow", workflow["name"]), ("step", row.get("name", ITERATION))), data
