"""Signals that no consumer takes in time are removed: they fill no inbox and end no wait."""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination import events
from squall.coordination.errors import BlockingTimeoutError
from squall.coordination.records import keys
from squall.coordination.signals import receiver
from squall.coordination.signals.member_signals import Delivery
from tests.unit.coordination.lab.world import Lab, play

LIFE_S = 60.0
LOOK_S = 5.0


@pytest.fixture(autouse=True)
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day is long, also in virtual time."""
    monkeypatch.setattr(keys, "SIGNAL_LIFE_S", LIFE_S)
    monkeypatch.setattr(receiver, "EXPIRED_EVERY_S", LOOK_S)


async def two(lab: Lab) -> None:
    lab.start("a", "b")
    await lab.ready("a", "b")


@pytest.mark.parametrize("reads", [True, False])
def test_an_inbox_with_untaken_signals_is_not_full_for_good(reads: bool) -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", max_inbox=30)
        # It never leads, so nothing of the library reads its inbox.
        lab.start("b", eligible=False)
        await lab.ready("a", "b")
        a, b = lab.members["a"], lab.members["b"]
        told: list[events.SignalRejected] = []
        b.on(events.SignalRejected, told.append)
        if reads:
            b.on_signal("job", lambda delivery: None)
        for number in range(70):
            await lab.run_on("a", a.send_signal("b", "late", payload=number))
            await asyncio.sleep(2.5)
        depth = await lab.store.depth(keys.inbox("b"))
        assert depth.items < 30 and depth.oldest_ms / 1000.0 <= LIFE_S + 2 * LOOK_S
        assert len(b.signals.receiver.matcher) == (depth.items if reads else 0)
        assert [each.reason for each in told] == ["expired"] * (70 - depth.items)

    play(script)


def test_a_wait_is_not_ended_by_a_signal_that_has_expired() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        a.on_signal("job", lambda delivery: None)
        await lab.run_on("b", b.send_signal("a", "late", correlation_id="x"))
        await asyncio.sleep(1.0)
        assert len(a.signals.receiver.matcher) == 1
        # Before the next check for expired signals.
        a.signals.receiver._expiry_check_at = float("inf")
        await asyncio.sleep(LIFE_S + 1.0)
        with pytest.raises(BlockingTimeoutError):
            await lab.run_on("a", a.block_until_signal(correlation_id="x", timeout_s=5.0))
        assert a.signals.receiver.rejected == {"expired": 1}
        assert list(await lab.store.read(keys.inbox("a"))) == []

    play(script)


def test_a_signal_that_expires_behind_a_slow_handler_is_not_handled() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        got: list[object] = []

        async def handle(delivery: Delivery) -> None:
            got.append(delivery.signal.payload)
            if delivery.signal.payload == 0:
                await asyncio.sleep(LIFE_S + 1.0)

        a.on_signal("job", handle)
        for number in range(2):
            await lab.run_on("b", b.send_signal("a", "job", payload=number))
        await asyncio.sleep(LIFE_S + 10.0)
        assert got == [0]
        assert a.signals.receiver.rejected == {"expired": 1}
        assert list(await lab.store.read(keys.inbox("a"))) == []

    play(script)
