"""Load that is changed while it runs: users and rates from now on, exactly split."""

from __future__ import annotations

import asyncio

import pytest

from squall.api.workflow import VU
from squall.engine.load import drivers
from squall.engine.load.drivers import ClosedDriver, OpenDriver
from squall.stats.manifest import Profile, Stage
from squall.stats.reports import StartsDelta


class Counting:
    def __init__(self) -> None:
        self.starts = StartsDelta()
        self.user_count = 0
        self.opening = 0
        self.ending = False

    def may_go_on(self, now: float) -> bool:
        return True

    def add_user(self) -> None:
        self.user_count += 1

    def retire_user(self) -> None:
        self.user_count -= 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(drivers, "perf_counter", lambda: clock.now)
    return clock


def tick(driver: OpenDriver) -> None:
    handle = driver._handle  # pyright: ignore[reportPrivateUsage]
    if handle is not None:
        handle.cancel()
    driver._tick()  # pyright: ignore[reportPrivateUsage]


def open_drivers(shares: int, rate: float = 100.0) -> list[tuple[Counting, OpenDriver]]:
    profile = Profile(model="open", rate_per_s=rate, duration_s=10.0, max_vus=5)
    stages = [Counting() for _ in range(shares)]
    return [(s, OpenDriver(s, profile, k, shares, 5)) for k, s in enumerate(stages)]


def planned(all_of_them: list[tuple[Counting, OpenDriver]]) -> int:
    return sum(stage.starts.planned for stage, _ in all_of_them)


@pytest.mark.asyncio
async def test_who_joins_late_makes_only_what_is_left(clock: Clock) -> None:
    shares = open_drivers(3)
    clock.now = 106.0
    for _, driver in shares:
        driver.start(100.0, joined_s=6.0)
    clock.now = 110.0
    for stage, driver in shares:
        tick(driver)
        assert stage.starts.late == 0
        driver.stop()
    assert planned(shares) == 400


@pytest.mark.asyncio
async def test_another_rate_holds_from_now_on_and_is_split_exactly(clock: Clock) -> None:
    shares = open_drivers(3)
    for _, driver in shares:
        driver.start(100.0)
    clock.now = 104.0
    for _, driver in shares:
        tick(driver)
    before = planned(shares)
    assert before == 401
    for _, driver in shares:
        driver.set_rate(10.0)
    clock.now = 108.0
    for _, driver in shares:
        tick(driver)
    assert planned(shares) - before == pytest.approx(40, abs=1)
    for _, driver in shares:
        driver.set_rate(None)
    clock.now = 110.0
    for _, driver in shares:
        tick(driver)
        driver.stop()
    assert planned(shares) - before == pytest.approx(240, abs=2)


@pytest.mark.asyncio
async def test_a_rate_that_was_wanted_before_the_start_holds_from_the_beginning(
    clock: Clock,
) -> None:
    [(stage, driver)] = open_drivers(1)
    driver.set_rate(20.0)
    driver.start(100.0)
    clock.now = 101.0
    tick(driver)
    assert stage.starts.planned == pytest.approx(20, abs=1)
    driver.stop()


async def run_paced(
    clock: Clock, duration_s: float, changes: dict[float, float], stalls: dict[float, float]
) -> StartsDelta:
    """Runs a share whose users are always free, turn by turn; `changes` are rates by second, and
    `stalls` times in which nothing runs."""
    stage = Counting()
    profile = Profile(model="open", rate_per_s=20.0, duration_s=duration_s, max_vus=50)
    driver = OpenDriver(stage, profile, 0, 1, 50, paced=True)

    async def user(number: int) -> None:
        while await driver.wait(VU(number, 0)) is not None:
            pass

    users = [asyncio.create_task(user(number)) for number in range(20)]
    await asyncio.sleep(0)
    driver.start(100.0)
    for turn in range(int(duration_s * 1000)):
        clock.now = max(clock.now, 100.0 + turn / 1000)
        clock.now += stalls.get(turn / 1000, 0.0)
        rate = changes.get(turn / 1000)
        if rate is not None:
            driver.set_rate(rate)
        tick(driver)
        await asyncio.sleep(0)
    driver.stop()
    await asyncio.gather(*users)
    return stage.starts


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("duration_s", "changes", "planned"),
    [
        (6.0, {2.5: 400.0}, 50 + 1400),
        (6.0, {2.5: 400.0, 4.0: 10.0, 5.0: 300.0}, 50 + 600 + 10 + 300),
        # Neither the second before nor the second after is all of the new plan.
        (6.0, {5.3: 400.0}, 106 + 280),
        (6.0, {4.8: 400.0}, 96 + 480),
        (0.7, {}, 14),
        (1.5, {0.2: 300.0}, 4 + 390),
    ],
)
async def test_a_new_rate_makes_no_start_late(
    clock: Clock, duration_s: float, changes: dict[float, float], planned: int
) -> None:
    starts = await run_paced(clock, duration_s, changes, {})
    assert (starts.late, starts.dropped) == (0, 0)
    # A start on the very moment of a change is in both plans.
    assert starts.planned == starts.made == pytest.approx(planned, abs=1 + len(changes))


@pytest.mark.asyncio
async def test_what_was_due_before_a_new_rate_stays_planned(clock: Clock) -> None:
    starts = await run_paced(clock, 8.0, {2.0: 100.0}, {2.0: 0.5})
    assert starts.planned == starts.made == pytest.approx(50 + 550, abs=2)
    assert starts.late >= 9, "the starts that were due in the stall"


@pytest.mark.asyncio
async def test_a_rate_of_zero_ends_nothing(clock: Clock) -> None:
    [(stage, driver)] = open_drivers(1)
    driver.start(100.0)
    clock.now = 101.0
    driver.set_rate(0.0)
    before = stage.starts.planned
    clock.now = 103.0
    driver.set_rate(50.0)
    clock.now = 104.0
    tick(driver)
    assert stage.starts.planned - before == pytest.approx(50, abs=1)
    driver.stop()


@pytest.mark.asyncio
async def test_what_is_planned_during_a_pause_is_neither_made_nor_missed(clock: Clock) -> None:
    [(stage, driver)] = open_drivers(1)
    waits = asyncio.create_task(driver.wait(VU(1, 0)))
    await asyncio.sleep(0)
    driver.pause(True)
    driver.start(100.0)
    clock.now = 105.0
    tick(driver)
    assert (stage.starts.planned, stage.starts.dropped) == (0, 0)
    driver.pause(False)
    clock.now = 105.02
    tick(driver)
    assert await waits == pytest.approx(105.01, abs=0.02)
    driver.stop()


@pytest.mark.asyncio
async def test_users_follow_the_wish_and_return_to_the_plan(clock: Clock) -> None:
    stage = Counting()
    profile = Profile(model="ramp", stages=(Stage(10.0, 10.0),), duration_s=10.0, vus=0)
    driver = ClosedDriver(stage, profile, 0, 1)
    clock.now = 105.0
    driver.start(100.0)
    assert stage.user_count == 6, "a ramp is joined at its present height"
    driver.set_level(2)
    assert stage.user_count == 2
    driver.set_level(8)
    assert stage.user_count == 8
    driver.set_level(None)
    assert stage.user_count == 6
    driver.stop()


@pytest.mark.asyncio
async def test_fixed_users_are_fixed_until_someone_wants_others(clock: Clock) -> None:
    stage = Counting()
    stage.user_count = 4
    driver = ClosedDriver(stage, Profile(vus=4), 0, 1)
    driver.start(100.0)
    assert driver.is_fixed and stage.user_count == 4
    driver.set_level(0)
    assert not driver.is_fixed and stage.user_count == 0
