"""Many members start at the same moment, round after round on one store: in each round one of
them leads, all of them name it, and its epoch is above all earlier ones. Used by tests and, at
full size, by the acceptance.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from squall.coordination import Coordinator, events
from squall.coordination.events import Event, EventBus
from squall.coordination.records import keys
from squall.coordination.records.schemas import LeaseRecord
from tests.services.coordination.lab.places import Place
from tests.services.coordination.programs.member import scaled

SECRET = "8c1f5e3a97d204b6" * 4
AGREED_S = 5.0
AGREED_AFAR_S = 30.0
AT_ONCE = 10


@dataclass
class Rounds:
    epochs: list[int] = field(default_factory=list[int])
    took_s: list[float] = field(default_factory=list[float])
    """From the moment at which all were let go until all named the same one."""

    def check(self, within_s: float) -> None:
        assert self.epochs == sorted(set(self.epochs)), self.epochs
        assert max(self.took_s) <= within_s, self.took_s


def agreed_within_s(kind: str) -> float:
    return AGREED_AFAR_S if kind == "s3" else AGREED_S


async def play_rounds(place: Place, members: int, rounds: int, *, patience_s: float) -> Rounds:
    """`patience_s` is when a round is given up; how long each took is for the caller."""
    found = Rounds()
    for number in range(rounds):
        await _round(
            place, [f"m{number:02d}-{each:02d}" for each in range(members)], found, patience_s
        )
    return found


async def _round(place: Place, names: list[str], found: Rounds, patience_s: float) -> None:
    # A lease that outlives the start of all of them on a machine that is busy with it.
    timing = scaled(6.0 if place.kind == "s3" else 3.0)
    options = {"profile": timing, "unsafe_timings": True, "skip_cold_start": True}
    gate = asyncio.Event()
    members = [
        Coordinator(await place.open(), member_id=name, secret=SECRET, **options) for name in names
    ]

    async def start(member: Coordinator) -> None:
        await gate.wait()
        await member.start()

    with promotions() as promoted:
        starting = [asyncio.ensure_future(start(member)) for member in members]
        await asyncio.sleep(0)
        begun = time.monotonic()
        gate.set()
        try:
            await asyncio.gather(*starting)
            await _until_agreed(members, begun + patience_s)
            found.took_s.append(time.monotonic() - begun)
            lease = await _lease(members[0])
            (told,) = promoted
            assert (told.member_id, told.epoch) == (lease.member_id, lease.epoch)
            assert [each.member_id for each in members if each.is_coordinator] == [lease.member_id]
            assert {(each.current_coordinator, each.current_epoch) for each in members} == {
                (lease.member_id, lease.epoch)
            }
            found.epochs.append(lease.epoch)
        finally:
            await _stop(members, place)


async def _until_agreed(members: list[Coordinator], deadline: float) -> None:
    def views() -> set[tuple[str | None, int]]:
        return {(each.current_coordinator, each.current_epoch) for each in members}

    def agree() -> bool:
        return len(views()) == 1 and any(each.is_coordinator for each in members)

    while not agree():
        assert time.monotonic() < deadline, f"they do not agree: {views()}"
        await asyncio.sleep(0.01)


async def _lease(member: Coordinator) -> LeaseRecord:
    (record,) = await member.store.get(keys.LEADER)
    assert record is not None
    lease = member.parts.codec.read(LeaseRecord, record.value)
    assert lease is not None and not lease.released
    return lease


async def _stop(members: list[Coordinator], place: Place) -> None:
    """Those that lead stop last, so that no other member is promoted meanwhile."""
    for leads in (False, True):
        some = [each for each in members if each.is_coordinator == leads]
        for begin in range(0, len(some), AT_ONCE):
            await asyncio.gather(*(each.stop() for each in some[begin : begin + AT_ONCE]))
    await place.close()


@contextmanager
def promotions() -> Iterator[list[events.CoordinatorPromoted]]:
    """All that members of this process tell: a handler can be given to a member only after it
    has started, and by then it may lead."""
    told: list[events.CoordinatorPromoted] = []
    emit = EventBus.emit

    def noted(self: EventBus, event: Event) -> None:
        if isinstance(event, events.CoordinatorPromoted):
            told.append(event)
        emit(self, event)

    EventBus.emit = noted
    try:
        yield told
    finally:
        EventBus.emit = emit
