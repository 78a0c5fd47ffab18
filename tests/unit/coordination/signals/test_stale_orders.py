"""A signal with an order of a deposed coordinator is counted and logged with both epochs, whether
it was stale when it was read or became stale while it waited for its handler.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from squall.coordination.errors import ConfigurationError
from squall.coordination.records.schemas import Signal
from squall.coordination.signals.acceptance import refusal
from squall.coordination.signals.member_signals import Delivery
from squall.runtime.log import MemorySink
from tests.unit.coordination.lab.logs import log_of, warnings_of
from tests.unit.coordination.lab.world import Lab, play


def test_a_stale_order_is_counted_and_logged_when_it_is_read_and_when_it_is_handled() -> None:
    async def script(lab: Lab) -> None:
        sink = MemorySink()
        lab.start("a")
        lab.start("b", log=log_of(lab, sink))
        await lab.ready("a", "b")
        a, b = lab.members["a"], lab.members["b"]
        obeyed: list[int] = []

        async def slowly(delivery: Delivery) -> None:
            obeyed.append(delivery.signal.epoch)
            await asyncio.sleep(1.0)

        epochs = [7]
        receiver: Any = b.signals.receiver
        receiver._context = replace(receiver._context, known_epoch=lambda: epochs[-1])
        b.on_signal("order", slowly)
        b.on_signal("news", lambda delivery: None)
        for epoch in (7, 7):
            await a.send_signal("b", "order", epoch=epoch)
        await asyncio.sleep(0.3)
        assert b.get_metrics().epoch_drift_events == 0
        epochs.append(9)
        await a.send_signal("b", "news", epoch=9)
        await asyncio.sleep(2.0)
        assert obeyed == [7], "the second one waited for too long"
        await a.send_signal("b", "order", epoch=8)
        await a.send_signal("b", "order")
        await asyncio.sleep(2.0)
        assert obeyed == [7, 0]
        assert b.signals.receiver.rejected == {"stale_epoch": 2}
        assert b.get_metrics().epoch_drift_events == 2
        assert [
            (each["task_epoch"], each["current_epoch"]) for each in warnings_of(sink, "stale_epoch")
        ] == [(7, 9), (8, 9)]

    play(script)


def test_an_order_of_an_epoch_that_no_leader_has_is_logged() -> None:
    async def script(lab: Lab) -> None:
        sink = MemorySink()
        lab.start("a")
        lab.start("b", log=log_of(lab, sink))
        await lab.ready("a", "b")
        a, b = lab.members["a"], lab.members["b"]
        obeyed: list[int] = []
        b.on_signal("order", lambda delivery: obeyed.append(delivery.signal.epoch))
        await a.send_signal("b", "order", epoch=10**12)
        with pytest.raises(ConfigurationError, match="epoch is -1"):
            await a.send_signal("b", "order", epoch=-1)
        await asyncio.sleep(1.0)
        (logged,) = warnings_of(sink, "signal_rejected")
        assert (logged["reason"], logged["epoch"]) == ("unknown_epoch", 10**12)
        assert obeyed == []

    play(script)


def test_a_negative_epoch_is_refused_by_its_receiver_too() -> None:
    signal = Signal(
        signal_id="1",
        sender_id="a",
        sender_boot=1,
        receiver_id="b",
        type="order",
        epoch=-1,
        timestamp=0.0,
        expires_at=10.0,
    )
    why = refusal(
        signal,
        receiver_id="b",
        store_now=1.0,
        appended_at=1.0,
        known_epoch=0,
        max_clock_skew=60.0,
        sender_tombstone=None,
    )
    assert why == "unknown_epoch"
