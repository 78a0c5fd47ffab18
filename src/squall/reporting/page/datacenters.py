"""The datacenters of a run: the state and verdict of each part, and its steps.

The lines of the datacenters over time are among the plots of each workflow.
"""

from __future__ import annotations

from typing import Any

from squall.reporting.number_format import percent
from squall.reporting.page.markup import Child, Markup, joined, table, tag
from squall.reporting.page.workflow import shown_workflows, step_row, step_titles

_SHADES = {"VALID": "good", "DEGRADED": "warn", "INVALID": "bad"}


def datacenters_section(document: dict[str, Any]) -> Markup | None:
    found = document.get("datacenters", [])
    if not found:
        return None
    return tag(
        "section",
        tag("h2", "Datacenters"),
        _overview(found),
        [
            _steps(each, [workflow["name"] for workflow in shown_workflows(document)])
            for each in found
        ],
        class_="closing datacenters",
    )


def _overview(found: list[dict[str, Any]]) -> Markup:
    names = ("datacenter", "part", "try", "state", "verdict", "requests", "began", "")
    head = [
        tag("th", name, scope="col", class_="number" if name in ("part", "requests") else None)
        for name in names
    ]
    rows = [_part(each) for each in found]
    return table("Datacenters", head, rows, compact=True)


def _part(each: dict[str, Any]) -> Markup:
    verdict, state = each["verdict"]["state"], each["state"]
    remarks = [each["reason"] or "", *each["verdict"]["reasons"]]
    cells: list[Child] = [
        tag("td", percent(each["part"]), class_="number"),
        tag("td", each["tries"]),
        tag("td", state, class_="bad" if state in ("lost", "failed") else None),
        tag("td", verdict, class_=_SHADES[verdict] if verdict != "DEGRADED" else None),
        tag("td", each["requests"]["sent"], class_="number"),
        tag("td", f"{each['later_s']:.1f} s later" if each["later_s"] >= 1.0 else "with the first"),
        tag("td", "; ".join(filter(None, dict.fromkeys(remarks)))),
    ]
    return tag("tr", tag("th", each["name"], scope="row"), cells)


def _steps(each: dict[str, Any], shown: list[str]) -> Markup | None:
    """The steps of the workflows that the page shows."""
    rows = [
        step_row(f"{step['workflow']}.{step['name']}" if len(shown) > 1 else step["name"], step)
        for step in each["steps"]
        if step["workflow"] in shown
    ]
    if not rows:
        return None
    return joined(
        tag("h3", each["name"]),
        table(f"Steps in {each['name']}", step_titles("step"), rows, compact=True),
    )
