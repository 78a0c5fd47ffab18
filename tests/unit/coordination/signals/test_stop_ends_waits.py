"""No call keeps waiting for signals or events of a member that has stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from squall.coordination import events
from squall.coordination.coordinator import Coordinator
from squall.coordination.errors import NotRunningError
from tests.unit.coordination.lab.world import Lab, play


async def block(member: Coordinator) -> None:
    await member.block_until_signal(correlation_id="x", timeout_s=1800.0)


async def block_for_a_sender(member: Coordinator) -> None:
    await member.block_until_signal(from_="a", timeout_s=1800.0)


async def wait_all(member: Coordinator) -> None:
    await member.signals.wait_all(["x", "y"], 1800.0)


async def wait_any(member: Coordinator) -> None:
    await member.signals.wait_any(["x", "y"], 1800.0)


async def loop_over_signals(member: Coordinator) -> None:
    async for _ in member.signals.iterate():
        pass


async def loop_over_events(member: Coordinator) -> None:
    async for _ in member.events(events.CoordinatorDead):
        pass


WAITS = [block, block_for_a_sender, wait_all, wait_any, loop_over_signals, loop_over_events]


@pytest.mark.parametrize("wait", WAITS)
def test_what_waits_ends_when_its_member_stops(
    wait: Callable[[Coordinator], Awaitable[None]],
) -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        await lab.ready("a", "b")
        b = lab.members["b"]

        async def waits() -> None:
            await wait(b)

        waiting = lab.run_on("b", waits())
        await asyncio.sleep(1.0)
        assert not waiting.done()
        await lab.run_on("b", b.stop())
        with pytest.raises(NotRunningError, match="stopped"):
            await asyncio.wait_for(waiting, 2.0)

    play(script)


def test_a_wait_that_cannot_deliver_its_signal_ends_when_its_member_stops() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        await lab.ready("a", "b")
        a, b = lab.members["a"], lab.members["b"]

        waiting = lab.run_on("b", b.block_until_signal(correlation_id="x", timeout_s=1800.0))
        await asyncio.sleep(0.5)
        lab.faults["b"].reply_delay_s = 0.5
        await a.send_signal("b", "done", correlation_id="x")
        await asyncio.sleep(0.2)
        lab.faults["b"].down = True
        await asyncio.sleep(15.0)
        assert not waiting.done()
        await lab.run_on("b", b.stop())
        with pytest.raises(NotRunningError, match="stopped"):
            await asyncio.wait_for(waiting, 15.0)

    play(script)


def test_events_that_came_before_the_stop_are_emitted() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.ready("a")
        a = lab.members["a"]
        told: list[str] = []

        async def loop() -> None:
            async for event in a.events(events.WaitTimedOut):
                told.append(event.correlation_id)
                await asyncio.sleep(5.0)

        looping = lab.run_on("a", loop())
        await asyncio.sleep(0.1)
        for name in ("x", "y"):
            a.parts.bus.emit(events.WaitTimedOut(correlation_id=name, waited=1.0))
        await asyncio.sleep(0.1)
        await lab.run_on("a", a.stop())
        with pytest.raises(NotRunningError, match="stopped"):
            await looping
        assert told == ["x", "y"]

    play(script)
