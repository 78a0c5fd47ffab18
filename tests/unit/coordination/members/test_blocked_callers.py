"""A caller that is blocked for longer than a silent member may live keeps beating. In virtual
time.
"""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination import events
from squall.coordination.errors import DeadCoordinatorError
from tests.unit.coordination.lab.groups import group
from tests.unit.coordination.lab.world import NORMAL, Lab, play


def test_a_blocked_caller_stays_healthy_and_hears_of_the_death_of_its_sender() -> None:
    """On the numbers that members have by themselves, far before half an hour is over."""

    async def script(lab: Lab) -> None:
        names = ("a", "b", "c")
        heard, leader = await group(lab, *names, profile=NORMAL, skip_cold_start=True)
        caller, sender = (name for name in names if name != leader)
        member = lab.members[caller]
        wait = member.block_until_signal(correlation_id="job", from_=sender, timeout_s=1800.0)
        waiting = lab.run_on(caller, wait)
        await asyncio.sleep(3.0 * NORMAL.heartbeat_ttl)
        assert not waiting.done()
        assert heard.of(events.HeartbeatWarning) == heard.of(events.CoordinatorDead) == []
        lab.world.kill(sender)
        with pytest.raises(DeadCoordinatorError):
            await asyncio.wait_for(waiting, 3.0 * NORMAL.dead_after)
        assert [each.member_id for each in heard.of(events.CoordinatorDead)] == [sender]

    play(script)
