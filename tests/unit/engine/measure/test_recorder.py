"""Recording and folding: everything is in exactly one report, and memory is bounded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from squall.api.metrics import Counter, Gauge, Sample
from squall.clients.http import HTTPShared
from squall.engine.measure.recorder import (
    NAMES_MAX,
    OTHER_CALLS,
    OTHER_CHECKS,
    OTHER_REASON,
    REASONS_MAX,
    Recorder,
    Row,
)
from squall.stats.reports import ErrorSample, RowDelta


def recorder(*, is_open: bool = False) -> tuple[Recorder, list[ErrorSample]]:
    told: list[ErrorSample] = []
    http = HTTPShared()
    return Recorder("W", 0, is_open=is_open, http=http, on_error=told.append), told


def counts(delta: RowDelta) -> dict[str, int]:
    return {outcome.key: outcome.count for outcome in delta.outcomes}


def test_a_rows_count_is_the_sum_of_its_outcomes() -> None:
    row = Row("home", "http", [(200, 399)])
    for status in (200, 200, 500):
        row.begin()
        row.statuses[status](0.010)
    row.begin()
    row.fail("reset", 0.5, True)
    row.begin()
    row.fail("assert", None, False)
    row.begin()
    row.interrupted += 1
    delta = row.take()
    assert counts(delta) == {"200": 2, "500": 1, "reset": 1, "assert": 1}
    assert {outcome.key: outcome.ok for outcome in delta.outcomes} == {
        "200": True,
        "500": False,
        "reset": False,
        "assert": False,
    }
    assert (delta.started, delta.interrupted) == (6, 1)
    assert sum(outcome.service.count for outcome in delta.outcomes) == 4
    assert sum(outcome.exchanges for outcome in delta.outcomes) == 4


def test_what_was_reported_is_not_reported_again() -> None:
    row = Row("home", "http", [(200, 399)], planned=True)
    row.begin()
    row.statuses[200](0.010)
    assert row.response is not None
    row.response.append(0.020)
    row.fold()
    row.begin()
    first, second = row.take(), row.take()
    assert (first.started, counts(first)) == (2, {"200": 1})
    assert first.response is not None and first.response.count == 1
    assert (second.started, second.interrupted, counts(second)) == (0, 0, {})
    assert second.response is not None and second.response.count == 0


def test_first_bytes_are_those_of_all_responses() -> None:
    row = Row("home", "http", [(200, 399)])
    row.statuses[200](0.010)
    row.spread(200, 0.004, 0.020)
    row.spread(404, 0.005, 0.030)
    delta = row.take()
    assert counts(delta) == {"200": 2, "404": 1}
    assert delta.first_byte is not None
    assert delta.first_byte.count == 3
    assert delta.first_byte.min_s == pytest.approx(0.004)
    assert max(outcome.service.max_s for outcome in delta.outcomes) == pytest.approx(0.030)


def test_reasons_are_bounded() -> None:
    row = Row("home", "http", [(200, 399)])
    firsts = [row.fail(f"reason {n}", None, False) for n in range(REASONS_MAX + 50)]
    assert firsts.count(True) == REASONS_MAX
    delta = row.take()
    assert len(delta.outcomes) == REASONS_MAX + 1
    assert counts(delta)[OTHER_REASON] == 50
    row.fail("reason 0", None, False)
    row.fail("reason 9999", None, False)
    assert counts(row.take()) == {"reason 0": 1, OTHER_REASON: 1}


def test_names_of_checks_and_calls_are_bounded() -> None:
    made, _ = recorder()
    call = SimpleNamespace(protocol="http", status_code=200, started=1.0, ended=1.5)
    for n in range(NAMES_MAX + 30):
        made.check(f"check {n}", n % 2 == 0)
        made.record_named(f"call {n}", call)
    report = made.take(0)
    assert len(report.checks) == len(report.rows) == NAMES_MAX + 1
    checks = {check.name: (check.passed, check.failed) for check in report.checks}
    assert checks[OTHER_CHECKS] == (15, 15)
    rows = {row.name: row.started for row in report.rows}
    assert rows[OTHER_CALLS] == 30
    made.check("check 0", False)
    again = {check.name: (check.passed, check.failed) for check in made.take(1).checks}
    assert again["check 0"] == (0, 1)
    assert again[OTHER_CHECKS] == (0, 0)


def test_a_check_may_have_any_name() -> None:
    made, _ = recorder()
    made.check(7, True)  # type: ignore[arg-type]
    made.check(7, False)  # type: ignore[arg-type]
    assert [(c.name, c.passed, c.failed) for c in made.take(0).checks] == [("7", 1, 1)]


def test_named_calls_that_fail_are_told_once() -> None:
    made, told = recorder()
    failure = SimpleNamespace(
        protocol="http", reason="connection reset", started=1.0, ended=1.5, request="GET http://h/"
    )
    for _ in range(3):
        made.record_named("search", failure)
    assert [sample.reason for sample in told] == ["connection reset"]
    assert counts(made.take(0).rows[0]) == {"connection reset": 3}


def test_requests_are_deltas_of_the_clients_counters() -> None:
    made, _ = recorder()
    made.http.counters.sent = 5
    made.http.counters.statuses[200] = 3
    made.http.counters.statuses[404] = 1
    report = made.take(0)
    assert report.requests.sent == 5
    assert (report.requests.answered, report.statuses) == (4, {200: 3, 404: 1})
    made.http.counters.sent = 9
    made.http.counters.statuses[404] += 2
    report = made.take(1)
    assert (report.requests.sent, report.requests.answered) == (4, 2)
    assert report.statuses == {404: 2}


def test_the_surviving_counters_are_those_of_all_reports_and_of_what_is_not_reported_yet() -> None:
    made, _ = recorder(is_open=True)
    for _ in range(3):
        made.iteration.begin()
        made.iteration.ok.append(0.01)
    made.iteration.begin()
    made.iteration.fail("failed", None, False)
    made.starts.planned, made.starts.made, made.starts.dropped = 6, 5, 1
    made.http.counters.sent, made.http.counters.failed = 5, 1
    made.http.counters.statuses[200] = 3
    made.fold()
    first = made.counters(0.9)
    made.take(0)
    assert (first.planned, first.made, first.dropped, first.finished) == (6, 5, 1, 4)
    made.iteration.begin()
    made.iteration.ok.append(0.02)
    made.iteration.begin()
    made.iteration.interrupted += 1
    made.starts.planned = made.starts.made = 2
    made.http.counters.sent = 7
    made.users, made.busy = 4, 1
    made.fold()
    second = made.counters(1.4)
    assert (second.planned, second.made, second.dropped, second.finished) == (8, 7, 1, 6)
    assert (second.sent, second.answered, second.failed) == (7, 3, 1)
    assert (second.users, second.busy, second.at_s) == (4, 1, 1.4)


def test_users_of_closed_models_make_what_they_begin() -> None:
    made, _ = recorder()
    for _ in range(3):
        made.iteration.begin()
    made.take(0)
    made.iteration.begin()
    made.fold()
    counters = made.counters(1.1)
    assert (counters.planned, counters.made, counters.finished) == (4, 4, 0)


def test_metrics_are_drained() -> None:
    made, _ = recorder()
    orders, queue, size = Counter(), Gauge(), Sample("bytes")
    for name, metric in (("orders", orders), ("queue", queue), ("size", size)):
        metric.name = name
        made.metrics[name] = metric
    orders.add(3)
    queue.set(7)
    size.add(10)
    size.add(30)
    metrics = {delta.name: delta for delta in made.take(0).metrics}
    assert metrics["orders"].sum == 3
    assert (metrics["queue"].last, metrics["queue"].maximum) == (7, 7)
    assert metrics["size"].values is not None and metrics["size"].values.count == 2
    assert made.take(1).metrics == []


def test_a_step_that_is_not_measured_has_a_row_only_after_a_failure() -> None:
    made, _ = recorder()
    row = made.add_row("seed", "", [(200, 399)], planned=True)
    assert made.take(0).rows == []
    row.begin()
    row.fail("ValueError: no", None, False)
    assert [delta.name for delta in made.take(1).rows] == ["seed"]


def test_response_times_are_kept_for_planned_rows_of_open_models_only() -> None:
    closed, _ = recorder()
    opened, _ = recorder(is_open=True)
    assert closed.add_row("root", "http", [], planned=True).response is None
    assert opened.add_row("root", "http", [], planned=True).response is not None
    assert opened.add_row("later", "http", [], planned=False).response is None
    assert closed.iteration.response is None
    assert opened.iteration.response is not None


def test_a_report_says_by_how_many_more_requests_are_under_way() -> None:
    made, _ = recorder()
    counters = made.http.counters
    counters.sent, counters.statuses[200] = 9, 3
    # Of those that failed, one never left; one was sent again, and one was given up.
    counters.failed, counters.unsent, counters.reconnects, counters.cancelled = 2, 1, 1, 1
    assert made.take(0).in_flight == 3
    counters.statuses[200] += 2
    assert made.take(1).in_flight == -2
