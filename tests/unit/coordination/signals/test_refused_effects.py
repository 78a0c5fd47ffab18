"""A handler whose effect the store refuses is called again; one whose effect is stored but whose
reply was lost is not.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.coordination import events
from squall.coordination.errors import StoreUnavailableError
from squall.coordination.records import keys
from squall.coordination.records.schemas import SignalAck, SignalReceipt
from squall.coordination.signals.handler_loop import HANDLER_RETRY, Delivery
from squall.coordination.stores.interface import ABSENT, ANY, Append, Put, Write
from tests.unit.coordination.lab.world import Lab, play

COUNTER = "counter/jobs"


async def two(lab: Lab) -> None:
    lab.start("a", "b")
    await lab.ready("a", "b")


def add_one(lab: Lab, seen: list[int], meddle: Any) -> Any:
    """A handler that counts in a record; `meddle` acts between its read and its write."""

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.signal.payload)
        (record,) = await lab.store.get(COUNTER)
        count = 0 if record is None else int(record.value)
        expect = ABSENT if record is None else record.version
        await meddle()
        body = str(count + 1).encode()
        delivery.also(Put(COUNTER, body, expect=expect, ttl_s=3600.0))

    return handle


def test_a_handler_whose_effect_conflicts_reads_again_before_the_next_signal() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        seen: list[int] = []

        async def meddle() -> None:
            if len(seen) == 1:
                await lab.store.write(Put(COUNTER, b"10", expect=ANY, ttl_s=3600.0))

        b.on_signal("job", add_one(lab, seen, meddle))
        sent = [await a.send_signal("b", "job", payload=number) for number in range(2)]
        await asyncio.sleep(3.0)
        assert seen == [0, 0, 1], "not overtaken"
        record, *acks = await lab.store.get(
            COUNTER, *(keys.ack("a", each.signal_id) for each in sent)
        )
        assert record is not None and record.value == b"12"
        assert all(acks)
        assert list(await lab.store.read(keys.inbox("b"))) == []

    play(script)


@pytest.mark.parametrize("kind", ["conflict", "full", "no key"])
def test_an_effect_that_is_never_taken_ends_in_quarantine_and_the_next_signal_comes(
    kind: str,
) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        told: list[events.ErrorEvent] = []
        b.on(events.ErrorEvent, told.append)
        await lab.store.write(Append("box/full", "1", b"", ttl_s=3600.0))
        wrong: dict[str, Write] = {
            "conflict": Put(COUNTER, b"1", expect="another", ttl_s=60.0),
            "full": Append("box/full", "2", b"", ttl_s=3600.0, limit=1),
            "no key": Put("a b", b"1", expect=ANY, ttl_s=60.0),
        }
        seen: list[str] = []

        def handle(delivery: Delivery) -> None:
            seen.append(delivery.signal.payload)
            if delivery.signal.payload == "bad":
                delivery.also(wrong[kind])

        b.on_signal("job", handle)
        bad = await a.send_signal("b", "job", payload="bad")
        good = await a.send_signal("b", "job", payload="good")
        await asyncio.sleep(40.0)
        assert seen == ["bad"] * HANDLER_RETRY.tries + ["good"]
        assert len(told) == HANDLER_RETRY.tries
        quarantined, lost, ack = await lab.store.get(
            keys.quarantine("b", bad.signal_id),
            keys.ack("a", bad.signal_id),
            keys.ack("a", good.signal_id),
        )
        assert quarantined is not None and lost is not None and ack is not None
        # Not an acknowledgment: the sender learns that the handler failed.
        codec = a.parts.codec
        assert codec.read(SignalAck, lost.value) is None
        receipt = codec.read(SignalReceipt, lost.value)
        assert receipt is not None and receipt.error
        assert list(await lab.store.read(keys.inbox("b"))) == []

    play(script)


def test_an_effect_that_is_there_because_its_reply_was_lost_counts_once() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        seen: list[int] = []
        patient = b.parts.patient
        write, lost = patient.write, list[bool]()

        async def no_answer(*writes: Write, **rest: Any) -> tuple[str, ...]:
            done = await write(*writes, **rest)
            if not lost and any(isinstance(each, Put) and each.key == COUNTER for each in writes):
                lost.append(True)
                raise StoreUnavailableError("the reply was lost")
            return done

        patient.write = no_answer  # type: ignore[method-assign]

        async def nothing() -> None:
            return

        b.on_signal("job", add_one(lab, seen, nothing))
        ack = await lab.run_on("a", a.send_signal_with_retry("b", "job", payload=0))
        assert isinstance(ack, SignalAck)
        await asyncio.sleep(5.0)
        assert lost and seen == [0]
        assert not b.signals.receiver.matcher.is_pending(ack.signal_id)
        (record,) = await lab.store.get(COUNTER)
        assert record is not None and record.value == b"1"
        second = await lab.run_on("a", a.send_signal_with_retry("b", "job", payload=1))
        assert isinstance(second, SignalAck) and seen == [0, 1]

    play(script)
