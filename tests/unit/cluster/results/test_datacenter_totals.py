"""Live totals over datacenters: every report counts once, and no total ever falls."""

from __future__ import annotations

import msgspec

from squall.cluster.protocol.encoded_reports import raw
from squall.cluster.protocol.gates.job_reports import JobReports, WorkflowReports
from squall.cluster.results.counters import live_counters
from squall.cluster.results.datacenter_totals import SILENT_S, MergedTotals
from squall.engine.run_options import RunOptions
from squall.stats.manifest import Profile
from squall.stats.reports import WindowReport
from squall.stats.snapshot import Snapshot
from tests.unit.cluster.results.lab.records import manifest, window

USERS = Profile(vus=5, max_vus=5, duration_s=10.0)


def totals(*thresholds: str, warmup_s: float = 0.0) -> MergedTotals:
    options = RunOptions(thresholds=thresholds, warmup_s=warmup_s)
    parts = [(name, 0.5, manifest(USERS)) for name in ("eu", "us")]
    return MergedTotals(manifest(), options, parts)


def sent(
    *reports: WindowReport, upto: int, elapsed_s: float, stream: str = "m1/1", over_s: float = 0.0
) -> JobReports:
    """What a leader sends of the workflow, `elapsed_s` after the start of its job."""
    shop = WorkflowReports(
        name="Shop",
        started_at_s=0.0,
        elapsed_s=over_s,
        upto=upto,
        reports=[raw(each) for each in reports],
    )
    return JobReports(stream=stream, elapsed_s=elapsed_s, workers=2, workflows=[shop])


def count(found: Snapshot) -> int:
    return sum(row.count for each in found.workflows for row in each.rows if row.name == "home")


def test_the_datacenters_are_added_and_shown_one_by_one() -> None:
    merged = totals()
    for second in range(3):
        at = 100.0 + second + 1.0
        reports = [window(second, 0, [0.01] * 4, users=5)]
        merged.take(0, sent(*reports, upto=second + 1, elapsed_s=second + 1.0), at)
        slow = [window(second, 0, [0.2] * 2, [0.3], users=3)]
        merged.take(1, sent(*slow, upto=second + 1, elapsed_s=second + 1.0), at)
    for index in (0, 1):
        merged.observe(index, 103.0, state="running")
    found, abort = merged.second(103.0)
    assert (count(found), abort) == (18, "")
    assert found.workflows[0].users == 8
    assert found.where == "2 dc  4 workers"
    eu, us = found.datacenters
    assert (eu.name, eu.part, eu.state, eu.workers) == ("eu", 0.5, "running", 2)
    assert (eu.executions_now_per_s, us.executions_now_per_s) == (4.0, 3.0)
    assert eu.p95_now_s < 0.05 < us.p95_now_s
    assert (eu.failed, us.failed) == (0, 3)
    counters = live_counters(found)["Shop"]
    assert (counters.finished, counters.failed, counters.users) == (21, 3, 8)
    assert counters.sent == counters.answered == merged.stats.workflows["Shop"].requests.sent > 0


def test_another_leader_of_a_part_repeats_nothing_and_lowers_nothing() -> None:
    merged = totals()
    first = [window(second, 0, [0.01] * 4) for second in range(3)]
    merged.take(0, sent(*first, upto=3, elapsed_s=3.0), 103.0)
    assert count(merged.second(103.0)[0]) == 12
    # The next leader has the seconds again, summed otherwise, and goes on.
    again = [window(second, 0, [0.01] * 2) for second in (0, 1, 1, 2, 3)]
    merged.take(0, sent(*again[:2], upto=2, elapsed_s=3.5, stream="m2/9"), 103.5)
    assert count(merged.second(103.5)[0]) == 12
    merged.take(0, sent(*again[2:], upto=5, elapsed_s=4.0, stream="m2/9"), 104.0)
    assert count(merged.second(104.0)[0]) == 14
    assert merged.parts[0].cursor.windows == {"Shop": 5}
    assert merged.parts[0].cursor.stream == "m2/9"


def test_a_datacenter_that_began_later_is_shown_when_it_made_its_load() -> None:
    merged = totals(warmup_s=1.0)
    early = [window(second, 0, [0.01] * 4) for second in range(6)]
    merged.take(0, sent(*early, upto=6, elapsed_s=6.0), 106.0)
    late = [window(second, 0, [0.01] * 2) for second in range(3)]
    merged.take(1, sent(*late, upto=3, elapsed_s=3.0), 106.0)
    found, _ = merged.second(106.0)
    assert found.workflows[0].executions_now_per_s == 6.0
    # Each left out the first second of its own clock.
    assert count(found) == 5 * 4 + 2 * 2


def test_a_silent_datacenter_is_named_and_what_it_did_stays() -> None:
    merged = totals()
    merged.take(0, sent(window(0, 0, [0.01] * 4, users=3), upto=1, elapsed_s=1.0), 101.0)
    merged.take(1, sent(window(0, 0, [0.01] * 4, users=5), upto=1, elapsed_s=1.0), 101.0)
    later = 101.0 + SILENT_S + 1.0
    merged.take(0, sent(upto=1, elapsed_s=5.0), later)
    found, _ = merged.second(later)
    assert (found.verdict, found.reasons) == ("DEGRADED", ("us silent for 4 s",))
    assert [each.silent_s for each in found.datacenters] == [0.0, 4.0]
    merged.lose(1, "no manager answers")
    found, _ = merged.second(later + 1.0)
    assert found.verdict == "INVALID"
    assert found.datacenters[1].state == "lost"
    assert count(found) == 8
    assert found.workflows[0].users == 3, "those of the other datacenter"


def test_a_receiver_that_began_late_shows_nothing_before_it_has_read_all() -> None:
    merged = totals()
    assert not merged.is_caught_up(100.0)
    first = msgspec.structs.replace(sent(window(0, 0, [0.01]), upto=1, elapsed_s=9.0), more=True)
    merged.take(0, first, 100.0)
    merged.take(1, sent(window(0, 0, [0.01]), upto=1, elapsed_s=9.0), 100.0)
    assert not merged.is_caught_up(100.1)
    merged.take(0, sent(window(1, 0, [0.01]), upto=2, elapsed_s=9.1), 100.2)
    assert merged.is_caught_up(100.2)


def test_a_datacenter_that_does_not_answer_holds_back_the_others_for_a_moment_only() -> None:
    merged = totals()
    merged.take(0, sent(window(0, 0, [0.01]), upto=1, elapsed_s=9.0), 100.0)
    assert not merged.is_caught_up(100.5)
    assert merged.is_caught_up(100.5 + SILENT_S)


def test_a_part_that_waits_in_the_queue_is_not_silent() -> None:
    merged = totals()
    merged.take(0, sent(window(0, 0, [0.01]), upto=1, elapsed_s=1.0), 101.0)
    merged.observe(1, 101.0, state="queued")
    merged.take(0, sent(upto=1, elapsed_s=9.0), 109.0)
    found, _ = merged.second(109.0)
    assert found.verdict == "VALID"
    assert [each.state for each in found.datacenters] == ["queued", "queued"]


def test_thresholds_are_judged_over_all_and_by_datacenter() -> None:
    merged = totals("us: home.p(99) < 100ms, abort", "eu: home.p(99) < 100ms", "errors < 1%")
    for second in range(4):
        at = second + 1.0
        fast, slow = window(second, 0, [0.01] * 4), window(second, 0, [0.2] * 4)
        merged.take(0, sent(fast, upto=second + 1, elapsed_s=at), 100.0 + at)
        merged.take(1, sent(slow, upto=second + 1, elapsed_s=at), 100.0 + at)
    found, abort = merged.second(104.0)
    assert [each.condition for each in found.thresholds] == ["failing", "passing", "passing"]
    assert abort == "us: home.p(99) < 100ms, abort"
    assert merged.second(105.0)[1] == "", "a run is ended once"


def test_a_workflow_is_over_when_it_is_over_everywhere() -> None:
    merged = totals()
    merged.take(0, sent(window(0, 0, [0.01]), upto=1, elapsed_s=1.0, over_s=0.9), 101.0)
    merged.take(1, sent(window(0, 0, [0.01]), upto=1, elapsed_s=1.0), 101.0)
    assert not merged.second(101.5)[0].workflows[0].ended
    merged.take(1, sent(upto=1, elapsed_s=2.0, over_s=1.8), 102.0)
    assert merged.second(102.0)[0].workflows[0].ended


def test_a_rate_that_an_operator_set_is_the_target() -> None:
    open_load = Profile(model="open", rate_per_s=30.0, vus=1, max_vus=9, duration_s=10.0)
    whole = Profile(model="open", rate_per_s=60.0, vus=1, max_vus=9, duration_s=10.0)
    parts = [(name, 0.5, manifest(open_load)) for name in ("eu", "us")]
    merged = MergedTotals(manifest(whole), RunOptions(), parts)
    for index in (0, 1):
        merged.take(index, sent(window(0, 0, [0.01] * 30), upto=1, elapsed_s=1.0), 101.0)
    assert merged.second(101.0)[0].workflows[0].target_per_s == 60.0
    changed = sent(window(1, 0, [0.01] * 50), upto=2, elapsed_s=2.0)
    shop = msgspec.structs.replace(changed.workflows[0], adjusted_per_s=50.0)
    merged.take(0, msgspec.structs.replace(changed, workflows=[shop]), 102.0)
    found, _ = merged.second(102.0)
    assert found.workflows[0].target_per_s == 80.0
    assert [each.target_per_s for each in found.datacenters] == [50.0, 30.0]
