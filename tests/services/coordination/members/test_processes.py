"""The acceptance of election, members and signals, on each of the four stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from squall.coordination import Coordinator, events
from squall.coordination.errors import BlockingTimeoutError, StaleEpochError
from squall.coordination.records import keys
from squall.coordination.stores.interface import ANY, Put
from tests.lab.machine import factor
from tests.services.coordination.lab.places import Place
from tests.services.coordination.programs.member import scaled

SECRET = "8c1f5e3a97d204b6" * 4


class Group:
    """Members of this process, each with a connection of its own."""

    def __init__(self, place: Place, stack: AsyncExitStack) -> None:
        self.place = place
        # All members share this process: none may lose its lease if it stands still for a moment.
        self.timing = scaled(max(3.0 if place.kind == "s3" else 1.5, factor()))
        self._stack = stack
        self.members: dict[str, Coordinator] = {}

    async def start(self, *names: str, **options: Any) -> None:
        async def one(name: str) -> Coordinator:
            member = Coordinator(
                await self.place.open(),
                member_id=name,
                profile=self.timing,
                unsafe_timings=True,
                secret=SECRET,
                **options,
            )
            await self._stack.enter_async_context(member)
            return member

        made = await asyncio.gather(*(one(name) for name in names))
        self.members |= dict(zip(names, made, strict=True))

    async def until(self, condition: Callable[[], object], within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "too late"
            await asyncio.sleep(0.02)

    async def led(self, but: str = "") -> str:
        await self.until(lambda: [name for name in self.leaders if name != but])
        return next(name for name in self.leaders if name != but)

    @property
    def leaders(self) -> list[str]:
        return [name for name, member in self.members.items() if member.is_coordinator]


@pytest.mark.asyncio
async def test_of_members_that_start_together_one_leads_and_all_agree(place: Place) -> None:
    async with AsyncExitStack() as stack:
        group = Group(place, stack)
        names = [f"m{number:02d}" for number in range(4 if place.kind == "s3" else 12)]
        await group.start(*names)
        leader = await group.led()
        await group.until(
            lambda: {member.current_coordinator for member in group.members.values()} == {leader}
        )
        assert group.leaders == [leader]
        term = group.members[leader].term
        assert term is not None
        assert {member.current_epoch for member in group.members.values()} == {term.epoch}


@pytest.mark.asyncio
async def test_a_clean_stop_hands_over_and_an_old_term_is_fenced(place: Place) -> None:
    async with AsyncExitStack() as stack:
        group = Group(place, stack)
        await group.start("a", "b")
        leader = await group.led()
        term = group.members[leader].term
        assert term is not None
        store = await place.open()
        await store.write(Put("x/y", b"1", expect=ANY, ttl_s=60.0), fence=term.fence)
        await group.members[leader].stop()
        follower = await group.led(but=leader)
        assert group.members[follower].current_epoch == term.epoch + 1
        with pytest.raises(StaleEpochError):
            await store.write(Put("x/y", b"2", expect=ANY, ttl_s=60.0), fence=term.fence)
        assert await group.members[follower].active_workers() == (follower,)


@pytest.mark.asyncio
async def test_signals_come_in_order_are_acked_and_end_waits(place: Place) -> None:
    async with AsyncExitStack() as stack:
        group = Group(place, stack)
        await group.start("a", "b")
        a, b = group.members["a"], group.members["b"]
        for number in range(3):
            await a.send_signal("b", "wake", payload=number)
        await a.send_signal("b", "completion", correlation_id="job", payload="done")
        early = await b.block_until_signal(correlation_id="job", timeout_s=30.0)
        assert early.payload == "done"
        got: list[int] = []
        b.on_signal("wake", lambda delivery: got.append(delivery.signal.payload))
        await group.until(lambda: len(got) == 3)
        assert got == [0, 1, 2]
        await a.send_signal_with_retry("b", "wake", payload=3)
        with pytest.raises(BlockingTimeoutError):
            await b.block_until_signal(correlation_id="other", from_="a", timeout_s=0.5)
        store = await place.open()
        await group.until(lambda: len(got) == 4)
        async with asyncio.timeout(30.0):
            while await store.read(keys.inbox("b")):
                await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_deaths_are_reported_once_and_cleanup_spares_similar_ids(place: Place) -> None:
    async with AsyncExitStack() as stack:
        group = Group(place, stack)
        await group.start("coord-10", "coord-1.x")
        told: list[events.CoordinatorDead] = []
        cleaned: list[events.CleanupComplete] = []
        for member in group.members.values():
            member.on(events.CoordinatorDead, told.append)
            member.on(events.CleanupComplete, cleaned.append)
        await group.start("coord-1", eligible=False)
        victim = group.members.pop("coord-1")
        await group.members["coord-10"].send_signal("coord-1", "stays")
        # It stops beating without a word, as a killed process does.
        victim._running.tasks.cancel_group("")
        await group.until(lambda: cleaned, 2 * group.timing.dead_after + 30.0)
        assert [event.member_id for event in told] == ["coord-1"]
        store = await place.open()
        assert await store.get(keys.heartbeat("coord-1")) == (None,)
        assert len(await store.read(keys.inbox("coord-1"))) == 1
        for name in group.members:
            assert all(await store.get(keys.heartbeat(name), keys.member(name)))
