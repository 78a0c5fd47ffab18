"""Claims before the work begins: waiting batches, tickets that do not verify, missing payloads,
and many claims at a time. In virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from squall.coordination.queue.plugin import Queue
from squall.coordination.queue.records import Ticket, TicketRefused
from squall.coordination.records.schemas import Codec
from squall.coordination.secrets.signing import Keyring
from squall.coordination.store_errors import StoreUnavailableError
from squall.coordination.stores.interface import ANY, Delete
from tests.unit.coordination.lab.queue_stores import KINDS
from tests.unit.coordination.lab.queues import TIMEOUT_S, next_ticket, started
from tests.unit.coordination.lab.world import SECRET, Lab, play

OTHER_SECRET = "0ddba11" * 10
BIG = "x" * 300_000


@KINDS
def test_a_ticket_of_a_batch_that_waits_is_held_until_it_is_handed_out(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b", kind=kind)
        ran: list[tuple[str, int, int]] = []

        async def work(name: str, batch: int, seconds: float) -> None:
            async with contextlib.aclosing(queues[name].claim(batch=batch)) as claims:
                async for ticket in claims:
                    async with ticket:
                        ran.append((name, ticket.payload, ticket.attempt))
                        await asyncio.sleep(seconds)

        made = [await lab.run_on("a", queues["a"].enqueue(number)) for number in range(2)]
        await asyncio.sleep(1.0)
        slow = lab.run_on("a", work("a", 2, 2.0 * queues["a"].visibility_timeout))
        await asyncio.sleep(0.5)
        quick = lab.run_on("b", work("b", 1, 0.0))
        for ticket_id in made:
            await lab.run_on("b", queues["b"].result(ticket_id, timeout_s=TIMEOUT_S))
        assert ran == [("a", 0, 1), ("a", 1, 1)]
        for task in (slow, quick):
            task.cancel()
        await asyncio.wait([slow, quick])

    play(script)


@KINDS
def test_a_ticket_of_a_batch_that_was_lost_is_not_handed_out(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b", kind=kind)
        queue = queues["a"]

        async def first_of_two() -> list[int]:
            seen: list[int] = []
            async with contextlib.aclosing(queue.claim(batch=2)) as claims:
                async for ticket in claims:
                    seen.append(ticket.payload)
                    await ticket.complete()
                    if len(seen) == 1:
                        # As if the process slept: waiting tickets are not renewed.
                        for waiting in list(queue._renewed):  # pyright: ignore[reportPrivateUsage]
                            queue.stop_renewing(waiting)
                        taken = await lab.run_on("b", next_ticket(queues["b"]))
                        assert taken.attempt == 2
                        await lab.run_on("b", taken.complete())
                        await queue.enqueue(2)
                    else:
                        return seen
            return seen

        for number in range(2):
            await lab.run_on("a", queue.enqueue(number))
        await asyncio.sleep(1.0)
        assert await lab.run_on("a", first_of_two()) == [0, 2]

    play(script)


@KINDS
def test_what_is_left_of_a_batch_is_for_the_next_loop_and_costs_no_attempt(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]
        ran: list[tuple[int, int]] = []

        async def work() -> None:
            for number in range(6):
                await queue.enqueue(number)
            await asyncio.sleep(1.0)
            for _ in range(6):
                async with contextlib.aclosing(queue.claim(batch=10)) as claims:
                    ticket = await anext(claims)
                    async with ticket:
                        ran.append((ticket.payload, ticket.attempt))
            assert ran == [(number, 1) for number in range(6)]

        await lab.run_on("a", work())

    play(script)


async def take_two_and_use_one(queue: Queue) -> None:
    for number in range(2):
        await queue.enqueue(number)
    await asyncio.sleep(1.0)
    async with contextlib.aclosing(queue.claim(batch=2)) as claims:
        await (await anext(claims)).complete()


def test_the_rest_of_a_batch_is_not_held_without_a_worker() -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b")
        await lab.run_on("a", take_two_and_use_one(queues["a"]))
        begun = lab.world.now
        other = await lab.run_on("b", next_ticket(queues["b"]))
        assert (other.payload, other.attempt) == (1, 2)
        assert lab.world.now - begun <= 2.0 * queues["b"].visibility_timeout
        await lab.run_on("b", other.complete())

    play(script)


def test_what_is_left_of_a_batch_goes_back_when_the_member_stops() -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b")
        await lab.run_on("a", take_two_and_use_one(queues["a"]))
        await lab.run_on("a", lab.members["a"].stop())
        assert (await lab.store.depth(queues["b"].keys.ready)).held == 0

    play(script)


@KINDS
def test_a_ticket_that_could_not_be_opened_goes_to_the_next_worker(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]

        async def work() -> None:
            await queue.enqueue(BIG)
            await asyncio.sleep(1.0)
            plain = lab.store.get

            async def away(*keys: str) -> object:
                if any(key.startswith(("payload/", "final/")) for key in keys):
                    raise StoreUnavailableError("nobody is there")
                return await plain(*keys)

            lab.store.get = away
            with pytest.raises(StoreUnavailableError):
                await next_ticket(queue)
            lab.store.get = plain
            ticket = await next_ticket(queue)
            assert (ticket.payload, ticket.attempt) == (BIG, 1)
            await ticket.complete()

        await lab.run_on("a", work())

    play(script)


def test_a_member_without_the_secret_of_the_coordinator_takes_no_tickets() -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", max_attempts=1)

        def plugin(name: str) -> Queue:
            queues[name] = Queue("mail", max_attempts=1)
            return queues[name]

        lab.member("b", plugin, secret=OTHER_SECRET)
        lab.world.start("b")
        await asyncio.sleep(TIMEOUT_S)
        ran: list[tuple[str, int]] = []

        def handler(name: str):
            async def handle(payload: int) -> None:
                ran.append((name, payload))

            return handle

        wrong = lab.run_on("b", queues["b"].consume(handler("b"), concurrency=2))
        await asyncio.sleep(1.0)
        made = [
            await lab.run_on("a", queues["a"].enqueue(number, order_key="k")) for number in range(3)
        ]
        await asyncio.sleep(TIMEOUT_S)
        right = lab.run_on("a", queues["a"].consume(handler("a")))
        for ticket_id in made:
            final = await lab.run_on("a", queues["a"].result(ticket_id, timeout_s=TIMEOUT_S))
            assert final.state == "done"
        assert ran == [("a", 0), ("a", 1), ("a", 2)]
        for task in (wrong, right):
            task.cancel()
        await asyncio.wait([wrong, right])

    play(script)


def test_a_ticket_whose_key_a_member_lost_goes_back_and_no_more_are_taken_until_it_has_it() -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b")
        queue, keyring = queues["b"], lab.members["b"].parts.codec.keyring
        assert keyring is not None
        ran: list[int] = []

        async def handle(payload: int) -> None:
            ran.append(payload)

        worker = lab.run_on("b", queue.consume(handle))
        await lab.run_on("a", queues["a"].enqueue(0))
        await asyncio.sleep(1.0)
        keyring.replace([OTHER_SECRET])
        made = [await lab.run_on("a", queues["a"].enqueue(number)) for number in (1, 2)]
        await asyncio.sleep(TIMEOUT_S)
        assert ran == [0] and (await lab.store.depth(queue.keys.ready)).items == 2
        keyring.replace([SECRET])
        for ticket_id in made:
            final = await lab.run_on("a", queues["a"].result(ticket_id, timeout_s=TIMEOUT_S))
            assert final.state == "done" and final.attempt <= 2
        worker.cancel()
        await asyncio.wait([worker])

    play(script)


@KINDS
@pytest.mark.parametrize("secret", [SECRET, OTHER_SECRET], ids=["changed", "foreign"])
def test_a_ticket_that_cannot_be_verified_goes_into_quarantine_and_delays_no_other(
    kind: str, secret: str
) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]
        refused: list[TicketRefused] = []

        async def handle(payload: object) -> None:
            assert payload == "good"

        async def work() -> None:
            lab.members["a"].on(TicketRefused, refused.append)
            first = await queue.enqueue("first", order_key="k")
            second = await queue.enqueue("good", order_key="k")
            await asyncio.sleep(1.0)
            # An attacker with access to the store replaces the claimed ticket.
            (item,) = lab.store._streams[queue.keys.ready]._items.values()  # pyright: ignore[reportPrivateUsage]
            item.value = forged(item.value, secret)
            worker = asyncio.ensure_future(queue.consume(handle))
            final = await queue.result(first, timeout_s=TIMEOUT_S)
            assert final.state == "dead_letter" and "verified" in final.error
            assert (await queue.result(second, timeout_s=TIMEOUT_S)).state == "done"
            (kept,) = await lab.store.get(queue.keys.quarantine(first))
            assert kept is not None and kept.value == item.value
            assert refused and {each.item_id for each in refused} == {first}
            assert (await lab.store.depth(queue.keys.ready)).items == 0
            worker.cancel()
            await asyncio.wait([worker])

        await lab.run_on("a", work())

    play(script)


def forged(value: bytes, secret: str) -> bytes:
    """The ticket with another payload: signed by a stranger, or as it was signed before."""
    fields = msgspec.json.decode(value) | {"payload": "evil"}
    if secret == SECRET:
        return msgspec.json.encode(fields)
    stranger = Codec(Keyring.of([secret], "staging", "default"))
    return stranger.encode(msgspec.convert(fields, Ticket))


@KINDS
def test_a_ticket_whose_big_payload_is_gone_is_a_dead_letter_that_says_so(kind: str) -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a", kind=kind))["a"]

        async def handle(payload: object) -> None:
            raise AssertionError("there is nothing to work on")

        async def work() -> None:
            ticket_id = await queue.enqueue(BIG)
            await lab.store.write(Delete(queue.keys.payload(ticket_id), ANY))
            worker = asyncio.ensure_future(queue.consume(handle))
            final = await queue.result(ticket_id, timeout_s=TIMEOUT_S)
            assert (final.state, final.attempt) == ("dead_letter", 1)
            assert "payload is gone" in final.error
            worker.cancel()
            await asyncio.wait([worker])

        await lab.run_on("a", work())

    play(script)


def test_many_open_tickets_are_renewed_in_time_on_a_slow_store() -> None:
    count = 100

    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b")
        ran: list[str] = []

        def handler(name: str):
            async def handle(payload: int) -> None:
                ran.append(name)
                await asyncio.sleep(1000.0)

            return handle

        for number in range(count):
            await lab.run_on("a", queues["a"].enqueue(number))
        works = lab.run_on("a", queues["a"].consume(handler("a"), concurrency=count))
        await asyncio.sleep(2.0)
        assert ran == ["a"] * count
        lab.faults["a"].delay_s = 0.2
        waits = lab.run_on("b", queues["b"].consume(handler("b"), concurrency=4))
        await asyncio.sleep(5.0 * queues["a"].visibility_timeout)
        assert ran == ["a"] * count
        for task in (works, waits):
            task.cancel()
        await asyncio.wait([works, waits])

    play(script)


def test_a_renewal_that_gets_no_answer_keeps_no_other_waiting() -> None:
    async def script(lab: Lab) -> None:
        queues = await started(lab, "a", "b")

        async def take_two() -> tuple[str, str]:
            for number in range(2):
                await queues["a"].enqueue(number)
            first, second = await next_ticket(queues["a"]), await next_ticket(queues["a"])
            return first._claim.claim, second._claim.claim  # pyright: ignore[reportPrivateUsage]

        unlucky, lucky = await lab.run_on("a", take_two())
        plain = lab.store.write

        async def write(*writes: object, **rest: object) -> tuple[str, ...]:
            if any(getattr(each, "claim", "") == unlucky for each in writes):
                raise StoreUnavailableError("nobody is there")
            return await plain(*writes, **rest)

        lab.store.write = write
        other = await lab.run_on("b", next_ticket(queues["b"]))
        assert (other.payload, other.attempt) == (0, 2)
        await asyncio.sleep(3.0 * queues["a"].visibility_timeout)
        (_, second) = lab.store._streams[queues["a"].keys.ready]._items.values()  # pyright: ignore[reportPrivateUsage]
        assert second.claim == lucky and second.attempt == 1
        assert (await lab.store.depth(queues["a"].keys.ready)).held == 2

    play(script)
