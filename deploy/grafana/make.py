"""Writes the two Grafana dashboards beside it: `python deploy/grafana/make.py`.

Both have the same panels; only the queries differ. A panel of latencies over time uses the values
of each second; the one of percentiles uses histograms, native ones or those with buckets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

RUN = 'run=~"$run"'
WORKFLOW = f'{RUN},workflow=~"$workflow"'
STEP = f'{WORKFLOW},step=~"$step"'
SPAN = "[$__rate_interval]"


class Panel(NamedTuple):
    title: str
    unit: str
    prometheus: tuple[tuple[str, str], ...]
    """Expressions with their legends."""
    influx: tuple[tuple[str, str], ...]
    """InfluxQL with the aliases of its series."""
    kind: str = "timeseries"
    width: int = 12


def _influx(value: str, measurement: str, group: str = "", where: str = "") -> str:
    condition = '"run" =~ /^$run$/' + (f" AND {where}" if where else "")
    groups = ", ".join(filter(None, ("time($__interval)", '"run"', group)))
    return (
        f'SELECT {value} FROM "squall_{measurement}" WHERE {condition} AND $timeFilter '
        f"GROUP BY {groups} fill(null)"
    )


_GROWTH = 'non_negative_derivative(max("value"), 1s)'
_OF_STEP = '"workflow" =~ /^$workflow$/ AND "step" =~ /^$step$/'
_OF_WORKFLOW = '"workflow" =~ /^$workflow$/'
_ERRORS = f'sum by (run) (rate(squall_executions_total{{{STEP},result="failed"}}{SPAN}))'

PANELS = (
    Panel(
        "Executions per second by step",
        "reqps",
        ((f"sum by (step) (rate(squall_executions_total{{{STEP}}}{SPAN}))", "{{step}}"),),
        ((_influx(_GROWTH, "executions", '"step", "result"', _OF_STEP), "$tag_step $tag_result"),),
    ),
    Panel(
        "Failed executions",
        "percentunit",
        ((f"{_ERRORS} / sum by (run) (rate(squall_executions_total{{{STEP}}}{SPAN}))", "{{run}}"),),
        (
            (
                _influx(_GROWTH, "executions", '"step"', f"{_OF_STEP} AND \"result\" = 'failed'"),
                "$tag_step failed per second",
            ),
        ),
    ),
    Panel(
        "Latency of each second, p50 p95 p99",
        "s",
        (
            (
                f"max by (step, quantile) (squall_latency_now_seconds{{{STEP}}})",
                "{{step}} {{quantile}}",
            ),
        ),
        (
            (
                _influx('max("value")', "latency_now", '"step", "quantile"', _OF_STEP),
                "$tag_step $tag_quantile",
            ),
        ),
    ),
    Panel(
        "Latency since the start, p95",
        "s",
        (
            (
                "histogram_quantile(0.95, sum by (step) "
                f"(squall_latency_seconds{{{STEP}}})) or histogram_quantile(0.95, "
                f"sum by (step, le) (squall_latency_seconds_bucket{{{STEP}}}))",
                "{{step}}",
            ),
        ),
        ((_influx('last("p95")', "latency", '"step"', _OF_STEP), "$tag_step"),),
    ),
    Panel(
        "Starts per second",
        "reqps",
        ((f"sum by (state) (rate(squall_starts_total{{{WORKFLOW}}}{SPAN}))", "{{state}}"),),
        ((_influx(_GROWTH, "starts", '"workflow", "state"', _OF_WORKFLOW), "$tag_state"),),
    ),
    Panel(
        "Users",
        "short",
        (
            (f"sum by (workflow) (squall_users{{{WORKFLOW}}})", "{{workflow}}"),
            (f"sum by (workflow) (squall_users_busy{{{WORKFLOW}}})", "{{workflow}} busy"),
        ),
        (
            (_influx('last("value")', "users", '"workflow"', _OF_WORKFLOW), "$tag_workflow"),
            (
                _influx('last("value")', "users_busy", '"workflow"', _OF_WORKFLOW),
                "$tag_workflow busy",
            ),
        ),
    ),
    Panel(
        "Errors by reason",
        "short",
        ((f"sum by (step, reason) (squall_errors_total{{{STEP}}})", "{{step}}: {{reason}}"),),
        (
            (
                _influx('last("value")', "errors", '"step", "reason"', _OF_STEP),
                "$tag_step: $tag_reason",
            ),
        ),
    ),
    Panel(
        "Bytes per second",
        "Bps",
        (
            (f"sum (rate(squall_sent_bytes_total{{{WORKFLOW}}}{SPAN}))", "sent"),
            (f"sum (rate(squall_received_bytes_total{{{WORKFLOW}}}{SPAN}))", "received"),
        ),
        (
            (_influx(_GROWTH, "sent", '"workflow"', _OF_WORKFLOW), "sent"),
            (_influx(_GROWTH, "received", '"workflow"', _OF_WORKFLOW), "received"),
        ),
    ),
    Panel(
        "Generator: CPU of a core, loop lag p99",
        "percentunit",
        (
            (f"max(squall_generator_cpu{{{RUN}}})", "CPU"),
            (f"max(squall_generator_lag_seconds{{{RUN}}})", "lag in seconds"),
        ),
        (
            (_influx('max("value")', "generator_cpu"), "CPU"),
            (_influx('max("value")', "generator_lag"), "lag in seconds"),
        ),
    ),
    Panel(
        "Thresholds that hold",
        "short",
        ((f"min by (expression) (squall_threshold_ok{{{RUN}}})", "{{expression}}"),),
        ((_influx('last("value")', "threshold_ok", '"expression"'), "$tag_expression"),),
    ),
    Panel(
        "Verdict: 0 valid, 1 degraded, 2 invalid",
        "none",
        ((f"max by (run) (squall_verdict{{{RUN}}})", "{{run}}"),),
        ((_influx('last("value")', "verdict"), "$tag_run"),),
        "stat",
    ),
    Panel(
        "Workers by datacenter",
        "short",
        ((f"sum by (datacenter) (squall_datacenter_workers{{{RUN}}})", "{{datacenter}}"),),
        ((_influx('last("value")', "datacenter_workers", '"datacenter"'), "$tag_datacenter"),),
        "stat",
    ),
)


def dashboard(source: str) -> dict[str, Any]:
    """`source`: `prometheus` or `influxdb`."""
    place = {"type": source, "uid": "${datasource}"}
    is_prometheus = source == "prometheus"
    variables = [
        {"name": "datasource", "type": "datasource", "query": source, "label": "Data source"},
        _variable(place, "run", is_prometheus, ""),
        _variable(place, "workflow", is_prometheus, RUN),
        _variable(place, "step", is_prometheus, WORKFLOW),
    ]
    return {
        "title": f"Squall load test ({'Prometheus' if is_prometheus else 'InfluxDB'})",
        "uid": f"squall-{source}",
        "tags": ["squall"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "",
        "templating": {"list": variables},
        "annotations": {"list": [_ANNOTATIONS]},
        "panels": [_panel(number, each, place) for number, each in enumerate(PANELS)],
    }


# What `-o grafana=URL,token=...` writes at the start and the end of a run.
_ANNOTATIONS = {
    "name": "Runs",
    "enable": True,
    "iconColor": "blue",
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "target": {"type": "tags", "tags": ["squall"], "limit": 100, "matchAny": False},
}


def _variable(place: dict[str, str], name: str, is_prometheus: bool, within: str) -> dict[str, Any]:
    if is_prometheus:
        query = f"label_values(squall_executions_total{{{within}}}, {name})"
        if not within:
            query = f"label_values(squall_executions_total, {name})"
    else:
        query = f'SHOW TAG VALUES FROM "squall_executions" WITH KEY = "{name}"'
    return {
        "name": name,
        "type": "query",
        "label": name.capitalize(),
        "datasource": place,
        "query": {"query": query, "refId": name} if is_prometheus else query,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 2 if name == "run" else 1,
    }


def _panel(number: int, panel: Panel, place: dict[str, str]) -> dict[str, Any]:
    queries = panel.prometheus if place["type"] == "prometheus" else panel.influx
    targets: list[dict[str, Any]] = []
    for letter, (query, legend) in zip("AB", queries, strict=False):
        target: dict[str, Any] = {"refId": letter, "datasource": place}
        if place["type"] == "prometheus":
            target |= {"expr": query, "legendFormat": legend}
        else:
            target |= {"query": query, "rawQuery": True, "alias": legend}
            target["resultFormat"] = "time_series"
        targets.append(target)
    return {
        "id": number + 1,
        "title": panel.title,
        "type": panel.kind,
        "datasource": place,
        "gridPos": {"h": 8, "w": panel.width, "x": number % 2 * 12, "y": number // 2 * 8},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }


def text(source: str) -> str:
    return json.dumps(dashboard(source), indent=2) + "\n"


def main() -> None:
    for source in ("prometheus", "influxdb"):
        Path(__file__).with_name(f"{source}.json").write_text(text(source), encoding="utf-8")


if __name__ == "__main__":
    main()
