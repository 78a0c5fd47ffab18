"""The reported health of a receiver that acknowledged nothing, and of a sender that sent nothing:
it follows from registration and heartbeat, and changes neither.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from squall.coordination import events
from squall.coordination.errors import BlockingTimeoutError, SignalDeliveryError
from squall.coordination.records import keys
from squall.coordination.records.schemas import HeartbeatRecord
from squall.coordination.stores.interface import ANY, Delete, Put
from tests.unit.coordination.lab.world import FAST, Lab, play

PATIENT = msgspec.structs.replace(FAST, dead_after=600.0, monitor_interval=90.0, retention=3600.0)
"""No member is declared dead for ten minutes."""


async def two(lab: Lab, **options: Any) -> list[events.CoordinatorUnreachable]:
    lab.start("a", **options)
    await lab.led()
    lab.start("b", **options)
    await lab.ready("a", "b")
    told: list[events.CoordinatorUnreachable] = []
    lab.members["a"].on(events.CoordinatorUnreachable, told.append)
    return told


async def fail(lab: Lab) -> None:
    with pytest.raises(SignalDeliveryError):
        await lab.run_on("a", lab.members["a"].send_signal_with_retry("b", "wake"))
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("signs", [True, False])
def test_one_that_beats_is_alive_and_one_that_is_silent_is_stale_but_not_dead(signs: bool) -> None:
    async def script(lab: Lab) -> None:
        told = await two(lab, profile=PATIENT, sign_heartbeats=signs)
        await asyncio.sleep(10.0)
        await fail(lab)
        lab.world.kill("b")
        await asyncio.sleep(PATIENT.heartbeat_ttl)
        before = await lab.store.get(keys.member("b"), keys.heartbeat("b"))
        await fail(lab)
        after = await lab.store.get(keys.member("b"), keys.heartbeat("b"))
        assert [each.health for each in told] == ["healthy", "stale"]
        wait = lab.members["a"].block_until_signal(from_=["a", "b", "zed"], timeout_s=1.0)
        with pytest.raises(BlockingTimeoutError) as failed:
            await lab.run_on("a", wait)
        senders = failed.value.expected_senders_health
        assert senders == {"a": "healthy", "b": "stale", "zed": "unknown"}
        assert [each and each.version for each in after] == [
            each and each.version for each in before
        ]

    play(script)


def test_one_whose_heartbeat_was_replaced_is_dead_and_one_without_any_is_stale() -> None:
    async def script(lab: Lab) -> None:
        told = await two(lab, profile=PATIENT, sign_heartbeats=True)
        lab.world.kill("b")
        await asyncio.sleep(10.0)
        (beat,) = await lab.store.get(keys.heartbeat("b"))
        assert beat is not None
        codec = lab.members["a"].parts.codec
        record = codec.read(HeartbeatRecord, beat.value)
        assert record is not None
        dead = codec.encode(msgspec.structs.replace(record, status="dead"))
        await lab.store.write(Put(beat.key, dead, expect=ANY, ttl_s=600.0))
        await fail(lab)
        await lab.store.write(Delete(beat.key, ANY))
        await fail(lab)
        assert [each.health for each in told] == ["dead", "stale"]

    play(script)


def test_one_that_left_is_said_to_have_left_and_one_that_never_was_is_unknown() -> None:
    async def script(lab: Lab) -> None:
        told = await two(lab)
        await lab.world.stop("b")
        await fail(lab)
        a = lab.members["a"]
        with pytest.raises(SignalDeliveryError):
            await lab.run_on("a", a.send_signal_with_retry("zed", "wake", allow_unknown=True))
        await asyncio.sleep(0.1)
        assert [each.health for each in told] == ["left", "unknown"]

    play(script)
