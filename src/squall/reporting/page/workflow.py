"""One workflow of the report: places for its plots, step table, errors, checks, metrics.

The script draws into the elements of class `plot`; everything else is complete without it.
"""

from __future__ import annotations

from typing import Any

from squall.engine.load.profile import describe
from squall.reporting.number_format import (
    clock,
    data_size,
    duration,
    measured,
    percent,
    percent_cell,
    rate,
)
from squall.reporting.page.markup import Child, Markup, joined, table, tag
from squall.stats.manifest import Profile, Stage

_TIMES = (
    ("p50", "p50"),
    ("p90", "p90"),
    ("p95", "p95"),
    ("p99", "p99"),
    ("p999", "p99.9"),
    ("max", "max"),
)


def shown_workflows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Tests always; set-up and teardown only if they made measured calls or failed."""
    return [
        workflow
        for workflow in document["workflows"]
        if workflow["is_test"]
        or workflow["error"]
        or workflow["hook_errors"]
        or any(step["count"] for step in workflow["steps"])
    ]


def workflow_section(document: dict[str, Any], workflow: dict[str, Any], index: int) -> Markup:
    """`index` counts the shown workflows; the script finds the data by name."""
    name = workflow["name"]
    parts = (
        tag("h2", name),
        tag("p", _facts(workflow), class_="facts"),
        tag("p", workflow["error"], class_="reasons bad") if workflow["error"] else None,
        tag("div", class_="plots", hidden=True),
        _steps(workflow),
        tag("div", class_="distribution", hidden=True),
        _protocols(workflow),
        _errors(workflow),
        _checks([each for each in document["checks"] if each["workflow"] == name]),
        _metrics([each for each in document["metrics"] if each["workflow"] == name]),
    )
    return tag(
        "section",
        *parts,
        class_="workflow",
        id=f"workflow-{index}",
        data_workflow=name,
    )


def profile_of(workflow: dict[str, Any]) -> Profile:
    profile = workflow["profile"]
    return Profile(
        model=profile["model"],
        vus=profile["vus"],
        max_vus=profile["max_vus"],
        duration_s=profile["duration_s"],
        iterations=profile["iterations"] or 0,
        rate_per_s=profile["rate_per_s"] or 0.0,
        stages=tuple(Stage(each["duration_s"], each["target"]) for each in profile["stages"]),
        iterations_per_vu=profile.get("iterations_per_vu", 0),
        start_after_s=profile.get("start_after_s", 0.0),
    )


def _facts(workflow: dict[str, Any]) -> Markup:
    starts = workflow["starts"]
    facts = [describe(profile_of(workflow)), workflow["shape"]]
    if workflow["profile"]["model"].startswith("open"):
        facts.append(f"{starts['made']} of {starts['planned']} starts made")
        if starts["late"]:
            facts.append(f"{starts['late']} late (at most {duration(starts['late_max_ms'] / 1e3)})")
        if starts["dropped"]:
            facts.append(f"{starts['dropped']} dropped")
    if workflow["status"] != "completed":
        facts.append(workflow["status"])
    return joined([tag("span", fact) for fact in facts if fact])


def _steps(workflow: dict[str, Any]) -> Markup:
    head = step_titles("step")
    rows = [step_row(step["name"], step) for step in workflow["steps"]]
    foot = step_row("iteration", workflow["iteration"])
    open_model = workflow["profile"]["model"].startswith("open")
    return joined(
        tag("h3", "Steps"),
        table("Steps", head, rows, foot, class_="steps"),
        tag("p", "times from the planned start", class_="note") if open_model else None,
    )


def _protocols(workflow: dict[str, Any]) -> Markup | None:
    found = workflow.get("protocols")
    if not found:
        return None
    titles = (
        "protocol",
        "requests",
        "rate",
        "no answer",
        "messages out",
        "messages in",
        "messages/s",
        "connections",
        "connect p99",
        "TLS p99",
        "sent",
        "received",
    )
    head = [
        tag("th", name, scope="col", class_="number" if place else None)
        for place, name in enumerate(titles)
    ]
    rows = [
        tag(
            "tr",
            tag("th", each["name"], scope="row"),
            [tag("td", cell, class_="number") for cell in _protocol_cells(each)],
        )
        for each in found
    ]
    return joined(tag("h3", "Protocols"), table("Protocols", head, rows))


def _protocol_cells(protocol: dict[str, Any]) -> list[str]:
    times = [protocol["connect_ms"], protocol["tls_ms"]]
    return [
        str(protocol["sent"]),
        rate(protocol["rps"]),
        str(protocol["failed"]),
        str(protocol["messages_sent"]),
        str(protocol["messages_received"]),
        rate(protocol["messages_per_s"]),
        str(protocol["connections"]),
        *(duration(each["p99"] / 1e3) if each else "-" for each in times),
        data_size(protocol["bytes_sent"]),
        data_size(protocol["bytes_received"]),
    ]


def step_titles(first: str) -> list[Markup]:
    """The titles of a table of `step_row`s."""
    keys = [("name", first), ("count", "count"), ("rate", "rate"), ("failed", "failed")]
    return [
        tag("th", name, scope="col", data_key=key, class_="number" if key != "name" else None)
        for key, name in (*keys, *_TIMES)
    ]


def step_row(name: str, row: dict[str, Any]) -> Markup:
    times = row["latency_ms"]
    failed = row["failed"] / row["count"] if row["count"] else 0.0
    cells = [
        _number(row["count"], str(row["count"])),
        _number(row["rps"], rate(row["rps"])),
        _number(failed, percent_cell(failed), shade="bad" if failed else ""),
    ]
    cells += [
        _number(times[key], duration(times[key] / 1e3)) if times else _number(-1, "-")
        for key, _ in _TIMES
    ]
    return tag("tr", tag("th", name, scope="row", data_value=name), cells, data_row=name)


def _number(value: float, text: str, shade: str = "") -> Markup:
    """A number cell with its unit in a separate element, so that digits line up."""
    digits, space, unit = text.partition(" ")
    rest = tag("span", f"{space}{unit}", class_="unit") if unit else None
    return tag("td", digits, rest, class_=f"number {shade}".rstrip(), data_value=value)


def _errors(workflow: dict[str, Any]) -> Markup | None:
    found = [
        (error["count"], step["name"], error)
        for step in workflow["steps"]
        for error in step["errors"]
    ]
    found.sort(key=lambda each: -each[0])
    # Errors of hooks have no count: they come last, with a dash.
    found += [(0, error["hook"], error) for error in workflow["hook_errors"]]
    if not found:
        return None
    head = [
        tag("th", name, scope="col", class_="number" if name in ("count", "first seen") else None)
        for name in ("count", "step", "first seen", "reason")
    ]
    rows = [
        tag(
            "tr",
            tag("td", count or "-", class_="number"),
            tag("th", name, scope="row"),
            tag("td", _first_seen(error), class_="number"),
            tag("td", _reason(error), class_="reason"),
        )
        for count, name, error in found
    ]
    return joined(tag("h3", "Errors"), table("Errors", head, rows, class_="errors"))


def _first_seen(error: dict[str, Any]) -> str:
    at_s = error["first_at_s"]
    return "" if at_s is None else clock(at_s)


def _reason(error: dict[str, Any]) -> Child:
    sample = error.get("sample")
    inside: list[Child] = []
    if sample:
        status = f"status {sample['status']}" if sample["status"] else "no answer"
        inside += [tag("pre", f"{sample['request']}\n{status}")]
        inside += [tag("pre", sample["body"], class_="body")] if sample["body"] else []
    if error["traceback"]:
        inside.append(tag("pre", error["traceback"]))
    location = tag("span", error["location"], class_="note") if error["location"] else None
    if not inside:
        return joined(error["reason"], location)
    return tag("details", tag("summary", error["reason"], location), inside)


def _checks(checks: list[dict[str, Any]]) -> Markup | None:
    if not checks:
        return None
    names = ("check", "passed", "failed", "share")
    head = [
        tag("th", name, scope="col", class_="number" if place else None)
        for place, name in enumerate(names)
    ]
    rows: list[Child] = []
    for check in checks:
        total = check["passed"] + check["failed"]
        share = percent(check["passed"] / total) if total else "never made"
        cells = (check["passed"], check["failed"], share)
        rows.append(
            tag(
                "tr",
                tag("th", check["name"], scope="row"),
                [tag("td", cell, class_="number") for cell in cells],
            )
        )
    return joined(tag("h3", "Checks"), table("Checks", head, rows, compact=True))


def _metrics(metrics: list[dict[str, Any]]) -> Markup | None:
    if not metrics:
        return None
    names = ("metric", "kind", "count", "values")
    head = [
        tag("th", name, scope="col", class_="number" if name == "count" else None) for name in names
    ]
    rows = [
        tag(
            "tr",
            tag("th", metric["name"], scope="row"),
            tag("td", metric["kind"]),
            tag("td", metric["count"], class_="number"),
            tag("td", _metric_values(metric)),
        )
        for metric in metrics
    ]
    return joined(tag("h3", "Metrics"), table("Metrics", head, rows))


def _metric_values(metric: dict[str, Any]) -> str:
    unit = metric["unit"]
    if not metric["count"]:
        return "no values"
    if metric["kind"] == "counter":
        return f"{measured(metric['sum'], unit)}, {rate(metric['rate'])}"
    if metric["kind"] == "rate":
        return percent(metric["share"])
    keys = ("last", "min", "max") if metric["kind"] == "gauge" else ("p50", "p95", "p99", "max")
    return ", ".join(f"{key} {measured(metric[key], unit)}" for key in keys)
