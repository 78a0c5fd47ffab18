"""Catching up with late starts: never more than 1.05 times the plan in any second."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from squall.api.workflow import VU
from squall.engine.load import drivers
from squall.engine.load.catch_up_limit import CatchUpLimit
from squall.engine.load.drivers import OpenDriver
from squall.stats.manifest import Profile
from squall.stats.reports import StartsDelta


def most_in_a_second(times: list[float]) -> int:
    return most_in(times, 1.0)


def most_in(times: list[float], seconds: float) -> int:
    return max(sum(start <= t < start + seconds for t in times) for start in times)


def made(pace: CatchUpLimit, moments: list[float]) -> list[float]:
    """Starts as many as the limit allows at each of these moments."""
    times: list[float] = []
    for moment in moments:
        while len(times) < 10_000 and begun(pace, moment):
            times.append(moment)
    return times


def begun(pace: CatchUpLimit, moment: float) -> bool:
    """Spent, and begun at once."""
    spent = pace.spend(moment)
    if spent:
        pace.started(moment)
    return spent


def test_no_second_has_more_than_its_share() -> None:
    pace = CatchUpLimit(lambda t: int(max(t, 0.0) * 100))
    times = made(pace, [n / 200 for n in range(2000)])
    assert most_in_a_second(times) <= 105
    assert len(times) >= 1000


def test_after_a_long_pause_nothing_bursts() -> None:
    pace = CatchUpLimit(lambda t: int(max(t, 0.0) * 100))
    moments = [n / 100 for n in range(200)] + [20.0 + n / 100 for n in range(300)]
    times = made(pace, moments)
    assert most_in_a_second(times) <= 105


def test_a_rare_start_is_made_at_once() -> None:
    pace = CatchUpLimit(lambda t: int(max(t, 0.0) * 2))
    assert all(begun(pace, n * 0.5) for n in range(20))


def test_a_start_counts_when_it_begins_not_when_it_was_given_away() -> None:
    pace = CatchUpLimit(lambda t: int(max(t, 0.0) * 100))
    times: list[float] = []
    for turn in range(40):
        # Every other time the users begin 50 ms after their start was handed out.
        moment = 20.0 + turn * 0.25
        given = 0
        while pace.spend(moment):
            given += 1
        begins = moment if turn % 2 else moment + 0.05
        for _ in range(given):
            pace.started(begins)
            times.append(begins)
    assert most_in_a_second(times) <= 105
    assert len(times) >= 700


def test_a_start_that_nobody_takes_is_there_for_another() -> None:
    pace = CatchUpLimit(lambda t: int(max(t, 0.0) * 2))
    spent = sum(pace.spend(5.0) for _ in range(10))
    assert spent == 3 and not pace.spend(5.0)
    pace.returned()
    assert pace.spend(5.0)


def test_starts_of_a_faster_plan_do_not_hold_up_a_slower_one() -> None:
    pace = CatchUpLimit(lambda t: int(max(t, 0.0) * 200))
    assert all(begun(pace, n / 200) for n in range(600))
    pace.follow(lambda t: int(max(t - 3.0, 0.0) * 50), 3.0)
    assert all(begun(pace, 3.0 + n / 50) for n in range(100))
    times = made(pace, [10.0 + n / 100 for n in range(300)])
    assert most_in_a_second(times) <= 53


class Stage:
    def __init__(self) -> None:
        self.starts = StartsDelta()
        self.user_count = 500
        self.opening = 0
        self.ending = False

    def may_go_on(self, now: float) -> bool:
        return True

    def add_user(self) -> None:
        self.user_count += 1

    def retire_user(self) -> None:
        self.user_count -= 1


def test_late_starts_are_spread_and_not_spent_in_the_first_moment() -> None:
    pace = CatchUpLimit(lambda t: int(max(t, 0.0) * 200))
    times: list[float] = []
    for turn in range(600):
        # Starts wait since a pause of the process, so that each is late by a second.
        moment = 20.0 + turn / 200
        while pace.spend(moment, 1.0):
            pace.started(moment)
            times.append(moment)
    assert most_in(times, 0.1) <= 0.1 * 210 + 3
    # As the target sees them if the way there shortens some distances by 20 ms.
    assert most_in(times, 1.02) <= 210
    assert len(times) >= 600


@pytest.mark.asyncio
@pytest.mark.parametrize("still_s", [3.0, 20.0])
async def test_a_process_that_stood_still_catches_up_slowly_and_drops_the_rest(
    monkeypatch: pytest.MonkeyPatch, still_s: float
) -> None:
    now = 100.0
    monkeypatch.setattr(drivers, "perf_counter", lambda: now)
    stage = Stage()
    profile = Profile(model="open", rate_per_s=100.0, duration_s=60.0, max_vus=500)
    driver = OpenDriver(stage, profile, 0, 1, 500, paced=True)
    times: list[float] = []

    async def user(number: int) -> None:
        vu = VU(number, 0)
        while await driver.wait(vu) is not None:
            times.append(now)

    users = [asyncio.create_task(user(number)) for number in range(200)]
    await asyncio.sleep(0)
    driver.start(100.0)
    for step in count():
        # Half a second of quiet running, then a time in which nothing runs, then go on.
        now = 100.0 + step * 0.01 + (still_s if step >= 50 else 0.0)
        if step > 400:
            break
        handle = driver._handle  # pyright: ignore[reportPrivateUsage]
        if handle is not None:
            handle.cancel()
        driver._tick()  # pyright: ignore[reportPrivateUsage]
        for _ in range(3):
            await asyncio.sleep(0)
    driver.stop()
    await asyncio.gather(*users)
    assert most_in(times, 1.02) <= 105
    # Steps are 10 ms apart, so 0.1 s has 11 of them.
    assert most_in(times, 0.1) <= 0.11 * 105 + 3
    starts = stage.starts
    assert starts.planned == starts.made + starts.dropped == 100 * (4 + still_s) + 1
    assert starts.made == len(times)
    # What is planned in the last second before it goes on is made up for, the rest is not.
    assert 100 * (still_s - 1.2) <= starts.dropped <= 100 * still_s + 5
    assert starts.late_max_s <= drivers.DROP_AFTER_S + 0.02
