"""CSV, XML, JUnit and Markdown: what a reader of each relies on."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from xml.etree import ElementTree as Xml

import msgspec
import pytest

from squall.reporting.document.build import build_document, encode_document
from squall.reporting.document.rebuild import rebuild
from squall.reporting.outputs.csv_files import render_csv
from squall.reporting.outputs.junit import render_junit
from squall.reporting.outputs.markdown import render_markdown
from squall.reporting.outputs.xml_file import render_xml
from squall.reporting.text.summary import render_summary
from squall.stats.reports import ErrorSample
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.totals.step_rows import RowStats
from squall.stats.verdict import Verdict


def written(outcome: Any) -> dict[str, Any]:
    return json.loads(encode_document(build_document(outcome)))


def table(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_csv_has_a_line_per_step_with_the_numbers_of_the_document(make_outcome: Any) -> None:
    document = written(make_outcome())
    login, pay, iteration = table(render_csv(document)["steps"])
    assert [row["step"] for row in (login, pay, iteration)] == ["login", "pay", "iteration"]
    step = document["workflows"][0]["steps"][1]
    assert (pay["workflow"], pay["count"], pay["failed"]) == ("Shop", "500", "30")
    assert float(pay["rate_per_s"]) == step["rps"]
    assert float(pay["p99_ms"]) == step["latency_ms"]["p99"]


def test_csv_has_a_line_per_window_and_no_time_where_there_is_none(make_outcome: Any) -> None:
    outcome = make_outcome()
    outcome.stats.workflows["Shop"].rows["pay"].windows.at(11)
    rows = [row for row in table(render_csv(written(outcome))["windows"]) if row["step"] == "pay"]
    assert [row["start_s"] for row in rows] == [str(second) for second in range(12)]
    assert sum(int(row["count"]) for row in rows) == 500
    assert rows[-1]["p99_ms"] == ""


def test_csv_errors_survive_commas_quotes_and_line_ends(make_outcome: Any) -> None:
    outcome = make_outcome()
    reason = 'ValueError: a, "b"\nc'
    outcome.stats.add(ErrorSample("Shop", "has_price", reason, 2.0, "shop.py:9"))
    rows = table(render_csv(written(outcome))["errors"])
    assert [row["count"] for row in rows[:3]] == ["10", "10", "10"]
    assert (rows[-1]["step"], rows[-1]["reason"]) == ("has_price", reason)


def test_xml_holds_steps_errors_and_thresholds(make_outcome: Any) -> None:
    root = Xml.fromstring(render_xml(written(make_outcome())))
    assert root.get("schema") == "squall.results/1"
    pay = root.findall("workflows/workflow/steps/step")[1]
    assert (pay.get("name"), pay.get("count")) == ("pay", "500")
    latency = pay.find("latency_ms")
    assert latency is not None and latency.get("max") == "5000.0"
    assert pay.findtext("errors/error/reason") == "503 Service Unavailable"
    assert [each.get("passed") for each in root.findall("thresholds/threshold")] == [
        *("false", "true", "false", "true")
    ]
    assert root.findall(".//histogram") == root.findall(".//buckets") == []
    assert [word.text for word in root.findall("run/command/word")] == ["run", "shop.py"]


def test_characters_that_xml_cannot_hold_do_not_break_it(make_outcome: Any) -> None:
    outcome = make_outcome()
    outcome.stats.add(ErrorSample("Shop", "pay", "bad \x00 <&> \x1b[31m", 0.1, body="\x01\udcff"))
    for render in (render_xml, render_junit):
        root = Xml.fromstring(render(build_document(outcome)))
        assert not [each for each in root.itertext() if set(each) & set("\x00\x01\x1b\udcff")]


def test_junit_has_a_case_per_threshold_and_one_verdict(make_outcome: Any) -> None:
    root = Xml.fromstring(render_junit(written(make_outcome())))
    (suite,) = root
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("Shop", "5", "2")
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert list(cases)[-1] == "verdict"
    failure = cases["pay.p(99) < 800ms"].find("failure")
    assert failure is not None
    assert failure.text == "912 ms, wanted < 800 ms, 500 samples (service time)"
    assert cases["pay.p(99) < 800ms"].get("time") == "10.020"
    assert cases["errors < 5%"].find("failure") is None
    missing = cases["nothing.p(95) < 1s"].find("failure")
    assert missing is not None and missing.text == "no samples, wanted < 1 s"


def test_junit_and_markdown_say_why_a_step_always_raised(make_outcome: Any) -> None:
    why = "raised in all 10 executions: KeyError: 'id' at shop.py:31 in pay"
    result = ThresholdResult(
        expression="pay.errors < 100%",
        passed=False,
        value=100.0,
        unit="%",
        samples=10,
        limit=100.0,
        note=why,
        builtin=True,
    )
    document = written(make_outcome(thresholds=[result]))
    failure = Xml.fromstring(render_junit(document)).find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.text == f"100 %, wanted < 100 %, 10 samples ({why})"
    assert f"| pay.errors &lt; 100% | 100 % ({why}) | **failed** |" in render_markdown(document)


def test_junit_has_a_suite_per_workflow_and_fails_an_invalid_verdict(make_mixed: Any) -> None:
    outcome = make_mixed()
    root = Xml.fromstring(render_junit(written(outcome)))
    names = [suite.get("name") for suite in root]
    assert names == ["Browse", "Buy", "Audit", "mix.py"]
    assert [case.get("name") for case in root[1]] == ["failed"]
    verdict = root[3].find("testcase[@name='verdict']/failure")
    assert verdict is not None and "blocked the loop" in (verdict.text or "")
    degraded = make_mixed(verdict=Verdict(state="DEGRADED", reasons=["late"]))
    root = Xml.fromstring(render_junit(written(degraded)))
    assert root[3].find("testcase[@name='verdict']/failure") is None


def test_junit_of_an_interrupted_run_is_not_green(make_outcome: Any) -> None:
    document = {**written(make_outcome()), "status": "interrupted"}
    root = Xml.fromstring(render_junit(document))
    failure = root.find("testsuite/testcase[@name='verdict']/failure")
    assert failure is not None and failure.text == "VALID; interrupted"


def test_markdown_says_the_outcome_first_and_folds_the_summary(make_outcome: Any) -> None:
    document = written(make_outcome())
    text = render_markdown(document)
    assert text.startswith("**2 of 3 thresholds failed, VALID**: shop.py Shop, 10s, run 01J9Z4\n")
    assert "| pay.p(99) &lt; 800ms | 912 ms (service time) | **failed** |" in text
    assert "| pay | 500 | 50.0/s | 6 % | 80." in text
    assert "errors < 100%" not in text, "built in, and it held"
    assert render_summary(rebuild(document)) in text
    assert text.rstrip().endswith("</details>")


@pytest.mark.parametrize("steps", [1, 60, 400])
def test_markdown_stays_under_four_kilobytes(make_outcome: Any, steps: int) -> None:
    outcome = make_outcome(verdict=Verdict(state="DEGRADED", reasons=["a long reason " * 60] * 20))
    shop = outcome.stats.workflows["Shop"]
    for number in range(steps):
        name = f"a step with a rather long name ü {number}"
        shop.rows[name] = RowStats(name, "http")
        shop.rows[name].count = 5
    outcome.thresholds = [
        msgspec.structs.replace(each, expression=f"{each.expression} {number}")
        for number in range(steps)
        for each in outcome.thresholds
    ]
    text = render_markdown(written(outcome))
    assert len(text.encode()) < 4000
    assert text.startswith("**") and "DEGRADED" in text.partition("\n")[0]
    assert text.count("````") in (0, 2) and text.count("<details>") == text.count("</details>")


def test_a_name_cannot_break_a_markdown_table(make_outcome: Any) -> None:
    outcome = make_outcome()
    rows = outcome.stats.workflows["Shop"].rows
    rows["a|b <script> *x*"] = RowStats("a|b <script> *x*", "http")
    text = render_markdown(written(outcome)).partition("<details>")[0]
    assert "| a\\|b &lt;script> \\*x\\* |" in text
