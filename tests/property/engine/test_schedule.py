"""Planned starts and users, for any stages: exact, and exactly shared."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.engine.load.schedule import StartSchedule, UserSchedule
from squall.stats.manifest import Profile, Stage

# Durations on the grid and rates with few digits, so that the exact integral is known.
durations_ms = st.integers(0, 20_000)
rates = st.integers(0, 4_000).map(lambda tenths: tenths / 10)
shares = st.integers(1, 7)
run = settings(max_examples=100, deadline=None)


@st.composite
def open_profiles(draw: st.DrawFn) -> Profile:
    if draw(st.booleans()):
        rate_per_s = draw(rates.filter(bool))
        duration_s = draw(durations_ms.filter(bool)) / 1000
        return Profile(model="open", rate_per_s=rate_per_s, duration_s=duration_s)
    return draw(stages_of("open-ramp", rates))


@st.composite
def ramps(draw: st.DrawFn) -> Profile:
    return draw(stages_of("ramp", st.integers(0, 60).map(float)))


def stages_of(model: str, targets: st.SearchStrategy[float]) -> st.SearchStrategy[Profile]:
    stage = st.builds(Stage, durations_ms.map(lambda ms: ms / 1000), targets)

    def build(stages: list[Stage], vus: int) -> Profile:
        return Profile(
            model="ramp" if model == "ramp" else "open-ramp",
            vus=vus,
            duration_s=math.fsum(stage.duration_s for stage in stages),
            stages=tuple(stages),
        )

    some_time = st.lists(stage, min_size=1, max_size=5).filter(
        lambda stages: any(stage.duration_s for stage in stages)
    )
    return st.builds(build, some_time, st.integers(0, 60))


def exact(number: float) -> Fraction:
    return Fraction(number).limit_denominator(10_000)


def lines(profile: Profile) -> list[tuple[Fraction, Fraction, Fraction]]:
    """(length, first rate, last rate) of each line of the rate."""
    if profile.model == "open":
        rate = exact(profile.rate_per_s)
        return [(exact(profile.duration_s), rate, rate)]
    rates_at = [Fraction(0), *(exact(stage.target) for stage in profile.stages)]
    lengths = [exact(stage.duration_s) for stage in profile.stages]
    return [(length, a, b) for length, (a, b) in zip(lengths, pairwise(rates_at), strict=True)]


def integral(profile: Profile, until_s: Fraction) -> Fraction:
    area = Fraction(0)
    for length, first, last in lines(profile):
        if length == 0 or until_s <= 0:
            continue
        inside = min(length, until_s)
        area += inside * first + inside * inside * (last - first) / length / 2
        until_s -= length
    return area


def starts_of(profile: Profile, share: int = 0, count: int = 1) -> list[float]:
    return StartSchedule(profile, share, count).take(math.inf)


@given(open_profiles())
@run
def test_the_total_is_the_exact_integral(profile: Profile) -> None:
    area = integral(profile, exact(profile.duration_s))
    starts = starts_of(profile)
    assert StartSchedule(profile).total == len(starts) == math.ceil(area)


@given(open_profiles())
@run
def test_each_start_lies_in_the_cell_in_which_the_integral_passes_it(profile: Profile) -> None:
    # A hair of a cell either way is rounding, not a wrong plan.
    hair = Fraction(1, 10**6)
    starts = starts_of(profile)
    assert starts == sorted(starts)
    for index in {*range(0, len(starts), max(1, len(starts) // 50)), len(starts) - 1} - {-1}:
        cell = exact(starts[index])
        assert cell * 1000 == round(cell * 1000)
        assert 0 <= cell < exact(profile.duration_s)
        assert integral(profile, cell - hair) <= index
        assert integral(profile, cell + Fraction(1, 1000) + hair) > index


@given(open_profiles(), shares)
@run
def test_the_shares_together_are_the_whole_plan(profile: Profile, count: int) -> None:
    whole = starts_of(profile)
    for share in range(count):
        assert starts_of(profile, share, count) == whole[share::count]


@given(open_profiles(), shares, st.integers(0, 25_000))
@run
def test_a_continued_share_is_the_rest_of_the_same_share(
    profile: Profile, count: int, at_ms: int
) -> None:
    whole = starts_of(profile, count - 1, count)
    rest = StartSchedule(profile, count - 1, count, start_at_s=at_ms / 1000)
    expected = [time_s for time_s in whole if time_s >= at_ms / 1000]
    assert rest.total == len(expected)
    assert rest.take(math.inf) == expected


@given(open_profiles(), shares, st.lists(st.integers(0, 25_000), max_size=20))
@run
def test_taking_by_ticks_gives_what_is_planned_until_then(
    profile: Profile, count: int, ticks_ms: list[int]
) -> None:
    whole = starts_of(profile, 0, count)
    schedule = StartSchedule(profile, 0, count)
    taken: list[float] = []
    for now_s in sorted(tick_ms / 1000 for tick_ms in ticks_ms):
        taken += schedule.take(now_s)
        assert taken == [time_s for time_s in whole if time_s <= now_s]
        assert schedule.planned_until(now_s) == len(taken)
        assert schedule.next_time() > now_s
        assert schedule.next_time() == (whole[len(taken)] if len(taken) < len(whole) else math.inf)


@given(ramps(), shares, st.lists(st.floats(0, 120), max_size=20))
@run
def test_users_of_all_shares_add_up_at_every_moment(
    profile: Profile, count: int, moments_s: list[float]
) -> None:
    whole = UserSchedule(profile)
    parts = [UserSchedule(profile, share, count) for share in range(count)]
    changes = [0.0]
    while (next_s := whole.next_change(changes[-1])) < math.inf:
        changes.append(next_s)
    for now_s in [*moments_s, *changes]:
        targets = [part.target(now_s) for part in parts]
        assert sum(targets) == whole.target(now_s)
        assert max(targets) - min(targets) <= 1


@given(ramps(), st.floats(0, 120))
@run
def test_users_follow_the_line_within_one(profile: Profile, now_s: float) -> None:
    level, start_s = float(profile.vus), 0.0
    for stage in profile.stages:
        if start_s <= now_s < start_s + stage.duration_s:
            level += (stage.target - level) * (now_s - start_s) / stage.duration_s
            break
        level, start_s = stage.target, start_s + stage.duration_s
    assert level - 1e-6 <= UserSchedule(profile).target(now_s) <= level + 1 + 1e-6


@given(ramps(), shares)
@run
def test_a_change_is_a_change_and_the_end_is_the_last_target(profile: Profile, count: int) -> None:
    for share in range(count):
        schedule = UserSchedule(profile, share, count)
        now_s = -math.inf
        while (next_s := schedule.next_change(now_s)) < math.inf:
            assert next_s > now_s
            assert schedule.target(next_s) != schedule.target(now_s)
            now_s = next_s
        final = int(profile.stages[-1].target)
        assert schedule.target(profile.duration_s + 1e-6) == len(range(share, final, count))
