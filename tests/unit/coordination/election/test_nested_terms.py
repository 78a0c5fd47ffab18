"""Nested scopes of one task, and errors of another fence during a valid term."""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination.election.term import Term
from squall.coordination.errors import LeadershipLost, StaleEpochError
from tests.unit.coordination.lab.groups import group
from tests.unit.coordination.lab.world import FIRST_EPOCH, Lab, play


async def other_than(lab: Lab, leader: str) -> str:
    return next(each for each in lab.members if each != leader)


@pytest.mark.parametrize("inside", [True, False])
def test_the_outer_of_two_scopes_of_one_task_ends_before_another_member_leads(
    inside: bool,
) -> None:
    """The term ends while the inner one is open, or when it has been left."""

    async def script(lab: Lab) -> None:
        _, leader = await group(lab, "a", "b")
        member, ended, seen = lab.members[leader], list[str](), set[str]()

        async def turns() -> None:
            while True:
                seen.update(lab.leaders)
                await asyncio.sleep(0.05)

        async def body() -> None:
            try:
                async with member.lead():
                    async with member.lead():
                        if inside:
                            await turns()
                    await turns()
            except LeadershipLost as error:
                ended.append(error.reason)
            await asyncio.sleep(0.0)
            ended.append("goes on")

        running = lab.run_on(leader, body())
        await asyncio.sleep(0.5)
        lab.faults[leader].down = True
        await lab.led(but=leader)
        await asyncio.sleep(0.1)
        assert running.done() and ended == ["lease_lost", "goes on"]
        assert running.cancelling() == 0
        assert seen == {leader}

    play(script)


def test_a_hand_over_waits_for_the_outer_scope_when_the_inner_one_was_left() -> None:
    async def script(lab: Lab) -> None:
        _, leader = await group(lab, "a", "b")
        member, other = lab.members[leader], await other_than(lab, leader)
        led_by = list[list[str]]()

        async def body() -> None:
            async with member.lead():
                async with member.lead():
                    pass
                await asyncio.sleep(3.0)
                led_by.append(lab.leaders)

        running = lab.run_on(leader, body())
        await asyncio.sleep(0.5)
        await lab.run_on(leader, member.hand_over(other, allow_early=True))
        await running
        await lab.led(but=leader)
        assert led_by == [[]], "no member led while the body ran"

    play(script)


@pytest.mark.parametrize("error", [StaleEpochError("other/lease", 1, 2), LeadershipLost(1, "x")])
def test_an_error_of_another_fence_is_a_failure_of_the_work_and_not_its_end(
    error: Exception,
) -> None:
    async def script(lab: Lab) -> None:
        calls = list[int]()

        async def work(term: Term) -> None:
            calls.append(term.epoch)
            if len(calls) == 3:
                raise error

        lab.start("a", work=work)
        await lab.ready("a")
        await asyncio.sleep(20.0)
        assert lab.members["a"].current_epoch == FIRST_EPOCH
        assert len(calls) > 50

    play(script)
