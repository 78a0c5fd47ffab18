"""Markdown for pull requests and CI summaries, always under 4 kB.

It has one line with the outcome, then the thresholds, the steps, and the whole summary folded away.
A text that is too long is cut at the end, with a note; the first line always stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from squall.reporting.document.rebuild import rebuild
from squall.reporting.number_format import duration, judged, length, percent_cell, rate
from squall.reporting.text.summary import render_summary

BYTES_MAX = 4000
_ROWS_MAX = 15
_CUT = "... (cut; the results document has the rest)"


def render_markdown(document: dict[str, Any]) -> str:
    parts = [_head(document), _thresholds(document["thresholds"]), *_step_tables(document)]
    text = ""
    for part in parts:
        if part and len(f"{text}{part}\n".encode()) < BYTES_MAX - len(_CUT):
            text += f"{part}\n"
    details = _details(render_summary(rebuild(document)), BYTES_MAX - len(text.encode()))
    return text + details


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table with its first `left` columns aligned left and the others right."""
    marks = ["---" if index < left else "--:" for index in range(len(head))]
    lines = [head, marks, *([cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Escapes what Markdown would interpret in a name."""
    for mark in ("\\", "|", "`", "*", "_", "<", "[", "#"):
        text = text.replace(mark, "&lt;" if mark == "<" else f"\\{mark}")
    return " ".join(text.split())


def _head(document: dict[str, Any]) -> str:
    verdict = document["verdict"]
    shown = _shown(document["thresholds"])
    failed = sum(not each["passed"] for each in shown)
    if document["status"] != "completed":
        state = document["status"]
    elif failed:
        state = f"{failed} of {len(shown)} thresholds failed"
    elif verdict["state"] == "INVALID":
        # "passed" would be read first, and the numbers cannot be relied on.
        state = "no valid result"
    else:
        state = "passed"
    names = " + ".join(each["name"] for each in document["workflows"] if each["is_test"])
    run = document["run"]
    rest = f"{run['file']} {names}, {length(document['elapsed_s'])}, run {run['id']}"
    lines = [f"**{state}, {verdict['state']}**: {cell(rest)[:200]}\n"]
    lines += [f"- {cell(reason)[:200]}" for reason in verdict["reasons"][:3]]
    return "\n".join(lines) + ("\n" if len(lines) > 1 else "")


def _shown(thresholds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in thresholds if not (each["builtin"] and each["passed"])]


def _thresholds(thresholds: list[dict[str, Any]]) -> str:
    # Failed thresholds come first, so that they are not cut from the end of a long list.
    shown = sorted(_shown(thresholds), key=lambda each: each["passed"])
    rows = [
        (
            each["expression"],
            _value(each)[:200],
            "ok" if each["passed"] else "**failed**",
        )
        for each in shown[:_ROWS_MAX]
    ]
    if not rows:
        return ""
    lines = table(("threshold", "value", ""), rows).replace("\\*\\*", "**")
    return lines + _more(len(shown) - len(rows), "thresholds")


def _value(threshold: dict[str, Any]) -> str:
    value, note = threshold["value"], threshold["note"]
    shown = judged(value, threshold["unit"], threshold.get("limit"), note)
    return f"{shown} ({note})" if note and value is not None else shown


def _step_tables(document: dict[str, Any]) -> list[str]:
    ran = [each for each in document["workflows"] if each["is_test"] and each["iteration"]["count"]]
    return [_steps(workflow, named=len(ran) > 1) for workflow in ran]


def _steps(workflow: dict[str, Any], *, named: bool) -> str:
    rows = [*workflow["steps"], workflow["iteration"] | {"name": "iteration"}]
    shown = rows if len(rows) <= _ROWS_MAX else [*rows[: _ROWS_MAX - 1], rows[-1]]
    head = (f"step of {cell(workflow['name'])}" if named else "step", "count", "rate", "failed")
    lines = table((*head, "p50", "p95", "p99"), [_step(row) for row in shown])
    return lines + _more(len(rows) - len(shown), "steps")


def _step(row: dict[str, Any]) -> list[str]:
    times = row["latency_ms"]
    failed = row["failed"] / row["count"] if row["count"] else 0.0
    return [
        row["name"],
        str(row["count"]),
        rate(row["rps"]),
        percent_cell(failed),
        *(duration(times[name] / 1e3) if times else "-" for name in ("p50", "p95", "p99")),
    ]


def _more(count: int, noun: str) -> str:
    return f"\n... and {count} more {noun}\n" if count > 0 else ""


def _details(summary: str, room: int) -> str:
    # Four backticks, because a traceback may contain three.
    begin, end = "<details><summary>summary</summary>\n\n````text\n", "\n````\n</details>\n"
    room -= len(begin) + len(end)
    kept = summary.replace("````", "'''''")
    if len(kept.encode()) > room:
        room -= len(_CUT) + 1
        if room < len(_CUT):
            return ""
        cut = kept.encode()[:room].decode(errors="ignore")
        kept = f"{cut.rpartition(chr(10))[0]}\n{_CUT}"
    return begin + kept + end
