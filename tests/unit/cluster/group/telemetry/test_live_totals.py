"""Telemetry of a job: late, repeated and missing parts never count twice."""

from __future__ import annotations

import gc
import tracemalloc
from random import Random

import msgspec
import pytest

from squall.cluster.group.telemetry.live_totals import LiveTotals
from squall.cluster.protocol.encoded_reports import raw
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.cluster.protocol.messages import TelemetryPart
from squall.engine.run_options import RunOptions
from squall.stats.attempt_record import POINTS_MAX, AttemptRecord
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest
from squall.stats.reports import RequestsDelta, RowDelta, StartsDelta, WindowReport

KEY = AttemptKey(JobId("g-1"), "Load", 0, Attempt(1))
OTHER = AttemptKey(JobId("g-1"), "Load", 1, Attempt(1))


def books() -> LiveTotals:
    workflow = WorkflowManifest(
        name="Load",
        profile=Profile(vus=2, max_vus=2),
        steps=[StepManifest(name="get", protocol="http")],
    )
    return LiveTotals(FileManifest(path="f.py", workflows=[workflow]), RunOptions(file="f.py"))


def window(second: int, share: int = 0, sent: int = 10) -> WindowReport:
    return WindowReport(
        workflow="Load",
        share=share,
        window=second,
        rows=[],
        iteration=RowDelta("iteration", ""),
        starts=StartsDelta(planned=sent, made=sent),
        requests=RequestsDelta(sent=sent, answered=sent),
        users=1,
        busy=1,
    )


def part(after: int, *seconds: int, key: AttemptKey = KEY) -> TelemetryPart:
    reports = [raw(window(second, key.share)) for second in seconds]
    return TelemetryPart(key=key, after=after, upto=after + len(seconds), reports=reports)


def made(job: LiveTotals, now_s: float = 100.0) -> int:
    snapshot, _ = job.second(now_s, [])
    return snapshot.workflows[0].made if snapshot.workflows else 0


def test_parts_in_order_are_added() -> None:
    job = books()
    assert job.take(part(0, 0), "w1") == 1
    assert job.take(part(1, 1, 2), "w1") == 3
    assert made(job) == 30


def test_a_part_that_comes_twice_counts_once() -> None:
    job = books()
    job.take(part(0, 0, 1), "w1")
    assert job.take(part(0, 0, 1), "w1") == 2
    assert made(job) == 20


def test_of_a_part_that_overlaps_only_the_new_is_added() -> None:
    job = books()
    job.take(part(0, 0, 1), "w1")
    assert job.take(part(1, 1, 2), "w1") == 3
    assert made(job) == 30


def test_a_part_with_something_that_is_no_report_is_not_added_at_all() -> None:
    job = books()
    broken = msgspec.structs.replace(part(0, 0, 1), health=[raw(window(0))])
    with pytest.raises(msgspec.ValidationError):
        job.take(broken, "w1")
    assert job.take(part(0, 0), "w1") == 1
    assert made(job) == 10


def test_a_report_that_cannot_be_summed_costs_the_job_no_other_report() -> None:
    job = books()
    broken = msgspec.Raw(msgspec.msgpack.encode(["window", "Load", 0, 0, "no rows", 7]))
    job.take(TelemetryPart(key=OTHER, after=0, upto=1, reports=[broken]), "w2")
    job.take(part(0, 0), "w1")
    assert made(job) == 10
    assert job.record(OTHER) is not None


def test_reports_have_the_same_bytes_in_a_message_as_decoded_ones_had() -> None:
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(part(0, 0)))
    assert sent["reports"] == [msgspec.to_builtins(window(0))]


def test_a_gap_is_answered_with_what_is_known() -> None:
    job = books()
    job.take(part(0, 0), "w1")
    assert job.take(part(3, 3), "w1") == 1
    assert made(job) == 10


def test_a_manager_without_a_base_takes_the_whole_record() -> None:
    whole = TelemetryPart(key=KEY, after=0, upto=700, reports=[raw(window(0, sent=7000))])
    job = books()
    assert job.take(part(3, 3), "w1") == 0
    assert job.take(whole, "w1") == 700
    assert made(job) == 7000


def test_a_whole_record_on_top_of_a_base_completes_the_record_and_counts_nothing_twice() -> None:
    job = books()
    job.take(part(0, 0, 1), "w1")
    assert made(job) == 20
    whole = TelemetryPart(key=KEY, after=0, upto=1200, reports=[raw(window(0, sent=12000))])
    assert job.take(whole, "w1") == 1200
    assert made(job) == 20
    record = job.record(KEY)
    assert record is not None
    assert sum(report.requests.sent for report in record.reports) == 12000


def test_users_of_all_shares_are_added_and_a_late_share_changes_no_other() -> None:
    job = books()
    job.take(part(0, 0), "w1")
    job.take(part(0, 0, key=OTHER), "w2")
    snapshot, _ = job.second(1.0, [])
    assert snapshot.workflows[0].users == 2
    job.take(part(1, 1), "w1")
    snapshot, _ = job.second(2.0, [])
    assert snapshot.workflows[0].users == 2
    assert snapshot.workflows[0].made == 30


def test_a_second_that_is_not_over_waits() -> None:
    job = books()
    job.take(part(0, 0, 1, 2), "w1")
    assert made(job, 1.0) == 10
    assert made(job, 3.0) == 30


def test_the_cut_of_an_attempt_is_what_reached_the_manager() -> None:
    job = books()
    job.take(part(0, 0, 1), "w1")
    record = job.record(KEY)
    assert record is not None
    assert (record.worker, record.sequence, record.silent_from_s) == ("w1", 2, 2.0)
    assert job.record(OTHER) is None
    assert msgspec.to_builtins(record)["end"] is None


@pytest.mark.parametrize("seed", range(10))
def test_totals_never_fall_and_end_exact_however_parts_are_delayed(seed: int) -> None:
    """Eight shares whose parts come late, twice, out of order, or only after the leader
    acknowledged an older sequence."""
    draw = Random(seed)
    job, seconds = books(), 20
    keys = [AttemptKey(JobId("g-1"), "Load", share, Attempt(1)) for share in range(8)]
    known = dict.fromkeys(keys, 0)
    under_way: list[tuple[float, TelemetryPart]] = []
    shown: list[int] = []
    for tenth in range(seconds * 10 + 20):
        now_s = tenth / 10.0
        for key in keys:
            upto = min(int(now_s), seconds)
            if upto > known[key] and draw.random() < 0.3:
                lacks = part(known[key], *range(known[key], upto), key=key)
                copies = range(draw.choice([0, 1, 1, 2]))
                under_way += [(now_s + draw.uniform(0.0, 0.4), lacks) for _ in copies]
        for _, came in sorted((e for e in under_way if e[0] <= now_s), key=lambda e: e[0]):
            known[came.key] = job.take(came, "w1")
        under_way = [each for each in under_way if each[0] > now_s]
        if tenth % 10 == 0:
            shown.append(made(job, now_s))
    for key in keys:
        job.take(part(known[key], *range(known[key], seconds), key=key), "w1")
    shown.append(made(job))
    assert shown == sorted(shown)
    assert shown[-1] == 8 * seconds * 10
    assert made(job) == shown[-1]


def test_half_an_hour_of_reports_takes_bounded_memory_and_loses_no_count() -> None:
    job, seconds = books(), 1800
    keys = [AttemptKey(JobId("g-1"), "Load", share, Attempt(1)) for share in range(4)]
    for second in range(seconds):
        for key in keys:
            assert job.take(part(second, second, key=key), "w1") == second + 1
        job.second(second + 1.0, [])
    assert made(job, seconds + 1.0) == 4 * seconds * 10
    for key in keys:
        record = job.record(key)
        assert record is not None and len(record.reports) <= POINTS_MAX
        assert sum(report.requests.sent for report in record.reports) == seconds * 10
    stats = job._live_stats.stats.workflows["Load"]  # pyright: ignore[reportPrivateUsage]
    assert len(stats.seconds) <= stats.keep_s + 1


def test_records_that_are_read_again_are_added_and_let_go() -> None:
    """A manager that begins to lead a job reads what its attempts left behind."""

    def kept_bytes(count: int) -> int:
        gc.collect()
        tracemalloc.start()
        job = books()
        for share in range(count):
            reports = [window(second, share) for second in range(100)]
            record = AttemptRecord(
                workflow="Load", share=share, attempt=1, worker="w1", reports=reports
            )
            job.fill(msgspec.structs.replace(KEY, share=share), record)
            assert job.knows(msgspec.structs.replace(KEY, share=share))
            del record, reports
            assert made(job) == (share + 1) * 1000
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return kept

    # Its hundred reports would be seventy thousand.
    assert (kept_bytes(40) - kept_bytes(5)) / 35 < 20_000
