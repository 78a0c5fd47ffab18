"""The epoch that a member knows: the one in the store before it accepts any signal, and that of
every order whose epoch the store confirmed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from squall.coordination import Coordinator, MemoryStore
from squall.coordination.events import CoordinatorElected
from squall.coordination.records import keys
from squall.coordination.stores.interface import ANY, Fence, Put
from squall.runtime.real.runtime import RealClock
from tests.unit.coordination.lab.world import Lab, play

FAST: dict[str, Any] = {"profile": "fast", "unsafe_timings": True}


@pytest.mark.asyncio
async def test_a_member_knows_the_epoch_before_it_takes_orders() -> None:
    store = MemoryStore(RealClock())
    async with Coordinator(store, **FAST) as first:
        await first.ensure_coordinator()
        led = first.current_epoch
    later = Coordinator(store, eligible=False, **FAST)
    await later.start()
    try:
        assert later.current_epoch == led > 0
        assert not later.validate_epoch(0)
    finally:
        await later.stop()


def test_one_order_with_an_absurd_epoch_does_not_make_the_true_ones_stale() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        await lab.ready("a", "b")
        leader = await lab.led()
        a, b = lab.members["a"], lab.members["b"]
        epoch = lab.members[leader].current_epoch
        obeyed: list[int] = []
        b.on_signal("order", lambda delivery: obeyed.append(delivery.signal.epoch))
        for told in (epoch, 10**12, epoch, 0):
            await a.send_signal("b", "order", epoch=told)
            await asyncio.sleep(0.2)
        assert obeyed == [epoch, epoch, 0]
        assert b.signals.receiver.rejected == {"unknown_epoch": 1}
        assert b.current_epoch == epoch

    play(script)


def test_an_order_of_an_epoch_that_only_the_store_knows_deposes_the_sender_before() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        await lab.ready("a", "b")
        await lab.led()
        a, b = lab.members["a"], lab.members["b"]
        (lease,) = await lab.store.get(keys.LEADER)
        assert lease is not None
        new = lease.epoch + 6
        put = Put(keys.LEADER, lease.value, expect=ANY, ttl_s=None)
        await lab.store.write(put, fence=Fence(keys.LEADER, new))
        # This member has not seen the new lease yet.
        receiver: Any = b.signals.receiver
        receiver._context = replace(receiver._context, known_epoch=lambda: lease.epoch)
        obeyed: list[int] = []
        b.on_signal("order", lambda delivery: obeyed.append(delivery.signal.epoch))
        for told in (new, new - 1, 0, new, new + 1):
            await a.send_signal("b", "order", epoch=told)
        await asyncio.sleep(0.2)
        assert obeyed == [new, 0, new]
        assert receiver.rejected == {"stale_epoch": 1, "unknown_epoch": 1}

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
