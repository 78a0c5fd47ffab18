"""A wait delivers its signal before it ends; the delivered batch also checks what was not checked
before.

Handlers and loops over signals act first, so they never get a signal that was not checked
against the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from squall.coordination.errors import BlockingTimeoutError
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, Tombstone
from squall.coordination.secrets.signing import Keyring
from squall.coordination.stores.interface import ABSENT, ANY, Append, Appended, Item, Put
from tests.unit.coordination.lab.world import SECRET, Lab, play


async def two_that_know_each_other(lab: Lab) -> None:
    """The receiver has read the sender's tombstone once."""
    lab.start("a", "b")
    await lab.ready("a", "b")
    wait = lab.run_on("b", lab.members["b"].block_until_signal(timeout_s=30.0))
    await lab.members["a"].send_signal("b", "hello")
    await wait


async def bury(lab: Lab, member_id: str, boot: int) -> None:
    tomb = Tombstone(
        member_id=member_id,
        boot=boot,
        death_id="d",
        epoch=1,
        died_at=0.0,
        reason="test",
        consecutive_warnings=3,
        announced=True,
        cleaned=True,
    )
    value = Codec(Keyring.of([SECRET], "staging", "default")).encode(tomb)
    await lab.store.write(Put(keys.tombstone(member_id), value, expect=ANY, ttl_s=600.0))


def asked_keys(lab: Lab, kind: str) -> list[str]:
    """From now on, the keys of a kind that members read."""
    asked: list[str] = []
    get = lab.store.get

    async def listening(*names: str) -> Any:
        asked.extend(name for name in names if name.startswith(f"{kind}/"))
        return await get(*names)

    lab.store.get = listening  # type: ignore[method-assign]
    return asked


def carries_nothing(lab: Lab) -> None:
    """From now on a listener must read."""

    async def listen(stream: str, *, after: str, timeout_s: float) -> Sequence[Item]:
        await lab.store.wait(Appended(stream, after), timeout_s=timeout_s)
        return ()

    lab.store.listen = listen  # type: ignore[method-assign]


def test_a_wait_costs_no_question_and_a_handler_one() -> None:
    async def script(lab: Lab) -> None:
        carries_nothing(lab)
        await two_that_know_each_other(lab)
        a, b = lab.members["a"], lab.members["b"]
        asked = asked_keys(lab, "idempotency")
        wait = lab.run_on("b", b.block_until_signal(timeout_s=30.0))
        await a.send_signal("b", "completion")
        await wait
        assert asked == []
        b.on_signal("job", lambda delivery: None)
        sent = await a.send_signal("b", "job")
        await asyncio.sleep(0.2)
        assert asked == [keys.idempotency("b", sent.signal_id)]

    play(script)


def test_a_signal_that_was_delivered_before_ends_no_wait() -> None:
    async def script(lab: Lab) -> None:
        await two_that_know_each_other(lab)
        a, b = lab.members["a"], lab.members["b"]
        wait = lab.run_on("b", b.block_until_signal(timeout_s=2.0))
        await a.send_signal("a", "completion")
        (item,) = await lab.store.read(keys.inbox("a"))
        mark = Put(keys.idempotency("b", item.id), b"{}", expect=ABSENT, ttl_s=60.0)
        value = item.value.replace(b'"receiver_id":"a"', b'"receiver_id":"b"')
        codec = Codec(Keyring.of([SECRET], "staging", "default"))
        fields = codec.decode(type(await a.send_signal("a", "x")), value, signed=False)
        assert not isinstance(fields, str)
        await lab.store.write(mark)
        copy = Append(keys.inbox("b"), "copy", codec.encode(fields), ttl_s=60.0)
        await lab.store.write(copy)
        with pytest.raises(BlockingTimeoutError):
            await wait
        assert b.signals.receiver.rejected == {"replay": 1}
        assert list(await lab.store.read(keys.inbox("b"))) == []

    play(script)


def test_the_death_of_a_sender_after_the_last_look_is_found_in_the_delivered_step() -> None:
    async def script(lab: Lab) -> None:
        await two_that_know_each_other(lab)
        a, b = lab.members["a"], lab.members["b"]
        wait = lab.run_on("b", b.block_until_signal(timeout_s=2.0))
        await asyncio.sleep(0.1)
        await bury(lab, "a", a.boot)
        await a.send_signal("b", "completion")
        with pytest.raises(BlockingTimeoutError):
            await wait
        assert b.signals.receiver.rejected == {"fenced_sender": 1}

    play(script)


def test_the_death_of_an_earlier_incarnation_does_not_hold_up_a_signal() -> None:
    async def script(lab: Lab) -> None:
        await two_that_know_each_other(lab)
        a, b = lab.members["a"], lab.members["b"]
        wait = lab.run_on("b", b.block_until_signal(timeout_s=2.0))
        await asyncio.sleep(0.1)
        await bury(lab, "a", a.boot - 1)
        await a.send_signal("b", "completion", payload=7)
        assert (await wait).payload == 7
        assert b.signals.receiver.rejected == {}

    play(script)


@pytest.mark.parametrize("taker", ["handler", "loop"])
def test_what_a_cancelled_wait_leaves_is_asked_about_before_others_act_on_it(taker: str) -> None:
    async def script(lab: Lab) -> None:
        await two_that_know_each_other(lab)
        a, b = lab.members["a"], lab.members["b"]
        held = asyncio.Event()

        async def stuck(entry: Any, writes: Sequence[Any] = ()) -> bool:
            held.set()
            return await asyncio.Future[bool]()

        receiver = b.signals.receiver
        delivered, receiver.deliver_once = receiver.deliver_once, stuck  # type: ignore[method-assign]
        wait = lab.run_on("b", b.block_until_signal(timeout_s=30.0))
        sent = await a.send_signal("b", "job")
        await held.wait()
        receiver.deliver_once = delivered  # type: ignore[method-assign]
        mark = Put(keys.idempotency("b", sent.signal_id), b"{}", expect=ABSENT, ttl_s=60.0)
        await lab.store.write(mark)
        wait.cancel()
        await asyncio.sleep(0.1)
        got: list[str] = []
        if taker == "handler":
            b.on_signal("job", lambda delivery: got.append(delivery.signal.signal_id))
        else:

            async def loop() -> None:
                async for signal in b.signals.iterate(types=["job"]):
                    got.append(signal.signal_id)  # noqa: PERF401  as they come

            lab.run_on("b", loop())
        await asyncio.sleep(0.5)
        assert got == []
        assert receiver.rejected == {"replay": 1}
        assert list(await lab.store.read(keys.inbox("b"))) == []

    play(script)


def test_a_pending_signal_that_is_read_again_stays_in_the_store() -> None:
    async def script(lab: Lab) -> None:
        await two_that_know_each_other(lab)
        a, b = lab.members["a"], lab.members["b"]
        waits = [
            lab.run_on("b", b.block_until_signal(correlation_id=each, timeout_s=30.0))
            for each in ("x", "y")
        ]
        await a.send_signal("b", "later", correlation_id="z")
        await a.send_signal("b", "now", correlation_id="x")
        await waits[0]
        b.signals.receiver.restart()
        await a.send_signal("b", "now", correlation_id="y")
        await waits[1]
        left = await lab.store.read(keys.inbox("b"))
        assert len(left) == 1
        assert (await lab.run_on("b", b.block_until_signal(timeout_s=5.0))).type == "later"

    play(script)
