"""A store that answers with an error, and unexpected exceptions: members continue. In virtual
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from squall.coordination import events
from squall.coordination.election.leadership import Leadership
from squall.coordination.errors import StoreError, UnsafeStoreError
from squall.coordination.records import keys
from squall.coordination.stores.interface import Put, Write
from tests.unit.coordination.lab.groups import Heard, group
from tests.unit.coordination.lab.world import FAST, FIRST_EPOCH, Lab, play

REFUSAL = StoreError("redis: NOPERM this user has no permissions")


class Refuses:
    """All calls of one member's connection are answered with an error, while it is on."""

    def __init__(self, lab: Lab, name: str, error: Exception = REFUSAL) -> None:
        self.on = False
        self.error = error
        self.count = 0
        store: Any = lab.members[name].parts.store
        self._call = store._call
        store._call = self.call

    async def call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.on:
            self.count += 1
            raise self.error
        return await self._call(call)


async def is_well(lab: Lab, heard: Heard, name: str, boot: int) -> None:
    """It beats and takes part in elections, as what it was before."""
    member = lab.members[name]
    assert not member.isolated
    assert member.boot == boot
    assert heard.of(events.CoordinatorDead) == []
    for other in [each for each in lab.members if each != name]:
        await lab.world.stop(other)
    await lab.world.eventually(lambda: lab.leaders == [name], within_s=10.0, what="it leads")


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(
    "error", [REFUSAL, UnsafeStoreError("no conditions"), OSError("none of ours")]
)
def test_a_store_that_refuses_for_a_while_ends_neither_beats_nor_elections(
    leads: bool, error: Exception
) -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b")
        name = leader if leads else next(each for each in lab.members if each != leader)
        boot = lab.members[name].boot
        refuses = Refuses(lab, name, error)
        refuses.on = True
        await asyncio.sleep(1.0)
        refuses.on = False
        assert refuses.count > 3, "it has to happen"
        await asyncio.sleep(10.0)
        assert len(lab.leaders) == 1
        await is_well(lab, heard, name, boot)

    play(script)


def test_a_leader_whom_the_store_refuses_ends_in_time_and_another_one_leads() -> None:
    async def script(lab: Lab) -> None:
        _, leader = await group(lab, "a", "b")
        Refuses(lab, leader).on = True
        while lab.members[leader].is_coordinator:
            assert lab.leaders == [leader]
            await asyncio.sleep(0.01)
        await lab.led(but=leader, within_s=FAST.failover)
        await asyncio.sleep(FAST.heartbeat_ttl)
        assert lab.members[leader].isolated

    play(script)


def test_a_member_registers_again_although_the_store_refuses_at_first() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b")
        name = next(each for each in lab.members if each != leader)
        boot = lab.members[name].boot
        refuses = Refuses(lab, name)
        lab.faults[name].down = True
        await lab.world.eventually(
            lambda: heard.of(events.CoordinatorDead, name), within_s=10.0, what="dead"
        )
        refused_before = refuses.count
        real = refuses._call

        async def once_more(call: Callable[[], Awaitable[Any]]) -> Any:
            answer = await real(call)
            if lab.members[name].isolated and refuses.count < 5:
                refuses.count += 1
                raise REFUSAL
            return answer

        refuses._call = once_more
        lab.faults[name].down = False
        await lab.world.eventually(
            lambda: lab.members[name].boot > boot and not lab.members[name].isolated,
            within_s=20.0,
            what="alive again",
        )
        assert refuses.count > refused_before, "it has to happen"

    play(script)


def test_an_election_that_broke_ends_its_incarnation_and_another_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(lab: Lab) -> None:
        _, leader = await group(lab, "a", "b")
        member, boot = lab.members[leader], lab.members[leader].boot
        broken = member.leadership
        perform = Leadership._perform  # pyright: ignore[reportPrivateUsage]

        def breaks(self: Leadership, effects: Any) -> None:
            if self is broken:
                raise RuntimeError("a mistake of ours")
            perform(self, effects)

        monkeypatch.setattr(Leadership, "_perform", breaks)
        term = member.term
        assert term is not None

        async def lead() -> int:
            async with member.lead() as later:
                return later.epoch

        await lab.world.eventually(lambda: term.ended.is_set(), within_s=2.0, what="it ends")
        assert not member.is_coordinator
        waiting = lab.run_on(leader, lead())
        (other,) = [each for each in lab.members if each != leader]
        await lab.world.eventually(
            lambda: member.boot > boot and not member.isolated,
            within_s=10.0,
            what="the next incarnation",
        )
        await lab.world.stop(other)
        assert await waiting > term.epoch, "a member that waits for the lead keeps waiting"

    play(script)


def test_a_stop_ends_though_the_store_refuses_the_leave() -> None:
    async def script(lab: Lab) -> None:
        await group(lab, "a")
        member, store = lab.members["a"], lab.store
        write = store.write

        async def refuses(*writes: Write, **options: Any) -> tuple[str, ...]:
            if any(isinstance(each, Put) and each.key == keys.member("a") for each in writes):
                raise REFUSAL
            return await write(*writes, **options)

        store.write = refuses  # type: ignore[method-assign]
        tasks = member.parts.tasks
        await lab.run_on("a", member.stop())
        assert tasks.running == ()

    play(script)


def test_a_coordinator_that_may_not_look_at_the_size_of_the_store_keeps_the_lead() -> None:
    async def script(lab: Lab) -> None:
        _, leader = await group(lab, "a", "b")
        refused = 0

        async def count() -> dict[str, int]:
            nonlocal refused
            refused += 1
            raise REFUSAL

        lab.store.count = count  # type: ignore[method-assign]
        await asyncio.sleep(600.0)
        assert refused > 5, "it has to happen"
        assert lab.leaders == [leader] and lab.members[leader].current_epoch == FIRST_EPOCH

    play(script)
