"""The rows of a run have what its results document has, and every backend can store them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from squall.reporting.document.build import build_document
from squall.reporting.outputs.rows.as_json import objects_of
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.rows.model import (
    CHECKS,
    DATACENTERS,
    ERRORS,
    LOSSES,
    METRICS,
    RUNS,
    STEPS,
    TABLES,
    THRESHOLDS,
    TOTALS,
    WINDOWS,
    WORKFLOWS,
    Table,
)


@pytest.fixture
def document(make_outcome: Any) -> dict[str, Any]:
    return json.loads(json.dumps(build_document(make_outcome())))


def named(document: dict[str, Any], table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.names, row, strict=True)) for row in RunRows(document).of(table)]


def test_the_run_has_its_judgement(document: dict[str, Any]) -> None:
    (run,) = named(document, RUNS)
    assert run["run_id"] == "01J9Z4"
    assert run["started_at"] == datetime(2026, 11, 15, 20, 1, 24, 113_000, tzinfo=UTC)
    assert (run["passed"], run["exit_code"], run["verdict"]) == (False, 99, "VALID")
    assert (run["tags"], run["command"]) == ({"team": "shop"}, ["run", "shop.py"])


def test_totals_are_the_sums_of_the_document(document: dict[str, Any]) -> None:
    (totals,) = named(document, TOTALS)
    (workflow,) = document["workflows"]
    assert totals["requests_sent"] == workflow["requests"]["sent"] == 1030
    assert totals["bytes_received"] == workflow["requests"]["bytes_received"]
    assert totals["iterations"] == workflow["iteration"]["count"] == 500
    assert (totals["checks_passed"], totals["checks_failed"]) == (470, 10)
    assert (totals["thresholds_passed"], totals["thresholds_failed"]) == (2, 2)


def test_totals_add_up_over_workflows(make_mixed: Any) -> None:
    document = build_document(make_mixed())
    (totals,) = named(document, TOTALS)
    rows = named(document, WORKFLOWS)
    assert [row["workflow"] for row in rows] == ["Setup", "Browse", "Buy", "Audit"]
    for name in ("requests_sent", "iterations", "starts_planned"):
        assert totals[name] == sum(row[name] for row in rows) > 0


def test_steps_come_in_their_order_with_the_iteration_last(document: dict[str, Any]) -> None:
    steps = named(document, STEPS)
    assert [(row["position"], row["step"], row["is_iteration"]) for row in steps] == [
        (0, "login", False),
        (1, "pay", False),
        (2, "iteration", True),
    ]
    pay = document["workflows"][0]["steps"][1]
    assert steps[1]["p99_ms"] == pay["latency_ms"]["p99"]
    assert steps[1]["service_p99_ms"] == pay["service_ms"]["p99"]
    assert steps[1]["statuses"] == pay["statuses"]


def test_checks_thresholds_metrics_and_errors_have_their_rows(document: dict[str, Any]) -> None:
    (check,) = named(document, CHECKS)
    assert (check["name"], check["passed"], check["failed"]) == ("has_price", 470, 10)
    assert [row["value"] for row in named(document, THRESHOLDS)] == [912.0, 3.0, None, 3.0]
    kinds = {row["kind"]: row for row in named(document, METRICS)}
    assert (kinds["counter"]["sum"], kinds["gauge"]["last"]) == (470.0, 4.0)
    assert (kinds["rate"]["hits"], kinds["sample"]["maximum"]) == (400.0, 5.0)
    reasons = {row["reason"]: row for row in named(document, ERRORS)}
    assert reasons["503 Service Unavailable"]["step"] == "pay"
    assert reasons["KeyError: 'id'"]["location"] == "shop.py:31 in pay"


def test_windows_have_the_time_of_day_at_which_they_began(make_mixed: Any) -> None:
    document = build_document(make_mixed())
    document["workflows"][1]["started_at_s"] = 1.0
    windows = [row for row in named(document, WINDOWS) if row["workflow"] == "Browse"]
    assert windows[0]["start_s"] == 1.0
    assert windows[0]["at"] == datetime(2026, 11, 15, 20, 1, 25, 113_000, tzinfo=UTC)
    iteration = [row for row in windows if row["is_iteration"]]
    assert sum(row["count"] for row in iteration) == 20


def test_a_run_in_several_datacenters_has_their_parts_and_losses(in_two_datacenters: Any) -> None:
    document = build_document(in_two_datacenters)
    parts = named(document, DATACENTERS)
    assert [(row["datacenter"], row["state"]) for row in parts] == [
        ("eu", "completed"),
        ("us", "lost"),
    ]
    (loss,) = named(document, LOSSES)
    assert (loss["datacenter"], loss["reason"]) == ("us", "no manager answers")


def test_a_text_that_no_database_takes_is_cleaned(document: dict[str, Any]) -> None:
    document["workflows"][0]["steps"][0]["name"] = "a\0b\ud800"
    document["run"]["tags"] = {"x\0": ["\udfff"]}
    assert named(document, STEPS)[0]["step"] == "a\ufffdb?"
    assert named(document, RUNS)[0]["tags"] == {"x\ufffd": ["?"]}
    for _, made in objects_of(RunRows(document)):
        json.dumps(made, ensure_ascii=False).encode()


def test_a_document_of_an_earlier_version_has_rows_too(document: dict[str, Any]) -> None:
    for name in ("losses", "datacenters"):
        document.pop(name, None)
    for step in document["workflows"][0]["steps"]:
        del step["service_ms"], step["statuses"], step["protocol"]
    for threshold in document["thresholds"]:
        del threshold["limit"]
    rows = RunRows(document)
    assert rows.counts["steps"] == 3
    assert rows.counts["losses"] == 0


def test_each_json_row_says_which_it_is_and_the_run_comes_last(document: dict[str, Any]) -> None:
    made = [each for _, each in objects_of(RunRows(document))]
    ids = [each["id"] for each in made]
    assert len(set(ids)) == len(ids)
    assert {each["schema"] for each in made} == {"squall.rows/1"}
    assert "01J9Z4:steps:1" in ids
    run = made[-1]
    assert (run["id"], run["started_at"]) == ("01J9Z4:runs", "2026-11-15T20:01:24.113Z")
    counted = {table.name: 0 for table in TABLES}
    for each in made:
        counted[each["table"]] += 1
    assert run["rows"] == counted


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_key_is_there_and_never_null(table: Table) -> None:
    columns = {column.name: column for column in table.columns}
    assert len(columns) == len(table.columns)
    assert not any(columns[name].is_optional for name in table.key)
