"""The receipt of a signal and the end of its handling are apart: a sender repeats until a consumer
has the signal, and then waits for as long as the consumer takes.
"""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination.errors import DeadCoordinatorError, SignalDeliveryError
from squall.coordination.signals.handler_loop import HANDLER_RETRY, Delivery
from squall.runtime.log import MemorySink
from tests.unit.coordination.lab.logs import log_of, warnings_of
from tests.unit.coordination.lab.world import FAST, Lab, play

# With the timings of the lab a sender gives up after less than 4 s without an answer.
SLOW_S = 25.0


async def two(lab: Lab, sink: MemorySink | None = None) -> None:
    lab.start("a", **({} if sink is None else {"log": log_of(lab, sink)}))
    await lab.led()
    lab.start("b", eligible=False)
    await lab.ready("a", "b")


@pytest.mark.parametrize("consumer", ["handler", "loop"])
def test_a_consumer_may_take_longer_than_all_tries_of_the_sender(consumer: str) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        begun: list[float] = []

        async def slow(delivery: Delivery) -> None:
            begun.append(lab.world.now)
            await asyncio.sleep(SLOW_S)

        async def loop() -> None:
            async for _ in b.signals.iterate(types=["job"]):
                begun.append(lab.world.now)
                await asyncio.sleep(SLOW_S)

        if consumer == "handler":
            b.on_signal("job", slow)
        else:
            lab.run_on("b", loop())
        sent_at = lab.world.now
        ack = await lab.run_on("a", a.send_signal_with_retry("b", "job"))
        assert ack.receiver_id == "b"
        assert SLOW_S <= lab.world.now - sent_at < SLOW_S + 2.0
        assert len(begun) == 1

    play(script)


def test_signals_that_wait_behind_a_slow_one_are_received_too() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]

        async def slow(delivery: Delivery) -> None:
            await asyncio.sleep(10.0)

        b.on_signal("job", slow)
        sends = [lab.run_on("a", a.send_signal_with_retry("b", "job")) for _ in range(3)]
        assert len(await asyncio.gather(*sends)) == 3

    play(script)


def test_the_error_says_that_the_signal_was_received_but_not_handled() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]

        async def slow(delivery: Delivery) -> None:
            await asyncio.sleep(100.0)

        b.on_signal("job", slow)
        with pytest.raises(SignalDeliveryError) as failed:
            await lab.run_on("a", a.send_signal_with_retry("b", "job", timeout_s=10.0))
        assert failed.value.received and failed.value.attempts < 3
        assert "received the signal, but was not done" in str(failed.value)
        with pytest.raises(SignalDeliveryError) as unheard:
            await lab.run_on("a", a.send_signal_with_retry("b", "unheard"))
        assert not unheard.value.received and unheard.value.attempts == 3
        assert "no acknowledgment within 1 s" in str(unheard.value)

    play(script)


def test_a_sender_learns_that_the_handler_failed() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        calls: list[str] = []

        def fails(delivery: Delivery) -> None:
            calls.append(delivery.signal.signal_id)
            raise ValueError("no such report")

        b.on_signal("job", fails)
        with pytest.raises(SignalDeliveryError, match="ValueError: no such report") as failed:
            await lab.run_on("a", a.send_signal_with_retry("b", "job"))
        assert failed.value.received and len(calls) == HANDLER_RETRY.tries

    play(script)


def test_a_receiver_that_dies_in_its_handler_is_not_waited_for_to_the_limit() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]

        async def slow(delivery: Delivery) -> None:
            await asyncio.sleep(1000.0)

        b.on_signal("job", slow)
        begun = lab.world.now
        sending = lab.run_on("a", a.send_signal_with_retry("b", "job", timeout_s=1000.0))
        await asyncio.sleep(5.0)
        lab.world.kill("b")
        with pytest.raises(SignalDeliveryError, match="left or died") as failed:
            await sending
        assert failed.value.received
        assert lab.world.now - begun < 5.0 + 3.0 * FAST.dead_after

    play(script)


def test_each_retry_is_logged() -> None:
    async def script(lab: Lab) -> None:
        sink = MemorySink()
        await two(lab, sink)
        a = lab.members["a"]
        with pytest.raises(SignalDeliveryError) as failed:
            await lab.run_on("a", a.send_signal_with_retry("b", "job", correlation_id="c"))
        lines = warnings_of(sink, "signal_retry")
        assert [line["attempt"] for line in lines] == ["1/3", "2/3"]
        for line in lines:
            assert (line["signal_id"], line["correlation_id"], line["receiver_id"]) == (
                failed.value.signal_id,
                "c",
                "b",
            )
            assert line["error"] == "no acknowledgment within 1 s"

    play(script)


@pytest.mark.parametrize("kind", ["wait_all", "wait_any"])
def test_waiting_for_several_ends_with_the_death_of_the_senders(kind: str) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        wait = getattr(lab.members["a"].signals, kind)
        waiting = lab.run_on("a", wait(["x", "y"], from_="b", timeout_s=1800.0))
        await asyncio.sleep(1.0)
        begun = lab.world.now
        lab.world.kill("b")
        with pytest.raises(DeadCoordinatorError):
            await waiting
        assert lab.world.now - begun < 3.0 * FAST.dead_after

    play(script)
