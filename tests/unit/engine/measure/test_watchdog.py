"""Which code is reported as having blocked the loop, and which is not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from squall.engine.measure.loop_health import LoopHeartbeat
from squall.engine.measure.watchdog import BlockLog, CodePlace, LateStretch, Sighting, Watchdog
from squall.engine.plan.author_file import load_file
from squall.stats.reports import Blocked

SLEEP = CodePlace("Shop", "home", "shop.py:4", "time.sleep")
WORK = CodePlace("Shop", "cart", "shop.py:9", "hash")
ONTIME = LateStretch()


class Scene:
    """Samples a loop by hand, 20 ms apart, in whole milliseconds after the last beat."""

    def __init__(self) -> None:
        self.log = BlockLog()
        self.log.settle(1.0, ONTIME)

    def sample(
        self, ms: int, owner: object, place: CodePlace | None, stretch: LateStretch = ONTIME
    ) -> None:
        def read_stack() -> Sighting:
            return owner, place

        self.log.sample(1.0 + ms / 1000, 1.0, stretch, read_stack)

    def blocked(self, beat_ms: float, stretch: LateStretch = ONTIME) -> dict[str, float]:
        self.log.settle(1.0 + beat_ms / 1000, stretch)
        return {block.location: block.seconds for block in self.log.take()}


def test_a_task_seen_twice_is_blamed_until_the_next_beat() -> None:
    scene, task = Scene(), object()
    for ms in (30, 50, 70, 90):
        scene.sample(ms, task, SLEEP)
    assert scene.blocked(100) == {"shop.py:4": pytest.approx(0.100)}


def test_a_period_starts_empty_after_it_was_taken() -> None:
    scene, task = Scene(), object()
    for ms in (30, 50, 70):
        scene.sample(ms, task, SLEEP)
    assert scene.blocked(80)
    assert scene.log.take() == []


def test_a_task_seen_once_is_not_blamed() -> None:
    scene = Scene()
    scene.sample(60, object(), SLEEP)
    assert scene.blocked(70) == {}


def test_a_busy_loop_that_changes_tasks_is_not_blamed() -> None:
    scene = Scene()
    for ms in range(30, 500, 20):
        scene.sample(ms, object(), SLEEP)
    assert scene.blocked(510) == {}


def test_a_loop_that_beats_again_in_time_was_not_blocked() -> None:
    scene, task = Scene(), object()
    scene.sample(26, task, SLEEP)
    scene.sample(45, task, SLEEP)
    assert scene.blocked(48) == {}


def test_nobody_looks_while_the_loop_beats() -> None:
    log = BlockLog()

    def read_stack() -> Sighting:
        raise AssertionError("the stack was sampled")

    for ms in range(0, 1000, 20):
        now = 1.0 + ms / 1000
        log.sample(now, now - 0.009, ONTIME, read_stack)
    assert log.take() == []


def test_two_tasks_in_one_stall_each_answer_for_their_time() -> None:
    scene, first, second = Scene(), object(), object()
    for ms in (30, 50, 70):
        scene.sample(ms, first, SLEEP)
    for ms in (90, 110):
        scene.sample(ms, second, WORK)
    assert scene.blocked(120) == {
        "shop.py:4": pytest.approx(0.070),
        "shop.py:9": pytest.approx(0.050),
    }


def test_code_that_is_not_the_authors_is_not_reported() -> None:
    scene, task = Scene(), object()
    for ms in (30, 50, 70, 90):
        scene.sample(ms, task, None)
    assert scene.blocked(100) == {}


def test_of_a_stretch_in_which_this_thread_was_late_only_processor_time_counts() -> None:
    scene, task = Scene(), object()
    scene.sample(30, task, SLEEP)
    scene.sample(50, task, SLEEP)
    scene.sample(850, task, SLEEP, LateStretch(0.800, cpu_s=0.010))
    scene.sample(870, task, SLEEP)
    assert scene.blocked(880) == {"shop.py:4": pytest.approx(0.050 + 0.010 + 0.030)}


def test_a_stop_that_ends_with_a_beat_counts_for_nobody() -> None:
    scene, task = Scene(), object()
    scene.sample(30, task, SLEEP)
    scene.sample(50, task, SLEEP)
    assert scene.blocked(5_000, LateStretch(4.950, cpu_s=0.0)) == {
        "shop.py:4": pytest.approx(0.050)
    }


def test_a_task_that_waited_for_a_processor_is_not_blamed_for_the_wait() -> None:
    scene, task = Scene(), object()
    for ms in range(30, 200, 20):
        scene.sample(ms, task, WORK, LateStretch(0.020, cpu_s=0.001, loop_waited_s=0.019))
    assert scene.blocked(210, LateStretch(0.020, cpu_s=0.001, loop_waited_s=0.019)) == {}


def test_one_call_that_kept_the_interpreter_to_itself_is_blamed_at_once() -> None:
    scene = Scene()
    scene.sample(400, object(), WORK, LateStretch(0.390, cpu_s=0.385, own_waited_s=0.001))
    assert scene.blocked(405) == {"shop.py:9": pytest.approx(0.405)}


def test_of_a_long_call_on_a_busy_machine_the_processor_time_is_blamed() -> None:
    scene = Scene()
    busy = LateStretch(0.390, cpu_s=0.250, loop_waited_s=0.130, own_waited_s=0.010)
    scene.sample(400, object(), WORK, busy)
    assert scene.blocked(400.001) == {"shop.py:9": pytest.approx(0.250, abs=0.001)}


@pytest.mark.parametrize(
    "stretch",
    [
        LateStretch(0.390, cpu_s=0.385, own_waited_s=0.200),
        LateStretch(0.390, cpu_s=0.385, own_waited_s=None),
        LateStretch(0.390, cpu_s=0.040, own_waited_s=0.001),
    ],
    ids=["this thread waited", "nobody knows", "the loop did not run"],
)
def test_a_late_look_at_a_task_proves_nothing_if(stretch: LateStretch) -> None:
    scene = Scene()
    scene.sample(400, object(), WORK, stretch)
    assert scene.blocked(405) == {}


# From here on with the real thread, a real loop and a file of an author.

SOURCE = """
import asyncio
import time


class Flow:
    async def home(self):
        await asyncio.sleep(0)
        for _ in range(2):
            time.sleep(0.2)
            await asyncio.sleep(0)

    async def cart(self):
        slow_thing(0.2)

    async def crunch(self, rounds):
        total = 0
        for number in range(rounds):
            total += number
        return total

    async def many(self, rounds):
        async def one():
            for _ in range(rounds):
                spin()
                await asyncio.sleep(0)
        # So many that the loop needs long for each of them to have its turn.
        await asyncio.gather(*(one() for _ in range(400)))


def slow_thing(seconds):
    return [time.sleep(
        seconds) for _ in range(1)]


def spin():
    return sum(range(20_000))
"""


class Base:
    """What the loaded class is made a subclass of."""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ModuleType]:
    path, modules = list(sys.path), set(sys.modules)
    file = tmp_path / "blocking_shop.py"
    file.write_text(SOURCE)
    module = load_file(file, "blocking_shop.py")
    module.Shop = type("Shop", (module.Flow, Base), {})  # type: ignore[attr-defined]
    yield module
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


async def watched(work: Callable[[], Coroutine[Any, Any, Any]]) -> list[Blocked]:
    loop = asyncio.get_running_loop()
    heart = LoopHeartbeat(loop)
    watchdog = Watchdog(loop, heart, Base)
    heart.start()
    watchdog.start()
    beaten = asyncio.Event()
    try:
        # A first beat before and another after the work frame the block.
        cancel = heart.every(0.01, beaten.set)
        await beaten.wait()
        await asyncio.create_task(work())
        beaten.clear()
        await beaten.wait()
        cancel()
        return watchdog.take()
    finally:
        watchdog.stop()
        heart.stop()


def test_the_time_of_an_owner_begins_when_it_is_first_seen() -> None:
    log, beat = BlockLog(), 1.0
    place = CodePlace("Shop", "home", "shop.py:10", "time.sleep")
    one, other = object(), object()
    for at, owner in ((1.1, one), (1.2, one), (1.3, other), (1.4, other)):
        log.sample(at, beat, LateStretch(), lambda owner=owner: (owner, place))
        assert log.owner_since == (1.1 if owner is one else 1.3)


@pytest.mark.asyncio
async def test_a_block_that_may_never_end_is_told_while_it_lasts(
    shop: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squall.engine.measure.watchdog.HELD_AFTER_S", 0.1)
    loop = asyncio.get_running_loop()
    heart = LoopHeartbeat(loop)
    told: list[tuple[float, float, str]] = []
    watchdog = Watchdog(loop, heart, Base, on_held=lambda *held: told.append(held))
    heart.start()
    watchdog.start()
    try:
        for _ in range(20):
            await asyncio.sleep(0.05)
            await asyncio.create_task(shop.Shop().home())
            if told:
                break
    finally:
        watchdog.stop()
        heart.stop()
    beat, since, text = told[0]
    assert text == "Shop.home holds its core process: time.sleep at blocking_shop.py:10"
    assert 0.0 < beat <= since <= heart.last_beat


async def first_seen(work: Callable[[], Coroutine[Any, Any, Any]]) -> Blocked:
    """While the machine gives the process no processor, no code is blamed, so it may take a few
    tries."""
    for _ in range(20):
        if blocks := await watched(work):
            return blocks[0]
    raise AssertionError("nothing was reported")


async def ever_quiet(work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
    """A piece of work may really take too long on a machine that is busy with others."""
    for _ in range(20):
        if not await watched(work):
            return True
    return False


@pytest.mark.asyncio
async def test_a_sleeping_step_is_named_with_file_line_and_call(shop: ModuleType) -> None:
    worst = await first_seen(shop.Shop().home)
    assert (worst.workflow, worst.step) == ("Shop", "home")
    assert (worst.location, worst.call) == ("blocking_shop.py:10", "time.sleep")
    assert worst.seconds >= 0.05


@pytest.mark.asyncio
async def test_a_helper_is_named_by_its_line_and_by_the_step_that_called_it(
    shop: ModuleType,
) -> None:
    worst = await first_seen(shop.Shop().cart)
    assert (worst.workflow, worst.step) == ("Shop", "cart")
    assert worst.location.startswith("blocking_shop.py:3")
    assert worst.call == "time.sleep"


@pytest.mark.asyncio
async def test_a_computing_step_is_named(shop: ModuleType) -> None:
    worst = await first_seen(lambda: shop.Shop().crunch(4_000_000))
    assert (worst.workflow, worst.step) == ("Shop", "crunch")


@pytest.mark.asyncio
async def test_an_idle_loop_gives_nothing(shop: ModuleType) -> None:
    async def idle() -> None:
        await asyncio.sleep(0.2)

    assert await watched(idle) == []


@pytest.mark.asyncio
async def test_a_busy_loop_that_yields_gives_nothing(shop: ModuleType) -> None:
    assert await ever_quiet(lambda: shop.Shop().many(4))


@pytest.mark.asyncio
async def test_a_block_outside_of_the_authors_code_gives_nothing(shop: ModuleType) -> None:
    import time

    async def ours() -> None:
        time.sleep(0.15)

    assert await watched(ours) == []
