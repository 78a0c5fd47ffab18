"""A member that stops while its work continues still gives up the lead in time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar

import pytest

from squall.coordination import CoordinatorPlugin, LeadershipLost
from squall.coordination.election.term import STOP_TIMEOUT_S, Term
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, LeaseRecord, MemberRecord
from squall.coordination.shutdown import STOP_S
from tests.unit.coordination.lab.world import Lab, play

ENDLESS_S = 1000.0


async def busy(term: Term) -> None:
    await asyncio.sleep(ENDLESS_S)


async def left(lab: Lab, name: str) -> bool:
    """The others know that it went."""
    member, beat = await lab.store.get(keys.member(name), keys.heartbeat(name))
    assert member is not None
    known = Codec(None).read(MemberRecord, member.value, signed=False)
    return known is not None and known.status == "left" and beat is None


async def released(lab: Lab) -> bool:
    (record,) = await lab.store.get(keys.LEADER)
    assert record is not None
    lease = Codec(None).read(LeaseRecord, record.value, signed=False)
    assert lease is not None
    return lease.released


async def stopped(lab: Lab, name: str) -> float:
    begun = lab.world.now
    await lab.run_on(name, lab.members[name].stop())
    return lab.world.now - begun


@pytest.mark.parametrize("alone", [False, True])
def test_work_that_does_not_end_is_cancelled_and_the_lease_released(alone: bool) -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", work=busy, enable_coordinator=not alone)
        await lab.led()
        took_s = await stopped(lab, "a")
        assert STOP_TIMEOUT_S <= took_s < STOP_S
        assert await released(lab)
        assert alone or await left(lab, "a")

    play(script)


def test_a_successor_leads_only_after_the_scope_of_the_former_one_has_ended() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        leader = await lab.led()
        ended: list[tuple[float, str]] = []

        async def scope() -> None:
            try:
                async with lab.members[leader].lead():
                    await asyncio.sleep(ENDLESS_S)
            except LeadershipLost as lost:
                ended.append((lab.world.now, lost.reason))

        lab.run_on(leader, scope())
        await asyncio.sleep(1.0)
        stopping = asyncio.ensure_future(stopped(lab, leader))
        await lab.led(but=leader, within_s=STOP_S + 1.0)
        ((at, reason),) = ended
        assert reason == "stopped" and at <= lab.world.now
        assert await stopping < STOP_S

    play(script)


@pytest.mark.parametrize("raises", [False, True])
def test_a_plugin_that_does_not_stop_does_not_keep_its_member_from_leaving(raises: bool) -> None:
    class Stuck(CoordinatorPlugin):
        name = "stuck"

        def __init__(self, member: str) -> None:
            super().__init__()

        async def on_stop(self) -> None:
            if raises:
                raise RuntimeError("no")
            await asyncio.sleep(ENDLESS_S)

    async def script(lab: Lab) -> None:
        lab.start("a", plugin=Stuck)
        await lab.led()
        assert await stopped(lab, "a") <= STOP_S
        assert await released(lab) and await left(lab, "a")

    play(script)


@pytest.mark.parametrize("alone", [False, True])
def test_work_that_ignores_its_cancellation_delays_nothing_else(alone: bool) -> None:
    class Stubborn(CoordinatorPlugin):
        name = "stubborn"
        work_interval = 0.1
        calls: ClassVar[list[str]] = []

        def __init__(self, member: str) -> None:
            super().__init__()
            self.calls.clear()

        async def coordinator_work(self) -> None:
            for _ in range(20):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(5.0)

        async def on_stop_being_coordinator(self) -> None:
            self.calls.append("on_stop_being_coordinator")

        async def on_stop(self) -> None:
            self.calls.append("on_stop")

    async def script(lab: Lab) -> None:
        lab.start("a", plugin=Stubborn, enable_coordinator=not alone)
        await lab.led()
        await asyncio.sleep(0.5)
        assert await stopped(lab, "a") < 10.0
        assert Stubborn.calls == ["on_stop_being_coordinator", "on_stop"]
        assert not await released(lab), "the work still runs"
        assert alone or await left(lab, "a")

    play(script)


def test_a_callback_that_does_not_return_leaves_the_lease_to_run_out() -> None:
    async def stuck(term: Term) -> None:
        await asyncio.sleep(ENDLESS_S)

    async def script(lab: Lab) -> None:
        lab.start("a", on_stop=stuck)
        await lab.led()
        assert await stopped(lab, "a") <= STOP_S + 2.0
        assert not await released(lab), "it may still be at work"
        assert await left(lab, "a")

    play(script)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("place", ["work", "scope", "handler"])
def test_a_member_can_be_stopped_out_of_its_own_work(place: str, alone: bool) -> None:
    async def script(lab: Lab) -> None:
        ended: list[float] = []

        async def stop(*_: object) -> None:
            await lab.members["a"].stop()
            ended.append(lab.world.now)

        async def scope() -> None:
            async with lab.members["a"].lead():
                await stop()

        work = stop if place == "work" else None
        lab.start("a", work=work, enable_coordinator=not alone)
        await lab.ready("a") if place != "work" else None
        begun = lab.world.now
        if place == "scope":
            lab.run_on("a", scope())
        elif place == "handler":
            lab.members["a"].on_signal("end", stop)
            await lab.run_on("a", lab.members["a"].send_signal("a", "end", allow_unknown=True))
        await lab.world.eventually(lambda: ended, within_s=30.0, what="it has stopped")
        assert ended[0] - begun < STOP_TIMEOUT_S, "nobody waits for itself"
        assert await released(lab) and not lab.leaders
        await asyncio.sleep(20.0)
        assert not lab.leaders and len(ended) == 1

    play(script)


def test_a_member_can_be_stopped_out_of_its_last_callback() -> None:
    async def script(lab: Lab) -> None:
        ended: list[float] = []

        async def stop(term: Term) -> None:
            await lab.members["a"].stop()
            ended.append(lab.world.now)

        lab.start("a", on_stop=stop)
        await lab.led()
        lab.start("b")
        await lab.ready("b")
        begun = lab.world.now
        lab.run_on("a", lab.members["a"].hand_over("b", allow_early=True))
        await lab.world.eventually(lambda: ended, within_s=30.0, what="it has stopped")
        assert ended[0] - begun < STOP_S + 0.1
        assert await left(lab, "a")
        await lab.led(but="a")

    play(script)


def test_a_stop_that_was_cancelled_can_be_repeated() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", work=busy)
        await lab.led()

        async def hurry() -> None:
            async with asyncio.timeout(1.0):
                await lab.members["a"].stop()

        with pytest.raises(TimeoutError):
            await lab.run_on("a", hurry())
        assert await stopped(lab, "a") < STOP_S
        assert await released(lab) and await left(lab, "a")

    play(script)
