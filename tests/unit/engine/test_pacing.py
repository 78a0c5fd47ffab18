"""Catching up with late starts: never more than 1.05 times the plan in any second."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from squall.api.workflow import VU
from squall.engine import drivers
from squall.engine.drivers import OpenDriver
from squall.engine.pacing import Pace
from squall.stats.manifest import Profile
from squall.stats.reports import StartsDelta


def most_in_a_second(times: list[float]) -> int:
    return max(sum(start <= t < start + 1.0 for t in times) for start in times)


def made(pace: Pace, moments: list[float]) -> list[float]:
    """Someone who starts as much as may start, at each of these moments."""
    times: list[float] = []
    for moment in moments:
        while len(times) < 10_000 and begun(pace, moment):
            times.append(moment)
    return times


def begun(pace: Pace, moment: float) -> bool:
    """Spent, and begun at once."""
    spent = pace.spend(moment)
    if spent:
        pace.started(moment)
    return spent


def test_no_second_has_more_than_its_share() -> None:
    pace = Pace(lambda t: int(max(t, 0.0) * 100))
    times = made(pace, [n / 200 for n in range(2000)])
    assert most_in_a_second(times) <= 105
    assert len(times) >= 1000


def test_after_a_long_pause_nothing_bursts() -> None:
    pace = Pace(lambda t: int(max(t, 0.0) * 100))
    moments = [n / 100 for n in range(200)] + [20.0 + n / 100 for n in range(300)]
    times = made(pace, moments)
    assert most_in_a_second(times) <= 105


def test_a_rare_start_is_made_at_once() -> None:
    pace = Pace(lambda t: int(max(t, 0.0) * 2))
    assert all(begun(pace, n * 0.5) for n in range(20))


def test_a_start_counts_when_it_begins_not_when_it_was_given_away() -> None:
    pace = Pace(lambda t: int(max(t, 0.0) * 100))
    times: list[float] = []
    for turn in range(40):
        # Every other time the users that were told begin 50 ms late.
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
    pace = Pace(lambda t: int(max(t, 0.0) * 2))
    spent = sum(pace.spend(5.0) for _ in range(10))
    assert spent == 3 and not pace.spend(5.0)
    pace.returned()
    assert pace.spend(5.0)


def test_starts_of_a_faster_plan_do_not_hold_up_a_slower_one() -> None:
    pace = Pace(lambda t: int(max(t, 0.0) * 200))
    assert all(begun(pace, n / 200) for n in range(600))
    pace.follow(lambda t: int(max(t - 3.0, 0.0) * 50))
    assert all(begun(pace, 3.0 + n / 50) for n in range(100))
    times = made(pace, [10.0 + n / 100 for n in range(300)])
    assert most_in_a_second(times) <= 53


class Stage:
    def __init__(self) -> None:
        self.starts = StartsDelta()
        self.user_count = 500
        self.opening = 0
        self.ending = False

    def add_user(self) -> None:
        self.user_count += 1

    def retire_user(self) -> None:
        self.user_count -= 1


@pytest.mark.asyncio
async def test_a_process_that_stood_still_catches_up_slowly_and_drops_the_rest(
    monkeypatch: pytest.MonkeyPatch,
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
        # Half a second of quiet running, then 20 s in which nothing runs, then go on.
        now = 100.0 + step * 0.01 + (20.0 if step >= 50 else 0.0)
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
    assert most_in_a_second(times) <= 105
    starts = stage.starts
    assert starts.planned == starts.made + starts.dropped == 100 * 24 + 1
    assert starts.made == len(times) and starts.dropped >= 1800
    assert starts.late_max_s <= drivers.DROP_AFTER_S + 0.02
