"""Load models in motion, against a share that only counts."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import pytest

from squall.api.workflow import VU
from squall.engine.load import drivers
from squall.engine.load.drivers import ClosedDriver, OpenDriver
from squall.stats.manifest import Profile, Stage
from squall.stats.reports import StartsDelta


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(drivers, "perf_counter", clock)
    return clock


class CountingStage:
    def __init__(self) -> None:
        self.starts = StartsDelta()
        self.user_count = 0
        self.opening = 0
        self.ending = False
        self.lease_until = inf
        self.driver: OpenDriver | ClosedDriver | None = None

    def may_go_on(self, now: float) -> bool:
        """As a share does: the end of the lease stops the driver."""
        if now < self.lease_until:
            return True
        assert self.driver is not None
        self.ending = True
        self.driver.stop(self.lease_until)
        return False

    def add_user(self) -> None:
        self.user_count += 1

    def retire_user(self) -> None:
        self.user_count -= 1


def open_driver(stage: Any, *, rate: float, duration_s: float, users_max: int) -> OpenDriver:
    profile = Profile(model="open", rate_per_s=rate, duration_s=duration_s, max_vus=users_max)
    return OpenDriver(stage, profile, 0, 1, users_max)


def tick(driver: OpenDriver) -> None:
    """One turn, without its own timer: the test decides when the next one is."""
    if driver._handle is not None:  # pyright: ignore[reportPrivateUsage]
        driver._handle.cancel()  # pyright: ignore[reportPrivateUsage]
    driver._tick()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.asyncio
async def test_a_due_start_goes_to_a_waiting_user(clock: Clock) -> None:
    stage = CountingStage()
    driver = open_driver(stage, rate=10.0, duration_s=0.3, users_max=5)
    waits = [asyncio.create_task(driver.wait(VU(n, 0))) for n in (1, 2)]
    await asyncio.sleep(0)
    driver.start(100.0)
    clock.now = 100.11
    tick(driver)
    assert sorted([await wait for wait in waits]) == [100.0, pytest.approx(100.1)]
    assert (stage.starts.planned, stage.starts.made, stage.starts.late) == (2, 2, 2)
    assert stage.starts.late_max_s == pytest.approx(0.11)
    driver.stop()


@pytest.mark.asyncio
async def test_without_a_user_one_is_made_and_the_start_waits(clock: Clock) -> None:
    stage = CountingStage()
    driver = open_driver(stage, rate=100.0, duration_s=1.0, users_max=3)
    clock.now = 100.05
    driver.start(100.0)
    assert stage.user_count == 3, "as many as may be, although six starts wait"
    assert await driver.wait(VU(1, 0)) == 100.0
    assert stage.starts.made == 1
    driver.stop()
    assert stage.starts.planned == stage.starts.made + stage.starts.dropped


@pytest.mark.asyncio
async def test_starts_that_wait_for_a_second_are_dropped(clock: Clock) -> None:
    stage = CountingStage()
    driver = open_driver(stage, rate=10.0, duration_s=0.5, users_max=1)
    driver.start(100.0)
    clock.now = 101.25
    tick(driver)
    assert stage.starts.planned == 5
    assert stage.starts.dropped == 3
    assert not driver.on_done.done()
    clock.now = 102.0
    tick(driver)
    assert stage.starts.dropped == 5
    assert driver.on_done.done()


@pytest.mark.asyncio
async def test_a_stopped_driver_sends_its_users_home(clock: Clock) -> None:
    stage = CountingStage()
    driver = open_driver(stage, rate=1.0, duration_s=60.0, users_max=5)
    idle = asyncio.create_task(driver.wait(VU(1, 0)))
    await asyncio.sleep(0)
    assert driver.idle == 1
    driver.stop()
    assert await idle is None
    assert await driver.wait(VU(2, 0)) is None
    assert driver.on_done.done()


@pytest.mark.asyncio
async def test_a_user_cancelled_with_a_start_in_hand_drops_it(clock: Clock) -> None:
    stage = CountingStage()
    driver = open_driver(stage, rate=1.0, duration_s=1.0, users_max=1)
    user = asyncio.create_task(driver.wait(VU(1, 0)))
    await asyncio.sleep(0)
    driver.start(100.0)
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user
    driver.stop()
    assert (stage.starts.planned, stage.starts.made, stage.starts.dropped) == (1, 0, 1)


@pytest.mark.asyncio
async def test_a_start_given_back_is_dropped(clock: Clock) -> None:
    stage = CountingStage()
    driver = open_driver(stage, rate=1.0, duration_s=1.0, users_max=1)
    driver.start(100.0)
    await driver.wait(VU(1, 0))
    driver.give_back()
    assert (stage.starts.planned, stage.starts.made, stage.starts.dropped) == (1, 0, 1)


@pytest.mark.asyncio
async def test_a_ramp_follows_its_stages_up_and_down(clock: Clock) -> None:
    stage = CountingStage()
    stages = (Stage(1.0, 10), Stage(1.0, 10), Stage(1.0, 0))
    profile = Profile(model="ramp", vus=0, max_vus=10, duration_s=3.0, stages=stages)
    driver = ClosedDriver(stage, profile, 0, 1)
    seen: list[int] = []
    driver.start(100.0)
    for moment in (100.0, 100.55, 101.5, 102.45, 103.0):
        clock.now = moment
        driver.stop()
        driver._adjust()  # pyright: ignore[reportPrivateUsage]
        seen.append(stage.user_count)
    driver.stop()
    assert seen == [1, 6, 10, 6, 0]


@pytest.mark.asyncio
async def test_an_ending_share_is_not_adjusted(clock: Clock) -> None:
    stage = CountingStage()
    profile = Profile(model="ramp", vus=0, max_vus=5, duration_s=1.0, stages=(Stage(1.0, 5),))
    stage.ending = True
    ClosedDriver(stage, profile, 0, 1).start(100.0)
    assert stage.user_count == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("paced", [False, True])
async def test_a_driver_that_stood_still_plans_up_to_the_end_of_its_lease(
    clock: Clock, paced: bool
) -> None:
    """Another attempt has planned what came after."""
    stage = CountingStage()
    profile = Profile(model="open", rate_per_s=10.0, duration_s=60.0, max_vus=5)
    driver = stage.driver = OpenDriver(stage, profile, 0, 1, 5, paced=paced)
    idle = asyncio.create_task(driver.wait(VU(1, 0)))
    await asyncio.sleep(0)
    driver.start(100.0)
    stage.lease_until = 104.05
    clock.now = 130.0
    tick(driver)
    await asyncio.sleep(0)
    assert await idle in (100.0, None)
    assert stage.starts.planned == 41, "at 0.0, 0.1 ... 4.0 s"
    assert stage.starts.made + stage.starts.dropped == 41
    assert driver.on_done.done() and stage.user_count == 0


@pytest.mark.asyncio
async def test_a_ramp_that_stood_still_beyond_its_lease_adds_no_users(clock: Clock) -> None:
    stage = CountingStage()
    profile = Profile(model="ramp", vus=0, max_vus=10, duration_s=10.0, stages=(Stage(10.0, 10),))
    driver = stage.driver = ClosedDriver(stage, profile, 0, 1)
    driver.start(100.0)
    stage.lease_until = 102.0
    clock.now = 109.0
    driver._adjust()  # pyright: ignore[reportPrivateUsage]
    assert stage.user_count == 1 and stage.ending


@pytest.mark.asyncio
async def test_a_stopped_driver_has_planned_up_to_the_stop(clock: Clock) -> None:
    stage = CountingStage()
    driver = open_driver(stage, rate=10.0, duration_s=60.0, users_max=5)
    driver.start(100.0)
    clock.now = 103.0
    driver.stop(clock.now)
    driver.stop(clock.now + 5.0)
    assert stage.starts.planned == stage.starts.dropped == 31


@pytest.mark.parametrize(
    ("profile", "level", "ends"),
    [
        (Profile(model="closed", vus=4), None, True),
        (Profile(model="closed", vus=4), 2, False),
        (Profile(model="iterations", vus=4, iterations=80), None, True),
        (Profile(model="iterations", vus=4, iterations=80), 2, True),
        (Profile(model="iterations", vus=4, iterations=80, iterations_per_vu=20), 0, True),
        (Profile(model="ramp", vus=4, stages=(Stage(10.0, 4),)), None, False),
    ],
)
def test_a_share_whose_users_were_changed_ends_when_nothing_is_left(
    profile: Profile, level: int | None, ends: bool
) -> None:
    driver = ClosedDriver(CountingStage(), profile, 0, 1)
    driver.set_level(level)
    assert driver.ends_with_users == ends
