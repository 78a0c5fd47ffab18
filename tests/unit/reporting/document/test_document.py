"""The results document keeps what its schema promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from squall.api.errors import UsageError
from squall.reporting.document.build import (
    SCHEMA_PATH,
    build_document,
    encode_document,
    write_document,
)
from squall.reporting.output_files import check_writable, write_whole
from squall.stats.histogram import Histogram, make_data
from squall.stats.reports import ErrorSample


def written(outcome: Any) -> dict[str, Any]:
    """As a reader sees it: through JSON."""
    return json.loads(encode_document(build_document(outcome)))


def validate(document: dict[str, Any]) -> None:
    schema = json.loads(SCHEMA_PATH.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


def test_documents_of_open_and_mixed_runs_validate(make_outcome: Any, make_mixed: Any) -> None:
    validate(written(make_outcome()))
    validate(written(make_mixed()))


def test_the_schema_refuses_an_unknown_and_a_missing_key(make_outcome: Any) -> None:
    document = written(make_outcome())
    with pytest.raises(jsonschema.ValidationError):
        validate(document | {"surprise": 1})
    del document["workflows"][0]["steps"][0]["latency_ms"]
    with pytest.raises(jsonschema.ValidationError):
        validate(document)


def test_the_head_tells_run_verdict_and_time(make_outcome: Any) -> None:
    document = written(make_outcome())
    assert document["schema"] == "squall.results/1"
    assert (document["status"], document["passed"], document["exit_code"]) == (
        "completed",
        False,
        99,
    )
    assert document["started_at"] == "2026-11-15T20:01:24.113Z"
    assert document["run"]["git"] == "a1b2c3d"
    assert document["run"]["host"] == {"cores": 2, "os": "Linux 6.1", "memory_mb": 7900}
    assert document["generator"]["parent_cpu"] == 0.021
    assert document["losses"] == []


def test_a_step_carries_counts_times_and_statuses(make_outcome: Any) -> None:
    login, pay = written(make_outcome())["workflows"][0]["steps"]
    assert (pay["count"], pay["ok"], pay["failed"], pay["rps"]) == (500, 470, 30, 50.0)
    assert pay["statuses"] == {"200": 470, "503": 10}
    assert pay["latency_ms"]["max"] == 5000.0
    assert pay["service_histogram"] is None
    assert login["latency_ms"]["max"] == 120.0, "response time, from the planned start"
    assert login["service_ms"]["max"] == 18.0


def test_executions_whose_end_is_not_known_are_said(make_outcome: Any) -> None:
    """A process was lost: its last report had them as started."""
    outcome = make_outcome()
    next(iter(outcome.stats.workflows["Shop"].rows.values())).started += 3
    document = written(outcome)
    validate(document)
    for row in (*document["workflows"][0]["steps"], document["workflows"][0]["iteration"]):
        assert row["started"] == row["count"] + row["interrupted"] + row["unknown"]
    assert document["workflows"][0]["steps"][0]["unknown"] == 3


def test_a_histogram_can_be_read_back_and_merged(make_outcome: Any) -> None:
    outcome = make_outcome()
    written_one = written(outcome)["workflows"][0]["steps"][1]["histogram"]
    index, counts = zip(*written_one["buckets"], strict=True)
    restored = Histogram.from_data(
        make_data(
            count=written_one["count"],
            sum_s=written_one["sum_ms"] / 1e3,
            min_s=written_one["min_ms"] / 1e3,
            max_s=written_one["max_ms"] / 1e3,
            index=list(index),
            counts=list(counts),
        )
    )
    assert restored == outcome.stats.workflows["Shop"].rows["pay"].latency


def test_the_windows_of_a_step_add_up_to_its_histogram(make_outcome: Any) -> None:
    pay = written(make_outcome())["workflows"][0]["steps"][1]
    windows = pay["windows"]
    assert windows["every_s"] == 1
    assert sum(windows["count"]) == pay["count"]
    assert sum(windows["failed"]) == pay["failed"]
    assert windows["p50"][0] == pytest.approx(80, rel=0.01)
    assert windows["p95"][0] == pytest.approx(85, rel=0.01)
    assert windows["p99"][0] == 5000.0
    added: dict[int, int] = {}
    for buckets in windows["buckets"]:
        for index, count in buckets:
            added[index] = added.get(index, 0) + count
    assert sorted(added.items()) == [tuple(pair) for pair in pay["histogram"]["buckets"]]


def test_a_window_without_samples_has_no_percentile(make_outcome: Any) -> None:
    outcome = make_outcome()
    outcome.stats.workflows["Shop"].rows["pay"].windows.at(12)
    windows = written(outcome)["workflows"][0]["steps"][1]["windows"]
    assert windows["count"][11:] == [0, 0]
    assert windows["p99"][11:] == [None, None]
    validate(written(outcome))


def test_errors_carry_their_first_sample(make_outcome: Any) -> None:
    pay = written(make_outcome())["workflows"][0]["steps"][1]
    status, timeout, key_error = pay["errors"]
    assert status["sample"] == {
        "request": "http://127.0.0.1:8080/pay",
        "status": 503,
        "body": "busy",
    }
    assert (status["count"], status["first_at_s"], status["traceback"]) == (10, 0.4, None)
    assert timeout["sample"] is None
    assert key_error["location"] == "shop.py:31 in pay"
    assert "KeyError: 'id'" in key_error["traceback"]


def test_a_hook_that_raised_is_told_apart_from_steps(make_outcome: Any) -> None:
    outcome = make_outcome()
    outcome.stats.add(
        ErrorSample(workflow="Shop", row="has_price", reason="TypeError: x", at_s=2.0)
    )
    workflow = written(outcome)["workflows"][0]
    assert [error["hook"] for error in workflow["hook_errors"]] == ["has_price"]
    validate(written(outcome))


def test_writing_replaces_the_file_in_one_step(tmp_path: Path, make_outcome: Any) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    write_document(path, make_outcome())
    validate(json.loads(path.read_text()))
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path, make_outcome: Any) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_document(link, make_outcome())
    assert link.is_symlink()
    assert real.read_text().startswith('{"schema":')


@pytest.mark.parametrize(
    ("name", "part"), [("", "is a directory"), ("missing/out.json", "there is no directory")]
)
def test_a_place_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, name: str, part: str
) -> None:
    with pytest.raises(UsageError, match=part):
        check_writable(tmp_path / name)


def test_a_write_that_fails_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="could not be written: No such file"):
        write_whole(tmp_path / "missing" / "out.json", b"{}")


def test_a_good_place_passes_and_stays_untouched(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.json")
    assert list(tmp_path.iterdir()) == []
