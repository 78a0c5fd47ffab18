"""Signals between whole members in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from squall.coordination import events
from squall.coordination.errors import (
    BlockingTimeoutError,
    DeadCoordinatorError,
    InboxFullError,
    SignalDeliveryError,
    StateLostError,
    StoreUnavailableError,
    UnknownMemberError,
)
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, Signal, SignalAck
from squall.coordination.secrets.signing import Keyring
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.interface import ABSENT, ANY, Append, Put, Write
from tests.unit.coordination.lab.world import FAST, Lab, play


async def two(lab: Lab, **options: Any) -> None:
    lab.start("a", "b", **options)
    await lab.ready("a", "b")


def test_signals_sent_before_the_receiver_reads_come_in_order_and_are_acked() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        sent = [await a.send_signal("b", "wake", payload=number) for number in range(3)]
        got: list[int] = []
        b.on_signal("wake", lambda delivery: got.append(delivery.signal.payload))
        await asyncio.sleep(0.2)
        assert got == [0, 1, 2]
        found = await lab.store.get(*(keys.ack("a", each.signal_id) for each in sent))
        assert all(found)
        assert list(await lab.store.read(keys.inbox("b"))) == []

    play(script)


def test_an_effect_given_to_the_delivered_step_is_there_once() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)

        async def handle(delivery: Delivery) -> None:
            delivery.also(Put("effect/x", b"1", expect=ABSENT, ttl_s=60.0))

        lab.members["b"].on_signal("job", handle)
        await lab.members["a"].send_signal_with_retry("b", "job")
        (record,) = await lab.store.get("effect/x")
        assert record is not None

    play(script)


def test_a_signal_is_delivered_again_after_a_crash_before_it_was_marked() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        seen: list[int] = []
        stuck = asyncio.Event()

        async def handle(delivery: Delivery) -> None:
            seen.append(delivery.signal.payload)
            if len(seen) == 1:
                await stuck.wait()

        lab.members["b"].on_signal("job", handle)
        await lab.members["a"].send_signal("b", "job", payload=7)
        await asyncio.sleep(0.2)
        lab.world.kill("b")
        before = lab.members["b"]
        lab.world.start("b")
        await lab.world.eventually(
            lambda: lab.members["b"] is not before and lab.members["b"].current_coordinator,
            within_s=10.0,
            what="b is back",
        )
        lab.members["b"].on_signal("job", handle)
        await asyncio.sleep(0.5)
        assert seen == [7, 7]

    play(script)


def test_only_an_ack_of_this_very_signal_counts_and_repeats_keep_the_id() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        heard: list[events.CoordinatorUnreachable] = []
        a = lab.members["a"]
        a.on(events.CoordinatorUnreachable, heard.append)
        sending = lab.run_on("a", a.send_signal_with_retry("b", "lonely"))
        await asyncio.sleep(0.3)
        items = await lab.store.read(keys.inbox("b"))
        signal = msgspec.json.decode(items[0].value)
        codec = Codec(Keyring.of(["another secret" * 4], "staging", "default"))
        forged = SignalAck(
            signal_id=signal["signal_id"], receiver_id="b", sender_id="a", received_at=0.0
        )
        key = keys.ack("a", signal["signal_id"])
        await lab.store.write(Put(key, codec.encode(forged), expect=ANY, ttl_s=60.0))
        with pytest.raises(SignalDeliveryError) as failed:
            await sending
        assert failed.value.attempts == 3
        assert [(event.reason, event.attempts) for event in heard] == [
            ("signal_delivery_failure", 3)
        ]
        assert len(await lab.store.read(keys.inbox("b"))) == 1

    play(script)


def test_a_wait_takes_what_matches_also_what_came_before_and_nothing_else() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        await a.send_signal("b", "completion", correlation_id="old", payload="old")
        await a.send_signal("b", "completion", correlation_id="job-7", payload="mine")
        wait = b.block_until_signal(correlation_id="job-7", timeout_s=5.0)
        got = await lab.run_on("b", wait)
        assert got.payload == "mine"
        assert len(await lab.store.read(keys.inbox("b"))) == 1

    play(script)


def test_a_wait_ends_with_its_limit_and_says_how_its_senders_are() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        b = lab.members["b"]
        told: list[events.WaitTimedOut] = []
        b.on(events.WaitTimedOut, told.append)
        with pytest.raises(BlockingTimeoutError) as failed:
            await lab.run_on(
                "b", b.block_until_signal(correlation_id="x", from_="a", timeout_s=1.0)
            )
        assert failed.value.expected_senders_health == {"a": "healthy"}
        await asyncio.sleep(0.1)
        assert len(told) == 1
        assert await b.signals.open_waits() == ()

    play(script)


def test_a_cancelled_wait_leaves_the_signal_and_a_restarted_caller_finds_its_wait() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        first = lab.run_on("b", b.block_until_signal(correlation_id="x", timeout_s=50.0))
        await asyncio.sleep(0.3)
        assert [wait.correlation_id for wait in await b.signals.open_waits()] == ["x"]
        first.cancel()
        await asyncio.sleep(0.3)
        await a.send_signal("b", "completion", correlation_id="x", payload=1)
        got = await lab.run_on("b", b.block_until_signal(correlation_id="x", timeout_s=5.0))
        assert got.payload == 1

    play(script)


def test_a_wait_ends_when_its_sender_is_dead_long_before_its_limit() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        await lab.ready("a", "b", "c")
        b = lab.members["b"]
        wait = lab.run_on("b", b.block_until_signal(from_="c", timeout_s=1800.0))
        lab.world.kill("c")
        begun = lab.world.now
        with pytest.raises(DeadCoordinatorError):
            await wait
        assert lab.world.now - begun < 2 * FAST.dead_after + FAST.failover + 2.0

    play(script)


def test_a_wait_on_a_store_that_was_emptied_ends_at_once() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        b = lab.members["b"]
        wait = lab.run_on("b", b.block_until_signal(correlation_id="x", timeout_s=1800.0))
        await asyncio.sleep(0.5)
        lab.store.__init__(lab.store._clock)  # type: ignore[misc]
        with pytest.raises(StateLostError):
            await asyncio.wait_for(wait, 5.0)

    play(script)


def test_a_full_inbox_and_an_unknown_receiver_are_refused() -> None:
    async def script(lab: Lab) -> None:
        await two(lab, max_inbox=3)
        a = lab.members["a"]
        for number in range(3):
            await a.send_signal("b", "wake", payload=number)
        with pytest.raises(InboxFullError, match="b holds 3"):
            await a.send_signal("b", "wake")
        with pytest.raises(UnknownMemberError, match="zed"):
            await a.send_signal("zed", "wake")
        await a.send_signal("zed", "wake", allow_unknown=True)

    play(script)


def test_a_loop_over_signals_acknowledges_what_its_body_finished() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        for number in range(3):
            await a.send_signal("b", "progress", payload=number)
        got: list[int] = []

        async def consume() -> None:
            async for signal in b.signals.iterate(types=["progress"]):
                got.append(signal.payload)
                if signal.payload == 1:
                    raise RuntimeError("the body failed")

        task = lab.run_on("b", consume())
        with pytest.raises(RuntimeError):
            await task
        await asyncio.sleep(0.3)
        left = [msgspec.json.decode(item.value) for item in await lab.store.read(keys.inbox("b"))]
        assert got == [0, 1]
        assert [item["payload"] for item in left] == [1, 2]

    play(script)


FIELDS: dict[str, Any] = {
    "payload": {"n": 2},
    "epoch": 99,
    "correlation_id": "other",
    "iteration": 5,
    "type": "cancel",
    "sender_id": "c",
    "sender_incarnation": 1,
    "receiver_id": "b",
    "timestamp": 1.0,
    "expires_at": 9e12,
    "signal_id": "0" * 24,
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        *(({name: value}, "bad_signature") for name, value in FIELDS.items()),
        ({"signature": ""}, "missing"),
        ({"signature": "ab"}, "malformed"),
        ({"signature": "z" * 64}, "malformed"),
        ({"signature": 7}, "malformed"),
        ({"key_id": "0123456789abcdef"}, "unknown_key"),
    ],
)
def test_a_changed_signal_is_refused_with_its_reason_and_the_wait_goes_on(
    change: dict[str, Any], reason: str
) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        a, b = lab.members["a"], lab.members["b"]
        told: list[events.SignalRejected] = []
        b.on(events.SignalRejected, told.append)
        wait = lab.run_on("b", b.block_until_signal(types=["completion"], timeout_s=30.0))
        await a.send_signal("a", "completion", payload={"n": 1})
        (item,) = await lab.store.read(keys.inbox("a"))
        fields = msgspec.json.decode(item.value)
        value = msgspec.json.encode(fields | change)
        await lab.store.write(Append(keys.inbox("b"), "forged", value, ttl_s=60.0))
        await asyncio.sleep(0.3)
        assert [event.reason for event in told] == [reason]
        assert not wait.done()
        await a.send_signal("b", "completion", payload={"n": 3})
        assert (await wait).payload == {"n": 3}

    play(script)


def signed(lab: Lab, environment: str = "staging", **fields: Any) -> bytes:
    codec = Codec(Keyring.of(["5ec2e7" * 12], environment, "default"))
    now = lab.store._now_ms() / 1000.0
    base: dict[str, Any] = {
        "signal_id": "5" * 24,
        "sender_id": "a",
        "sender_boot": 1,
        "receiver_id": "b",
        "type": "completion",
        "timestamp": now,
        "expires_at": now + 60.0,
    }
    shifted = {
        name: now + value if name in ("timestamp", "expires_at") else value
        for name, value in fields.items()
    }
    return codec.encode(Signal(**(base | shifted)))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"expires_at": -1.0}, "expired"),
        ({"timestamp": 120.0}, "from_future"),
        ({"receiver_id": "c"}, "wrong_receiver"),
        ({"environment": "production"}, "unknown_key"),
    ],
)
def test_a_signed_signal_out_of_its_place_or_time_is_refused(
    fields: dict[str, Any], reason: str
) -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        b = lab.members["b"]
        wait = lab.run_on("b", b.block_until_signal(timeout_s=30.0))
        value = signed(lab, **fields)
        await lab.store.write(Append(keys.inbox("b"), "bad", value, ttl_s=60.0))
        await asyncio.sleep(0.2)
        assert b.signals.receiver.rejected == {reason: 1}
        value = signed(lab)
        for number in range(2):
            await lab.store.write(Append(keys.inbox("b"), f"ok{number}", value, ttl_s=60.0))
        await wait
        again = lab.run_on("b", b.block_until_signal(timeout_s=1.0))
        with pytest.raises(BlockingTimeoutError):
            await again
        assert b.signals.receiver.rejected["replay"] == 1

    play(script)


def test_a_refused_signal_is_reported_once_also_when_it_cannot_be_set_aside_at_once() -> None:
    async def script(lab: Lab) -> None:
        await two(lab)
        b = lab.members["b"]
        told: list[events.SignalRejected] = []
        b.on(events.SignalRejected, told.append)
        b.on_signal("completion", lambda delivery: None)
        await asyncio.sleep(0.5)
        urgent = b.parts.urgent
        write, lost = urgent.write, list[float]()

        async def lose(*writes: Write, **rest: Any) -> tuple[str, ...]:
            if any(isinstance(each, Put) and "quarantine/" in each.key for each in writes):
                lost.append(lab.world.now)
                if lab.world.now - lost[0] < 5.0:
                    raise StoreUnavailableError("the request was lost")
            return await write(*writes, **rest)

        urgent.write = lose  # type: ignore[method-assign]
        value = signed(lab, expires_at=-1.0)
        await lab.store.write(Append(keys.inbox("b"), "bad", value, ttl_s=60.0))
        await asyncio.sleep(10.0)
        assert len(lost) > 2
        assert [each.reason for each in told] == ["expired"]
        assert b.signals.receiver.rejected == {"expired": 1}
        assert list(await lab.store.read(keys.inbox("b"))) == []

    play(script)


def test_a_secret_is_changed_under_traffic_and_nothing_is_refused() -> None:
    async def script(lab: Lab) -> None:
        old, new = "5ec2e7" * 12, "a90b1e" * 12
        names = ("a", "b", "c")
        lab.start(*names)
        await lab.ready(*names)
        members = lab.members
        for name in names:
            members[name].on_signal("note", lambda delivery: None)

        async def traffic() -> None:
            for number in range(20):
                await members["a"].send_signal_with_retry("b", "note", payload=number)

        def signing() -> set[str]:
            rings = [member._running.codec.keyring for member in members.values()]
            return {ring.signing_id for ring in rings if ring is not None}

        (first,) = signing()
        for name in names:
            await lab.run_on("a", traffic())
            members[name].reload_secrets([old, new])
            if name != "c":
                await asyncio.sleep(5.0)
                assert signing() == {first}
        await lab.world.eventually(
            lambda: len(signing()) == 1 and signing() != {first}, within_s=10.0, what="new key"
        )
        await lab.run_on("a", traffic())
        for name in names:
            members[name].reload_secrets([new])
            await lab.run_on("a", traffic())
        assert all(not member.signals.receiver.rejected for member in members.values())
        await asyncio.sleep(5.0)
        assert lab.leaders
        value = signed(lab)
        await lab.store.write(Append(keys.inbox("b"), "late", value, ttl_s=60.0))
        await asyncio.sleep(0.5)
        assert members["b"].signals.receiver.rejected == {"unknown_key": 1}

    play(script)
