"""Signals wait for a receiver that has not started yet, and a receiver is killed between its
handler and the delivered batch: no signal is lost, and each effect is stored once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from squall.coordination import Coordinator, events
from squall.coordination.errors import SignalDeliveryError
from squall.coordination.records import keys
from squall.coordination.records.schemas import SignalAck
from squall.coordination.stores.interface import Store
from tests.services.coordination.lab.places import Place
from tests.services.coordination.lab.processes import SLACK_S, Lab
from tests.services.coordination.programs.member import scaled
from tests.services.coordination.programs.receiver import SECRET, TYPE, effect_key

pytestmark = pytest.mark.asyncio
SENDER, RECEIVER = "sender", "receiver"
SIGNALS = 3
INBOX_TTL_S = (86_000, 86_400)


class ReceiverLab(Lab):
    def __init__(self, place: Place, folder: Path) -> None:
        scale = 3.0 if place.kind == "s3" else 1.0
        super().__init__(place.url, place.prefix, folder, [RECEIVER], scale)
        self.halts = ""
        self._boots = 0

    def start(self, member: str, *, offset: float = 0.0) -> None:
        self._boots += 1
        self.launch("receiver", member, halts=self.halts, boot=str(self._boots))


@pytest_asyncio.fixture
async def lab(place: Place, tmp_path: Path) -> AsyncIterator[ReceiverLab]:
    async with ReceiverLab(place, tmp_path / "journals") as made:
        yield made


async def sender(lab: ReceiverLab, place: Place) -> Coordinator:
    return Coordinator(
        await place.open(),
        member_id=SENDER,
        profile=lab.timing,
        unsafe_timings=True,
        secret=SECRET,
    )


async def until_read(store: Store, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while await store.read(keys.inbox(RECEIVER)):
            await asyncio.sleep(0.1)


def check_inbox_ends(place: Place) -> None:
    import redis

    client = redis.Redis.from_url(place.url)
    low, high = INBOX_TTL_S
    assert low < client.ttl(f"{{{place.prefix}}}:signal:{RECEIVER}") <= high
    client.close()


POINTS = [
    *((kind, halts) for kind in ("sqlite", "redis", "s3") for halts in ("before", "after")),
    # Elsewhere the effect and the mark are one step.
    ("s3", "amid"),
]


@pytest.mark.parametrize(("place", "halts"), POINTS, indirect=["place"])
async def test_a_receiver_that_is_killed_amid_a_delivery_loses_and_doubles_nothing(
    place: Place, lab: ReceiverLab, halts: str
) -> None:
    async with await sender(lab, place) as member:
        sent = [
            await member.send_signal(RECEIVER, TYPE, payload=number, allow_unknown=True)
            for number in range(SIGNALS)
        ]
        if place.kind == "redis":
            check_inbox_ends(place)
        store = await place.open()
        ids = [each.signal_id for each in sent]
        lab.halts = halts
        lab.start(RECEIVER)
        await lab.told("halts")
        lab.kill(RECEIVER)
        acked = [keys.ack(SENDER, each) for each in ids]
        marked = [each is not None for each in await store.get(*acked)]
        assert marked == [halts == "after", False, False], "acknowledged with the mark, not before"
        lab.halts = ""
        lab.start(RECEIVER)
        await lab.told("handled", SIGNALS + (0 if halts == "after" else 1))
        await until_read(store, 60.0 * lab.scale)
        assert None not in await store.get(*acked)
    again = [] if halts == "after" else [0]
    assert [line["text"] for line in lab.lines("handled")] == [*again, 0, 1, 2]
    effects = await store.get(*map(effect_key, ids))
    # Where the first effect was written before the kill, the second one changed nothing.
    first = b"2" if halts == "before" else b"1"
    assert [each and each.value for each in effects] == [first, b"2", b"2"]


async def test_signals_wait_for_a_receiver_that_starts_later(place: Place) -> None:
    """In this process, so on the memory store as well: in order, each with its own
    acknowledgment."""
    timing = scaled(3.0 if place.kind == "s3" else 1.0)
    options: dict[str, Any] = {"profile": timing, "unsafe_timings": True, "secret": SECRET}
    async with Coordinator(await place.open(), member_id=SENDER, **options) as member:
        sent = [
            await member.send_signal(RECEIVER, TYPE, payload=number, allow_unknown=True)
            for number in range(SIGNALS)
        ]
        store = await place.open()
        acked = [keys.ack(SENDER, each.signal_id) for each in sent]
        assert await store.get(*acked) == (None,) * SIGNALS
        got: list[int] = []
        async with Coordinator(
            await place.open(), member_id=RECEIVER, eligible=False, **options
        ) as receiver:
            receiver.on_signal(TYPE, lambda delivery: got.append(delivery.signal.payload))
            await until_read(store, 60.0)
        assert got == list(range(SIGNALS))
        assert None not in await store.get(*acked)


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["redis"], indirect=True)
async def test_on_the_defaults_a_sender_gives_up_after_three_tries(place: Place) -> None:
    """15 s for three acknowledgments, and 1 and 2 s with a tenth more or less between them; in
    virtual time it is measured exactly."""
    async with (
        Coordinator(await place.open(), member_id=SENDER, secret=SECRET) as member,
        Coordinator(await place.open(), member_id=RECEIVER, secret=SECRET) as receiver,
    ):
        unheard: list[events.CoordinatorUnreachable] = []
        member.on(events.CoordinatorUnreachable, unheard.append)
        receiver.on_signal("wanted", lambda delivery: None)
        begun = time.monotonic()
        lonely, heard = await asyncio.gather(
            member.send_signal_with_retry(RECEIVER, "lonely"),
            member.send_signal_with_retry(RECEIVER, "wanted"),
            return_exceptions=True,
        )
        took_s = time.monotonic() - begun
        assert isinstance(heard, SignalAck)
        assert isinstance(lonely, SignalDeliveryError) and lonely.attempts == 3
        assert 17.7 <= took_s <= 20.0 + SLACK_S
        store = await place.open()
        left = [item.id for item in await store.read(keys.inbox(RECEIVER))]
        assert left == [lonely.signal_id], "repeats kept their id"
        async with asyncio.timeout(30.0):
            while not unheard:
                await asyncio.sleep(0.05)
        told = [(each.reason, each.attempts) for each in unheard]
        assert told == [("signal_delivery_failure", 3)]
