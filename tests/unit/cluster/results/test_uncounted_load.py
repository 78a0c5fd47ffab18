"""How wide the interval is that a lost attempt leaves: as narrow as the facts allow (R8)."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.cluster.results.record_sums import gist
from squall.cluster.results.uncounted_load import RELEASE_FACTOR, unknown_of
from squall.engine.load.schedule import StartSchedule
from squall.stats.attempt_record import AttemptRecord, SurvivingCounters
from squall.stats.manifest import Profile, StepManifest, WorkflowManifest
from squall.stats.record_builder import RecordBuilder
from tests.unit.cluster.results.lab.records import ended, record, window

RATE = 200.0
OPEN = Profile(model="open", vus=4, max_vus=4000, duration_s=20.0, rate_per_s=RATE)
CLOSED = Profile(model="closed", vus=5, max_vus=5, duration_s=20.0)
LATENCY_S = 0.02


def flow(profile: Profile) -> WorkflowManifest:
    steps = [StepManifest(name="home", protocol="http")]
    return WorkflowManifest(name="Shop", profile=profile, steps=steps)


def counters(at_s: float, sent: int, flying: int = 0, **changes: Any) -> SurvivingCounters:
    fields: dict[str, Any] = {
        "planned": sent,
        "made": sent,
        "dropped": 0,
        "finished": sent - flying,
        "sent": sent,
        "answered": sent - flying,
        "failed": 0,
        "users": 5,
        "busy": flying,
        "at_s": at_s,
        "boot_s": 500.0 + at_s,
    }
    return SurvivingCounters(**(fields | changes))


def cut(seconds: int, each_s: int, flying: int = 0) -> AttemptRecord:
    """The reports of an attempt that has `flying` requests under way at its last one."""
    reports = [window(s, 0, [LATENCY_S] * each_s, users=5) for s in range(seconds)]
    last = [LATENCY_S] * (each_s - flying)
    reports[-1] = window(seconds - 1, 0, last, users=5, busy=flying, flying=flying)
    return record(0, reports, elapsed_s=None, silent_from_s=float(seconds))


def lost(made: AttemptRecord, **changes: Any) -> Any:
    fields: dict[str, Any] = {"shares": 1, "fate": "lost", "lost_at_s": 30.0}
    return ended(made, **(fields | changes))


def test_with_counters_and_a_seen_death_hardly_anything_is_unknown() -> None:
    made = cut(8, 200)
    builder = RecordBuilder(made)
    builder.add_counters(counters(8.7, 1740, flying=3, dead_by_s=8.8))
    assert sum(report.requests.sent for report in made.reports) == 1740
    unknown = unknown_of(lost(made), flow(OPEN), LATENCY_S)
    # The plan of a tenth of a second, and three in flight.
    assert unknown.requests == pytest.approx(RELEASE_FACTOR * 0.1 * RATE + 3, abs=2)
    assert unknown.requests <= 0.3 * RATE + 3


def test_a_report_that_is_newer_than_the_counters_counts_and_the_death_still_ends_it() -> None:
    made = cut(8, 200)
    RecordBuilder(made).add_counters(counters(7.98, 1596, dead_by_s=8.1))
    assert made.silent_from_s == 8.0
    assert sum(report.requests.sent for report in made.reports) == 1600
    unknown = unknown_of(lost(made), flow(OPEN), LATENCY_S)
    assert unknown.requests == pytest.approx(RELEASE_FACTOR * 0.1 * RATE, abs=2)


def test_a_death_seen_long_after_the_lease_does_not_lengthen_the_silence() -> None:
    made = cut(8, 200)
    RecordBuilder(made).add_counters(counters(8.0, 1600, dead_by_s=3600.0))
    unknown = unknown_of(lost(made, silence_end_s=9.0), flow(OPEN), LATENCY_S)
    assert unknown.requests == pytest.approx(RELEASE_FACTOR * 1.5 * RATE, abs=2)


def test_starts_that_waited_at_the_last_fold_may_still_be_made() -> None:
    made = cut(8, 200)
    waiting = counters(8.5, 1650, planned=1700, dropped=10, dead_by_s=8.5)
    RecordBuilder(made).add_counters(waiting)
    unknown = unknown_of(lost(made), flow(OPEN), LATENCY_S)
    assert unknown.requests == 40


def test_requests_in_flight_do_not_make_iterations_look_larger() -> None:
    """A slow target: 400 of 1,600 requests are under way, each of an iteration of its own."""
    made = cut(8, 200)
    made.reports[-1] = window(7, 0, [LATENCY_S] * 200, users=5, busy=400, flying=400)
    unknown = unknown_of(lost(made, silence_end_s=9.0), flow(OPEN), LATENCY_S)
    assert unknown.requests == math.ceil(RELEASE_FACTOR * RATE) + 400


def test_iterations_with_several_requests_are_counted_by_those_that_ended() -> None:
    made = cut(8, 200)
    for report in made.reports:
        report.requests.sent = report.requests.answered = 500
    unknown = unknown_of(lost(made, silence_end_s=9.0), flow(OPEN), LATENCY_S)
    assert unknown.requests == math.ceil(RELEASE_FACTOR * RATE * 2.5)


def test_users_begin_nothing_after_the_end_of_the_plan() -> None:
    made = cut(19, 200)
    unknown = unknown_of(lost(made, silence_end_s=40.0), flow(CLOSED), LATENCY_S)
    # One second at 20 ms, one more at each end: not 21 seconds.
    assert unknown.requests == 5 * (50 + 2)
    assert unknown.is_estimate


def test_no_more_iterations_are_unknown_than_the_share_had_left() -> None:
    profile = Profile(model="iterations", vus=5, max_vus=5, duration_s=600.0, iterations=1650)
    made = cut(8, 200)
    unknown = unknown_of(lost(made, silence_end_s=30.0, iterations=1650), flow(profile), LATENCY_S)
    assert (unknown.iterations, unknown.requests) == (50, 50)


@given(
    seconds=st.integers(1, 19),
    silence_s=st.floats(0.0, 60.0),
    flying=st.integers(0, 100),
    fold_s=st.floats(0.0, 0.99),
    survives=st.booleans(),
)
def test_counted_and_unknown_stay_below_the_plan_and_cover_it(
    seconds: int, silence_s: float, flying: int, fold_s: float, survives: bool
) -> None:
    """Whatever was planned up to the end of the silence may have been sent, and nothing more."""
    schedule = StartSchedule(OPEN, 0, 1)
    made = cut(seconds, 200, flying)
    end_s = seconds + silence_s
    if survives:
        at_s = seconds + fold_s
        end_s = max(end_s, at_s)
        sent = schedule.planned_until(at_s)
        RecordBuilder(made).add_counters(counters(at_s, sent, flying, dead_by_s=end_s))
    part = lost(made, silence_end_s=end_s)
    unknown = unknown_of(part, flow(OPEN), LATENCY_S).requests
    counted = sum(report.requests.sent for report in made.reports)
    # A start that is planned at the very end of a second is in the report of the next.
    assert counted + unknown >= schedule.planned_until(end_s) - 1
    assert counted + unknown <= math.ceil(RELEASE_FACTOR * schedule.total) + flying + 1


def test_the_gist_of_a_record_has_the_same_bound() -> None:
    made = cut(8, 200)
    RecordBuilder(made).add_counters(counters(8.7, 1740, flying=3, dead_by_s=8.8))
    whole = unknown_of(lost(made), flow(OPEN), LATENCY_S)
    assert unknown_of(lost(gist(msgspec.structs.replace(made))), flow(OPEN), LATENCY_S) == whole


def test_without_any_report_the_silence_begins_where_the_attempt_can_have_joined() -> None:
    made = cut(1, 200)
    part = lost(made, record=None, joined_s=15.0, silence_end_s=16.0)
    assert unknown_of(part, flow(OPEN), math.inf).requests == pytest.approx(210, abs=1)


@pytest.mark.parametrize("profile", [OPEN, CLOSED], ids=["open", "closed"])
def test_a_silence_that_ends_within_the_last_reported_second_is_empty(profile: Profile) -> None:
    """The report of a share whose lease ended in the middle of a second counts as all of it."""
    part = lost(cut(8, 200), silence_end_s=7.6)
    assert unknown_of(part, flow(profile), LATENCY_S)[:2] == (0, 0)
