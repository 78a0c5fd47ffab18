"""The page of the outputs has a row for every kind, with its form and its extra."""

from __future__ import annotations

import re

from squall.reporting.outputs.live.metrics import METRICS
from squall.reporting.outputs.registry import KINDS
from tests.lab.programs import ROOT

DOCS = ROOT / "docs"


def test_every_kind_has_a_row_with_its_form_and_its_extra() -> None:
    page = (DOCS / "outputs.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.* \| .* \| .* \| .*) \|$", page, re.MULTILINE))
    assert list(rows) == list(KINDS)
    for kind in KINDS.values():
        text, form, extra, tested = rows[kind.name].split(" | ")
        assert text == kind.text
        assert form.startswith(f"`-o {kind.name}={kind.example}`")
        assert kind.flag in form
        assert extra.strip() == (f"`squall[{kind.extra}]`" if kind.extra else "")
        assert tested


def test_every_metric_is_in_the_table_with_its_labels() -> None:
    page = (DOCS / "outputs-live.md").read_text(encoding="utf-8")
    table = page.partition("## Metrics")[2].partition("\n## ")[0]
    rows: dict[str, set[str]] = {}
    for row in re.findall(r"^\| (`.*) \|$", table, re.MULTILINE):
        names, labels, _ = (cell.strip() for cell in row.split("|"))
        for name in re.findall(r"`(\w+)`", names):
            rows[name] = set(re.findall(r"`(\w+)`", re.sub(r"\(.*\)", "", labels)))
    assert rows == {metric.name: set(metric.labels) for metric in METRICS.values()}
