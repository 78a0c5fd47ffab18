"""A handler ends only when it is removed, after the running call; neither its own errors nor
errors of the store end it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from squall.coordination.errors import BlockingTimeoutError, ConfigurationError, StoreError
from squall.coordination.records import keys
from squall.coordination.records.schemas import Signal
from squall.coordination.signals.handler_loop import HANDLER_RETRY, Delivery
from squall.coordination.stores.interface import ABSENT, ANY, Put
from squall.runtime.log import MemorySink
from tests.unit.coordination.lab.logs import log_of
from tests.unit.coordination.lab.world import Lab, play


async def two(lab: Lab) -> None:
    lab.start("a", "b")
    await lab.ready("a", "b")


@pytest.mark.parametrize("delay", ["reply_delay_s", "delay_s"])
def test_a_handler_that_removes_itself_has_its_signal_delivered_once(delay: str) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        setattr(lab.faults["a"], delay, 0.01)
        got: list[object] = []

        async def once(delivery: Delivery) -> None:
            got.append(delivery.signal.payload)
            remove()

        remove = a.on_signal("go", once)
        sending = b.send_signal_with_retry("a", "go", correlation_id="c", payload=1)
        await lab.run_on("b", sending)
        with pytest.raises(BlockingTimeoutError):
            await lab.run_on("a", a.block_until_signal(correlation_id="c", timeout_s=5.0))
        await lab.run_on("b", b.send_signal("a", "go", payload=2))
        await asyncio.sleep(2.0)
        assert got == [1]

    play(script)


def test_a_call_that_is_under_way_ends_and_what_waits_behind_it_goes_to_others() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        ended: list[object] = []

        async def slow(delivery: Delivery) -> None:
            await asyncio.sleep(2.0)
            ended.append(delivery.signal.payload)

        remove = a.on_signal("go", slow)
        first, _ = [await b.send_signal("a", "go", payload=number) for number in range(2)]
        await asyncio.sleep(0.5)
        remove()
        later: list[object] = []
        a.on_signal("go", lambda delivery: later.append(delivery.signal.payload))
        await asyncio.sleep(5.0)
        assert (ended, later) == ([0], [1])
        (ack,) = await lab.store.get(keys.ack("b", first.signal_id))
        assert ack is not None
        assert list(await lab.store.read(keys.inbox("a"))) == []

    play(script)


@pytest.mark.parametrize("removed_after_s", [0.2, 2.0])
def test_a_signal_whose_handler_failed_and_was_removed_goes_to_another(
    removed_after_s: float,
) -> None:
    """Removed while it runs, or while it waits for its next try."""

    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        tries: list[int] = []

        async def fails(delivery: Delivery) -> None:
            tries.append(1)
            await asyncio.sleep(0.5)
            raise RuntimeError("no disk")

        remove = a.on_signal("go", fails)
        await b.send_signal("a", "go", payload=7)
        await asyncio.sleep(removed_after_s)
        remove()
        got: list[object] = []
        a.on_signal("go", lambda delivery: got.append(delivery.signal.payload))
        before = len(tries)
        await asyncio.sleep(20.0)
        assert got == [7] and len(tries) == before

    play(script)


def test_a_loop_that_is_left_in_its_delivered_step_gives_its_signal_to_no_other() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        got: list[object] = []

        async def loop() -> None:
            async for signal in a.signals.iterate(types=["go"]):
                got.append(signal.payload)
                lab.faults["a"].down = True

        looping = lab.run_on("a", loop())
        sent = await b.send_signal("a", "go", payload=7)
        await asyncio.sleep(1.0)
        looping.cancel()
        a.on_signal("go", lambda delivery: got.append(delivery.signal.payload))
        lab.faults["a"].down = False
        await asyncio.sleep(10.0)
        assert got == [7]
        (ack,) = await lab.store.get(keys.ack("b", sent.signal_id))
        assert ack is not None

    play(script)


def nothing(delivery: Delivery) -> None:
    delivery.also(None)  # type: ignore[arg-type]


def unfit(delivery: Delivery) -> None:
    delivery.also(Put("effect/x", "no bytes", expect=ABSENT, ttl_s="soon"))  # type: ignore[arg-type]


async def cancelled(delivery: Delivery) -> None:
    task = asyncio.get_running_loop().create_task(asyncio.sleep(60.0))
    task.cancel()
    await task


@pytest.mark.parametrize("wrong", [nothing, unfit, cancelled])
def test_no_mistake_of_a_handler_ends_its_loop(wrong: Callable[[Delivery], Any]) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        got: list[object] = []

        def handle(delivery: Delivery) -> Any:
            got.append(delivery.signal.payload)
            return wrong(delivery) if delivery.signal.payload == "bad" else None

        a.on_signal("go", handle)
        bad, good = [await b.send_signal("a", "go", payload=each) for each in ("bad", "good")]
        await asyncio.sleep(40.0)
        assert got == ["bad"] * HANDLER_RETRY.tries + ["good"]
        aside, ack = await lab.store.get(
            keys.quarantine("a", bad.signal_id), keys.ack("b", good.signal_id)
        )
        assert aside is not None and ack is not None
        assert list(await lab.store.read(keys.inbox("a"))) == []

    play(script)


def test_what_is_no_write_is_refused_in_one_line_and_nothing_of_it_is_kept() -> None:
    signal = Signal(
        signal_id="1",
        sender_id="a",
        sender_boot=1,
        receiver_id="b",
        type="job",
        timestamp=0.0,
        expires_at=60.0,
    )
    delivery = Delivery(signal)
    put = Put("effect/x", b"1", expect=ABSENT, ttl_s=60.0)
    with pytest.raises(ConfigurationError, match=r"NoneType.*Put") as refused:
        delivery.also(put, None)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    assert delivery.writes == []
    delivery.also(put)
    assert delivery.writes == [put]


class Refusing:
    """A store that answers what a member does for signals with a refusal, as one that became a
    replica does; heartbeats are another matter."""

    def __init__(self, lab: Lab, name: str, sender: str) -> None:
        self.is_on = False
        self._kinds = ("signal/", "idempotency/", "state/", keys.member(sender))
        patient, urgent = lab.members[name].parts.patient, lab.members[name].parts.urgent
        for store in (patient, urgent):
            for call in ("read", "listen", "get", "write"):
                setattr(store, call, self._wrapped(getattr(store, call)))

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def refuses(*arguments: Any, **rest: Any) -> Any:
            names = [getattr(each, "key", each) for each in arguments]
            if self.is_on and any(str(name).startswith(self._kinds) for name in names):
                raise StoreError("this is a replica")
            found = await call(*arguments, **rest)
            if self.is_on and call.__name__ == "listen":
                raise StoreError("this is a replica")
            return found

        return refuses


def test_handlers_and_waits_live_through_a_store_that_refuses() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        leader = await lab.led()
        other = "b" if leader == "a" else "a"
        a, b = lab.members[other], lab.members[leader]
        refusing = Refusing(lab, other, leader)
        got: list[object] = []

        async def handle(delivery: Delivery) -> None:
            got.append(delivery.signal.payload)
            refusing.is_on = delivery.signal.payload == 1

        a.on_signal("go", handle)
        waiting = lab.run_on(
            other, a.block_until_signal(correlation_id="x", from_=leader, timeout_s=600.0)
        )
        await asyncio.sleep(0.5)
        await lab.run_on(leader, b.send_signal(other, "go", payload=1))
        await lab.run_on(leader, b.send_signal(other, "done", correlation_id="x", payload=2))
        await asyncio.sleep(90.0)
        assert not waiting.done()
        refusing.is_on = False
        assert (await asyncio.wait_for(waiting, 30.0)).payload == 2
        await lab.run_on(leader, b.send_signal_with_retry(other, "go", payload=3))
        assert got == [1, 3]
        names = {each.name for each in a.parts.tasks.running}
        assert {"inbox", "signals go", "wait states"} <= names

    play(script)


@pytest.mark.parametrize("away_s", [30.0, 90.0])
def test_a_store_that_refuses_for_a_while_takes_the_effect_of_a_handler_later(
    away_s: float,
) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        leader = await lab.led()
        other = "b" if leader == "a" else "a"
        a, b = lab.members[other], lab.members[leader]
        refusing = Refusing(lab, other, leader)

        def handle(delivery: Delivery) -> None:
            delivery.also(Put("effect/x", b"1", expect=ABSENT, ttl_s=600.0))

        a.on_signal("go", handle)
        await asyncio.sleep(0.5)
        sent = await lab.run_on(leader, b.send_signal(other, "go"))
        refusing.is_on = True
        await asyncio.sleep(away_s)
        refusing.is_on = False
        await asyncio.sleep(5.0)
        effect, ack, aside = await lab.store.get(
            "effect/x",
            keys.ack(leader, sent.signal_id),
            keys.quarantine(other, sent.signal_id),
        )
        assert effect is not None and ack is not None and aside is None

    play(script)


def test_each_failure_of_a_handler_is_logged_once() -> None:
    async def script(lab: Lab) -> None:
        sink = MemorySink()
        lab.start("a", log=log_of(lab, sink))
        await lab.ready("a")
        a, calls = lab.members["a"], list[str]()

        def refused(delivery: Delivery) -> None:
            calls.append(delivery.signal.signal_id)
            delivery.also(Put(keys.LEADER, b"x", expect=ANY, ttl_s=60.0))

        a.on_signal("evil", refused)
        await a.send_signal("a", "evil")
        await asyncio.sleep(30.0)
        failures = [each.event for each in sink.records if "belongs to the library" in str(each)]
        assert len(calls) == 5
        assert failures.count("signal_handler_failed") == 5
        assert "error_without_listener" not in failures

    play(script)
