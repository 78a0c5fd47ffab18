"""Single-instance mode does all that a coordinator does, and yields to a real one."""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination import ANY, Coordinator, LeadershipLost, Put, Queue, StaleEpochError
from squall.coordination.events import CoordinatorDemoted
from squall.coordination.records.keys import LEADER
from squall.coordination.records.schemas import Codec, LeaseRecord
from tests.unit.coordination.lab.world import FAST, FIRST_EPOCH, Lab, play

EFFECT = Put("report/today", b"1", expect=ANY, ttl_s=60.0)


async def alone(lab: Lab, name: str = "a") -> Coordinator:
    lab.start(name, enable_coordinator=False)
    await lab.led(within_s=0.5)
    return lab.members[name]


def test_what_it_writes_under_its_term_is_taken() -> None:
    async def script(lab: Lab) -> None:
        member = await alone(lab)

        async def work() -> None:
            async with member.lead() as term:
                await term.write(EFFECT)

        await lab.run_on("a", work())
        (found,) = await lab.store.get("report/today")
        assert found is not None and found.epoch == FIRST_EPOCH
        assert member.parts.metrics.gauge(member.parts.metrics.families.is_leader).value == 1.0
        assert member.parts.metrics.gauge(member.parts.metrics.families.leader_seen).value == 1.0

    play(script)


def test_a_queue_hands_out_its_tickets() -> None:
    async def script(lab: Lab) -> None:
        queue = Queue("mail")
        lab.member("a", plugin=lambda name: queue, enable_coordinator=False)
        lab.world.start("a")
        await lab.led(within_s=0.5)

        async def work() -> str:
            ticket_id = await queue.enqueue({"to": "ada"})
            async for ticket in queue.claim():
                async with ticket:
                    ticket.result = "sent"
                break
            return (await queue.result(ticket_id, timeout_s=5.0)).state

        assert await asyncio.wait_for(lab.run_on("a", work()), 10.0) == "done"

    play(script)


def test_one_that_takes_the_lead_beside_it_ends_its_term() -> None:
    async def script(lab: Lab) -> None:
        member = await alone(lab)
        demoted: list[str] = []
        member.on(CoordinatorDemoted, lambda event: demoted.append(event.reason))
        lab.start("b")
        await lab.world.eventually(
            lambda: "b" in lab.members and lab.members["b"].is_coordinator,
            within_s=3.0 * FAST.lease_ttl,
            what="the other one leads",
        )
        assert lab.members["b"].current_epoch == FIRST_EPOCH + 1
        term = member.term
        assert term is not None
        with pytest.raises(StaleEpochError):
            await lab.run_on("a", term.write(EFFECT))
        assert not member.is_coordinator and member.term is None
        assert member.current_coordinator is None

        async def lead() -> None:
            async with member.lead():
                pass

        with pytest.raises(LeadershipLost):
            await lab.run_on("a", lead())
        await asyncio.sleep(0.1)
        assert demoted == ["fenced"]
        assert member.get_metrics().fencing_rejections == 1
        assert member.get_metrics().demotions == {"fenced": 1}

    play(script)


def test_at_its_end_the_next_one_need_not_wait_for_the_lease() -> None:
    async def script(lab: Lab) -> None:
        member = await alone(lab)
        await lab.run_on("a", member.stop())
        (found,) = await lab.store.get(LEADER)
        assert found is not None
        lease = Codec(None).read(LeaseRecord, found.value)
        assert lease is not None and lease.released and lease.epoch == FIRST_EPOCH
        lab.start("b")
        await lab.world.eventually(
            lambda: "b" in lab.members and lab.members["b"].is_coordinator,
            within_s=FAST.lease_ttl / 2.0,
            what="the next one leads",
        )
        assert lab.members["b"].current_epoch == FIRST_EPOCH + 1

    play(script)
