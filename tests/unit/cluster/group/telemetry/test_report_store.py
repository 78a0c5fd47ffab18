"""What a manager keeps of running attempts is bounded in bytes, and exact in its sums."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from squall.cluster.group.telemetry import report_store as kept_module
from squall.cluster.group.telemetry.live_totals import LiveTotals
from squall.cluster.group.telemetry.report_store import (
    FACTOR,
    FINE_MAX,
    ReportMemory,
    RunningRecord,
)
from squall.cluster.protocol.encoded_reports import TimedReport, decode_windows, encode_report, raw
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.cluster.protocol.messages import TelemetryPart
from squall.engine.run_options import RunOptions
from squall.stats.attempt_record import POINTS_MAX, AttemptRecord
from squall.stats.histogram import Histogram
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest
from squall.stats.record_builder import RecordBuilder
from squall.stats.report_sums import summed_up
from squall.stats.reports import (
    ErrorSample,
    HealthReport,
    HistogramData,
    OutcomeDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
)

JOB = JobId("g-1")


def histogram(random: Random, count: int) -> HistogramData:
    # Whole powers of two: their sums are exact in whichever order they are added.
    return Histogram.from_seconds([2.0 ** -random.randrange(4, 12) for _ in range(count)]).to_data()


def window(second: int, share: int = 0, count: int = 20, seed: int = 0) -> WindowReport:
    random = Random(f"{seed}:{share}:{second}")
    outcome = OutcomeDelta("200", True, count, count, histogram(random, count))
    return WindowReport(
        workflow="Load",
        share=share,
        window=second,
        rows=[RowDelta("get", started=count, outcomes=[outcome])],
        iteration=RowDelta("iteration", "", started=count, outcomes=[outcome]),
        starts=StartsDelta(planned=count, made=count),
        requests=RequestsDelta(sent=count, answered=count),
        users=1 + second % 3,
        busy=second % 2,
    )


def health(second: int, cpu: float = 0.5) -> HealthReport:
    return HealthReport(process=0, at_s=second + 1.0, cpu=cpu, lag=histogram(Random(second), 5))


def head(share: int = 0) -> AttemptRecord:
    return AttemptRecord(workflow="Load", share=share, attempt=1, worker="w1")


def add(record: RunningRecord, report: WindowReport | HealthReport) -> None:
    if isinstance(report, WindowReport):
        record.add_window(TimedReport(report.window, encode_report(report)))
    else:
        record.add_health(report, encode_report(report))


def kept(
    memory: ReportMemory, seconds: int, warmup_s: float = 0.0, share: int = 0
) -> RunningRecord:
    record = RunningRecord(head(share), memory, warmup_s=warmup_s)
    for second in range(seconds):
        add(record, window(second, share))
    return record


def books(memory: ReportMemory) -> LiveTotals:
    workflow = WorkflowManifest(
        name="Load",
        profile=Profile(vus=2, max_vus=2),
        steps=[StepManifest(name="get", protocol="http")],
    )
    return LiveTotals(
        FileManifest(path="f.py", workflows=[workflow]), RunOptions(file="f.py"), memory
    )


def key(share: int) -> AttemptKey:
    return AttemptKey(JOB, "Load", share, Attempt(1))


def part(share: int, second: int) -> TelemetryPart:
    return TelemetryPart(
        key=key(share), after=second, upto=second + 1, reports=[raw(window(second, share))]
    )


def test_with_room_a_kept_record_is_what_a_builder_makes() -> None:
    builder = RecordBuilder(head(), warmup_s=5.0)
    record = RunningRecord(head(), ReportMemory(), warmup_s=5.0)
    order = [*range(40), 38, 39, 37, 41, 40]
    for number, second in enumerate(order):
        for each in (window(second, seed=number), health(number)):
            builder.add(each)
            add(record, each)
    error = ErrorSample("Load", "get", "refused", 0.5)
    builder.add(error)
    record.add_error(error)
    record.add_error(error)
    assert record.record == builder.record
    assert record.record == builder.record, "reading it changes nothing"


def test_a_long_record_has_no_more_points_than_a_record_may() -> None:
    record = kept(ReportMemory(), POINTS_MAX * 3)
    made = record.record
    assert len(made.reports) <= POINTS_MAX and made.width_s == 4
    assert made.sequence == POINTS_MAX * 3 and made.silent_from_s == POINTS_MAX * 3.0


def test_memory_of_many_attempts_stays_in_the_room_however_long_they_run() -> None:
    memory = ReportMemory(max_bytes=200_000)
    records = [RunningRecord(head(share), memory) for share in range(8)]
    report, load = window(0), health(0)
    most = 0
    for second in range(600):
        for record in records:
            add(record, msgspec.structs.replace(report, window=second))
            add(record, msgspec.structs.replace(load, at_s=second + 1.0))
        most = max(most, memory.used_bytes)
    assert most <= memory.max_bytes * 1.1
    sizes = [record.taken_bytes for record in records]
    assert memory.used_bytes == sum(sizes) and max(sizes) < 2 * min(sizes)


def test_no_report_costs_more_than_one_merge_however_long_its_attempt_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All shares of a job reach the same second at the same moment."""
    merged: list[int] = []

    def counted(reports: Sequence[WindowReport]) -> WindowReport:
        merged.append(len(reports))
        return summed_up(reports)

    monkeypatch.setattr(kept_module, "summed_up", counted)
    record = RunningRecord(head(), ReportMemory(max_bytes=30_000))
    most = 0
    for second in range(POINTS_MAX * 2):
        merged.clear()
        add(record, window(second, count=2))
        most = max(most, sum(merged))
    assert 0 < most <= FACTOR


def test_what_gave_way_to_others_is_exact_in_its_sums() -> None:
    seconds = 700
    short, roomy = kept(ReportMemory(max_bytes=20_000), seconds), kept(ReportMemory(), seconds)
    assert short.taken_bytes < roomy.taken_bytes / 5
    one, two = short.record, roomy.record
    assert one.width_s >= FACTOR and one.silent_from_s == two.silent_from_s == float(seconds)
    whole, expected = summed_up(one.reports), summed_up(two.reports)
    assert whole == expected
    assert one.reports[-1].busy == two.reports[-1].busy or one.width_s > 1


def test_no_wide_window_reaches_across_the_end_of_the_warm_up() -> None:
    made = kept(ReportMemory(max_bytes=10_000), 200, warmup_s=7.0).record
    assert made.width_s >= FACTOR
    warm = [report for report in made.reports if report.window < 7]
    assert sum(report.requests.sent for report in warm) == 7 * 20


def test_a_late_second_counts_in_its_window_after_that_became_a_wider_one() -> None:
    record = kept(ReportMemory(max_bytes=10_000), 100)
    add(record, window(3, seed=1))
    made = record.record
    first = [report for report in made.reports if report.window < FACTOR]
    assert sum(report.requests.sent for report in first) == (made.width_s + 1) * 20
    assert sum(report.requests.sent for report in made.reports) == 101 * 20


def test_records_that_take_little_do_not_give_way_to_one_that_takes_much() -> None:
    memory = ReportMemory(max_bytes=60_000)
    small = kept(memory, 20)
    large = kept(memory, 400, share=1)
    add(small, window(20))
    assert small.record.width_s == 1 and large.record.width_s > 1


def test_without_others_a_record_gives_way_only_where_it_loses_no_point() -> None:
    record = RunningRecord(head(), ReportMemory(max_bytes=10**12))
    plain = WindowReport(workflow="Load", share=0, window=0, rows=[], iteration=RowDelta("i", ""))
    for second in range(FINE_MAX + 200):
        plain.window = second
        add(record, plain)
    made = record.record
    assert made.width_s == 2 * FACTOR and len(made.reports) <= POINTS_MAX


def test_the_load_of_a_process_is_weighed_by_its_seconds_in_wider_windows() -> None:
    record = RunningRecord(head(), ReportMemory(max_bytes=1))
    for second in range(64):
        add(record, health(second, cpu=1.0 if second % 4 == 0 else 0.0))
    wide = record.record.health[0]
    assert abs(wide.cpu - 0.25) < 0.05 and wide.lag.count == 5 * FACTOR


def test_the_last_reports_of_a_running_attempt_stay_apart_for_its_copy() -> None:
    job = books(ReportMemory())
    for second in range(30):
        job.take(part(0, second), "w1")
    found = job.running_record(key(0))
    assert found is not None
    missing = found.since(25)
    assert missing is not None
    assert [report.window for report in decode_windows(missing)] == [25, 26, 27, 28, 29]
    assert found.since(30) == []


def test_reports_that_became_a_wider_window_are_not_told_one_by_one() -> None:
    record = kept(ReportMemory(max_bytes=10_000), 100)
    assert record.since(0) is None
    newest = record.since(98)
    assert newest is not None and len(newest) == 2


def test_what_is_in_the_log_is_let_go_and_what_comes_later_is_shown_and_not_kept() -> None:
    memory = ReportMemory()
    job = books(memory)
    job.started("Load", 0.0)
    job.take(part(0, 0), "w1")
    assert memory.used_bytes > 0 and memory.records == 1
    job.close_record(key(0))
    assert (memory.used_bytes, memory.records) == (0, 0) and job.record(key(0)) is None
    assert job.take(part(0, 1), "w1") == 2, "its last second came after its record"
    assert memory.used_bytes == 0 and job.running() == []
    snapshot, _ = job.second(5.0, [])
    assert snapshot.workflows[0].made == 40


def test_a_job_that_is_over_leaves_nothing_in_the_room() -> None:
    memory = ReportMemory()
    job = books(memory)
    for share in range(5):
        job.take(part(share, 0), "w1")
    whole = TelemetryPart(key=key(0), after=0, upto=900, reports=[raw(window(0))], width_s=2)
    assert job.take(whole, "w1") == 900, "replaces what there was"
    assert memory.records == 5
    job.close()
    assert (memory.used_bytes, memory.records) == (0, 0)


def test_a_whole_record_of_wide_windows_says_how_wide_and_how_far() -> None:
    job = books(ReportMemory())
    reports = [raw(window(second)) for second in range(0, 1000, 2)]
    job.take(
        TelemetryPart(
            key=key(0), after=0, upto=1000, reports=reports, width_s=2, silent_from_s=1000.0
        ),
        "w1",
    )
    made = job.record(key(0))
    assert made is not None and made.width_s == 2
    assert made.silent_from_s == 1000.0 and made.sequence == 1000
