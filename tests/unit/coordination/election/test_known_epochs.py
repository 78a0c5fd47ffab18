"""The epoch that a member knows: the one in the store before it accepts any signal, and that of
every order that it verified.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.coordination import Coordinator, MemoryStore
from squall.coordination.events import CoordinatorElected
from squall.runtime.real.runtime import RealClock
from tests.unit.coordination.lab.world import Lab, play

FAST: dict[str, Any] = {"profile": "fast", "unsafe_timings": True}


@pytest.mark.asyncio
async def test_a_member_knows_the_epoch_before_it_takes_orders() -> None:
    store = MemoryStore(RealClock())
    async with Coordinator(store, **FAST) as first:
        await first.ensure_coordinator()
    later = Coordinator(store, eligible=False, **FAST)
    await later.start()
    try:
        assert later.current_epoch == 1
        assert not later.validate_epoch(0)
    finally:
        await later.stop()


def test_an_order_of_a_higher_epoch_deposes_the_sender_of_the_one_before() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        await lab.ready("a", "b")
        a, b = lab.members["a"], lab.members["b"]
        obeyed: list[int] = []
        b.on_signal("order", lambda delivery: obeyed.append(delivery.signal.epoch))
        for epoch in (7, 6, 0, 7, 8):
            await a.send_signal("b", "order", epoch=epoch)
            await asyncio.sleep(0.2)
        assert obeyed == [7, 0, 7, 8]
        assert b.signals.receiver.rejected == {"stale_epoch": 1}

    play(script)


def test_the_news_of_an_election_says_how_many_there_are() -> None:
    """Also of a group that is larger than its list of successors."""
    names = [f"m{number}" for number in range(9)]

    async def script(lab: Lab) -> None:
        lab.start(*names)
        await lab.ready(*names)
        first = await lab.led()
        await asyncio.sleep(5.0)
        told: list[int] = []
        watcher = lab.members[next(name for name in names if name != first)]
        watcher.on(CoordinatorElected, lambda event: told.append(event.active_workers))
        lab.world.kill(first)
        await lab.led(but=first)
        await asyncio.sleep(2.0)
        assert told == [len(names)]

    play(script)
