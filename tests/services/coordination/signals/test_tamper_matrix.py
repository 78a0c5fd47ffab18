"""Every way in which a signal can be invalid, on each of the four stores: it is refused with its
own reason, the wait continues, and the valid signal ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from squall.coordination import events
from squall.coordination.coordinator import Coordinator
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, Signal, Tombstone
from squall.coordination.secrets.signing import Keyring
from squall.coordination.stores.interface import ANY, Append, Put
from tests.services.coordination.lab.groups import SECRET, Group, group_on
from tests.services.coordination.lab.places import Place

pytestmark = pytest.mark.asyncio
OTHERS: dict[str, Any] = {
    "v": 0,
    "signal_id": "f" * 24,
    "correlation_id": "another",
    "sender_id": "c",
    "sender_incarnation": 1,
    "receiver_id": "c",
    "type": "cancel",
    "iteration": 5,
    "payload": "forged",
    "epoch": 99,
    "timestamp": 1.0,
    "expires_at": 9e12,
}
"""A wrong value for each field that is signed."""
PROOFS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no signature": (lambda fields: fields.pop("signature"), "missing"),
    "an empty signature": (lambda fields: fields.update(signature=""), "missing"),
    "a cut signature": (
        lambda fields: fields.update(signature=fields["signature"][:-2]),
        "malformed",
    ),
    "no hex": (lambda fields: fields.update(signature="z" * 64), "malformed"),
    "no text": (lambda fields: fields.update(signature=7), "malformed"),
    "another signature": (lambda fields: fields.update(signature="0" * 64), "bad_signature"),
    "another key": (lambda fields: fields.update(key_id="0" * 16), "unknown_key"),
    "one field more": (lambda fields: fields.update(note="?"), "bad_signature"),
    "a newer version": (lambda fields: fields.update(v=2), "malformed"),
}
GHOST = 9


def forged(good: bytes) -> list[tuple[str, bytes, str]]:
    """What was done to it, how it stands in the inbox, and why it is refused."""
    found = [("no record", b"?", "malformed")]
    for name, value in OTHERS.items():
        fields = msgspec.json.decode(good)
        assert fields.get(name) != value
        body = msgspec.json.encode(fields | {name: value})
        found.append((f"another {name}", body, "bad_signature"))
    for what, (change, reason) in PROOFS.items():
        fields = msgspec.json.decode(good)
        change(fields)
        found.append((what, msgspec.json.encode(fields), reason))
    return found


def misplaced(a: Coordinator, signal: Signal) -> list[tuple[str, bytes, str]]:
    """Signed with the right secret, but otherwise invalid."""
    now = a.parts.store_time()

    def signed(codec: Codec = a.parts.codec, **fields: Any) -> bytes:
        return codec.encode(msgspec.structs.replace(signal, **fields))

    elsewhere = Codec(Keyring.of([SECRET], "production", "default"))
    beside = Codec(Keyring.of([SECRET], "staging", "another"))
    return [
        ("expired", signed(signal_id="1", expires_at=now - 1.0), "expired"),
        ("two minutes early", signed(signal_id="2", timestamp=now + 120.0), "from_future"),
        ("of another receiver", signed(signal_id="3", receiver_id="a"), "wrong_receiver"),
        ("of another environment", signed(elsewhere, signal_id="4"), "unknown_key"),
        ("of another namespace", signed(beside, signal_id="5"), "unknown_key"),
        ("of an old epoch", signed(signal_id="6", epoch=1), "stale_epoch"),
        (
            "of a dead sender",
            signed(signal_id="7", sender_id="ghost", sender_boot=GHOST),
            "fenced_sender",
        ),
    ]


async def begin(group: Group) -> tuple[Coordinator, Coordinator]:
    """Two members in an epoch above the first, and one that died."""
    a, b = await group.two()
    await group.until(lambda: a.is_coordinator or b.is_coordinator, "one leads")
    first = max(a.current_epoch, b.current_epoch)
    await a.ensure_coordinator(force=True, allow_early=True)
    await group.until(lambda: b.current_epoch > first, "a second epoch")
    tomb = Tombstone(
        member_id="ghost",
        boot=GHOST,
        death_id="ghost.9",
        epoch=1,
        died_at=a.parts.store_time() - 60.0,
        reason="silence",
        consecutive_warnings=3,
        announced=True,
        cleaned=True,
    )
    put = Put(keys.tombstone("ghost"), a.parts.codec.encode(tomb), expect=ANY, ttl_s=600.0)
    await a.parts.patient.write(put)
    return a, b


async def test_every_field_counts_and_each_wrong_signal_has_its_reason(place: Place) -> None:
    assert {*OTHERS, "key_id", "signature"} == set(Signal.__struct_encode_fields__)
    async with group_on(place) as group:
        a, b = await begin(group)
        told: list[events.SignalRejected] = []
        b.on(events.SignalRejected, told.append)
        waiting = asyncio.ensure_future(
            b.block_until_signal(correlation_id="job", timeout_s=90.0 * group.scale)
        )
        now = a.parts.store_time()
        signal = Signal(
            signal_id="a" * 24,
            correlation_id="job",
            sender_id="a",
            sender_boot=a.boot,
            receiver_id="b",
            type="completion",
            payload="good",
            timestamp=now,
            expires_at=now + 600.0,
        )
        cases = [*forged(a.parts.codec.encode(signal)), *misplaced(a, signal)]
        store = await place.open()
        for number, (_, value, _) in enumerate(cases):
            await store.write(Append(keys.inbox("b"), f"bad{number}", value, ttl_s=600.0))
        await group.until(lambda: len(told) >= len(cases) or waiting.done(), "all refused", 60.0)
        found = {what: event.reason for (what, _, _), event in zip(cases, told, strict=True)}
        assert found == {what: reason for what, _, reason in cases}
        assert not waiting.done()
        await replay(group, a, b, signal)
        assert not waiting.done()
        await a.send_signal("b", "completion", correlation_id="job", payload="good")
        assert (await waiting).payload == "good"


async def replay(group: Group, a: Coordinator, b: Coordinator, signal: Signal) -> None:
    """A good one a second time, after it was delivered."""
    once = msgspec.structs.replace(signal, signal_id="b" * 24, correlation_id="once")
    value = a.parts.codec.encode(once)
    await a.parts.patient.write(Append(keys.inbox("b"), "first", value, ttl_s=600.0))
    await b.block_until_signal(correlation_id="once", timeout_s=30.0 * group.scale)
    again = asyncio.ensure_future(
        b.block_until_signal(correlation_id="once", timeout_s=30.0 * group.scale)
    )
    await a.parts.patient.write(Append(keys.inbox("b"), "second", value, ttl_s=600.0))
    await group.until(lambda: b.signals.receiver.rejected.get("replay"), "replay")
    assert not again.done()
    again.cancel()
