"""JUnit XML, so that a CI system shows thresholds as tests.

Each workflow is a suite with a case per threshold and one case `verdict`. That case fails if the
run was interrupted, or if it is INVALID and so no threshold means anything. Thresholds over several
workflows are in a suite named after the file.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as Xml

from squall.reporting.number_format import judged, plural
from squall.reporting.outputs.xml_file import clean, serialized

_CONDITION = re.compile(r"(<=|>=|==|!=|<|>)\s*(.*)")
# The place between a number and its unit, where the text gets a space.
_UNIT = re.compile(r"(?<=\d)(?=(?:ms|us|s|%))")


def render_junit(document: dict[str, Any]) -> bytes:
    tests = [each for each in document["workflows"] if each["is_test"]]
    shown = [each for each in document["workflows"] if each["is_test"] or _broke(each)]
    file = document["run"]["file"]
    alone = tests[0]["name"] if len(tests) == 1 else ""
    suites = {workflow["name"]: _suite(workflow["name"], document, workflow) for workflow in shown}
    for threshold in document["thresholds"]:
        owner = threshold["workflow"] or alone
        if owner not in suites:
            owner = file
            suites.setdefault(file, _suite(file, document, None))
        _threshold(suites[owner], threshold, document)
    for workflow in shown:
        if _broke(workflow):
            text = workflow["error"] or f"the workflow {workflow['status']}"
            _case(suites[workflow["name"]], workflow["status"], document, text)
    last = suites[alone] if alone else suites.setdefault(file, _suite(file, document, None))
    _verdict(last, document)
    root = Xml.Element("testsuites", {"name": clean(file)})
    for suite in suites.values():
        cases = suite.findall("testcase")
        suite.set("tests", str(len(cases)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
        root.append(suite)
    for name in ("tests", "failures"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites.values())))
    return serialized(root)


def _broke(workflow: dict[str, Any]) -> bool:
    return workflow["status"] in ("failed", "skipped", "timeout")


def _suite(name: str, document: dict[str, Any], workflow: dict[str, Any] | None) -> Xml.Element:
    elapsed_s = document["elapsed_s"] if workflow is None else workflow["elapsed_s"]
    return Xml.Element(
        "testsuite",
        {
            "name": clean(name),
            "errors": "0",
            "time": f"{elapsed_s:.3f}",
            "timestamp": document["started_at"].removesuffix("Z"),
        },
    )


def _case(suite: Xml.Element, name: str, document: dict[str, Any], failure: str) -> Xml.Element:
    case = Xml.SubElement(
        suite,
        "testcase",
        {
            "classname": suite.get("name", ""),
            "name": clean(name),
            "time": f"{document['elapsed_s']:.3f}",
        },
    )
    if failure:
        Xml.SubElement(case, "failure", {"message": clean(failure)}).text = clean(failure)
    return case


def _threshold(suite: Xml.Element, threshold: dict[str, Any], document: dict[str, Any]) -> None:
    failure = "" if threshold["passed"] else failure_text(threshold)
    _case(suite, threshold["expression"], document, failure)


def failure_text(threshold: dict[str, Any]) -> str:
    """`912 ms, wanted < 800 ms, 149871 samples (response time)`"""
    value = threshold["value"]
    found = _CONDITION.search(threshold["expression"])
    wanted = f"{found[1]} {_UNIT.sub(' ', found[2])}" if found else threshold["expression"]
    shown = judged(value, threshold["unit"], threshold.get("limit"), threshold["note"])
    parts = [shown, f"wanted {wanted}"]
    if value is not None:
        # Without a value, the note is part of `shown`.
        note = f" ({threshold['note']})" if threshold["note"] else ""
        parts.append(plural(threshold["samples"], "sample") + note)
    return ", ".join(parts)


def _verdict(suite: Xml.Element, document: dict[str, Any]) -> None:
    verdict = document["verdict"]
    # A run that did not reach its end is no green test, although what it measured is valid.
    cut = ["interrupted"] if document["status"] == "interrupted" else []
    text = "; ".join([verdict["state"], *cut, *verdict["reasons"]])
    failed = verdict["state"] == "INVALID" or bool(cut)
    case = _case(suite, "verdict", document, text if failed else "")
    Xml.SubElement(case, "system-out").text = clean(text)
