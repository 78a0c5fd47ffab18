"""What operators do to a queue: cancelled tickets never run and delay no other, dead letters can
be enqueued again whatever else waits, and no large payload is left over. In virtual time.
"""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination.errors import BlockingTimeoutError, StoreUnavailableError
from squall.coordination.queue import inspection as reading
from squall.coordination.queue import publisher
from squall.coordination.queue.plugin import Queue
from squall.coordination.stores.interface import ANY, Append, Put, Remove
from tests.unit.coordination.lab.queue_stores import KINDS, InOrder
from tests.unit.coordination.lab.queues import TIMEOUT_S, next_ticket, started
from tests.unit.coordination.lab.world import Lab, play

BIG = "x" * 300_000
KEPT_S = 60.0
"""Instead of a day: a virtual day of heartbeats takes long."""


async def ran(queue: Queue, seconds: float) -> list[object]:
    """The payloads that a worker gets within this time."""
    seen: list[object] = []

    async def handle(payload: object) -> None:
        seen.append(payload)

    worker = asyncio.ensure_future(queue.consume(handle))
    await asyncio.sleep(seconds)
    worker.cancel()
    await asyncio.wait([worker])
    return seen


async def payloads(lab: Lab) -> list[str]:
    return [entry.key for entry in (await lab.store.list("payload")).entries]


@KINDS
def test_a_cancelled_ticket_does_not_run_though_its_delay_is_longer_than_its_end_is_kept(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FINAL_TTL_S", KEPT_S)

    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]

        async def work() -> None:
            ticket_id = await queue.enqueue("cancelled", delay=2.0 * KEPT_S)
            await asyncio.sleep(1.0)
            assert await queue.cancel(ticket_id)
            assert await ran(queue, 4.0 * KEPT_S) == []

        await lab.run_on("a", work())

    play(script)


def test_a_cancel_that_broke_off_holds_for_longer_than_the_delay_of_its_ticket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "FINAL_TTL_S", KEPT_S)

    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind="in order"))["a"]

        async def work() -> None:
            ticket_id = await queue.enqueue("cancelled", delay=2.0 * KEPT_S)
            assert isinstance(lab.store, InOrder)
            lab.store.dies_at = Remove
            with pytest.raises(StoreUnavailableError):
                await queue.cancel(ticket_id)
            lab.store.dies_at = None
            assert await ran(queue, 4.0 * KEPT_S) == []

        await lab.run_on("a", work())

    play(script)


@KINDS
def test_a_cancelled_ticket_that_waited_for_its_key_does_not_run_when_its_end_is_forgotten(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FINAL_TTL_S", KEPT_S)
    monkeypatch.setattr(publisher, "COMPARE_S", KEPT_S / 2.0, raising=False)

    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]

        async def work() -> None:
            await queue.enqueue("first", order_key="k")
            cancelled = await queue.enqueue("cancelled", order_key="k")
            await queue.enqueue("third", order_key="k")
            first = await next_ticket(queue)
            await queue.cancel(cancelled)
            await asyncio.sleep(3.0 * KEPT_S)
            assert await queue.final(cancelled) is None
            await first.complete()
            assert await ran(queue, TIMEOUT_S) == ["third"]

        await lab.run_on("a", work())

    play(script)


@KINDS
def test_a_cancelled_ticket_that_waits_for_its_time_does_not_hold_up_its_key(kind: str) -> None:
    delay_s = 600.0

    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]

        async def work() -> None:
            first = await queue.enqueue("first", order_key="k", delay=delay_s)
            await queue.enqueue("second", order_key="k")
            await asyncio.sleep(1.0)
            assert await queue.cancel(first)
            assert await ran(queue, delay_s / 10.0) == ["second"]

        await lab.run_on("a", work())

    play(script)


def test_who_waits_for_an_end_that_cannot_be_believed_waits() -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a"))["a"]
        newer = b'{"v":99,"ticket_id":"t-1","state":"done"}'
        reads = 0
        plain = lab.store.get

        async def get(*keys: str) -> object:
            nonlocal reads
            reads += queue.keys.final("t-1") in keys
            assert reads < 100, "it does not wait"
            return await plain(*keys)

        async def work() -> None:
            await lab.store.write(Put(queue.keys.final("t-1"), newer, expect=ANY, ttl_s=3600.0))
            lab.store.get = get
            with pytest.raises(BlockingTimeoutError):
                await queue.result("t-1", timeout_s=TIMEOUT_S)

        await lab.run_on("a", work())

    play(script)


def test_a_dead_letter_is_driven_again_while_many_tickets_wait() -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", window=1))["a"]

        async def work() -> None:
            ticket_id = await queue.enqueue("dead")
            await (await next_ticket(queue)).fail("bad", retry=False)
            for number in range(1100):
                await queue.enqueue(number)
            again = await queue.redrive(ticket_id)
            assert again in [each.ticket_id for each in await queue.peek(limit=2000)]

        await lab.run_on("a", work())

    play(script)


@pytest.mark.parametrize("at", [Append, Remove])
def test_a_big_dead_letter_is_driven_again_by_a_repeat_of_what_broke_off(at: type[object]) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind="in order"))["a"]

        async def work() -> None:
            ticket_id = await queue.enqueue(BIG)
            await (await next_ticket(queue)).fail("bad", retry=False)
            assert isinstance(lab.store, InOrder)
            lab.store.dies_at = at
            with pytest.raises(StoreUnavailableError):
                await queue.redrive(ticket_id)
            lab.store.dies_at = None
            await queue.redrive(ticket_id)
            assert await ran(queue, TIMEOUT_S) == [BIG]
            assert (await queue.stats()).dead_letters == 0

        await lab.run_on("a", work())

    play(script)


@KINDS
def test_a_big_payload_goes_with_its_ticket(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]

        async def work() -> None:
            assert await queue.cancel(await queue.enqueue(BIG))
            assert await payloads(lab) == []
            await queue.enqueue(BIG)
            assert await queue.purge() == 1
            assert await payloads(lab) == []
            dead = await queue.enqueue(BIG)
            await (await next_ticket(queue)).fail("bad", retry=False)
            assert await payloads(lab) == [queue.keys.payload(dead)]
            again = await queue.redrive(dead)
            assert await payloads(lab) == [queue.keys.payload(again)]
            assert await ran(queue, TIMEOUT_S) == [BIG]
            assert await payloads(lab) == []

        await lab.run_on("a", work())

    play(script)


@KINDS
def test_a_purge_cancels_everything_and_reads_the_streams_twice(kind: str) -> None:
    count = 50

    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind, window=10))["a"]
        pages = 0
        plain = lab.store.read

        async def read(stream: str, **rest: object) -> object:
            nonlocal pages
            pages += 1
            return await plain(stream, **rest)

        async def work() -> None:
            made = [await queue.enqueue(number) for number in range(count)]
            await asyncio.sleep(1.0)
            lab.store.read = read
            assert await queue.purge() == count
            # Two streams, twice; the coordinator reads one of them now and then.
            assert pages < 4 + count / 2
            assert {(await queue.result(each)).state for each in made} == {"cancelled"}
            assert await ran(queue, TIMEOUT_S) == []

        await lab.run_on("a", work())

    play(script)
