"""What a receiver above a datacenter gets: every report once, in answers of bounded size."""

from __future__ import annotations

import pytest

from squall.cluster.group.telemetry import summed_reports
from squall.cluster.group.telemetry.report_store import FACTOR, ReportMemory
from squall.cluster.group.telemetry.summed_reports import SummedReports
from squall.cluster.protocol.encoded_reports import decode_windows
from squall.cluster.protocol.gates.job_reports import JobReports, ReportCursor
from squall.stats.manifest import FileManifest, StepManifest, WorkflowManifest
from squall.stats.reports import (
    ErrorSample,
    HistogramData,
    OutcomeDelta,
    RequestsDelta,
    RowDelta,
    WindowReport,
)
from squall.stats.totals.run import RunStats


class Leader:
    """A leader of a job with one workflow, and a receiver that asks it."""

    def __init__(self, stream: str = "m1/1", memory: ReportMemory | None = None) -> None:
        load = WorkflowManifest(name="Load", steps=[StepManifest(name="get", protocol="http")])
        self.stats = RunStats(FileManifest(path="load.py", workflows=[load]))
        self.sums = SummedReports(stream, memory or ReportMemory(), 0.0)
        self.cursor = ReportCursor()
        self.received = 0
        self.answers = 0

    def report(self, second: int, count: int = 3) -> None:
        outcome = OutcomeDelta("200", True, count, count, HistogramData())
        report = WindowReport(
            workflow="Load",
            share=0,
            window=second,
            rows=[RowDelta("get", started=count, outcomes=[outcome])],
            iteration=RowDelta("iteration", started=count, outcomes=[outcome]),
            requests=RequestsDelta(sent=count),
        )
        self.stats.add(report)
        self.sums.add(report)

    def asked(self, cursor: ReportCursor) -> JobReports:
        return self.sums.after(cursor, self.stats, elapsed_s=1.0, workers=1)

    def read(self) -> None:
        """Asks until there is no more."""
        while True:
            answer = self.asked(self.cursor)
            self.answers += 1
            for each in answer.workflows:
                reports = decode_windows([bytes(data) for data in each.reports])
                self.received += sum(report.requests.sent for report in reports)
            self.cursor = ReportCursor(
                stream=answer.stream,
                windows={each.name: each.upto for each in answer.workflows},
                errors=answer.errors_upto,
            )
            if not answer.more:
                return


def test_each_report_is_sent_once_also_a_late_one_of_an_old_second() -> None:
    leader = Leader()
    for second in range(5):
        leader.report(second)
        leader.read()
    leader.report(1, count=7)
    leader.read()
    leader.read()
    assert leader.received == 5 * 3 + 7


def test_a_new_receiver_gets_everything_in_several_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summed_reports, "ANSWER_BYTES", 500)
    leader = Leader()
    for second in range(50):
        leader.report(second)
    leader.read()
    assert leader.received == 150
    assert leader.answers > 5


def test_another_stream_begins_at_its_first_report() -> None:
    first, second = Leader(), Leader("m2/5")
    first.report(0)
    first.read()
    second.cursor = first.cursor
    second.report(0)
    second.read()
    assert second.received == 3


def test_merged_seconds_are_sent_whole_or_not_at_all() -> None:
    memory = ReportMemory(max_bytes=1)
    leader = Leader(memory=memory)
    for second in range(FACTOR + 3):
        leader.report(second)
    half = ReportCursor(stream="m1/1", windows={"Load": 5})
    leader.cursor = half
    leader.read()
    # Those between 5 and the end of the merged window are missing; none is counted twice.
    assert leader.received <= (FACTOR + 3 - 5) * 3
    fresh = Leader(memory=memory)
    fresh.sums, fresh.stats = leader.sums, leader.stats
    fresh.read()
    assert fresh.received == (FACTOR + 3) * 3


def test_errors_travel_without_what_only_the_result_may_show() -> None:
    leader = Leader()
    leader.report(0)
    leader.stats.add(
        ErrorSample("Load", "get", "503", 0.5, "load.py:3", "a traceback", "/pay", 503, "body")
    )
    answer = leader.asked(ReportCursor())
    (error,) = answer.errors
    assert (error.reason, error.traceback, error.request, error.body) == ("503", None, "", "")
    again = ReportCursor(stream="m1/1", errors=answer.errors_upto)
    assert leader.asked(again).errors == []


def test_a_closed_job_has_nothing_more() -> None:
    leader = Leader()
    leader.report(0)
    leader.sums.close()
    leader.read()
    assert leader.answers == 1
