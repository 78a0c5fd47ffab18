"""Ordinary asyncio code on the simulated loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest

from lab.sim.errors import Deadlock, Livelock, NodeFailed, OutsideWorldError, TimeLimit
from lab.sim.loop import SimLoop
from lab.sim.process import SimProcess
from tests.unit.lab.sim.worlds import on_loop


def test_a_day_of_sleep_takes_no_time() -> None:
    async def main() -> float:
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400.0)
        return asyncio.get_running_loop().time() - started

    began = time.perf_counter()
    assert on_loop(main, SimLoop()) == 86_400.0
    assert time.perf_counter() - began < 60.0


def test_timers_fire_by_time_then_by_order_of_creation() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        fired: list[str] = []
        for delay, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
            loop.call_later(delay, fired.append, name)
        loop.call_later(1.5, fired.append, "never").cancel()
        await asyncio.sleep(3.0)
        return fired

    assert on_loop(main) == ["a", "b", "c"]


def test_the_tools_of_asyncio_work() -> None:
    async def main() -> list[object]:
        results: list[object] = []
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        event = asyncio.Event()

        async def produce() -> None:
            for number in range(3):
                await queue.put(number)
            event.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            results.extend([await queue.get() for _ in range(3)])
        await asyncio.wait_for(event.wait(), 1.0)
        try:
            async with asyncio.timeout(5.0):
                await asyncio.sleep(6.0)
        except TimeoutError:
            results.append(asyncio.get_running_loop().time())
        slow = asyncio.ensure_future(asyncio.sleep(1.0, "shielded"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(slow), 0.5)
        results.append(await slow)
        results.append(await asyncio.gather(asyncio.sleep(0.2, "x"), asyncio.sleep(0.1, "y")))
        done, pending = await asyncio.wait(
            [asyncio.ensure_future(asyncio.sleep(n, n)) for n in (1, 2)], timeout=1.5
        )
        results.append((len(done), len(pending)))
        for task in pending:
            task.cancel()
        return results

    assert on_loop(main) == [0, 1, 2, 5.0, "shielded", ["x", "y"], (1, 1)]


def test_a_task_group_cancels_its_tasks_in_the_same_order_every_time() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def member(number: int) -> None:
            try:
                await asyncio.sleep(10.0)
            finally:
                order.append(number)

        async def group_that_fails() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(member(number))
                await asyncio.sleep(0.1)
                raise ValueError

        with pytest.raises(ExceptionGroup):
            await group_that_fails()
        return order

    garbage: list[object] = []
    first = on_loop(main)
    for size in range(5):
        # Other addresses in memory must make no difference.
        garbage.append([object() for _ in range(size * 1000)])
        assert on_loop(main) == first


def test_a_deadlock_names_who_waits() -> None:
    async def main() -> None:
        asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="the-other")
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="the-other"):
        on_loop(main)


def test_code_that_never_lets_time_pass_is_a_livelock() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        on_loop(main)


def test_a_scenario_that_does_not_end_hits_its_limit() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(1.0)

    with pytest.raises(TimeLimit, match="100 simulated s"):
        on_loop(main, SimLoop(limit_s=100.0))


@pytest.mark.parametrize(
    "reach",
    [
        lambda: asyncio.to_thread(time.monotonic),
        lambda: asyncio.open_connection("127.0.0.1", 1),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
    ],
)
def test_the_outside_world_is_refused(reach: object) -> None:
    async def main() -> None:
        await reach()  # type: ignore[operator]

    with pytest.raises(OutsideWorldError, match="use the node's Runtime"):
        on_loop(main)


def test_an_error_in_a_callback_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1.0, lambda: 1 // 0)
        await asyncio.sleep(5.0)

    with pytest.raises(ZeroDivisionError):
        on_loop(main)


def test_an_error_that_no_one_retrieves_fails_the_run() -> None:
    async def main() -> None:
        async def fails() -> None:
            raise ValueError("lost")

        task = asyncio.create_task(fails())
        await asyncio.sleep(1.0)
        del task
        await asyncio.sleep(1.0)

    with pytest.raises((ValueError, NodeFailed), match="lost"):
        on_loop(main)


def test_an_async_generator_that_is_left_is_closed() -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def main() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1.0)

    on_loop(main)
    assert closed == [True]


def test_a_shuffle_permutes_tasks_and_repeats_with_its_seed() -> None:
    def order(seed: int | None) -> list[int]:
        async def main() -> list[int]:
            seen: list[int] = []

            async def member(number: int) -> None:
                await asyncio.sleep(1.0)
                await asyncio.sleep(0.0)
                seen.append(number)

            await asyncio.gather(*(member(number) for number in range(10)))
            return seen

        shuffle = None if seed is None else random.Random(seed)
        return on_loop(main, SimLoop(shuffle=shuffle))

    assert order(None) == list(range(10))
    assert order(1) == order(1)
    assert sorted(order(1)) == list(range(10))
    assert len({tuple(order(seed)) for seed in range(20)}) > 10


def test_a_shuffle_keeps_the_callbacks_of_a_process_in_order() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        process = SimProcess("p")
        seen: list[int] = []
        for number in range(20):
            loop.post(1.0, process, seen.append, number)
        await asyncio.sleep(2.0)
        return seen

    for seed in range(10):
        assert on_loop(main, SimLoop(shuffle=random.Random(seed))) == list(range(20))


def test_a_paused_process_runs_late_and_a_dead_one_never() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        seen: list[tuple[str, float]] = []
        slow, dead = SimProcess("slow"), SimProcess("dead")

        async def tick(name: str) -> None:
            try:
                while True:
                    await asyncio.sleep(1.0)
                    seen.append((name, round(loop.now, 3)))
            finally:
                seen.append((f"{name} cleans up", loop.now))

        for process in (slow, dead):
            process.context.copy().run(loop.create_task, tick(process.name))
        await asyncio.sleep(1.5)
        loop.pause(slow)
        loop.kill(dead)
        await asyncio.sleep(5.0)
        loop.resume(slow)
        await asyncio.sleep(2.0)
        loop.kill(slow)
        return seen

    loop = SimLoop()
    assert on_loop(main, loop) == [("slow", 1.0), ("dead", 1.0), ("slow", 6.5), ("slow", 7.5)]
    for task in asyncio.all_tasks(loop):
        task.get_coro().close()  # type: ignore[union-attr]


def test_each_process_reads_its_own_clock() -> None:
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        fast = SimProcess("fast", clock_start=1000.0, rate=1.25)

        async def sleep() -> float:
            started = loop.time()
            await asyncio.sleep(10.0)
            assert loop.time() - started >= 10.0
            return loop.now

        before = fast.context.copy().run(loop.time)
        return before, await fast.context.copy().run(loop.create_task, sleep())

    before, ended = on_loop(main)
    assert before == 1000.0
    assert ended == pytest.approx(8.0)
