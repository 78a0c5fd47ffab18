"""What members promise each other, on each of the four stores: death, rebirth,
acknowledgments, forged records, waits, a changed secret.

The same promises are tested in virtual time with many more faults; here the stores are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from squall.coordination import events
from squall.coordination.errors import (
    BlockingTimeoutError,
    DeadCoordinatorError,
    SignalDeliveryError,
)
from squall.coordination.records import keys
from squall.coordination.records.schemas import MemberRecord, SignalAck
from squall.coordination.secrets.sources import generate_secret
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.interface import ABSENT, ANY, Append, Delete, Put
from tests.services.coordination.lab.groups import SECRET, group_on
from tests.services.coordination.lab.places import Place

pytestmark = pytest.mark.asyncio


async def test_death_is_noticed_though_the_record_was_deleted(place: Place) -> None:
    """Three checks, one death for all three members, and cleanup of this one only."""
    async with group_on(place) as group:
        members = [*await group.two(), await group.member("c")]
        await group.until(lambda: any(each.is_coordinator for each in members), "one leads")
        leader = next(each for each in members if each.is_coordinator)
        warned: list[str] = []
        dead: list[events.CoordinatorDead] = []
        errors: list[object] = []
        cleaned: list[str] = []
        for each in members:
            each.on(events.HeartbeatWarning, lambda event: warned.append(event.health))
            each.on(events.CoordinatorDead, dead.append)
            each.on(events.ErrorEvent, lambda event: errors.append(event.error))
            each.on(events.CleanupComplete, lambda event: cleaned.append(event.member_id))
        store = await place.open()
        codec = leader.parts.codec
        record = MemberRecord(member_id="coord-1", boot=3, hostname="x", pid=1)
        await store.write(
            Put(keys.member("coord-1"), codec.encode(record), expect=ANY, ttl_s=60.0),
            Put(keys.heartbeat("coord-1"), b"?", expect=ANY, ttl_s=0.05),
            Append(keys.inbox("coord-1"), "s1", b"{}", ttl_s=60.0),
        )
        await group.until(lambda: cleaned, "it is dead and cleaned up")
        assert warned == ["warning", "critical", "dead"]
        assert [(event.member_id, event.boot) for event in dead] == [("coord-1", 3)]
        assert [type(each) for each in errors] == [DeadCoordinatorError]
        statistics = [each.get_statistics() for each in members]
        assert sum(each.warnings_issued for each in statistics) == 3
        assert sum(each.coordinators_marked_dead for each in statistics) == 1
        assert sum(each.cleanups_performed for each in statistics) == 1
        assert leader.get_statistics().dead_coordinators == ["coord-1"]
        assert len(await store.read(keys.inbox("coord-1"))) == 1
        assert {"a", "b", "c"} <= set(await leader.active_workers())


async def test_dead_is_terminal_and_the_process_goes_on_as_a_new_incarnation(place: Place) -> None:
    async with group_on(place) as group:
        a, b = await group.two()
        await group.until(lambda: a.is_coordinator or b.is_coordinator, "one leads")
        leader, other = (a, b) if a.is_coordinator else (b, a)
        back: list[events.CoordinatorRecovered] = []
        other.on(events.CoordinatorRecovered, back.append)
        before = other.boot
        # Its beats get nowhere until it is dead.
        urgent = other.parts.urgent
        silent = asyncio.Event()

        def lost(call: Callable[..., Any]) -> Callable[..., Any]:
            async def sent(*arguments: Any, **rest: Any) -> Any:
                if not silent.is_set():
                    await asyncio.sleep(3600.0)
                return await call(*arguments, **rest)

            return sent

        urgent.write = lost(urgent.write)  # type: ignore[method-assign]
        urgent.write_and_get = lost(urgent.write_and_get)  # type: ignore[method-assign]
        dead: list[str] = []
        leader.on(events.CoordinatorDead, lambda event: dead.append(event.member_id))
        await group.until(lambda: dead, "it is declared dead", 20.0)
        silent.set()
        await group.until(lambda: back, "it is back", 20.0)
        assert back[0].was_dead and other.boot > before
        leader.on_signal("note", lambda delivery: None)
        await other.send_signal_with_retry(leader.member_id, "note")


async def test_signals_wait_in_order_and_only_their_own_ack_counts(place: Place) -> None:
    async with group_on(place) as group:
        a = await group.member("a")
        for number in range(3):
            await a.send_signal("b", "wake", payload=number, allow_unknown=True)
        b = await group.member("b")
        got: list[int] = []

        async def handle(delivery: Delivery) -> None:
            got.append(delivery.signal.payload)
            key = f"effect/{delivery.signal.signal_id}"
            delivery.also(Put(key, b"1", expect=ABSENT, ttl_s=60.0))

        b.on_signal("wake", handle)
        await group.until(lambda: len(got) == 3, "all are delivered")
        assert got == [0, 1, 2]
        store = await place.open()
        old = SignalAck(signal_id="old", receiver_id="b", sender_id="a", received_at=0.0)
        ack = Put(keys.ack("a", "old"), a.parts.codec.encode(old), expect=ANY, ttl_s=60.0)
        await store.write(ack)
        unheard: list[events.CoordinatorUnreachable] = []
        a.on(events.CoordinatorUnreachable, unheard.append)
        lonely, heard = await asyncio.gather(
            a.send_signal_with_retry("b", "lonely"),
            a.send_signal_with_retry("b", "wake", payload=3),
            return_exceptions=True,
        )
        assert isinstance(lonely, SignalDeliveryError) and lonely.attempts == 3
        assert isinstance(heard, SignalAck)
        assert [(each.reason, each.attempts) for each in unheard] == [
            ("signal_delivery_failure", 3)
        ]
        left = [each.id for each in await store.read(keys.inbox("b"))]
        assert left == [lonely.signal_id], "repeats kept their id"


async def test_waits_end_with_their_signal_their_time_or_the_death_of_the_sender(
    place: Place,
) -> None:
    async with group_on(place) as group:
        a, b = await group.two()
        await group.until(lambda: a.is_coordinator or b.is_coordinator, "one leads")
        await a.send_signal("b", "completion", correlation_id="foreign", payload=1)
        await a.send_signal("b", "completion", correlation_id="early", payload=2)
        early = await b.block_until_signal(correlation_id="early", timeout_s=20.0)
        assert early.payload == 2
        with pytest.raises(BlockingTimeoutError):
            await b.block_until_signal(correlation_id="never", from_="a", timeout_s=0.5)
        waiting = asyncio.ensure_future(
            b.block_until_signal(correlation_id="late", from_="a", timeout_s=1800.0)
        )
        async with asyncio.timeout(15.0 * group.scale):
            while [wait.correlation_id for wait in await b.signals.open_waits()] != ["late"]:
                await asyncio.sleep(0.05)
        await a.stop()
        with pytest.raises(DeadCoordinatorError):
            await asyncio.wait_for(waiting, 25.0 * group.scale)


async def test_a_secret_is_changed_under_traffic(place: Place) -> None:
    """Old, both, signed with the new one, new: nothing is refused or lost."""
    new = generate_secret()
    async with group_on(place) as group:
        a, b = await group.two()
        refused: list[str] = []
        for member in (a, b):
            member.on(events.SignalRejected, lambda event: refused.append(event.reason))
            member.on_signal("note", lambda delivery: None)
        done = asyncio.Event()
        sent = 0

        async def talk() -> None:
            nonlocal sent
            while not done.is_set():
                await a.send_signal_with_retry("b", "note")
                await b.send_signal_with_retry("a", "note")
                sent += 2

        talking = asyncio.ensure_future(talk())
        a.reload_secrets([SECRET, new])
        await asyncio.sleep(0.5)
        b.reload_secrets([SECRET, new])
        await group.until(
            lambda: all(
                ring is not None and ring.signing_id == ring.key_ids[-1]
                for ring in (a.parts.codec.keyring, b.parts.codec.keyring)
            ),
            "both sign with the new one",
            30.0,
        )
        before = sent
        await group.until(lambda: sent > before + 2, "signals go on")
        done.set()
        await talking
        a.reload_secrets([new])
        b.reload_secrets([new])
        await a.send_signal_with_retry("b", "note")
        assert refused == []


async def test_a_heartbeat_that_was_deleted_by_hand_comes_back(place: Place) -> None:
    async with group_on(place) as group:
        a, b = await group.two()
        dead: list[events.CoordinatorDead] = []
        for member in (a, b):
            member.on(events.CoordinatorDead, dead.append)
        store = await place.open()
        await store.write(Delete(keys.heartbeat("b"), ANY))

        async def is_back() -> bool:
            return "b" in await a.active_workers()

        async with asyncio.timeout(15.0 * group.scale):
            while not await is_back():
                await asyncio.sleep(0.05)
        assert dead == []
