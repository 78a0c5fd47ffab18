"""An acknowledged signal is never lost to its wait: not by a lost reply, not by the end of a
boot, not by a call that ends without a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from squall.coordination.errors import (
    BlockingTimeoutError,
    DeadCoordinatorError,
    StateLostError,
    StoreUnavailableError,
)
from squall.coordination.records.schemas import Signal
from squall.coordination.signals.matching import SignalFilter, SignalMatcher
from squall.coordination.stores.interface import Put, Write
from tests.unit.coordination.lab.world import Lab, play


async def two(lab: Lab) -> None:
    """`b` leads: the death of `a` is seen at once."""
    lab.start("a", "b")
    await lab.ready("a", "b")
    a, b = lab.members["a"], lab.members["b"]
    if not b.is_coordinator:
        await lab.run_on("a", a.hand_over("b", allow_early=True))
        await lab.led(but="a")


def lose_the_reply(lab: Lab, name: str, then: Callable[[], None]) -> None:
    """Loses the reply to the next delivery of a member; `then` happens in that moment."""
    patient = lab.members[name].parts.patient
    write, lost = patient.write, list[bool]()

    async def no_answer(*writes: Write, **rest: Any) -> tuple[str, ...]:
        done = await write(*writes, **rest)
        marks = [each for each in writes if isinstance(each, Put) and "idempotency/" in each.key]
        if marks and not lost:
            lost.append(True)
            then()
            raise StoreUnavailableError("the reply was lost")
        return done

    patient.write = no_answer  # type: ignore[method-assign]


@pytest.mark.parametrize("away_s", [0.0, 3.0, 8.5, 20.0])
def test_a_wait_whose_delivered_step_got_no_answer_gets_its_signal(away_s: float) -> None:
    """After 8.5 s the member is dead, and goes on as another incarnation."""

    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        before = a.boot

        def cut() -> None:
            lab.faults["a"].down = away_s > 0.0

        lose_the_reply(lab, "a", cut)
        waiting = lab.run_on("a", a.block_until_signal(correlation_id="x", timeout_s=600.0))
        await asyncio.sleep(0.1)
        ack = await lab.run_on("b", b.send_signal_with_retry("a", "done", correlation_id="x"))
        await asyncio.sleep(away_s)
        lab.faults["a"].down = False
        signal = await asyncio.wait_for(waiting, 30.0)
        assert signal.signal_id == ack.signal_id
        assert (a.boot != before) == (away_s > 5.0)

    play(script)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_wait_goes_on_with_the_next_incarnation_of_its_member(seed: int) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        before = a.boot
        waiting = lab.run_on("a", a.block_until_signal(correlation_id="x", timeout_s=600.0))
        lab.faults["a"].down = True
        await asyncio.sleep(6.0)
        await lab.run_on("b", b.send_signal("a", "done", correlation_id="x", payload=7))
        lab.faults["a"].down = False
        assert (await asyncio.wait_for(waiting, 30.0)).payload == 7
        assert a.boot != before

    play(script, seed=seed)


def test_a_wait_that_runs_out_in_its_delivered_step_leaves_the_signal_to_the_next() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]

        def cut() -> None:
            lab.faults["a"].down = True

        lose_the_reply(lab, "a", cut)
        waiting = lab.run_on("a", a.block_until_signal(correlation_id="x", timeout_s=2.0))
        await asyncio.sleep(0.1)
        await lab.run_on("b", b.send_signal_with_retry("a", "done", correlation_id="x", payload=7))
        with pytest.raises(BlockingTimeoutError):
            await waiting
        lab.faults["a"].down = False
        later = lab.run_on("a", a.block_until_signal(correlation_id="x", timeout_s=30.0))
        assert (await later).payload == 7

    play(script)


async def with_one_of_two(lab: Lab) -> asyncio.Task[Any]:
    """A call that waits for two has one, and its sender knows."""
    await two(lab)
    a, b = lab.members["a"], lab.members["b"]
    waiting = lab.run_on("a", a.signals.wait_all(["p", "q"], 600.0))
    await asyncio.sleep(0.1)
    await lab.run_on("b", b.send_signal_with_retry("a", "done", correlation_id="p", payload=7))
    await asyncio.sleep(0.5)
    return waiting


def test_what_came_for_a_cancelled_wait_for_several_is_there_for_a_later_one() -> None:
    async def script(lab: Lab) -> None:
        (await with_one_of_two(lab)).cancel()
        await asyncio.sleep(0.1)
        a, b = lab.members["a"], lab.members["b"]
        again = lab.run_on("a", a.signals.wait_all(["p", "q"], 30.0))
        await b.send_signal("a", "done", correlation_id="q", payload=8)
        assert {name: each.payload for name, each in (await again).items()} == {"p": 7, "q": 8}
        with pytest.raises(BlockingTimeoutError):
            await lab.run_on("a", a.block_until_signal(correlation_id="p", timeout_s=5.0))

    play(script)


def test_a_loop_over_signals_gets_what_a_cancelled_wait_left() -> None:
    async def script(lab: Lab) -> None:
        (await with_one_of_two(lab)).cancel()
        await asyncio.sleep(0.1)
        got: list[object] = []

        async def loop() -> None:
            async for signal in lab.members["a"].signals.iterate(types=["done"]):
                got.append(signal.payload)
                await asyncio.sleep(0.0)

        looping = lab.run_on("a", loop())
        await asyncio.sleep(3.0)
        assert got == [7]
        looping.cancel()
        assert len(lab.members["a"].signals.receiver.matcher) == 0

    play(script)


def test_what_came_before_the_store_lost_its_data_is_there_for_a_later_wait() -> None:
    async def script(lab: Lab) -> None:
        waiting = await with_one_of_two(lab)
        lab.store.__init__(lab.store._clock)  # type: ignore[misc]
        with pytest.raises(StateLostError):
            await asyncio.wait_for(waiting, 30.0)
        await asyncio.sleep(5.0)
        a = lab.members["a"]
        later = lab.run_on("a", a.block_until_signal(correlation_id="p", timeout_s=30.0))
        assert (await later).payload == 7

    play(script)


def test_a_signal_whose_delivered_step_was_begun_is_for_no_handler() -> None:
    """What the handler wants to be written with that step would come too late."""
    matcher = SignalMatcher()
    signal = Signal(
        signal_id="1",
        sender_id="a",
        sender_boot=1,
        receiver_id="b",
        type="job",
        timestamp=0.0,
        expires_at=60.0,
    )
    matcher.arrive("s", "1", "b", signal, 0)
    matcher.add_consumer(SignalFilter(), once=True)
    ((_, entry),) = matcher.match()
    entry.attempted = True
    matcher.add_consumer(SignalFilter(), once=False)
    matcher.give_back(entry)
    assert matcher.match() == []
    wait = matcher.add_consumer(SignalFilter(), once=True)
    assert matcher.match() == [(wait, entry)]


@pytest.mark.parametrize("timeout_s", [4.6, 4.8])
def test_a_wait_whose_senders_are_given_up_at_its_limit_does_not_cancel_its_caller(
    timeout_s: float,
) -> None:
    ended: set[str] = set()

    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        await lab.run_on("b", b.stop())
        await asyncio.sleep(1.0)
        lab.faults["a"].reply_delay_s = 0.15

        async def caller() -> None:
            try:
                await a.block_until_signal(from_="b", correlation_id="x", timeout_s=timeout_s)
            except (BlockingTimeoutError, DeadCoordinatorError) as error:
                ended.add(type(error).__name__)
            await asyncio.sleep(5.0)

        calling = lab.run_on("a", caller())
        await asyncio.wait([calling])
        assert not calling.cancelled()

    for seed in range(15):
        play(script, seed=seed)
    assert ended == {"BlockingTimeoutError", "DeadCoordinatorError"}
