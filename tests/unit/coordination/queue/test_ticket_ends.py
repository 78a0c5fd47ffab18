"""How a ticket ends when a batch stops in its middle, replies are lost, or a renewal is in
flight: the worker learns what the store has, and no result is lost. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from squall.coordination.errors import StaleClaimError, StoreUnavailableError
from squall.coordination.queue.claims import ClaimedTicket
from squall.coordination.queue.plugin import Queue
from squall.coordination.queue.records import TicketFinished, TicketLost
from squall.coordination.stores.interface import Append, Extend, Remove, Write
from tests.unit.coordination.lab.queue_stores import KINDS, InOrder
from tests.unit.coordination.lab.queues import (
    TIMEOUT_S,
    Next,
    lose_reply,
    next_ticket,
    on_write,
    started,
)
from tests.unit.coordination.lab.world import Lab, play

ANSWER_S = 0.3
"""How long a slow answer takes; far below the time of a claim."""


async def break_off(lab: Lab, queue: Queue, at: type[object]) -> ClaimedTicket:
    """A ticket whose worker ended it as a dead letter, and did not come further than to `at`."""
    await queue.enqueue("precious")
    ticket = await next_ticket(queue)
    assert isinstance(lab.store, InOrder)
    lab.store.dies_at = at
    with pytest.raises(StoreUnavailableError):
        await ticket.fail("no disk", retry=False)
    lab.store.dies_at = None
    return ticket


async def letters(queue: Queue) -> list[tuple[str, str]]:
    return [
        (ticket.payload, "" if final is None else final.error)
        async for ticket, final in queue.dead_letters()
    ]


@pytest.mark.parametrize("at", [Append, Remove])
def test_a_dead_letter_whose_batch_broke_off_is_kept_by_the_next_worker(
    at: type[object],
) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind="in order"))["a"]

        async def work() -> None:
            await break_off(lab, queue, at)

            async def never(payload: object) -> None:
                raise AssertionError("it is final")

            worker = asyncio.ensure_future(queue.consume(never))
            await asyncio.sleep(TIMEOUT_S)
            worker.cancel()
            await asyncio.wait([worker])
            assert await letters(queue) == [("precious", "no disk")]
            stats = await queue.stats()
            assert (stats.published, stats.claimed, stats.dead_letters) == (0, 0, 1)

        await lab.run_on("a", work())

    play(script)


@pytest.mark.parametrize("at", [Append, Remove])
def test_a_dead_letter_whose_batch_broke_off_is_finished_by_a_repeat(at: type[object]) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind="in order"))["a"]

        async def work() -> None:
            ticket = await break_off(lab, queue, at)
            await ticket.fail("no disk", retry=False)
            assert await letters(queue) == [("precious", "no disk")]
            assert (await lab.store.depth(queue.keys.ready)).items == 0

        await lab.run_on("a", work())

    play(script)


def test_a_dead_letter_whose_batch_broke_off_is_kept_by_an_attempt_that_came_too_late() -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind="in order"))["a"]

        async def work() -> None:
            await queue.enqueue("precious")
            first = await next_ticket(queue)
            queue.stop_renewing(first)
            again = await next_ticket(queue)
            assert again.attempt == 2
            assert isinstance(lab.store, InOrder)
            # The first attempt proved its claim before it ran out, and wrote its end after that.
            plain, proof = first._write, Extend  # pyright: ignore[reportPrivateUsage]

            async def late(*writes: Write) -> None:
                if not isinstance(writes[0], proof):
                    await plain(*writes)

            first._write = late  # pyright: ignore[reportPrivateUsage]
            lab.store.dies_at = Append
            with pytest.raises(StoreUnavailableError):
                await first.fail("no disk", retry=False)
            lab.store.dies_at = None
            with pytest.raises(StaleClaimError):
                await again.complete("late")
            assert await letters(queue) == [("precious", "no disk")]

        await lab.run_on("a", work())

    play(script)


def test_a_worker_that_recorded_the_end_learns_it_although_its_claim_ran_out_afterwards() -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind="in order"))["a"]
        plain = lab.store.write

        async def write(*writes: Write, fence: object = None) -> tuple[str, ...]:
            done: list[str] = []
            for each in writes:
                if isinstance(each, Remove) and each.claim:
                    await asyncio.sleep(queue.visibility_timeout + 1.0)
                    await lab.store.take(queue.keys.ready, "other", lease_s=5.0)
                done += await plain(each, fence=fence)
            return tuple(done)

        async def work() -> None:
            ticket_id = await queue.enqueue(1)
            ticket = await next_ticket(queue)
            lab.store.write = write
            await ticket.complete("mine")
            lab.store.write = plain
            final = await queue.final(ticket_id)
            assert final is not None and (final.state, final.result) == ("done", "mine")
            assert not (await lab.store.list("late")).entries

        await lab.run_on("a", work())

    play(script)


@KINDS
def test_a_renewal_that_comes_after_an_end_was_begun_takes_nothing_away(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]
        told: list[object] = []
        is_sent = asyncio.Event()

        async def hook(writes: Sequence[Write], go_on: Next) -> tuple[str, ...]:
            if isinstance(writes[-1], Extend) and not is_sent.is_set():
                is_sent.set()
                await asyncio.sleep(ANSWER_S)
            answer = await go_on()
            if any(isinstance(each, Remove) and each.claim for each in writes):
                await asyncio.sleep(2.0 * ANSWER_S)
            return answer

        async def work() -> None:
            await queue.enqueue(1)
            for kind_of_event in (TicketLost, TicketFinished):
                lab.members["a"].on(kind_of_event, told.append)
            ticket = await next_ticket(queue)
            on_write(lab, hook)
            async with ticket:
                await is_sent.wait()
                await ticket.complete("mine")
                await asyncio.sleep(1.0)
            assert not ticket.is_lost
            assert [type(each) for each in told] == [TicketFinished]

        await lab.run_on("a", work())

    play(script)


@KINDS
def test_a_renewal_on_its_way_does_not_lengthen_the_pause_after_a_failure(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind, retry_base=0.5))["a"]
        is_sent = asyncio.Event()

        async def hook(writes: Sequence[Write], go_on: Next) -> tuple[str, ...]:
            if isinstance(writes[-1], Extend) and not is_sent.is_set():
                is_sent.set()
                await asyncio.sleep(ANSWER_S)
            return await go_on()

        async def work() -> None:
            await queue.enqueue(1)
            ticket = await next_ticket(queue)
            on_write(lab, hook)
            await is_sent.wait()
            await ticket.fail("bad")
            failed_at = lab.world.now
            again = await next_ticket(queue)
            assert again.attempt == 2
            assert lab.world.now - failed_at < queue.visibility_timeout / 2.0
            await again.complete()

        await lab.run_on("a", work())

    play(script)


@KINDS
def test_a_failure_whose_reply_was_lost_ends_in_the_block(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b", kind=kind, retry_base=0.5)
        ran: list[int] = []

        async def handle(payload: int) -> None:
            ran.append(payload)
            await asyncio.sleep(3.0)

        async def work() -> None:
            async with ticket:
                lose_reply(lab, Extend)
                raise ValueError("bad")

        await lab.run_on("a", queues["a"].enqueue(1))
        ticket = await lab.run_on("a", next_ticket(queues["a"]))
        other = lab.run_on("b", queues["b"].consume(handle))
        await lab.run_on("a", work())
        assert ran == [1], "the other one had it before the repeat"
        other.cancel()
        await asyncio.wait([other])

    play(script)


@KINDS
def test_what_was_asked_for_by_hand_is_not_shortened_by_a_renewal(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]

        async def work() -> None:
            await queue.enqueue(1)
            ticket = await next_ticket(queue)
            await ticket.extend(10.0 * queue.visibility_timeout)
            await asyncio.sleep(3.0 * queue.visibility_timeout)
            # As if its process slept from now on.
            queue.stop_renewing(ticket)
            await asyncio.sleep(3.0 * queue.visibility_timeout)
            assert (await lab.store.depth(queue.keys.ready)).held == 1
            await ticket.complete()

        await lab.run_on("a", work())

    play(script)
