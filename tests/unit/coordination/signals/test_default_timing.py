"""Signals with the default timing: three tries, 1 and 2 s apart, 5 s for each acknowledgment,
expiry after a day. In virtual time.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from squall.coordination import events
from squall.coordination.errors import SignalDeliveryError
from squall.coordination.records import keys
from squall.coordination.records.schemas import Signal, SignalAck
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.interface import ABSENT, ANY, Append, Put, Write
from tests.unit.coordination.lab.world import NORMAL, SECRET, Lab, play

DEFAULTS: dict[str, Any] = {
    "profile": NORMAL,
    "unsafe_timings": False,
    "ack_timeout": 5.0,
    "retry_base": 1.0,
}
DAY_S = 86_400.0


async def two(lab: Lab) -> None:
    lab.start("a", "b", **DEFAULTS)
    await lab.world.eventually(
        lambda: all(name in lab.members and lab.members[name]._parts for name in ("a", "b")),
        within_s=10.0,
        what="both run",
    )
    await asyncio.sleep(30.0)


def note_appends(lab: Lab, name: str) -> list[tuple[float, Append]]:
    """What a member appends to inboxes, and when."""
    patient = lab.members[name].parts.patient
    write, noted = patient.write, list[tuple[float, Append]]()

    async def noting(*writes: Write, **rest: Any) -> tuple[str, ...]:
        noted.extend((lab.world.now, each) for each in writes if isinstance(each, Append))
        return await write(*writes, **rest)

    patient.write = noting  # type: ignore[method-assign]
    return noted


async def both_ends(lab: Lab) -> tuple[Any, Any, float]:
    """Two signals in one moment, of which only the second is wanted; and how long it took."""
    a = lab.members["a"]
    begun = lab.world.now
    lonely, heard = await asyncio.gather(
        lab.run_on("a", a.send_signal_with_retry("b", "lonely")),
        lab.run_on("a", a.send_signal_with_retry("b", "wanted")),
        return_exceptions=True,
    )
    return lonely, heard, lab.world.now - begun


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_unacknowledged_signal_is_tried_three_times_within_20_s(seed: int) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        old = SignalAck(signal_id="old", receiver_id="b", sender_id="a", received_at=0.0)
        planted = a.parts.codec.encode(old)
        await lab.store.write(Put(keys.ack("a", "old"), planted, expect=ANY, ttl_s=3600.0))
        unheard: list[events.CoordinatorUnreachable] = []
        a.on(events.CoordinatorUnreachable, unheard.append)
        b.on_signal("wanted", lambda delivery: None)
        noted = note_appends(lab, "a")
        lonely, heard, took_s = await both_ends(lab)
        assert isinstance(heard, SignalAck)
        assert isinstance(lonely, SignalDeliveryError) and lonely.attempts == 3
        assert lonely.last_error == "no acknowledgment within 5 s"
        tries = [(at, each) for at, each in noted if each.id == lonely.signal_id]
        assert len(tries) == 3 and len({each.value for _, each in tries}) == 1, "the same bytes"
        assert len([each for _, each in noted if each.id == heard.signal_id]) == 1
        first, second = (later[0] - at for (at, _), later in pairwise(tries))
        assert 5.9 <= first <= 6.2 and 6.8 <= second <= 7.3
        assert 17.7 <= took_s <= 18.5, "three times 5 s, and 1 and 2 s with a tenth more or less"
        await asyncio.sleep(0.1)
        assert [(each.reason, each.attempts, each.health) for each in unheard] == [
            ("signal_delivery_failure", 3, "healthy")
        ]
        assert (await lab.store.get(keys.ack("a", "old")))[0] is not None, "nobody took it"
        assert [each.id for each in await lab.store.read(keys.inbox("b"))] == [lonely.signal_id]

    play(script, seed=seed)


def test_an_acknowledgment_of_the_last_try_counts_and_the_handler_ran_once() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        seen: list[str] = []
        sending = lab.run_on("a", a.send_signal_with_retry("b", "late"))
        await asyncio.sleep(14.0)
        assert not sending.done()
        b.on_signal("late", lambda delivery: seen.append(delivery.signal.signal_id))
        ack = await sending
        assert seen == [ack.signal_id]

    play(script)


async def alone_for(lab: Lab, seconds: float) -> None:
    """No member runs meanwhile: a virtual day of heartbeats would take long."""
    for name in ("a", "b"):
        if lab.world.nodes[name].runs:
            lab.world.kill(name)
    await asyncio.sleep(seconds)


async def back(lab: Lab, name: str) -> None:
    before = lab.members[name]
    lab.world.start(name)
    await lab.world.eventually(
        lambda: lab.members[name] is not before and lab.members[name]._parts is not None,
        within_s=60.0,
        what=f"{name} is back",
    )
    await asyncio.sleep(1.0)


async def send(lab: Lab, text: str) -> Signal:
    return await lab.run_on("a", lab.members["a"].send_signal("b", "note", payload=text))


def test_a_signal_lives_for_a_day_and_not_longer() -> None:
    """The inbox itself ends a day after the last signal came, so one is sent at noon."""

    async def script(lab: Lab) -> None:
        await two(lab)
        morning = await send(lab, "morning")
        assert morning.expires_at == pytest.approx(morning.timestamp + DAY_S)
        await alone_for(lab, DAY_S / 2.0)
        await back(lab, "a")
        await send(lab, "noon")
        await alone_for(lab, DAY_S / 2.0)
        await back(lab, "b")
        got: list[object] = []
        told: list[events.SignalRejected] = []
        b = lab.members["b"]
        b.on(events.SignalRejected, told.append)
        b.on_signal("note", lambda delivery: got.append(delivery.signal.payload))
        await asyncio.sleep(1.0)
        assert got == ["noon"]
        assert [(each.reason, each.signal_id) for each in told] == [("expired", morning.signal_id)]

    play(script, limit_s=3.0 * DAY_S)


def test_a_signal_of_the_last_hour_of_its_day_is_delivered_and_an_inbox_ends_with_it() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        await send(lab, "in time")
        await alone_for(lab, DAY_S - 3600.0)
        (item,) = await lab.store.read(keys.inbox("b"))
        await back(lab, "b")
        got: list[object] = []
        remove = lab.members["b"].on_signal(
            "note", lambda delivery: got.append(delivery.signal.payload)
        )
        await asyncio.sleep(1.0)
        assert got == ["in time"]
        remove()
        await lab.store.write(Append(keys.inbox("c"), "x", item.value, ttl_s=keys.SIGNAL_TTL_S))
        await alone_for(lab, DAY_S - 1.0)
        assert len(await lab.store.read(keys.inbox("c"))) == 1
        await asyncio.sleep(2.0)
        assert list(await lab.store.read(keys.inbox("c"))) == []

    play(script, limit_s=3.0 * DAY_S)


def test_an_effect_is_there_once_though_its_receiver_died_before_the_mark() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", secret=SECRET)
        await lab.ready("a", "b")
        handled: list[str] = []

        def handle(delivery: Delivery) -> None:
            handled.append(delivery.signal.signal_id)
            name = f"effect/{delivery.signal.signal_id}"
            body = str(len(handled)).encode()
            delivery.also(Put(name, body, expect=ABSENT, ttl_s=3600.0))

        async def never(*_: object) -> bool:
            await asyncio.sleep(1e6)
            return False

        first = lab.members["b"]
        first.signals.receiver.deliver_once = never  # type: ignore[method-assign]
        first.on_signal("note", handle)
        sent = await lab.run_on("a", lab.members["a"].send_signal("b", "note"))
        await asyncio.sleep(0.5)
        lab.world.kill("b")
        assert await lab.store.get(keys.ack("a", sent.signal_id)) == (None,)
        await back(lab, "b")
        lab.members["b"].on_signal("note", handle)
        await asyncio.sleep(2.0)
        assert handled == [sent.signal_id] * 2
        (effect, ack) = await lab.store.get(
            f"effect/{sent.signal_id}", keys.ack("a", sent.signal_id)
        )
        assert effect is not None and effect.value == b"2" and ack is not None
        assert list(await lab.store.read(keys.inbox("b"))) == []

    play(script)
