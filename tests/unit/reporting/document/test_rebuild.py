"""A document read back reports the same as the run that wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from squall.api.errors import UsageError
from squall.engine.load.profile import describe, resolve_profile
from squall.engine.run_options import ProfileFlags
from squall.reporting.document.build import build_document, encode_document
from squall.reporting.document.read import read_results
from squall.reporting.document.rebuild import rebuild
from squall.reporting.page.workflow import profile_of
from squall.reporting.text.summary import render_summary
from squall.stats.reports import ErrorSample

COLUMNS = ("min", "mean", "p50", "p90", "p95", "p99", "p99.9", "max")


def through_json(outcome: Any) -> dict[str, Any]:
    return json.loads(encode_document(build_document(outcome)))


def test_the_summary_of_a_document_is_that_of_the_run(make_outcome: Any, make_mixed: Any) -> None:
    for make in (make_outcome, make_mixed):
        outcome = make()
        again = rebuild(through_json(outcome))
        assert render_summary(again, columns=COLUMNS) == render_summary(outcome, columns=COLUMNS)


def test_the_parts_of_datacenters_are_read_back(in_two_datacenters: Any) -> None:
    again = rebuild(through_json(in_two_datacenters))
    assert render_summary(again, columns=COLUMNS) == render_summary(
        in_two_datacenters, columns=COLUMNS
    )
    eu, us = again.datacenters
    assert (eu.name, eu.part, eu.tries, eu.state) == ("eu", 0.6, 2, "completed")
    assert (us.state, us.reason, us.later_s) == ("lost", "no manager answers", 1.5)
    assert [loss.datacenter for loss in us.losses] == ["us"]
    assert eu.stats.workflows["Shop"].rows["pay"].failed == 15
    assert [w.count for w in us.stats.workflows["Shop"].iteration.windows][:2] == [50, 0]


def test_errors_of_hooks_and_of_several_lines_are_shown_again(make_outcome: Any) -> None:
    outcome = make_outcome(notes=["a note"], aborted_by="errors < 5%")
    for line, at_s in (("shop.py:44 in pay", 0.9), ("shop.py:45 in pay", 1.9)):
        outcome.stats.add(ErrorSample("Shop", "pay", "KeyError: 'id'", at_s, line))
    outcome.stats.add(ErrorSample("Shop", "has_price", "TypeError: x", 2.0, "shop.py:9", "tb"))
    text = render_summary(outcome)
    assert "shop.py:31 in pay and 2 more" in text
    assert render_summary(rebuild(through_json(outcome))) == text


@pytest.mark.parametrize(
    "attributes", [{"vus": 5, "start_after": "30s"}, {"vus": 2, "iterations": "3/vu"}]
)
def test_the_load_of_a_document_is_that_of_the_run(
    make_outcome: Any, attributes: dict[str, Any]
) -> None:
    outcome = make_outcome()
    profile = resolve_profile(attributes, ProfileFlags(), is_test=True)
    outcome.manifest.workflows[0].profile = profile
    document = through_json(outcome)
    assert rebuild(document).manifest.workflows[0].profile == profile
    assert describe(profile_of(document["workflows"][0])) == describe(profile)


def test_everything_but_percentiles_of_windows_survives_exactly(make_outcome: Any) -> None:
    document = through_json(make_outcome())
    again = through_json(rebuild(document))
    for each in (document, again):
        for workflow in each["workflows"]:
            for row in (*workflow["steps"], workflow["iteration"]):
                for quantile in ("p50", "p95", "p99"):
                    row["windows"].pop(quantile)
    assert again == document


def test_percentiles_of_windows_survive_within_the_error_of_a_bucket(make_outcome: Any) -> None:
    document = through_json(make_outcome())
    before, after = (
        each["workflows"][0]["steps"][1]["windows"]
        for each in (document, through_json(rebuild(document)))
    )
    for quantile in ("p50", "p95", "p99"):
        assert after[quantile] == pytest.approx(before[quantile], rel=0.008)


def test_the_exit_code_survives(make_outcome: Any, make_mixed: Any) -> None:
    for outcome in (make_outcome(), make_mixed(), make_outcome(thresholds=[])):
        assert rebuild(through_json(outcome)).exit_code == outcome.exit_code


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_results(str(path))
    line = str(caught.value)
    assert "\n" not in line and str(path) in line
    return line


def test_a_file_that_is_no_document_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert "there is no such file" in refusal(path)
    assert "could not be read" in refusal(tmp_path)
    for content, part in (
        ("", "is cut off"),
        ("hello", "is not JSON"),
        ("\udcff", "is not JSON"),
        ("[1]", "is not a results document"),
        ('{"metrics": {}}', "is not a results document"),
        ('{"schema": "k6/1"}', "is not a results document"),
        ('{"schema": "squall.results/2"}', "newer Squall wrote it: update"),
        ('{"schema": "squall.results/1"}', "is damaged: Object missing required field"),
    ):
        path.write_text(content, encoding="utf-8", errors="surrogateescape")
        assert part in refusal(path)


def test_a_document_cut_off_or_changed_by_hand_is_one_line(
    tmp_path: Path, make_outcome: Any
) -> None:
    path = tmp_path / "r.json"
    content = encode_document(build_document(make_outcome()))
    path.write_bytes(content[: len(content) // 2])
    assert "is cut off" in refusal(path)

    document = json.loads(content)
    document["workflows"][0]["steps"][0]["windows"]["buckets"].pop()
    path.write_text(json.dumps(document))
    assert "the windows of Shop.login differ in length" in refusal(path)

    document = json.loads(content)
    document["workflows"][0]["steps"][0]["histogram"]["buckets"][0][0] = 9999
    path.write_text(json.dumps(document))
    assert "a bucket out of range" in refusal(path)

    document = json.loads(content)
    document["elapsed_s"] = "long"
    path.write_text(json.dumps(document))
    assert "`$.elapsed_s`" in refusal(path)


def test_a_document_with_unknown_keys_and_without_the_newer_ones_is_read(
    tmp_path: Path, make_outcome: Any
) -> None:
    document = through_json(make_outcome()) | {"surprise": 1}
    for step in document["workflows"][0]["steps"]:
        del step["outcomes"], step["first_byte_histogram"]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    outcome = rebuild(read_results(str(path)).document)
    assert outcome.stats.workflows["Shop"].rows["pay"].count == 500
    assert "STEPS" in render_summary(outcome)


def test_an_argument_that_is_not_utf8_does_not_cost_the_document(
    tmp_path: Path, make_outcome: Any
) -> None:
    outcome = make_outcome()
    outcome.info.command = ("run", "caf\udce9.py")
    path = tmp_path / "r.json"
    path.write_bytes(encode_document(build_document(outcome)))
    assert read_results(str(path)).results.run.command == ["run", "caf?.py"]
