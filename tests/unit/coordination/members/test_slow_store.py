"""A store that answers late: a beat is sent once more and then awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from squall.coordination import events
from squall.coordination.coordinator import Coordinator
from tests.unit.coordination.lab.groups import group
from tests.unit.coordination.lab.world import FAST, Lab, play

PATIENT = msgspec.structs.replace(
    FAST, lease_ttl=5.0, heartbeat_ttl=10.0, dead_after=11.5, max_epoch_duration=600.0
)
LATE_S = 2.0 * PATIENT.heartbeat_interval


def answers_late(member: Coordinator) -> None:
    """What it writes takes effect at once; it hears of it later."""
    urgent = member.parts.urgent

    def late(call: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*arguments: Any, **options: Any) -> Any:
            answer = await call(*arguments, **options)
            await member.parts.clock.sleep(LATE_S)
            return answer

        return called

    urgent.write = late(urgent.write)  # type: ignore[method-assign]


def test_beats_get_through_though_each_answer_takes_two_intervals() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", profile=PATIENT)
        member, epoch = lab.members[leader], lab.members[leader].current_epoch
        registration = member._boots.registration  # pyright: ignore[reportPrivateUsage]
        assert registration is not None
        answers_late(member)
        before = registration.sequence
        await asyncio.sleep(60.0)
        assert registration.sequence > before + 15, "each cycle takes three intervals at most"
        assert member.is_coordinator and member.current_epoch == epoch
        assert not member.isolated and member.heartbeat_p99 > LATE_S
        ratios = [event.ratio for event in heard.of(events.ContentionDetected)]
        assert len(ratios) == 2 and all(2.4 < ratio < 2.7 for ratio in ratios), ratios
        assert heard.of(events.HeartbeatWarning) == []

    play(script)


def test_a_beat_that_arrived_and_is_sent_again_counts_once() -> None:
    async def script(lab: Lab) -> None:
        await group(lab, "a")
        registration = lab.members["a"]._boots.registration  # pyright: ignore[reportPrivateUsage]
        assert registration is not None
        store, writes = registration._store, list[Any]()  # pyright: ignore[reportPrivateUsage]
        plain = store.write_and_get

        async def lost(sent: Any, look_at: Any) -> Any:
            writes.append(sent)
            answer = await plain(sent, look_at)
            if len(writes) == 1:
                await asyncio.sleep(3600.0)
            return answer

        store.write_and_get = lost  # type: ignore[method-assign]
        before = registration.sequence
        await lab.world.eventually(lambda: len(writes) == 2, within_s=5.0, what="again")
        await lab.world.eventually(
            lambda: registration.sequence > before, within_s=5.0, what="beats"
        )
        assert registration.sequence == before + 1 and writes[0] == writes[1]

    play(script)
