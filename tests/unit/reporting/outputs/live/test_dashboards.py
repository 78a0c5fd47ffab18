"""The Grafana dashboards load without edits and ask only for what live outputs send."""

from __future__ import annotations

import json
import re
import runpy
from typing import Any

import pytest

from squall.reporting.outputs.live.metrics import METRICS
from squall.reporting.outputs.live.prometheus.exposition import full_name
from tests.lab.programs import ROOT

FOLDER = ROOT / "deploy" / "grafana"
SOURCES = ("prometheus", "influxdb")
LABELS = {"run": ("run",)} | {name: ("run", *each.labels) for name, each in METRICS.items()}


def read(source: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{source}.json").read_text(encoding="utf-8"))


def queries(source: str) -> list[str]:
    key = "expr" if source == "prometheus" else "query"
    return [target[key] for panel in read(source)["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("source", SOURCES)
def test_a_dashboard_is_what_its_program_writes(source: str) -> None:
    made = runpy.run_path(str(FOLDER / "make.py"))["text"](source)
    assert made == (FOLDER / f"{source}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("source", SOURCES)
def test_a_dashboard_loads_without_edits(source: str) -> None:
    dashboard = read(source)
    assert dashboard["tags"] == ["squall"]
    names = [one["name"] for one in dashboard["templating"]["list"]]
    assert names == ["datasource", "run", "workflow", "step"]
    panels = dashboard["panels"]
    places = {(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels}
    assert len(places) == len(panels) == len({each["id"] for each in panels})
    used = {each["type"] for panel in panels for each in (panel["datasource"],)}
    assert used == {source}
    (annotations,) = dashboard["annotations"]["list"]
    assert annotations["target"]["tags"] == ["squall"]


def test_queries_for_prometheus_name_metrics_and_labels_that_exist() -> None:
    by_name = {full_name(each): each for each in METRICS.values()}
    found: set[str] = set()
    for query in queries("prometheus"):
        for name, labels in re.findall(r"(squall_\w+)\{([^}]*)\}", query):
            metric = by_name[name.removesuffix("_bucket")]
            assert name == full_name(metric) or metric.type == "histogram"
            own = LABELS[metric.name]
            assert set(re.findall(r"(\w+)=", labels)) <= set(own), query
            found.add(metric.name)
        assert len(re.findall(r"squall_\w+", query)) == len(re.findall(r"squall_\w+\{", query))
        (*_, last) = re.findall(r"squall_(\w+)\{", query)
        groups = {each for by in re.findall(r"by \(([^)]*)\)", query) for each in by.split(", ")}
        metric = by_name["squall_" + last.removesuffix("_bucket")]
        assert groups <= {*LABELS[metric.name], "le"}, query
        # A counter that is not shown as a rate would be one since the start.
        if metric.type == "counter":
            assert "rate(" in query or metric.name == "errors", query
    assert {"executions", "latency", "latency_now", "users", "errors"} <= found


def test_queries_for_influx_name_measurements_and_tags_that_exist() -> None:
    for query in queries("influxdb"):
        ((field, measurement),) = re.findall(r'\("(\w+)"\).* FROM "squall_(\w+)"', query)
        metric = METRICS[measurement]
        assert field == "p95" if metric.type == "histogram" else field == "value"
        condition = query.partition(" WHERE ")[2]
        assert set(re.findall(r'"(\w+)"', condition)) <= set(LABELS[measurement]), query


def test_both_dashboards_have_the_same_panels() -> None:
    titles = [[panel["title"] for panel in read(source)["panels"]] for source in SOURCES]
    assert titles[0] == titles[1]
