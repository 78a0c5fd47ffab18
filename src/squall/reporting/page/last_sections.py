"""The end of the report: generator, settings, environment, how to repeat, the summary."""

from __future__ import annotations

import shlex
from typing import Any

from squall.engine.load.profile import describe
from squall.reporting.number_format import data_size, duration, length, whole_percent
from squall.reporting.page.markup import Child, Markup, joined, table, tag
from squall.reporting.page.workflow import profile_of


def closing_sections(document: dict[str, Any], summary: str) -> Markup:
    return joined(
        _section("Generator", _generator(document)),
        _section("Lost load", _losses(document)) if document["losses"] else None,
        _section("Settings", _settings(document)),
        _section("Environment", _environment(document)),
        _section(
            "Repeat this run",
            tag("pre", f"squall {shlex.join(document['run']['command'])}", class_="command"),
        ),
        _section("Notes", tag("ul", [tag("li", note) for note in document["notes"]]))
        if document["notes"]
        else None,
        _section("Summary as text", tag("pre", summary, class_="summary")) if summary else None,
    )


def _section(title: str, *children: Child) -> Markup:
    return tag("section", tag("h2", title), *children, class_="closing")


def _generator(document: dict[str, Any]) -> Markup:
    names = ("process", "cpu", "cpu max", "loop lag p99", "longest gc", "memory", "")
    head = [
        tag("th", name, scope="col", class_="number" if 0 < place < 6 else None)
        for place, name in enumerate(names)
    ]
    rows = [_process(each) for each in document["generator"]["processes"]]
    return table("Generator", head, rows, compact=True)


def _process(process: dict[str, Any]) -> Markup:
    remarks = [f"ended: {process['died']}"] if process["died"] else []
    remarks += [
        f"{each['workflow']}.{each['step']} blocked {duration(each['seconds'])}"
        f" at {each['location']} ({each['call']})"
        for each in process.get("blocked", ())
    ]
    # The measurements are missing when the process ended before its first report.
    cells = [""] * 5
    if "cpu" in process:
        lag = process["loop_lag_ms"]
        cells = [
            whole_percent(process["cpu"]),
            whole_percent(process["cpu_max"]),
            duration(lag["p99"] / 1e3) if lag else "-",
            duration(process["gc_ms_max"] / 1e3),
            f"{process['rss_mb']:.0f} MB",
        ]
    return tag(
        "tr",
        tag("th", _process_name(process), scope="row"),
        [tag("td", cell, class_="number") for cell in cells],
        tag("td", "; ".join(remarks)),
    )


def _process_name(process: dict[str, Any]) -> str:
    worker = process.get("worker")
    return f"{process['index']} on {worker}" if worker else str(process["index"])


def _losses(document: dict[str, Any]) -> Markup:
    names = ("worker", "workflow", "lost", "missing for", "starts", "refilled by", "unknown", "")
    head = [tag("th", name, scope="col") for name in names]
    rows = [_loss(each) for each in document["losses"]]
    return table("Lost load", head, rows, compact=True)


def _loss(loss: dict[str, Any]) -> Markup:
    unknown = loss.get("unknown_requests", 0)
    about = " (estimate)" if loss.get("is_estimate") else ""
    missing = loss.get("starts")
    cells = [
        loss["workflow"],
        f"{'last heard ' if loss.get('is_last_heard') else ''}at {loss['at_s']:.1f} s",
        f"{loss.get('below_target_s', 0.0):.1f} s, {loss['users']} users",
        "-" if missing is None else str(missing),
        loss.get("refilled_by") or "no worker",
        f"0 to {unknown} requests{about}" if unknown else "nothing",
        loss["reason"],
    ]
    owner = loss.get("worker") or f"process {loss['process']}"
    if loss.get("datacenter"):
        owner = "/".join(filter(None, (loss["datacenter"], loss.get("worker"))))
    return tag("tr", tag("th", owner, scope="row"), [tag("td", cell) for cell in cells])


def _settings(document: dict[str, Any]) -> Markup:
    names = ("workflow", "load", "users", "think", "pacing", "grace", "cores", "sent", "received")
    rows = [
        tag(
            "tr",
            tag("th", workflow["name"], scope="row"),
            [tag("td", cell) for cell in _settings_cells(workflow)],
        )
        for workflow in document["workflows"]
    ]
    return table("Settings", [tag("th", name, scope="col") for name in names], rows)


def _settings_cells(workflow: dict[str, Any]) -> list[str]:
    profile, requests = workflow["profile"], workflow["requests"]
    think, pacing = profile["think_s"], profile["pacing_s"]
    return [
        describe(profile_of(workflow)),
        f"{workflow['vus']} (max {profile['max_vus']})",
        " to ".join(length(each) for each in think) if think else "none",
        "none" if pacing is None else length(pacing),
        length(profile["grace_s"]),
        ", ".join(str(core) for core in workflow["cores"]),
        f"{requests['sent']} ({data_size(requests['bytes_sent'])})",
        data_size(requests["bytes_received"]),
    ]


def _environment(document: dict[str, Any]) -> Markup:
    run = document["run"]
    host = run["host"]
    facts: list[tuple[str, Any]] = [
        ("Squall", run["squall"]),
        ("Python", run["python"]),
        ("system", host["os"]),
        ("machine", f"{host['cores']} cores, {host['memory_mb']} MB"),
        ("commit", run["git"] or "none"),
        ("seed", run["seed"]),
        ("started", document["started_at"]),
        ("exit code", document["exit_code"]),
    ]
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts])
