"""What a worker sends of its records: only what the receiver lacks, in messages that fit."""

from __future__ import annotations

import pytest

from squall.cluster.manager.results.record_facts import counters_of
from squall.cluster.protocol.encoded_reports import decode_windows, healths_in
from squall.cluster.protocol.messages import TelemetryPart
from squall.cluster.worker import attempt_records as books
from squall.cluster.worker.attempt_records import AttemptRecorder
from squall.engine.core_protocol import OutputLine
from squall.stats.record_builder import RECENT_MAX
from squall.stats.reports import (
    HealthReport,
    HistogramData,
    OutcomeDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
)
from tests.unit.cluster.worker.lab.sessions import key


def report(window: int) -> WindowReport:
    ended = [OutcomeDelta("ok", True, 3, 0, HistogramData())]
    return WindowReport(
        "Shop",
        0,
        window,
        [
            RowDelta(
                "get", started=4, outcomes=[OutcomeDelta("reset", False, 1, 1, HistogramData())]
            )
        ],
        RowDelta("iteration", started=4, interrupted=1, outcomes=ended),
        starts=StartsDelta(planned=5, made=4),
        requests=RequestsDelta(sent=4, answered=3, failed=1),
        users=2,
    )


def filled(seconds: int) -> AttemptRecorder:
    book = AttemptRecorder(key(), "w1", 0.0)
    for window in range(seconds):
        book.add(report(window))
        book.add(HealthReport(0, window + 1.0, 0.5, HistogramData()))
    return book


def windows(part: TelemetryPart) -> list[WindowReport]:
    return decode_windows(map(bytes, part.reports))


def test_counters_are_cumulative() -> None:
    counters = filled(3).counters
    assert (counters.planned, counters.made, counters.finished) == (15, 12, 12)
    assert (counters.sent, counters.answered, counters.failed) == (12, 9, 3)
    assert (counters.users, counters.actions) == (2, 12)


def test_a_part_holds_what_was_not_acknowledged() -> None:
    book = filled(3)
    part = book.part()
    assert part is not None and (part.after, part.upto) == (0, 3)
    book.on_ack(2)
    part = book.part()
    assert part is not None and (part.after, part.upto) == (2, 3)
    assert [r.window for r in windows(part)] == [2]
    # A health report belongs between two windows, so the last one may be sent twice.
    assert [h.at_s for h, _ in healths_in(part.health)] == [2.0, 3.0]
    book.on_ack(3)
    assert book.part() is None


def test_a_receiver_without_a_base_gets_all_of_it_again() -> None:
    book = filled(3)
    book.on_ack(3)
    book.on_ack(0)
    part = book.part()
    assert part is not None and (part.after, part.upto, len(part.reports)) == (0, 3, 3)


def test_an_acknowledgment_of_what_was_never_sent_is_not_believed() -> None:
    book = filled(3)
    book.on_ack(99)
    book.add(report(3))
    assert book.part() is not None


def test_a_receiver_that_lacks_very_much_gets_the_compact_record() -> None:
    book = filled(RECENT_MAX + 50)
    part = book.part()
    assert part is not None and (part.after, part.upto) == (0, RECENT_MAX + 50)
    assert len(part.reports) <= 600
    assert sum(r.requests.sent for r in windows(part)) == 4 * (RECENT_MAX + 50)


def test_large_parts_are_cut_into_messages_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "PART_MAX_BYTES", 500)
    book = filled(50)
    seen = 0
    while (part := book.part()) is not None:
        assert part.after == seen and 1 <= len(part.reports) < 50
        seen = part.upto
        book.on_ack(seen)
    assert seen == 50


def test_a_compact_record_that_is_too_large_is_made_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(books, "PART_MAX_BYTES", 2000)
    book = filled(RECENT_MAX + 1)
    part = book.part()
    assert part is not None and len(part.reports) < 100
    assert sum(r.requests.sent for r in windows(part)) == 4 * (RECENT_MAX + 1)


def test_lines_are_sent_once_and_bounded() -> None:
    book = filled(1)
    for number in range(books.LINES_MAX + 10):
        book.add(OutputLine("", f"line {number}"))
    part = book.part()
    assert part is not None and len(part.lines) == books.LINES_MAX
    again = book.part()
    assert again is not None and not again.lines


def test_lines_leave_without_a_report_and_come_back_if_they_never_left() -> None:
    book = filled(1)
    part = book.part()
    assert part is not None
    book.on_ack(part.upto)
    assert book.part() is None and not book.has_lines
    book.add(OutputLine("", "first"))
    only = book.part()
    assert only is not None and not only.reports and [x.text for x in only.lines] == ["first"]
    assert (only.after, only.upto) == (part.upto, part.upto)
    book.add(OutputLine("", "second"))
    book.keep_lines(only.lines)
    again = book.part()
    assert again is not None and [x.text for x in again.lines] == ["first", "second"]


def test_failed_means_the_same_in_a_status_as_in_the_step_table() -> None:
    """A 500 is an answer, and a failed execution."""
    made = report(0)
    made.requests.failed = 1
    made.rows[0].outcomes = [
        OutcomeDelta("200", True, 2, 2, HistogramData()),
        OutcomeDelta("500", False, 3, 3, HistogramData()),
        OutcomeDelta("connection refused", False, 1, 1, HistogramData()),
    ]
    book = AttemptRecorder(key(), "w1", 0.0)
    book.add(made)
    assert book.counters.failed == 4
    assert counters_of(book.builder.record).failed == 4
