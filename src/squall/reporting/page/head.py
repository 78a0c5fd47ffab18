"""The top of the report: verdict, facts of the run, thresholds with their bars."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from squall.api.errors import ConfigError
from squall.engine.load.profile import describe
from squall.reporting.number_format import clock, judged, length, measured, plural
from squall.reporting.page.markup import Markup, joined, table, tag
from squall.reporting.page.workflow import profile_of
from squall.stats.thresholds.grammar import parse_threshold

_SHADES = {"VALID": "good", "DEGRADED": "warn", "INVALID": "bad"}
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
# Width of a bar in SVG units; the page scales it.
_BAR = 200


def page_title(document: dict[str, Any]) -> str:
    return f"{document['run']['file']} {document['verdict']['state']} - Squall"


def head_section(document: dict[str, Any], names: Sequence[str]) -> Markup:
    run, verdict = document["run"], document["verdict"]
    reasons = [tag("li", reason) for reason in verdict["reasons"]]
    return tag(
        "header",
        tag("p", _badges(document), class_="badges"),
        tag(
            "h1",
            tag("span", run["file"], class_="file"),
            tag("span", ", ".join(names), class_="names") if names else None,
        ),
        tag("p", _facts(document), class_="facts"),
        tag("ul", reasons, class_=f"reasons {_SHADES.get(verdict['state'], 'bad')}")
        if reasons
        else None,
    )


def _badges(document: dict[str, Any]) -> Markup:
    state = document["verdict"]["state"]
    badges = [_badge(state, _SHADES.get(state, "bad"), "could the generator measure?")]
    shown = _shown(document)
    failed = sum(not threshold["passed"] for threshold in shown)
    if failed:
        text = f"{failed} of {plural(len(shown), 'threshold')} failed"
        badges.append(_badge(text, "bad", "did the target do well?"))
    elif shown:
        text = "threshold passed" if len(shown) == 1 else f"{len(shown)} thresholds passed"
        badges.append(_badge(text, "good", "did the target do well?"))
    if document["aborted_by"]:
        badges.append(_badge(f"ended early by {document['aborted_by']}", "warn", ""))
    elif document["status"] != "completed":
        badges.append(_badge(document["status"], "warn", "not all of the run took place"))
    return joined(badges)


def _badge(text: str, shade: str, title: str) -> Markup:
    return tag("span", text, class_=f"badge {shade}", title=title or None)


def _facts(document: dict[str, Any]) -> Markup:
    run, workflows = document["run"], document["workflows"]
    facts = [length(document["elapsed_s"])]
    if len(workflows) == 1:
        # Without the planned length: the actual one is next to it, the planned one further down.
        facts.insert(0, describe(profile_of(workflows[0])).partition(" for ")[0])
    if run["warmup_s"]:
        facts.append(f"without the first {length(run['warmup_s'])}")
    facts += [
        _moment(document["started_at"]),
        plural(run["host"]["cores"], "core"),
        f"run {run['id']}",
    ]
    facts += [f"{key}={value}" for key, value in run["tags"].items()]
    return joined([tag("span", fact) for fact in facts])


def _moment(text: str) -> str:
    """`15 Nov 2026 20:01 UTC`; a text that is not a time is shown unchanged."""
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return text
    return f"{moment.day} {moment:%b %Y %H:%M} UTC"


def thresholds_section(document: dict[str, Any]) -> Markup | None:
    shown = _shown(document)
    if not shown:
        return None
    named = len(document["workflows"]) > 1
    head = ("result", "threshold", "value", "against the limit", "samples", "failing since")
    rows = [
        tag(
            "tr",
            tag(
                "td",
                tag("span", "ok" if each["passed"] else "failed", class_="sign"),
                class_="good" if each["passed"] else "bad",
            ),
            tag("th", tag("code", each["expression"]), _note(each, named=named), scope="row"),
            tag("td", _value(each), class_="number"),
            tag("td", _bar(each), class_="bar"),
            tag("td", each["samples"], class_="number"),
            tag("td", _since(each), class_="number"),
        )
        for each in shown
    ]
    columns = [
        tag("th", name, scope="col", class_="number" if place in (2, 4, 5) else None)
        for place, name in enumerate(head)
    ]
    return tag(
        "section",
        tag("h2", "Thresholds"),
        table("Thresholds", columns, rows),
        class_="thresholds",
    )


def _shown(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The thresholds to show: the built-in one only if it failed."""
    return [each for each in document["thresholds"] if not (each["builtin"] and each["passed"])]


def _note(threshold: dict[str, Any], *, named: bool) -> Markup | None:
    workflow = threshold["workflow"] if named else None
    if workflow and threshold["expression"].startswith(f"{workflow}."):
        workflow = None
    parts = [part for part in (workflow, threshold["note"]) if part]
    return tag("span", ", ".join(parts), class_="note") if parts else None


def _value(threshold: dict[str, Any]) -> str:
    value, unit = threshold["value"], threshold["unit"]
    return judged(value, unit, threshold.get("limit"), threshold["note"])


def _since(threshold: dict[str, Any]) -> str:
    since = threshold["first_failed_at_s"]
    return "" if since is None else clock(since)


def _bar(threshold: dict[str, Any]) -> Markup | None:
    """A bar from 0 to a little beyond the larger of value and limit, with both marked."""
    value, limit = threshold["value"], _limit(threshold)
    if value is None or limit is None or value < 0 or limit < 0 or not max(value, limit):
        return None
    full = max(value, limit) * 1.15
    if threshold["unit"] == "%" and limit <= 100:
        full = min(full, max(100.0, value))
    wide, mark = value / full * _BAR, limit / full * _BAR
    shapes = (
        tag("rect", class_="track", width=_BAR, height=8, y=3),
        tag(
            "rect",
            class_="good" if threshold["passed"] else "bad",
            width=f"{wide:.2f}",
            height=8,
            y=3,
        ),
        tag("rect", class_="limit", x=f"{min(max(mark - 1, 0), _BAR - 2):.2f}", width=2, height=14),
    )
    label = f"{_value(threshold)}, limit {measured(limit, threshold['unit'])}"
    return tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {_BAR} 14",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def _limit(threshold: dict[str, Any]) -> float | None:
    """The limit in the unit of the value; None if the text cannot be parsed."""
    if threshold.get("limit") is not None:
        return float(threshold["limit"])
    # A document of an early version.
    try:
        parsed = parse_threshold(threshold["expression"])
    except ConfigError:
        return None
    unit = threshold["unit"]
    if unit in _MS:
        return parsed.value * _MS.get(parsed.unit or "ms", 1.0) / _MS[unit]
    if unit == "%" and not parsed.unit:
        # A limit without a unit may be a proportion such as 0.01: its place is uncertain.
        return None
    return parsed.value
