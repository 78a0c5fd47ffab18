"""Signals that nobody takes in their time are gone: they fill no inbox and end no wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from coordination_lab import Lab, play

from squall.coordination import events, keys
from squall.coordination.errors import BlockingTimeoutError
from squall.coordination.signals import Delivery

DAY_S = 86_400.0
HOUR_S = 3_600.0


async def two(lab: Lab, **options: Any) -> None:
    lab.start("a", "b", profile="large", environment="development", skip_cold_start=True, **options)
    await lab.ready("a", "b")


@pytest.mark.parametrize("reads", [True, False])
def test_an_inbox_with_signals_that_nobody_takes_is_not_full_for_good(reads: bool) -> None:
    async def script(lab: Lab) -> None:
        await two(lab, max_inbox=30)
        leader = await lab.led()
        other = "b" if leader == "a" else "a"
        sender, receiver = lab.members[leader], lab.members[other]
        told: list[events.SignalRejected] = []
        receiver.on(events.SignalRejected, told.append)
        if reads:
            receiver.on_signal("job", lambda delivery: None)
        for number in range(70):
            await lab.run_on(leader, sender.send_signal(other, "late", correlation_id=f"n{number}"))
            await asyncio.sleep(HOUR_S)
        depth = await lab.store.depth(keys.inbox(other))
        assert depth.items <= 26 and depth.oldest_ms / 1000.0 <= DAY_S + 2 * HOUR_S
        assert len(receiver.signals.mailbox.inbox) <= 26
        assert {each.reason for each in told} == {"expired"} and len(told) >= 40

    play(script, limit_s=10 * DAY_S)


def test_a_wait_is_not_ended_by_a_signal_that_has_expired() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        a.on_signal("job", lambda delivery: None)
        await lab.run_on("b", b.send_signal("a", "late", correlation_id="x"))
        await asyncio.sleep(1.0)
        assert len(a.signals.mailbox.inbox) == 1
        # Before the next look for what has expired.
        a.signals.mailbox._look_at = float("inf")
        await asyncio.sleep(DAY_S + 60.0)
        with pytest.raises(BlockingTimeoutError):
            await lab.run_on("a", a.block_until_signal(correlation_id="x", timeout=5.0))
        assert a.signals.mailbox.rejected == {"expired": 1}
        assert list(await lab.store.read(keys.inbox("a"))) == []

    play(script, limit_s=3 * DAY_S)


def test_a_signal_that_expires_behind_a_slow_handler_is_not_handled() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        got: list[object] = []

        async def handle(delivery: Delivery) -> None:
            got.append(delivery.signal.payload)
            if delivery.signal.payload == 0:
                await asyncio.sleep(DAY_S + 60.0)

        a.on_signal("job", handle)
        for number in range(2):
            await lab.run_on("b", b.send_signal("a", "job", payload=number))
        await asyncio.sleep(DAY_S + HOUR_S)
        assert got == [0]
        assert a.signals.mailbox.rejected == {"expired": 1}
        assert list(await lab.store.read(keys.inbox("a"))) == []

    play(script, limit_s=3 * DAY_S)
