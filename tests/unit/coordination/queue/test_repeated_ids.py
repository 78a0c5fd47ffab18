"""A producer reuses a deduplication id: within a day it names the same ticket, afterwards a new
one. In virtual time, on a store with transactions and on one without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from squall.coordination.errors import StoreUnavailableError
from squall.coordination.queue.plugin import Queue
from squall.coordination.queue.records import DEDUP_TTL_S, Final
from squall.coordination.stores.interface import Append
from tests.unit.coordination.lab.queue_stores import KINDS, InOrder, lab_of, up
from tests.unit.coordination.lab.world import Lab, play

BOTH = (1, 2)


async def away_for(lab: Lab, seconds: float) -> None:
    """No member runs meanwhile: a virtual day of heartbeats would take long."""
    lab.world.kill("a")
    await asyncio.sleep(seconds)
    await up(lab)


async def enqueued(lab: Lab, queue: Queue, payload: int) -> str:
    return await lab.run_on("a", queue.enqueue(payload, dedup_id="order 7"))


async def done(lab: Lab, queue: Queue, ticket_id: str) -> Final:
    """Works until the ticket has ended."""

    async def double(payload: int) -> int:
        return payload * 2

    worker = lab.run_on("a", queue.consume(double))
    try:
        return await lab.run_on("a", queue.result(ticket_id, timeout_s=60.0))
    finally:
        worker.cancel()
        await asyncio.wait([worker])


async def payloads(lab: Lab, queue: Queue) -> Sequence[int]:
    return [ticket.payload for ticket in await lab.run_on("a", queue.peek())]


@KINDS
def test_a_day_after_its_first_use_an_id_makes_a_ticket_that_runs(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queues = lab_of(lab, kind)
        await up(lab)
        first = await enqueued(lab, queues["a"], 1)
        await away_for(lab, DEDUP_TTL_S / 2.0)
        assert (await done(lab, queues["a"], first)).result == 2
        assert await enqueued(lab, queues["a"], 2) == first
        assert await payloads(lab, queues["a"]) == []
        await away_for(lab, DEDUP_TTL_S / 2.0)
        known = await lab.run_on("a", queues["a"].final(first))
        assert known is not None, "the end of the first one is still known"
        second = await enqueued(lab, queues["a"], 3)
        assert second != first
        assert (await done(lab, queues["a"], second)).result == 6
        assert (await lab.run_on("a", queues["a"].final(first))).result == 2

    play(script, limit_s=3.0 * DEDUP_TTL_S)


@KINDS
def test_an_open_ticket_of_the_day_before_does_not_hold_up_the_new_one(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queues = lab_of(lab, kind)
        await up(lab)
        first = await enqueued(lab, queues["a"], 1)
        await away_for(lab, DEDUP_TTL_S)
        second = await enqueued(lab, queues["a"], 2)
        assert await enqueued(lab, queues["a"], 3) == second
        assert [(await done(lab, queues["a"], each)).result for each in (first, second)] == [2, 4]

    play(script, limit_s=3.0 * DEDUP_TTL_S)


def test_a_producer_that_died_between_its_writes_is_repeated_by_one_ticket() -> None:
    async def script(lab: Lab) -> None:
        queues = lab_of(lab, "in order")
        await up(lab)
        store = lab.store
        assert isinstance(store, InOrder)
        store.dies_at = Append
        with pytest.raises(StoreUnavailableError):
            await enqueued(lab, queues["a"], 1)
        store.dies_at = None
        assert await payloads(lab, queues["a"]) == []
        made = {await enqueued(lab, queues["a"], 2) for _ in BOTH}
        assert len(made) == 1 and await payloads(lab, queues["a"]) == [2]
        (ticket_id,) = made
        assert (await done(lab, queues["a"], ticket_id)).result == 4
        assert await enqueued(lab, queues["a"], 3) == ticket_id
        assert await payloads(lab, queues["a"]) == []

    play(script)


@KINDS
def test_repeats_after_lost_replies_make_one_ticket(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queues = lab_of(lab, kind)
        await up(lab)
        lab.faults["a"].lost_replies = 0.3
        made: set[str] = set()
        for _ in range(10):
            try:
                made.add(await enqueued(lab, queues["a"], 1))
            except StoreUnavailableError:
                continue
        lab.faults["a"].lost_replies = 0.0
        made.add(await enqueued(lab, queues["a"], 1))
        assert len(made) == 1 and await payloads(lab, queues["a"]) == [1]

    play(script)
