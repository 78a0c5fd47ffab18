"""The store does not answer when a worker ends a ticket: the worker stops renewing it, so the
claim runs out and another attempt begins, even while the worker lives. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from squall.coordination.errors import StoreUnavailableError
from squall.coordination.queue.claims import ClaimedTicket
from tests.unit.coordination.lab.queue_stores import KINDS, lab_of, up
from tests.unit.coordination.lab.queues import next_ticket
from tests.unit.coordination.lab.world import Lab, play

TIMEOUT_S = 60.0
"""Far above the time of a claim and the pauses between tries."""


async def complete(ticket: ClaimedTicket) -> None:
    await ticket.complete()


async def fail(ticket: ClaimedTicket) -> None:
    await ticket.fail("no disk")


async def release(ticket: ClaimedTicket) -> None:
    await ticket.release()


async def leave_its_block(ticket: ClaimedTicket) -> None:
    async with ticket:
        pass


@KINDS
@pytest.mark.parametrize("end", [complete, fail, release, leave_its_block])
def test_a_ticket_whose_end_could_not_be_written_is_attempted_again(
    kind: str, end: Callable[[ClaimedTicket], Awaitable[None]]
) -> None:
    async def script(lab: Lab) -> None:
        queues = lab_of(lab, kind)
        await up(lab)
        queue = queues["a"]

        async def attempt() -> ClaimedTicket:
            await queue.enqueue(1)
            ticket = await next_ticket(queue)
            lab.faults["a"].down = True
            with pytest.raises(StoreUnavailableError):
                await end(ticket)
            lab.faults["a"].down = False
            return ticket

        first = await lab.run_on("a", attempt())
        # No worker takes it meanwhile, and pending renewals are done.
        await asyncio.sleep(queue.visibility_timeout)
        async with asyncio.timeout(TIMEOUT_S):
            again = await lab.run_on("a", next_ticket(queue))
        assert (again.ticket_id, again.attempt) == (first.ticket_id, 2)
        await lab.run_on("a", again.complete())
        final = await lab.run_on("a", queue.result(first.ticket_id, timeout_s=TIMEOUT_S))
        assert (final.state, final.attempt) == ("done", 2)

    play(script)


@KINDS
def test_an_end_that_could_not_be_written_may_be_tried_again(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queues = lab_of(lab, kind)
        await up(lab)
        queue = queues["a"]

        async def attempt() -> None:
            ticket_id = await queue.enqueue(1)
            ticket = await next_ticket(queue)
            lab.faults["a"].down = True
            with pytest.raises(StoreUnavailableError):
                await ticket.complete("first")
            lab.faults["a"].down = False
            await ticket.complete("second")
            final = await queue.result(ticket_id, timeout_s=TIMEOUT_S)
            assert (final.state, final.attempt, final.result) == ("done", 1, "second")

        await lab.run_on("a", attempt())

    play(script)
