from __future__ import annotations

import math

import pytest

from squall.engine.load.schedule import StartSchedule, UserSchedule
from squall.stats.manifest import Profile, Stage


def open_model(rate_per_s: float, duration_s: float) -> Profile:
    return Profile(model="open", rate_per_s=rate_per_s, duration_s=duration_s)


def ramp(model: str, *stages: tuple[float, float], vus: int = 0) -> Profile:
    return Profile(
        model="ramp" if model == "ramp" else "open-ramp",
        vus=vus,
        duration_s=math.fsum(duration_s for duration_s, _ in stages),
        stages=tuple(Stage(duration_s, target) for duration_s, target in stages),
    )


def all_of(schedule: StartSchedule) -> list[float]:
    return schedule.take(math.inf)


@pytest.mark.parametrize(
    ("rate_per_s", "duration_s", "total"),
    [
        (500, 300, 150_000),
        (10 / 3600, 3600, 10),
        (1 / 3, 3, 1),
        (0.7, 10, 7),
        (0.1, 30, 3),
        (7 / 60, 3600, 420),
        (1, 2.5, 3),
        (100, 0.001, 1),
        (1e6, 1, 1_000_000),
        # As floats, the products of these are a hair above the whole number.
        (23 / 60, 300, 115),
        (17.6, 5.625, 99),
        (75, 5.44, 408),
    ],
)
def test_a_constant_rate_plans_exactly_its_integral(
    rate_per_s: float, duration_s: float, total: int
) -> None:
    assert StartSchedule(open_model(rate_per_s, duration_s)).total == total


def test_starts_lie_on_the_millisecond_grid_rounded_down() -> None:
    assert all_of(StartSchedule(open_model(500, 0.01))) == [0.0, 0.002, 0.004, 0.006, 0.008]
    assert all_of(StartSchedule(open_model(3, 1))) == [0.0, 0.333, 0.666]
    assert all_of(StartSchedule(open_model(2000, 0.002))) == [0.0, 0.0, 0.001, 0.001]


def test_no_start_is_planned_at_or_after_the_end() -> None:
    starts = all_of(StartSchedule(open_model(999.7, 3.3)))
    assert max(starts) < 3.3


def test_a_ramp_plans_the_area_under_its_line() -> None:
    schedule = StartSchedule(ramp("open", (60, 50), (300, 1000), (60, 0)))
    assert schedule.total == 60 * 25 + 300 * 525 + 60 * 500
    assert StartSchedule(ramp("open", (10, 1))).total == 5


def test_the_areas_of_many_stages_add_up_without_rounding_errors() -> None:
    steps = [stage for _ in range(10) for stage in ((0.0, 23 / 60), (300.0, 23 / 60))]
    assert StartSchedule(ramp("open", *steps)).total == 1150


def test_a_rising_ramp_starts_where_the_area_passes_each_number() -> None:
    # The area under t / 10 * 2 up to t is t * t / 10.
    starts = all_of(StartSchedule(ramp("open", (10, 2))))
    assert starts == [math.floor(math.sqrt(10 * i) * 1000) / 1000 for i in range(10)]


def test_a_falling_ramp_mirrors_a_rising_one() -> None:
    # The area left at t of a line from 2 to 0 in 10 s is (10 - t)^2 / 10.
    starts = all_of(StartSchedule(ramp("open", (0, 2), (10, 0))))
    exact = [10 - math.sqrt(10 * (10 - i)) for i in range(10)]
    assert starts == [math.floor(t * 1000 + 1e-6) / 1000 for t in exact]


def test_nothing_starts_in_a_pause() -> None:
    profile = ramp("open", (5, 0), (0, 1), (5, 1), (0, 0), (10, 0), (0, 1), (3, 1))
    assert all_of(StartSchedule(profile)) == [5.0, 6.0, 7.0, 8.0, 9.0, 20.0, 21.0, 22.0]


def test_take_gives_each_start_once_when_its_time_has_come() -> None:
    schedule = StartSchedule(open_model(1000, 0.005))
    assert schedule.next_time() == 0.0
    assert schedule.take(-0.001) == []
    assert schedule.take(0.0) == [0.0]
    assert schedule.take(0.0009) == []
    assert schedule.next_time() == 0.001
    assert schedule.take(0.003) == [0.001, 0.002, 0.003]
    assert schedule.take(9.0) == [0.004]
    assert schedule.take(9.0) == []
    assert schedule.next_time() == math.inf


def test_a_tick_that_comes_late_gets_everything_that_waited() -> None:
    schedule = StartSchedule(open_model(5000, 2))
    assert len(schedule.take(1.0)) == 5005
    assert len(schedule.take(2.0)) == 4995


def test_shares_take_turns() -> None:
    profile = open_model(1000, 0.007)
    assert all_of(StartSchedule(profile, 0, 3)) == [0.0, 0.003, 0.006]
    assert all_of(StartSchedule(profile, 1, 3)) == [0.001, 0.004]
    assert all_of(StartSchedule(profile, 2, 3)) == [0.002, 0.005]


def test_a_share_without_starts_is_empty() -> None:
    schedule = StartSchedule(open_model(1, 2), 3, 4)
    assert (schedule.total, schedule.next_time(), schedule.planned_until(9)) == (0, math.inf, 0)


def test_a_continued_share_goes_on_with_the_same_residue() -> None:
    profile = open_model(1000, 0.010)
    whole = StartSchedule(profile, 1, 3)
    before = whole.take(0.0039)
    rest = StartSchedule(profile, 1, 3, start_at_s=0.004)
    assert rest.total == whole.total - len(before)
    assert before + all_of(rest) == all_of(StartSchedule(profile, 1, 3))


def test_planned_until_counts_up_to_and_with_now() -> None:
    schedule = StartSchedule(open_model(1000, 1), start_at_s=0.5)
    assert schedule.planned_until(0.4) == 0
    assert schedule.planned_until(0.5) == 1
    assert schedule.planned_until(0.7) == 201
    assert schedule.planned_until(5) == schedule.total == 500


def test_closed_models_have_no_planned_starts() -> None:
    with pytest.raises(ValueError, match="closed model"):
        StartSchedule(Profile(model="closed"))


def test_a_share_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="share 2 of 2"):
        StartSchedule(open_model(1, 1), 2, 2)
    with pytest.raises(ValueError, match="share -1 of 2"):
        UserSchedule(Profile(), -1, 2)


# Users


def changes(schedule: UserSchedule) -> list[tuple[float, int]]:
    found = [(-math.inf, schedule.target(-math.inf))]
    while (time_s := schedule.next_change(found[-1][0])) < math.inf:
        found.append((time_s, schedule.target(time_s)))
    return found


def test_a_constant_number_of_users_never_changes() -> None:
    for model in ("closed", "iterations", "once", "open"):
        schedule = UserSchedule(Profile(model=model, vus=7), 1, 3)
        assert schedule.target(0) == schedule.target(1e9) == 2
        assert schedule.next_change(0) == math.inf


def test_users_join_one_by_one_from_the_beginning_and_leave_until_the_end() -> None:
    schedule = UserSchedule(ramp("ramp", (4, 4), (2, 4), (4, 0)))
    assert changes(schedule)[1:] == [
        (0.0, 1),
        (1.0, 2),
        (2.0, 3),
        (3.0, 4),
        (7.0, 3),
        (8.0, 2),
        (9.0, 1),
        (10.0, 0),
    ]


def test_a_ramp_to_one_user_is_load_for_its_whole_time() -> None:
    schedule = UserSchedule(ramp("ramp", (10, 1)))
    assert schedule.target(0) == schedule.target(10) == 1


def test_a_ramp_may_begin_with_users() -> None:
    schedule = UserSchedule(ramp("ramp", (10, 5), vus=10))
    assert schedule.target(0) == 10
    assert schedule.target(9.9) == 6
    assert schedule.target(10) == 5


def test_a_jump_changes_all_at_once() -> None:
    schedule = UserSchedule(ramp("ramp", (0, 100), (5, 100), (0, 20), (5, 20)))
    assert changes(schedule)[1:] == [(0.0, 100), (5.0, 20)]


def test_a_valley_does_not_flicker() -> None:
    schedule = UserSchedule(ramp("ramp", (2, 1), (2, 3), vus=3))
    assert changes(schedule) == [(-math.inf, 3), (1.0, 2), (3.0, 3)]


def test_user_j_belongs_to_share_j_mod_n() -> None:
    profile = ramp("ramp", (6, 6))
    assert changes(UserSchedule(profile, 0, 3))[1:] == [(0.0, 1), (3.0, 2)]
    assert changes(UserSchedule(profile, 2, 3))[1:] == [(2.0, 1), (5.0, 2)]
