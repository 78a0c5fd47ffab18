"""The queue on all four stores: order, claims, ends, dead letters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.coordination import (
    ANY,
    Append,
    ConfigurationError,
    Coordinator,
    Queue,
    StaleClaimError,
)
from squall.coordination.errors import BlockingTimeoutError, StoreUnavailableError
from squall.coordination.queue.records import TicketStateError, TicketTooLargeError
from squall.coordination.stores.interface import Delete, Write
from tests.services.coordination.lab.places import Place
from tests.services.coordination.lab.queues import SECRET, member, slowness, take
from tests.services.coordination.programs.member import scaled


@pytest.mark.asyncio
async def test_tickets_are_taken_in_order_and_done_once(place: Place) -> None:
    queue = Queue("mail")
    async with member(place, queue):
        made = [await queue.enqueue({"n": number}) for number in range(5)]
        seen: list[int] = []
        for _ in made:
            (ticket,) = await take(queue, 1)
            async with ticket:
                seen.append(ticket.payload["n"])
                ticket.result = ticket.payload["n"] * 2
        assert seen == [0, 1, 2, 3, 4]
        final = await queue.result(made[3], timeout_s=10.0)
        assert (final.state, final.result, final.attempt) == ("done", 6, 1)
        stats = await queue.stats()
        assert (stats.pending, stats.published, stats.claimed) == (0, 0, 0)


@pytest.mark.asyncio
async def test_priority_overtakes_what_is_not_published(place: Place) -> None:
    queue = Queue("mail", window=1)
    async with member(place, queue, eligible=False) as producer:
        low = [await queue.enqueue("low") for _ in range(2)]
        high = await queue.enqueue("high", priority=5)
        with pytest.raises(BlockingTimeoutError):
            await queue.result(low[0], timeout_s=0.05)
        assert producer.current_coordinator is None
        assert (await queue.stats()).pending == 3
        other = Queue("mail", window=1)
        async with member(place, other):
            order: list[str] = []
            for _ in range(3):
                (ticket,) = await take(queue, 1)
                order.append(ticket.ticket_id)
                await ticket.complete()
            assert order == [high, *low]


@pytest.mark.asyncio
@pytest.mark.parametrize("place", ["s3"], indirect=True)
async def test_an_order_key_does_not_wait_for_all_others_to_be_published(place: Place) -> None:
    """Each publication is several requests: a long row of them must not hold up who waits
    for its predecessor."""
    plain, profile = 60, scaled(4.0)
    seen: list[str] = []
    store = await place.open()
    producer, queue = Queue("mail"), Queue("mail")
    # No member leads while all are enqueued, so that the first turn finds them together.
    alone = {"profile": profile, "unsafe_timings": True, "secret": SECRET, "eligible": False}
    async with Coordinator(store, producer, member_id="producer", **alone):
        for number in range(2):
            await producer.enqueue(f"key{number}", order_key="ada")
        for number in range(plain):
            await producer.enqueue(f"plain{number}")
        async with member(place, queue, profile=profile), asyncio.timeout(120.0):
            async for ticket in queue.claim():
                seen.append(ticket.payload)
                await ticket.complete()
                if "key1" in seen:
                    break
    assert [each for each in seen if each.startswith("key")] == ["key0", "key1"]
    assert len(seen) < 2 + plain, "it went last"


@pytest.mark.asyncio
async def test_an_order_key_runs_one_after_another(place: Place) -> None:
    queue = Queue("mail")
    async with member(place, queue):
        first = await queue.enqueue(1, order_key="ada")
        second = await queue.enqueue(2, order_key="ada", priority=9)
        free = await queue.enqueue(3)
        tickets = {ticket.ticket_id: ticket for ticket in await take(queue, 2)}
        assert set(tickets) == {first, free}
        await tickets[first].complete()
        (ticket,) = await take(queue, 1)
        assert ticket.ticket_id == second
        await ticket.complete()
        await tickets[free].complete()


@pytest.mark.asyncio
async def test_a_failing_ticket_becomes_a_dead_letter_and_can_be_driven_again(
    place: Place,
) -> None:
    queue = Queue("mail", max_attempts=2, retry_base=0.01)
    async with member(place, queue):
        made = await queue.enqueue({"to": "nobody"})
        for attempt in (1, 2):
            (ticket,) = await take(queue, 1)
            assert ticket.attempt == attempt
            async with ticket:
                raise ValueError("no such address")
        final = await queue.result(made, timeout_s=10.0)
        assert (final.state, final.attempt) == ("dead_letter", 2)
        assert "no such address" in final.error
        dead = [letter.ticket_id async for letter, _ in queue.dead_letters()]
        assert dead == [made]
        again = await queue.redrive(made)
        (ticket,) = await take(queue, 1)
        assert (ticket.ticket_id, ticket.payload) == (again, {"to": "nobody"})
        await ticket.complete()
        assert (await queue.stats()).dead_letters == 0
        with pytest.raises(TicketStateError, match="has no dead letter"):
            await queue.redrive(made)


@pytest.mark.asyncio
async def test_a_claim_that_ran_out_goes_to_another_and_the_late_one_is_refused(
    place: Place,
) -> None:
    queue = Queue("mail", visibility_timeout=2.5 * slowness(place))
    async with member(place, queue, profile=scaled(slowness(place))) as coordinator:
        made = await queue.enqueue("x")
        (slow,) = await take(queue, 1)
        queue.stop_renewing(slow)  # As if its process slept: the claim is not renewed.
        (quick,) = await take(queue, 1)
        assert (quick.ticket_id, quick.attempt) == (made, 2)
        with pytest.raises(StaleClaimError):
            await slow.complete("late")
        await quick.complete("in time")
        final = await queue.final(made)
        assert final is not None
        assert (final.result, final.attempt) == ("in time", 2)
        (aside,) = await coordinator.store.get(f"late/mail/{made}/1")
        assert aside is not None
        with pytest.raises(StaleClaimError):
            await quick.complete("twice")


@pytest.mark.asyncio
async def test_the_claim_is_renewed_while_the_work_lasts(place: Place) -> None:
    visible_s = 3.0 * slowness(place)
    queue = Queue("mail", visibility_timeout=visible_s)
    async with member(place, queue, profile=scaled(slowness(place))):
        made = await queue.enqueue("x")
        (ticket,) = await take(queue, 1)
        await asyncio.sleep(1.2 * visible_s)
        await ticket.complete("done")
        final = await queue.final(made)
        assert final is not None
        assert (final.state, final.result, final.attempt) == ("done", "done", 1)


@pytest.mark.asyncio
async def test_work_whose_claim_is_lost_is_cancelled(place: Place) -> None:
    queue = Queue("mail", visibility_timeout=1.0 * slowness(place))
    async with member(place, queue, profile=scaled(slowness(place))):
        made = await queue.enqueue("x")
        (ticket,) = await take(queue, 1)

        async def work() -> None:
            async with ticket:
                assert await queue.cancel(made)
                await asyncio.sleep(30.0)

        with pytest.raises(StaleClaimError):
            await work()
        final = await queue.final(made)
        assert final is not None
        assert final.state == "cancelled"
        assert not await queue.cancel(made)


@pytest.mark.asyncio
async def test_an_id_against_doubles_gives_one_ticket(place: Place) -> None:
    queue = Queue("mail")
    async with member(place, queue):
        first = await queue.enqueue(1, dedup_id="order 7")
        assert await queue.enqueue(2, dedup_id="order 7") == first
        (ticket,) = await take(queue, 1)
        assert ticket.payload == 1
        await ticket.complete()
        assert await queue.enqueue(3, dedup_id="order 7") == first
        assert await queue.peek() == []


@pytest.mark.asyncio
async def test_an_id_against_doubles_whose_time_has_passed_makes_another_ticket(
    place: Place,
) -> None:
    queue = Queue("mail")
    async with member(place, queue) as coordinator:
        first = await queue.enqueue(1, dedup_id="order 7")
        (ticket,) = await take(queue, 1)
        await ticket.complete("first")
        # As if a day had passed since it was enqueued, and less since it was done.
        await coordinator.parts.patient.write(Delete(queue.keys.dedup("order 7"), ANY))
        second = await queue.enqueue(2, dedup_id="order 7")
        (ticket,) = await take(queue, 1)
        assert (ticket.ticket_id, ticket.payload) == (second, 2)
        await ticket.complete("second")
        ends = [await queue.result(each, timeout_s=10.0) for each in (first, second)]
        assert [final.result for final in ends] == ["first", "second"]


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [1, 300_000])
@pytest.mark.parametrize("place", ["s3"], indirect=True)
async def test_a_producer_that_died_between_its_writes_left_one_ticket_to_its_repeats(
    place: Place, size: int
) -> None:
    queue, payload = Queue("mail"), "x" * size
    async with member(place, queue) as coordinator:
        store = coordinator.store
        write = store.write

        async def die(*writes: Write, **rest: Any) -> tuple[str, ...]:
            await write(writes[0], **rest)
            raise StoreUnavailableError("nobody is there any more")

        store.write = die
        with pytest.raises(StoreUnavailableError):
            await queue.enqueue(payload, dedup_id="order 7")
        store.write = write
        made = {await queue.enqueue(payload, dedup_id="order 7") for _ in range(3)}
        (ticket,) = await take(queue, 1)
        assert {ticket.ticket_id} == made and ticket.payload == payload
        made.add(await queue.enqueue(payload, dedup_id="order 7"))
        await ticket.complete()
        made.add(await queue.enqueue(payload, dedup_id="order 7"))
        assert len(made) == 1 and await queue.peek() == []


@pytest.mark.asyncio
async def test_tickets_wait_for_their_time_and_expire(place: Place) -> None:
    queue = Queue("mail")
    async with member(place, queue):
        soon = await queue.enqueue("soon", delay=1.0)
        never = await queue.enqueue("never", delay=5.0, start_within=0.1)
        assert (await queue.result(never, timeout_s=20.0)).state == "expired"
        (ticket,) = await take(queue, 1)
        assert ticket.ticket_id == soon
        await ticket.complete()


@pytest.mark.asyncio
async def test_a_big_payload_is_kept_apart_and_a_huge_one_is_refused(place: Place) -> None:
    queue = Queue("mail")
    async with member(place, queue) as coordinator:
        text = "x" * 300_000
        made = await queue.enqueue(text)
        (found,) = await coordinator.store.get(f"payload/mail/{made}")
        assert found is not None
        (ticket,) = await take(queue, 1)
        assert ticket.payload == text
        await ticket.complete()
        (gone,) = await coordinator.store.get(f"payload/mail/{made}")
        assert gone is None
        with pytest.raises(TicketTooLargeError):
            await queue.enqueue("x" * (16 * 1024 * 1024))
        with pytest.raises(ConfigurationError, match="JSON"):
            await queue.enqueue(object())


@pytest.mark.asyncio
async def test_a_forged_ticket_is_not_handed_out(place: Place) -> None:
    queue = Queue("mail")
    async with member(place, queue) as coordinator:
        forged = b'{"v":1,"ticket_id":"evil","queue":"mail","payload":"rm"}'
        for stream in (queue.keys.queued, queue.keys.ready):
            await coordinator.parts.patient.write(Append(stream, "evil", forged, ttl_s=60.0))
        good = await queue.enqueue("good")
        (ticket,) = await take(queue, 1)
        assert ticket.ticket_id == good
        await ticket.complete()


@pytest.mark.asyncio
async def test_leaving_gives_open_tickets_back(place: Place) -> None:
    first, second = Queue("mail"), Queue("mail")
    async with member(place, second):
        async with member(place, first):
            made = await first.enqueue("x")
            (ticket,) = await take(first, 1)
            assert ticket.is_open
        (again,) = await take(second, 1)
        assert (again.ticket_id, again.attempt) == (made, 2)
        await again.complete()


@pytest.mark.asyncio
async def test_a_claim_longer_than_a_life_is_refused(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="visibility_timeout"):
        async with member(place, Queue("mail", visibility_timeout=3600.0)):
            pass


@pytest.mark.asyncio
async def test_workers_share_what_there_is(place: Place) -> None:
    queues = [Queue("mail"), Queue("mail")]
    count = 6 if place.kind == "s3" else 20
    done: list[int] = []

    async def handle(payload: int) -> int:
        done.append(payload)
        return payload

    async with member(place, queues[0]), member(place, queues[1]):
        workers = [asyncio.ensure_future(queue.consume(handle, concurrency=3)) for queue in queues]
        made = [await queues[0].enqueue(number) for number in range(count)]
        for ticket_id in made:
            assert (await queues[1].result(ticket_id, timeout_s=60.0)).state == "done"
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(done) == list(range(count))
