"""The body of `async with ticket`, and the workers of `consume`: a cancelled body ends, the
others continue, and a body ends before another worker gets its ticket. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from squall.coordination.errors import MemberFencedError, StaleClaimError
from squall.coordination.queue.claims import ClaimedTicket
from squall.coordination.records.keys import member as member_key
from squall.coordination.records.schemas import MemberRecord
from squall.coordination.stores.interface import ANY, Extend, Put
from tests.unit.coordination.lab.queue_stores import KINDS
from tests.unit.coordination.lab.queues import TIMEOUT_S, lose_reply, next_ticket, started
from tests.unit.coordination.lab.world import Lab, play

LONG_S = 1000.0


async def cleanup_raises(payload: object) -> None:
    try:
        await asyncio.sleep(LONG_S)
    finally:
        raise OSError("the connection is closed")


async def swallows(payload: object) -> str:
    try:
        await asyncio.sleep(LONG_S)
    except asyncio.CancelledError:
        return "stopped"
    return "done"


ODD = pytest.mark.parametrize("odd", [cleanup_raises, swallows])
Handler = Callable[[object], Awaitable[object]]


@KINDS
def test_workers_that_are_cancelled_in_an_outage_end(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]
        ran: list[int] = []

        async def handle(payload: int) -> None:
            ran.append(payload)
            await asyncio.sleep(LONG_S)

        async def work() -> None:
            for number in range(3):
                await queue.enqueue(number)
            workers = asyncio.ensure_future(queue.consume(handle))
            await asyncio.sleep(0.5)
            lab.faults["a"].down = True
            workers.cancel()
            await asyncio.wait([workers], timeout=TIMEOUT_S)
            lab.faults["a"].down = False
            assert workers.cancelled()
            await asyncio.sleep(TIMEOUT_S)
            assert ran == [0]

        await lab.run_on("a", work())

    play(script)


@KINDS
def test_a_block_that_is_cancelled_stays_so_when_its_claim_is_lost_already(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b", kind=kind)
        await lab.run_on("a", queues["a"].enqueue(1))
        ticket = await lab.run_on("a", next_ticket(queues["a"]))

        async def work() -> None:
            async with ticket:
                await asyncio.sleep(LONG_S)

        block = lab.run_on("a", work())
        await asyncio.sleep(0.1)
        taken = lab.run_on("b", next_ticket(queues["b"]))
        await asyncio.sleep(0.1)
        # The other one has it before the repeat.
        lose_reply(lab, Extend)
        block.cancel()
        await asyncio.wait([block], timeout=TIMEOUT_S)
        assert block.cancelled()
        await lab.run_on("b", (await taken).complete())

    play(script)


@ODD
def test_workers_go_on_when_one_of_them_loses_its_claim(odd: Handler) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a"))["a"]
        ran: list[object] = []

        async def handle(payload: object) -> object:
            ran.append(payload)
            return await odd(payload) if payload == "slow" else None

        async def work() -> None:
            workers = asyncio.ensure_future(queue.consume(handle))
            ticket_id = await queue.enqueue("slow")
            await asyncio.sleep(1.0)
            await queue.cancel(ticket_id)
            await asyncio.sleep(2.0 * queue.visibility_timeout)
            await queue.result(await queue.enqueue("next"), timeout_s=TIMEOUT_S)
            assert ran == ["slow", "next"] and not workers.done()
            workers.cancel()
            await asyncio.wait([workers])

        await lab.run_on("a", work())

    play(script)


@ODD
def test_a_body_that_lost_its_claim_ends_stale_whatever_it_makes_of_that(odd: Handler) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a"))["a"]

        async def work() -> None:
            ticket_id = await queue.enqueue(1)
            ticket = await next_ticket(queue)
            cancelling = lab.run_on("a", later(1.0, queue.cancel, ticket_id))
            with pytest.raises(StaleClaimError):
                async with ticket:
                    await odd(1)
            task = asyncio.current_task()
            assert task is not None and not task.cancelling()
            await asyncio.sleep(1.0)
            await cancelling

        await lab.run_on("a", work())

    play(script)


async def later(seconds: float, call: Callable[[str], Awaitable[object]], argument: str) -> None:
    await asyncio.sleep(seconds)
    await call(argument)


def test_workers_whose_handler_swallows_a_cancellation_end_all_the_same() -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a"))["a"]

        async def work() -> None:
            first, second = [await queue.enqueue(number) for number in range(2)]
            workers = asyncio.ensure_future(queue.consume(swallows))
            await asyncio.sleep(1.0)
            workers.cancel()
            await asyncio.wait([workers], timeout=TIMEOUT_S)
            assert workers.cancelled()
            final = await queue.final(first)
            assert final is not None and final.result == "stopped"
            assert await queue.final(second) is None

        await lab.run_on("a", work())

    play(script)


def test_who_is_told_by_an_exception_that_its_member_is_dead_is_not_cancelled_too() -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a"))["a"]

        async def work() -> None:
            await queue.enqueue(1)
            ticket = await next_ticket(queue)
            member = lab.members["a"]
            record = MemberRecord(member_id="a", boot=member.boot, status="dead")
            dead = member.parts.codec.encode(record)
            await lab.store.write(Put(member_key("a"), dead, expect=ANY, ttl_s=600.0))
            with pytest.raises(MemberFencedError):
                async with ticket:
                    await ticket.complete("x")
            await asyncio.sleep(1.0)

        await lab.run_on("a", work())

    play(script)


@KINDS
def test_a_member_that_stops_ends_the_body_before_another_worker_has_the_ticket(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b", kind=kind)
        log: list[str] = []

        async def work(ticket: ClaimedTicket) -> None:
            async with ticket:
                try:
                    await asyncio.sleep(LONG_S)
                finally:
                    await asyncio.sleep(0.5)
                    log.append("a ended")

        async def take() -> ClaimedTicket:
            ticket = await next_ticket(queues["b"])
            log.append("b began")
            return ticket

        await lab.run_on("a", queues["a"].enqueue(1))
        block = lab.run_on("a", work(await lab.run_on("a", next_ticket(queues["a"]))))
        taking = lab.run_on("b", take())
        await asyncio.sleep(0.5)
        begun = lab.world.now
        await lab.run_on("a", lab.members["a"].stop())
        await asyncio.wait([block])
        assert isinstance(block.exception(), StaleClaimError)
        again = await taking
        assert log == ["a ended", "b began"] and again.attempt == 2
        assert lab.world.now - begun < queues["b"].visibility_timeout, "it was given back"
        await lab.run_on("b", again.complete())

    play(script)


@pytest.mark.parametrize("tickets", [0, 1])
def test_workers_of_a_member_that_stops_end_and_are_not_cancelled(tickets: int) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a"))["a"]

        async def handle(payload: object) -> None:
            await asyncio.sleep(LONG_S)

        for number in range(tickets):
            await lab.run_on("a", queue.enqueue(number))
        workers = lab.run_on("a", queue.consume(handle, concurrency=2))
        await asyncio.sleep(1.0)
        await lab.run_on("a", lab.members["a"].stop())
        await asyncio.wait([workers], timeout=TIMEOUT_S)
        assert workers.done() and not workers.cancelled() and workers.exception() is None

    play(script)


def test_a_body_that_does_not_end_keeps_its_ticket_while_the_claim_lasts() -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b")

        async def work(ticket: ClaimedTicket) -> None:
            async with ticket:
                for _ in range(2):
                    try:
                        await asyncio.sleep(LONG_S)
                    except asyncio.CancelledError:
                        continue

        await lab.run_on("a", queues["a"].enqueue(1))
        block = lab.run_on("a", work(await lab.run_on("a", next_ticket(queues["a"]))))
        await asyncio.sleep(0.5)
        await lab.run_on("a", lab.members["a"].stop())
        stopped_at = lab.world.now
        assert (await lab.store.depth(queues["b"].keys.ready)).held == 1
        again = await lab.run_on("b", next_ticket(queues["b"]))
        assert again.attempt == 2
        assert lab.world.now - stopped_at <= 2.0 * queues["b"].visibility_timeout
        await lab.run_on("b", again.complete())
        block.cancel()
        await asyncio.wait([block])

    play(script)


def test_a_body_may_stop_its_own_member_and_learns_that_its_ticket_went_back() -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b")
        await lab.run_on("a", queues["a"].enqueue(1))
        ticket = await lab.run_on("a", next_ticket(queues["a"]))
        stopped: list[bool] = []

        async def work() -> None:
            async with ticket:
                await lab.members["a"].stop()
                await asyncio.sleep(0.1)
                stopped.append(True)

        block = lab.run_on("a", work())
        await asyncio.wait([block], timeout=TIMEOUT_S)
        assert isinstance(block.exception(), StaleClaimError) and stopped == [True]
        again = await lab.run_on("b", next_ticket(queues["b"]))
        assert again.attempt == 2
        await lab.run_on("b", again.complete())

    play(script)
