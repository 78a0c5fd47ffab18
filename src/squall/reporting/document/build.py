"""Builds the results document "squall.results/1": a whole run as JSON, with histograms.

`schema/results-1.json` specifies its shape. Under the same number a key may be added, but
never renamed or given another unit. Times in `_ms` are milliseconds, in `_s` seconds; a time
without samples is null, never 0.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec

from squall.engine.outcome import RunOutcome, WorkflowOutcome
from squall.reporting.document.datacenters import datacenter_entry
from squall.reporting.document.rows import (
    histogram_entry,
    histogram_summary,
    iteration_entry,
    locations_of,
    optional_histogram,
    row_entry,
)
from squall.reporting.output_files import write_whole
from squall.reporting.redaction import Redactor
from squall.reporting.text.errors_block import FailureGroup, failures_of
from squall.stats.manifest import Profile
from squall.stats.reports import StartsDelta
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.totals.protocols import ProtocolStats, are_shown
from squall.stats.totals.step_rows import MetricStats
from squall.stats.totals.workflow import WorkflowStats

SCHEMA = "squall.results/1"
SCHEMA_PATH = Path(__file__).parents[1] / "schema" / "results-1.json"


def build_document(outcome: RunOutcome) -> dict[str, Any]:
    stats = outcome.stats
    failures = failures_of(stats)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "status": outcome.status,
        "passed": outcome.passed,
        "exit_code": int(outcome.exit_code),
        "verdict": {"state": outcome.verdict.state, "reasons": list(outcome.verdict.reasons)},
        "run": _run(outcome),
        "started_at": _utc(outcome),
        "elapsed_s": round(outcome.elapsed_s, 6),
        "aborted_by": outcome.aborted_by or None,
        "workflows": [
            _workflow(each, stats.workflows[each.name], failures) for each in outcome.workflows
        ],
        "checks": [
            {
                "workflow": workflow.name,
                "name": check.name,
                "passed": check.passed,
                "failed": check.failed,
            }
            for workflow in stats.workflows.values()
            for check in workflow.checks.values()
        ],
        "metrics": [
            _metric(workflow, metric)
            for workflow in stats.workflows.values()
            for metric in workflow.metrics.values()
        ],
        "thresholds": [_threshold(result) for result in outcome.thresholds],
        "generator": _generator(outcome),
        "losses": [asdict(loss) for loss in outcome.losses],
        "notes": list(outcome.notes),
    }
    if outcome.datacenters:
        document["datacenters"] = [datacenter_entry(each) for each in outcome.datacenters]
    return document


def encode_document(document: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(document) + b"\n"
    except UnicodeEncodeError:
        # A path or an argument that is not UTF-8 must not make the results fail.
        return json.dumps(document, ensure_ascii=False).encode(errors="replace") + b"\n"


def write_document(path: str | Path, outcome: RunOutcome, redact: Redactor | None = None) -> None:
    """Writes the document whole or not at all; raises `UsageError` if that fails."""
    document = build_document(outcome)
    write_whole(path, encode_document(redact.document(document) if redact else document))


def _run(outcome: RunOutcome) -> dict[str, Any]:
    info = outcome.info
    return {
        "id": info.id,
        "file": outcome.manifest.path,
        "squall": info.squall,
        "python": info.python,
        "command": list(info.command),
        "git": info.git or None,
        "seed": info.seed,
        "tags": dict(info.tags),
        "warmup_s": info.warmup_s,
        "host": {"cores": info.cores, "os": info.os, "memory_mb": info.memory_mb},
    }


def _utc(outcome: RunOutcome) -> str:
    moment = outcome.info.started_at.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _workflow(
    outcome: WorkflowOutcome, stats: WorkflowStats, failures: list[FailureGroup]
) -> dict[str, Any]:
    own = [failure for failure in failures if failure.workflow == stats.name]
    windows = stats.windows
    return {
        "name": outcome.name,
        "status": outcome.status,
        "error": outcome.error or None,
        "is_test": stats.manifest.is_test,
        "shape": stats.manifest.shape,
        "cores": list(outcome.cores),
        "vus": stats.users.max,
        "busy_max": stats.busy_max,
        "started_at_s": round(outcome.started_at_s, 3),
        "elapsed_s": round(outcome.elapsed_s, 3),
        "measured_s": round(stats.measured_s, 6),
        "profile": _profile(stats.manifest.profile),
        "starts": _starts(stats.starts),
        "requests": _requests(stats),
        "dns_ms": histogram_summary(stats.dns),
        "connect_ms": histogram_summary(stats.connect),
        "tls_ms": histogram_summary(stats.tls),
        "dns_histogram": optional_histogram(stats.dns),
        "connect_histogram": optional_histogram(stats.connect),
        "tls_histogram": optional_histogram(stats.tls),
        "protocols": [_protocol(each, stats.rated_s) for each in stats.protocols.values()]
        if are_shown(stats.protocols)
        else [],
        "iteration": iteration_entry(stats.iteration, stats.rated_s),
        "steps": [
            row_entry(row, stats.rated_s, [f for f in own if f.row == row.name])
            for row in stats.rows.values()
        ],
        "hooks": [
            {"name": hook.name, "executions": hook.executions, "raised": hook.raised}
            for hook in stats.hooks.values()
        ],
        "hook_errors": [
            {
                "hook": failure.row,
                "reason": failure.reason,
                "first_at_s": round(failure.first.at_s, 3),
                "location": failure.first.location or None,
                "locations": locations_of(failure),
                "traceback": failure.first.traceback,
            }
            for failure in own
            if failure.first is not None and failure.row not in stats.rows
        ],
        "windows": {
            "start_s": 0,
            "every_s": windows.width_s,
            "users": [window.users for window in windows],
            "busy": [window.busy for window in windows],
            "planned": [window.planned for window in windows],
            "made": [window.made for window in windows],
            "late": [window.late for window in windows],
            "dropped": [window.dropped for window in windows],
        },
    }


def _profile(profile: Profile) -> dict[str, Any]:
    return {
        "model": profile.model,
        "vus": profile.vus,
        "max_vus": profile.max_vus,
        "duration_s": profile.duration_s,
        "iterations": profile.iterations or None,
        "rate_per_s": profile.rate_per_s if profile.is_open else None,
        "stages": [
            {"duration_s": stage.duration_s, "target": stage.target} for stage in profile.stages
        ],
        "think_s": None if profile.think_s is None else list(profile.think_s),
        "pacing_s": profile.pacing_s,
        "grace_s": profile.grace_s,
        "iterations_per_vu": profile.iterations_per_vu,
        "start_after_s": profile.start_after_s,
    }


def _starts(starts: StartsDelta) -> dict[str, Any]:
    return {
        "planned": starts.planned,
        "made": starts.made,
        "late": starts.late,
        "late_max_ms": round(starts.late_max_s * 1e3, 6),
        "dropped": starts.dropped,
        "interrupted": starts.interrupted,
    }


def _requests(stats: WorkflowStats) -> dict[str, Any]:
    requests = stats.requests
    return {
        "sent": requests.sent,
        "answered": requests.answered,
        "replies": requests.replies,
        "failed": requests.failed,
        "redirects": requests.redirects,
        "reconnects": requests.reconnects,
        "connections": requests.connections,
        "other_calls": stats.other_calls,
        "bytes_sent": requests.bytes_sent,
        "bytes_received": requests.bytes_received,
        "statuses": {str(status): count for status, count in sorted(stats.statuses.items())},
    }


def _protocol(stats: ProtocolStats, span_s: float) -> dict[str, Any]:
    requests = stats.requests
    return {
        "name": stats.name,
        **{name: getattr(requests, name) for name in requests.__struct_fields__},
        "messages_sent": stats.messages_sent,
        "messages_received": stats.messages_received,
        "rps": requests.answered / span_s,
        "messages_per_s": (stats.messages_sent + stats.messages_received) / span_s,
        "connect_ms": histogram_summary(stats.connect),
        "tls_ms": histogram_summary(stats.tls),
        "connect_histogram": optional_histogram(stats.connect),
        "tls_histogram": optional_histogram(stats.tls),
    }


def _metric(workflow: WorkflowStats, metric: MetricStats) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "workflow": workflow.name,
        "name": metric.name,
        "kind": metric.kind,
        "unit": metric.unit,
        "count": metric.count,
    }
    if metric.kind == "counter":
        entry |= {"sum": metric.sum, "rate": metric.sum / workflow.rated_s}
    elif metric.kind == "gauge":
        entry |= {"last": metric.last, "min": metric.minimum, "max": metric.maximum}
    elif metric.kind == "rate":
        entry |= {"hits": metric.hits, "share": metric.hit_share}
    else:
        quantiles = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
        entry |= {"mean": metric.mean, "min": metric.minimum, "max": metric.maximum}
        entry |= {name: metric.sample_quantile(q) for name, q in quantiles}
        if metric.values is not None:
            # Keys in `_ms` are in the unit of the samples here, not in milliseconds.
            entry["histogram"] = histogram_entry(metric.values)
    return entry


def _threshold(result: ThresholdResult) -> dict[str, Any]:
    return {
        "expression": result.expression,
        "value": result.value,
        "unit": result.unit,
        "samples": result.samples,
        "limit": result.limit,
        "passed": result.passed,
        "first_failed_at_s": result.first_failed_at_s,
        "note": result.note,
        "workflow": result.workflow or None,
        "row": result.row or None,
        "builtin": result.builtin,
    }


def _generator(outcome: RunOutcome) -> dict[str, Any]:
    health = outcome.stats.health
    windows = health.windows
    processes: list[dict[str, Any]] = []
    for info in outcome.processes:
        entry: dict[str, Any] = {"index": info.index, "pid": info.pid, "died": info.died or None}
        if info.worker:
            entry["worker"] = info.worker
        process = health.processes.get(info.index)
        if process is not None:
            entry |= {
                "seconds": round(process.seconds, 6),
                "cpu": round(process.cpu, 6),
                "cpu_max": round(process.cpu_max, 4),
                "loop_lag_ms": histogram_summary(process.lag),
                "lag_histogram": optional_histogram(process.lag),
                "gc_ms_max": round(process.gc_max_s * 1e3, 6),
                "rss_mb": round(process.rss_max_mb, 1),
                "blocked": [
                    {
                        "workflow": workflow,
                        "step": step,
                        "location": location,
                        "call": call,
                        "seconds": round(seconds, 3),
                    }
                    for (workflow, step, location, call), seconds in process.blocked_s.items()
                ],
            }
        processes.append(entry)
    return {
        "parent_cpu": round(outcome.parent_cpu, 4),
        "loop_lag_ms": histogram_summary(health.lag),
        "processes": processes,
        "windows": {
            "start_s": 0,
            "every_s": windows.width_s,
            "cpu": [round(window.cpu, 4) for window in windows],
            "cpu_max": [round(window.cpu_max, 4) for window in windows],
            "loop_lag_p99_ms": [round(window.lag_p99_s * 1e3, 3) for window in windows],
        },
    }
