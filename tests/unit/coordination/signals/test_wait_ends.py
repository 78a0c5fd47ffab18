"""Other ends of a wait than its signal: all waits at once, two waits for one signal, and no gap
between an acknowledged signal and its consumer.
"""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination import events
from squall.coordination.errors import BlockingTimeoutError, SignalDeliveryError, StateLostError
from squall.coordination.stores.interface import Fence, Put, Write
from tests.unit.coordination.lab.world import Lab, play


async def two(lab: Lab) -> None:
    lab.start("a", "b")
    await lab.ready("a", "b")


def lose_everything(lab: Lab) -> None:
    lab.store.__init__(lab.store._clock)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("kind", ["wait_all", "wait_any"])
def test_waiting_for_several_ends_when_the_store_loses_its_data(kind: str) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        wait = getattr(lab.members["a"].signals, kind)
        waiting = lab.run_on("a", wait(["x", "y"], timeout_s=300.0))
        await asyncio.sleep(0.5)
        lose_everything(lab)
        with pytest.raises(StateLostError):
            await asyncio.wait_for(waiting, 30.0)

    play(script)


def test_an_id_that_is_named_twice_is_waited_for_once() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        signals = lab.members["a"].signals
        waiting = lab.run_on("a", signals.wait_all(["x", "x"], timeout_s=60.0))
        await lab.members["b"].send_signal("a", "done", correlation_id="x")
        assert list(await asyncio.wait_for(waiting, 5.0)) == ["x"]

    play(script)


def test_two_waits_for_one_thing_are_both_written_down() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]

        def wait(kind: str) -> asyncio.Task[object]:
            return lab.run_on(
                "a", a.block_until_signal(correlation_id="job", types=[kind], timeout_s=60.0)
            )

        progress, done = wait("progress"), wait("completion")
        await asyncio.sleep(0.5)
        assert [each.signal_types for each in await a.signals.open_waits()] == [
            ("progress",),
            ("completion",),
        ]
        await b.send_signal("a", "progress", correlation_id="job")
        await asyncio.wait_for(progress, 5.0)
        await asyncio.sleep(0.5)
        assert [each.signal_types for each in await a.signals.open_waits()] == [("completion",)]
        assert a.signals.blocked == 1
        done.cancel()

    play(script)


def test_what_a_wait_teaches_does_not_hold_its_signal_back() -> None:
    """The store becomes slow in the moment in which the signal is acknowledged."""

    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        waiting = lab.run_on("a", a.block_until_signal(task_type="report", timeout_s=60.0))
        await asyncio.sleep(0.5)
        write = lab.store.write

        async def write_and_leave(*writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
            done = await write(*writes, fence=fence)
            if any(isinstance(each, Put) and each.key.startswith("ack/") for each in writes):
                lab.faults["a"].delay_s = 1000.0
            return done

        lab.store.write = write_and_leave
        signal = await b.send_signal("a", "done")
        assert (await asyncio.wait_for(waiting, 0.5)).signal_id == signal.signal_id

    play(script)


def test_an_unacknowledged_signal_is_counted() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a = lab.members["a"]
        with pytest.raises(SignalDeliveryError):
            await lab.run_on("a", a.send_signal_with_retry("b", "wake"))
        metrics = a.parts.metrics
        sent = metrics.families.signals_sent
        assert metrics.counter(sent, "unacknowledged").value == 1
        assert metrics.counter(sent, "sent").value == 3

    play(script)


@pytest.mark.parametrize("kind", ["wait_all", "wait_any"])
def test_waiting_for_several_that_runs_out_of_time_is_reported_and_counted_once(kind: str) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a = lab.members["a"]
        told: list[events.WaitTimedOut] = []
        a.on(events.WaitTimedOut, told.append)
        wait = getattr(a.signals, kind)
        for number in (1, 2):
            with pytest.raises(BlockingTimeoutError, match="x, y") as failed:
                await lab.run_on("a", wait(["x", "y"], timeout_s=3.0))
            assert failed.value.waited == pytest.approx(3.0, abs=0.1)
            await asyncio.sleep(0.5)
            metrics = a.parts.metrics
            assert metrics.counter(metrics.families.timeouts).value == number
            lasted = metrics.histogram(metrics.families.blocking_s, "none", "timeout")
            assert sum(lasted.counts) == number
        assert [(each.correlation_id, round(each.waited)) for each in told] == [("x, y", 3)] * 2
        assert await a.signals.open_waits() == ()

    play(script)


def test_what_came_before_the_limit_of_several_is_handed_on() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a = lab.members["a"]
        waiting = lab.run_on("a", a.signals.wait_all(["x", "y"], timeout_s=3.0))
        await lab.members["b"].send_signal("a", "done", correlation_id="x", payload=7)
        with pytest.raises(BlockingTimeoutError) as failed:
            await waiting
        assert [each.payload for each in failed.value.partial.values()] == [7]
        metrics = a.parts.metrics
        assert metrics.counter(metrics.families.timeouts).value == 1

    play(script)
