"""How wide the interval is that a lost attempt leaves: as narrow as the facts allow (R8)."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.cluster.results.record_sums import gist
from squall.cluster.results.uncounted_load import (
    PACE_FACTOR,
    RELEASE_FACTOR,
    Pace,
    pace_of,
    unknown_of,
)
from squall.engine.load.schedule import StartSchedule
from squall.stats.attempt_record import AttemptRecord, SurvivingCounters
from squall.stats.manifest import Profile, StepManifest, WorkflowManifest
from squall.stats.record_builder import RecordBuilder
from tests.unit.cluster.results.lab.records import ended, record, window

RATE = 200.0
OPEN = Profile(model="open", vus=4, max_vus=4000, duration_s=20.0, rate_per_s=RATE)
CLOSED = Profile(model="closed", vus=5, max_vus=5, duration_s=20.0)
LATENCY_S = 0.02
PACE = Pace(LATENCY_S)


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
    unknown = unknown_of(lost(made), flow(OPEN), PACE)
    # The plan of a tenth of a second, and three in flight.
    assert unknown.requests == pytest.approx(RELEASE_FACTOR * 0.1 * RATE + 3, abs=2)
    assert unknown.requests <= 0.3 * RATE + 3


def test_a_report_that_is_newer_than_the_counters_counts_and_the_death_still_ends_it() -> None:
    made = cut(8, 200)
    RecordBuilder(made).add_counters(counters(7.98, 1596, dead_by_s=8.1))
    assert made.silent_from_s == 8.0
    assert sum(report.requests.sent for report in made.reports) == 1600
    unknown = unknown_of(lost(made), flow(OPEN), PACE)
    assert unknown.requests == pytest.approx(RELEASE_FACTOR * 0.1 * RATE, abs=2)


def test_a_death_seen_long_after_the_lease_does_not_lengthen_the_silence() -> None:
    made = cut(8, 200)
    RecordBuilder(made).add_counters(counters(8.0, 1600, dead_by_s=3600.0))
    unknown = unknown_of(lost(made, silence_end_s=9.0), flow(OPEN), PACE)
    assert unknown.requests == pytest.approx(RELEASE_FACTOR * 1.5 * RATE, abs=2)


def test_starts_that_waited_at_the_last_fold_may_still_be_made() -> None:
    made = cut(8, 200)
    waiting = counters(8.5, 1650, planned=1700, dropped=10, dead_by_s=8.5)
    RecordBuilder(made).add_counters(waiting)
    unknown = unknown_of(lost(made), flow(OPEN), PACE)
    assert unknown.requests == 40


def test_starts_that_were_due_before_the_last_fold_and_not_seen_may_still_be_made() -> None:
    """The loop was late: at the fold of 8.5 s the driver had planned what was due at 8.4 s."""
    made = cut(8, 200)
    RecordBuilder(made).add_counters(counters(8.5, 1680, dead_by_s=8.501))
    due = StartSchedule(OPEN, 0, 1).planned_until(8.5)
    unknown = unknown_of(lost(made), flow(OPEN), PACE)
    assert unknown.requests == due - 1680 == 21


def test_a_driver_that_was_paused_by_hand_does_not_look_overdue_for_long() -> None:
    made = cut(8, 100)
    unknown = unknown_of(lost(made, silence_end_s=8.001), flow(OPEN), PACE)
    assert unknown.requests == RATE


def test_requests_in_flight_do_not_make_iterations_look_larger() -> None:
    """A slow target: 400 of 1,600 requests are under way, each of an iteration of its own."""
    made = cut(8, 200)
    made.reports[-1] = window(7, 0, [LATENCY_S] * 200, users=5, busy=400, flying=400)
    unknown = unknown_of(lost(made, silence_end_s=9.0), flow(OPEN), PACE)
    assert unknown.requests == math.ceil(RELEASE_FACTOR * RATE) + 400


def test_iterations_with_several_requests_are_counted_by_those_that_ended() -> None:
    made = cut(8, 200)
    for report in made.reports:
        report.requests.sent = report.requests.answered = 500
    unknown = unknown_of(lost(made, silence_end_s=9.0), flow(OPEN), PACE)
    # With the start that was due at the very moment of the report.
    assert unknown.requests == math.ceil((RELEASE_FACTOR * RATE + 1) * 2.5)


def test_users_begin_nothing_after_the_end_of_the_plan() -> None:
    made = cut(19, 200)
    unknown = unknown_of(lost(made, silence_end_s=40.0), flow(CLOSED), PACE)
    # One second at 20 ms, one more at each end: not 21 seconds.
    assert unknown.requests == 5 * (50 + 2)
    assert unknown.is_estimate


def test_no_more_iterations_are_unknown_than_the_share_had_left() -> None:
    profile = Profile(model="iterations", vus=5, max_vus=5, duration_s=600.0, iterations=1650)
    made = cut(8, 200)
    unknown = unknown_of(lost(made, silence_end_s=30.0, iterations=1650), flow(profile), PACE)
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
    unknown = unknown_of(part, flow(OPEN), PACE).requests
    counted = sum(report.requests.sent for report in made.reports)
    # A start that is planned at the very end of a second is in the report of the next.
    assert counted + unknown >= schedule.planned_until(end_s) - 1
    assert counted + unknown <= math.ceil(RELEASE_FACTOR * schedule.total) + flying + 1


def test_the_gist_of_a_record_has_the_same_bound() -> None:
    made = cut(8, 200)
    RecordBuilder(made).add_counters(counters(8.7, 1740, flying=3, dead_by_s=8.8))
    whole = unknown_of(lost(made), flow(OPEN), PACE)
    assert unknown_of(lost(gist(msgspec.structs.replace(made))), flow(OPEN), PACE) == whole


def test_without_any_report_the_silence_begins_where_the_attempt_can_have_joined() -> None:
    made = cut(1, 200)
    part = lost(made, record=None, joined_s=15.0, silence_end_s=16.0, refill=True)
    assert unknown_of(part, flow(OPEN), Pace()).requests == pytest.approx(210, abs=1)


@pytest.mark.parametrize("profile", [OPEN, CLOSED], ids=["open", "closed"])
def test_a_silence_that_ends_within_the_last_reported_second_is_empty(profile: Profile) -> None:
    """The report of a share whose lease ended in the middle of a second counts as all of it."""
    part = lost(cut(8, 200), silence_end_s=7.6)
    assert unknown_of(part, flow(profile), PACE)[:2] == (0, 0)


# Closed models: the fake target answers within 78 us, as one on the same machine does.
FAST_S = 0.000_078


def shop(**changes: Any) -> WorkflowManifest:
    """Six users on two shares, two requests per iteration."""
    profile = Profile(model="closed", vus=6, max_vus=6, duration_s=10.0, **changes)
    steps = [StepManifest(name=name, protocol="http") for name in ("free", "lost")]
    return WorkflowManifest(name="Shop", profile=profile, steps=steps)


def of_users(per_s: int, seconds: int = 5, opened: int = 3, **changes: Any) -> AttemptRecord:
    """`per_s` iterations of two requests per second, by three users."""
    reports = [window(s, 0, [FAST_S] * per_s, users=3) for s in range(seconds)]
    for report in reports:
        report.requests.sent = report.requests.answered = 2 * per_s
    reports[0].opened = opened
    made = record(0, reports, elapsed_s=None, silent_from_s=float(seconds))
    done = per_s * seconds
    known: dict[str, Any] = {"made": done, "planned": done, "finished": done, "users": 3}
    RecordBuilder(made).add_counters(counters(seconds, 2 * done, **(known | changes)))
    return made


@pytest.mark.parametrize(
    ("case", "per_s", "profile", "silence_s", "requests"),
    [
        ("pacing: each user begins at 0, 0.1 and 0.2 s", 30, {"pacing_s": 0.1}, 0.24, 18),
        ("an exact multiple of the pacing", 30, {"pacing_s": 0.1}, 0.3, 24),
        ("pacing, and 20 s until a lease ends", 5, {"pacing_s": 1.0}, 20.0, 3 * 6 * 2),
        ("think time: at least its lower end", 12, {"think_s": (0.2, 0.4)}, 0.24, 12),
        ("neither: twice its pace and an iteration each", 300, {}, 0.1, 2 * 60 + 6),
    ],
)
def test_a_closed_model_is_bounded_by_what_its_users_can_do(
    case: str, per_s: int, profile: dict[str, Any], silence_s: float, requests: int
) -> None:
    made = of_users(per_s, dead_by_s=5.0 + silence_s)
    unknown = unknown_of(lost(made, users=3, shares=2), shop(**profile), pace_of([made]))
    assert unknown.requests == requests, case
    assert unknown.iterations <= unknown.requests


def test_users_that_were_not_ready_are_bounded_by_the_latency_alone() -> None:
    """Start actions send requests that no iteration counts."""
    made = of_users(30, opened=2, dead_by_s=5.1)
    unknown = unknown_of(lost(made, users=3, shares=2), shop(pacing_s=0.1), Pace(0.01))
    assert unknown.requests == 2 * 2 * 2 + 11


def test_iterations_that_make_more_requests_than_steps_may_differ() -> None:
    made = of_users(30, dead_by_s=5.05)
    for report in made.reports:
        report.requests.sent = report.requests.answered = 3 * 30
    unknown = unknown_of(lost(made, users=3, shares=2), shop(pacing_s=0.1), Pace(FAST_S))
    assert unknown.requests == 3 * PACE_FACTOR * 3


@pytest.mark.parametrize("model", ["closed", "open"])
def test_no_more_iterations_are_unknown_than_rows_of_a_feed_are_left(model: Any) -> None:
    """Share 0 of two has 160 of 320 rows, and took 150 of them."""
    flow = shop()
    flow.once_rows = 320
    flow.profile = msgspec.structs.replace(flow.profile, model=model, rate_per_s=1000.0)
    made = of_users(30, planned=150)
    unknown = unknown_of(lost(made, users=3, shares=2, silence_end_s=9.0), flow, Pace(FAST_S))
    assert (unknown.iterations, unknown.requests) == (10, 20)


def test_the_gist_of_a_record_has_the_same_pace() -> None:
    made = of_users(300, dead_by_s=5.1)
    assert pace_of([gist(msgspec.structs.replace(made))]) == pace_of([made])


@given(
    seed=st.integers(0, 2**32),
    pacing_s=st.sampled_from([None, 0.05, 0.1, 1.0]),
    think_s=st.sampled_from([None, (0.02, 0.3)]),
    lowest_s=st.sampled_from([0.002, 0.02, 0.2]),
    cut_s=st.floats(3.0, 6.0),
    silence_s=st.floats(0.0, 3.0),
)
def test_the_bound_of_a_closed_model_holds_the_truth(
    seed: int, pacing_s: Any, think_s: Any, lowest_s: float, cut_s: float, silence_s: float
) -> None:
    """Three users that the test moves by itself; the counters know all until the cut."""
    draw = random.Random(seed)
    sent, ended, made, finished = [[], [], [], []]
    for _ in range(3):
        at_s = 0.0
        while at_s < 9.5:
            began_s = at_s
            made.append(at_s)
            for _ in range(2):
                sent.append(at_s)
                at_s += draw.uniform(lowest_s, 2 * lowest_s)
                ended.append(at_s)
            finished.append(at_s)
            wait_s = draw.uniform(*think_s) if think_s else 0.0
            at_s = max(at_s + wait_s, began_s + (pacing_s or 0.0))

    def count(times: list[float], from_s: float, to_s: float) -> int:
        return sum(from_s < at <= to_s for at in (max(each, 1e-9) for each in times))

    reports = [window(s, 0, users=3) for s in range(int(cut_s))]
    for second, report in enumerate(reports):
        report.requests.sent = count(sent, second, second + 1)
        report.requests.answered = count(ended, second, second + 1)
    reports[0].opened = 3
    known = record(0, reports, elapsed_s=None, silent_from_s=float(int(cut_s)))
    begun, over = count(made, 0, cut_s), count(finished, 0, cut_s)
    RecordBuilder(known).add_counters(
        counters(
            cut_s,
            count(sent, 0, cut_s),
            made=begun,
            planned=begun,
            finished=over,
            answered=count(ended, 0, cut_s),
            users=3,
            busy=begun - over,
            dead_by_s=cut_s + silence_s,
        )
    )
    flow = shop(pacing_s=pacing_s, think_s=think_s)
    unknown = unknown_of(
        lost(known, users=3, shares=2), flow, pace_of([known])._replace(lowest_s=lowest_s)
    )
    assert count(sent, cut_s, cut_s + silence_s) <= unknown.requests
    assert count(made, cut_s, cut_s + silence_s) <= unknown.iterations
