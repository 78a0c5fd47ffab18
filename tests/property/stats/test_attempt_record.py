"""A compact record says the same as the reports it was made of, whatever their number."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.stats import record_builder
from squall.stats.attempt_record import ERRORS_MAX, AttemptRecord, RecordEnd
from squall.stats.histogram import bucket_index, buckets_of, make_data
from squall.stats.record_builder import RecordBroken, RecordBuilder, decode_record, encode_record
from squall.stats.report_sums import joined
from squall.stats.reports import (
    CheckDelta,
    ErrorSample,
    HealthReport,
    HistogramData,
    MetricDelta,
    OutcomeDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
)


def histogram(values: list[float]) -> HistogramData:
    found: dict[int, int] = {}
    for value in values:
        found[bucket_index(value)] = found.get(bucket_index(value), 0) + 1
    if not values:
        return HistogramData()
    index = sorted(found)
    return make_data(
        len(values), sum(values), min(values), max(values), index, [found[i] for i in index]
    )


def latencies(draw: Random) -> list[float]:
    return [draw.randint(1, 5_000_000) / 1e6 for _ in range(draw.randint(0, 4))]


def some_row(draw: Random, name: str) -> RowDelta:
    outcomes: list[OutcomeDelta] = []
    for key, ok in (("200", True), ("503", False), ("timeout", False)):
        values = latencies(draw)
        if values:
            outcomes.append(OutcomeDelta(key, ok, len(values), len(values), histogram(values)))
    started = sum(outcome.count for outcome in outcomes)
    response = histogram(latencies(draw)) if draw.random() < 0.5 else None
    return RowDelta(name, "http", started, draw.randint(0, 3), outcomes, response)


def some_report(draw: Random, window: int) -> WindowReport:
    gauge = draw.uniform(-10, 10)

    def count() -> int:
        return draw.randint(0, 50)

    return WindowReport(
        workflow="Shop",
        share=0,
        window=window,
        rows=[some_row(draw, name) for name in "abc" if draw.random() < 0.7],
        iteration=some_row(draw, "iteration"),
        checks=[CheckDelta("fine", count(), count())],
        metrics=[MetricDelta("depth", "gauge", "", 1, gauge, gauge, gauge, gauge)],
        starts=StartsDelta(count(), count(), count(), draw.random(), count(), count()),
        requests=RequestsDelta(*(count() for _ in RequestsDelta.__struct_fields__)),
        connect=histogram(latencies(draw)) if draw.random() < 0.5 else None,
        users=count(),
        busy=count(),
    )


def a_run(seed: int) -> list[WindowReport]:
    """Windows that mostly follow each other; some come twice, some are late or missing."""
    draw = Random(seed)
    made: list[WindowReport] = []
    window = draw.randint(0, 3)
    for _ in range(draw.randint(0, 40)):
        made.append(some_report(draw, max(window - draw.choice([0, 0, 0, 1, 4]), 0)))
        window += draw.choice([1, 1, 1, 0, 3])
    return made


# Drawn from a seed and not part by part: a run has thousands of numbers.
runs = st.integers(0, 1 << 32).map(a_run)


def totals(parts: list[WindowReport]) -> dict[str, Any]:
    """All sums and extremes of a list of reports."""
    whole: dict[str, Any] = {}

    def add(name: str, value: float) -> None:
        whole[name] = whole.get(name, 0) + value

    def most(name: str, value: float) -> None:
        whole[name] = max(whole.get(name, value), value)

    def pour(name: str, data: HistogramData | None) -> None:
        if data is None or not data.count:
            return
        add(f"{name} count", data.count)
        most(f"{name} max", data.max_s)
        most(f"{name} min", -data.min_s)
        for index, count in buckets_of(data):
            add(f"{name} bucket {index}", count)

    for part in parts:
        for row in (*part.rows, part.iteration):
            add(f"{row.name} started", row.started)
            add(f"{row.name} interrupted", row.interrupted)
            pour(f"{row.name} response", row.response)
            for outcome in row.outcomes:
                add(f"{row.name} {outcome.key} count", outcome.count)
                add(f"{row.name} {outcome.key} exchanges", outcome.exchanges)
                pour(f"{row.name} {outcome.key}", outcome.service)
        for check in part.checks:
            add(f"{check.name} passed", check.passed)
            add(f"{check.name} failed", check.failed)
        for metric in part.metrics:
            add(f"{metric.name} count", metric.count)
            most(f"{metric.name} max", metric.maximum)
            most(f"{metric.name} min", -metric.minimum)
        for name in ("planned", "made", "late", "dropped", "interrupted"):
            add(f"starts {name}", getattr(part.starts, name))
        most("late", part.starts.late_max_s)
        for name in RequestsDelta.__struct_fields__:
            add(f"requests {name}", getattr(part.requests, name))
        pour("connect", part.connect)
        most("users", part.users)
        most("busy", part.busy)
    return {name: value for name, value in whole.items() if value}


def built(parts: list[WindowReport], points: int, warmup_s: float) -> RecordBuilder:
    record = AttemptRecord(workflow="Shop", share=0, attempt=1, worker="w1")
    builder = RecordBuilder(record, warmup_s=warmup_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_builder, "POINTS_MAX", points)
        for part in parts:
            builder.add(part)
    return builder


@settings(max_examples=60, deadline=None)
@given(runs, st.integers(2, 8), st.sampled_from([0.0, 2.0, 4.5]))
def test_a_compact_record_has_the_sums_of_its_parts(
    parts: list[WindowReport], points: int, warmup_s: float
) -> None:
    before = copy.deepcopy(parts)
    record = built(parts, points, warmup_s).record
    assert parts == before, "reports that came in were changed"
    assert record.sequence == len(parts)
    assert len(record.reports) <= points
    assert totals(record.reports) == totals(parts)
    windows = [report.window for report in record.reports]
    assert windows == sorted(set(windows))


@settings(max_examples=60, deadline=None)
@given(runs, st.integers(2, 8), st.sampled_from([1.0, 3.0, 4.5]))
def test_the_warm_up_stays_apart(parts: list[WindowReport], points: int, warmup_s: float) -> None:
    def counted(reports: list[WindowReport]) -> list[WindowReport]:
        return [report for report in reports if report.window >= warmup_s]

    record = built(parts, points, warmup_s).record
    assert totals(counted(record.reports)) == totals(counted(parts))


@settings(max_examples=40, deadline=None)
@given(runs, st.integers(2, 8))
def test_a_receiver_gets_exactly_what_it_lacks(parts: list[WindowReport], points: int) -> None:
    builder = built(parts, points, 0.0)
    for known in range(len(parts) + 1):
        assert builder.since(known) == parts[known:]


@settings(max_examples=30, deadline=None)
@given(runs)
def test_a_record_survives_its_journey(parts: list[WindowReport]) -> None:
    builder = built(parts, 600, 0.0)
    builder.close(RecordEnd(elapsed_s=12.5, cut="lease ended", values={"token": b"\x01"}))
    data = encode_record(builder.record)
    assert decode_record(data) == builder.record
    with pytest.raises(RecordBroken):
        decode_record(data[:-3])


def test_what_is_no_record_is_told_so() -> None:
    for data in (
        b"",
        b"nothing",
        encode_record(AttemptRecord(workflow="a", share=0, attempt=1, worker="w"))[:10],
    ):
        with pytest.raises(RecordBroken):
            decode_record(data)


def test_a_receiver_that_lacks_more_than_is_kept_takes_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_builder, "RECENT_MAX", 3)
    record = AttemptRecord(workflow="Shop", share=0, attempt=1, worker="w1")
    builder = RecordBuilder(record)
    for window in range(5):
        builder.add(WindowReport("Shop", 0, window, [], RowDelta("iteration")))
    assert builder.since(1) is None
    assert [report.window for report in builder.since(2) or []] == [2, 3, 4]


def test_errors_are_kept_once_each_and_bounded() -> None:
    builder = RecordBuilder(AttemptRecord(workflow="Shop", share=0, attempt=1, worker="w1"))
    for number in range(ERRORS_MAX + 20):
        for _ in range(2):
            builder.add(ErrorSample("Shop", "get", f"reason {number}", 1.0))
    assert len(builder.record.errors) == ERRORS_MAX


def test_health_stays_bounded_and_keeps_the_used_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_builder, "POINTS_MAX", 8)
    builder = RecordBuilder(
        AttemptRecord(workflow="Shop", share=0, attempt=1, worker="w1"), warmup_s=2.0
    )
    for second in range(1, 41):
        lag = histogram([0.001 * second])
        builder.add(HealthReport(0, float(second), second / 100, lag, rss_mb=second))
    health = builder.record.health
    assert len(health) <= 8
    assert sum(report.lag.count for report in health) == 40
    spans = [b.at_s - a for a, b in zip([0.0, *(h.at_s for h in health)], health, strict=False)]
    used = sum(h.cpu * span for h, span in zip(health, spans, strict=True))
    assert used == pytest.approx(sum(range(1, 41)) / 100)
    assert 2.0 in [report.at_s for report in health], "a report joins warm-up and run"


def test_the_later_gauge_is_the_last() -> None:
    one, two = (
        WindowReport(
            "Shop",
            0,
            window,
            [],
            RowDelta("iteration"),
            metrics=[MetricDelta("depth", "gauge", "", 1, value, value, value, value)],
        )
        for window, value in ((1, 7.0), (2, 3.0))
    )
    [merged] = joined(one, two).metrics
    assert (merged.last, merged.minimum, merged.maximum) == (3.0, 3.0, 7.0)
