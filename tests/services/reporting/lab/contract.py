"""What every store of runs must hold: the rows of the document, once, however often it came."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any

from squall.reporting.outputs.delivery import deliver, parse_output, prepare
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.rows.model import TOTALS
from tests.services.reporting.lab.document import report_document

Read = Callable[[str], Awaitable[dict[str, list[dict[str, Any]]]]]
"""(id of the run) -> its rows by table."""


def one_run(run_id: str = "01J9Z4") -> dict[str, Any]:
    document = report_document()
    document["run"]["id"] = run_id
    return document


def shorter(document: dict[str, Any]) -> dict[str, Any]:
    """The same run with fewer rows."""
    less = copy.deepcopy(document)
    less["workflows"].pop()
    less["checks"] = []
    return less


def by_table(lines: list[str]) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        row = json.loads(line)
        rows.setdefault(row["table"], []).append(row)
    return rows


def delivered(document: dict[str, Any], *outputs: str) -> list[str]:
    """Why outputs failed, a line for each."""
    prepared = prepare([parse_output(text) for text in outputs])
    lines = deliver(document, prepared, saved="kept.json")
    return [line.partition("; to write it again: squall report kept.json ")[0] for line in lines]


def check_rows(
    document: dict[str, Any], stored: dict[str, list[dict[str, Any]]], *, surplus: bool = False
) -> None:
    """`surplus`: rows of an earlier delivery may be left."""
    rows = RunRows(document)
    counts = {name: len(own) for name, own in stored.items()}
    wanted = {name: count for name, count in rows.counts.items() if count or name in counts}
    if surplus:
        assert all(counts[name] >= count for name, count in wanted.items()), counts
    else:
        assert counts == wanted
    (totals,) = rows.of(TOTALS)
    (found,) = stored["totals"]
    for name, value in zip(TOTALS.names, totals, strict=True):
        assert str(found[name]) == str(value), name
    steps = {(each["workflow"], each["step"]): each for each in stored["steps"]}
    for workflow in document["workflows"]:
        for step in workflow["steps"]:
            row = steps[workflow["name"], step["name"]]
            assert int(row["count"]) == step["count"]
            assert float(row["p95_ms"]) == step["latency_ms"]["p95"]
