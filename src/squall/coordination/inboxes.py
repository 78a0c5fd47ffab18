"""What lies in the inboxes of a namespace, and who waits for what; for people.

It reads records as they are, without a secret: nothing here is verified. It must never write,
nor take a signal away from its receiver.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from squall.coordination import keys
from squall.coordination.records import Codec, MemberRecord, Signal, WaitStates
from squall.coordination.stores.interface import Item, Record, Store

PAGE = 500
AT_ONCE = 100
QUARANTINE = "quarantine"


class Inbox(msgspec.Struct, frozen=True, kw_only=True):
    """How full the inbox of one member is."""

    member_id: str
    unread: int
    oldest_s: float
    refused: int
    """Signals of the last hour that it did not believe."""
    waits: int
    """Callers in it that are blocked."""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """One signal as it lies in the store. `type` is "" where it cannot be read."""

    signal_id: str
    state: str
    """`unread` or `refused`."""
    age_s: float
    type: str = ""
    sender_id: str = ""
    correlation_id: str = ""
    iteration: int = 0
    epoch: int = 0
    payload: Any = None


class OpenWait(msgspec.Struct, frozen=True, kw_only=True):
    correlation_id: str
    awaiting: tuple[str, ...]
    signal_types: tuple[str, ...]
    waited_s: float
    left_s: float


class Letters(msgspec.Struct, frozen=True, kw_only=True):
    """All that concerns one member."""

    member_id: str
    letters: tuple[Letter, ...]
    waits: tuple[OpenWait, ...]


async def list_inboxes(store: Store) -> list[Inbox]:
    """By id. Of those that have left or are dead only what is still there: their inboxes stay."""
    ids = sorted(await _ids(store, "member"))
    refused: dict[str, int] = {}
    for member_id in await _ids(store, QUARANTINE):
        refused[member_id] = refused.get(member_id, 0) + 1
    found: list[Inbox] = []
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        depths = await asyncio.gather(*(store.depth(keys.inbox(each)) for each in some))
        states = await store.get(*map(keys.state, some))
        members = await store.get(*map(keys.member, some))
        for member_id, depth, state, member in zip(some, depths, states, members, strict=True):
            waits = None if state is None else _waits(state.value)
            inbox = Inbox(
                member_id=member_id,
                unread=depth.items,
                oldest_s=depth.oldest_ms / 1000.0,
                refused=refused.get(member_id, 0),
                waits=0 if waits is None else len(waits.waits),
            )
            if _is_alive(member) or inbox.unread or inbox.refused or inbox.waits:
                found.append(inbox)
    return found


async def read_letters(store: Store, member_id: str) -> Letters | None:
    """In the order of the inbox, then what was refused. None if nobody of that id ever
    registered and nobody wrote to it."""
    letters: list[Letter] = []
    after = ""
    while True:
        page = await store.read(keys.inbox(member_id), after=after, limit=PAGE)
        letters += map(_unread, page)
        if len(page) < PAGE:
            break
        after = page[-1].cursor
    names = [name for name in await _keys(store, QUARANTINE) if name.split("/")[1] == member_id]
    for start in range(0, len(names), AT_ONCE):
        for record in await store.get(*names[start : start + AT_ONCE]):
            if record is not None:
                signal_id = record.key.split("/")[2]
                letters.append(_letter(signal_id, "refused", record.age_s, record.value))
    state, member = await store.get(keys.state(member_id), keys.member(member_id))
    if member is None and not letters:
        return None
    waits = None if state is None else _waits(state.value)
    now = 0.0 if state is None else state.read_ms / 1000.0
    return Letters(
        member_id=member_id,
        letters=tuple(letters),
        waits=tuple(
            OpenWait(
                correlation_id=each.correlation_id,
                awaiting=each.awaiting,
                signal_types=each.signal_types,
                waited_s=max(0.0, now - each.started_at),
                left_s=max(0.0, each.deadline - now),
            )
            for each in (() if waits is None else waits.waits.values())
        ),
    )


def _unread(item: Item) -> Letter:
    age_s = max(0, item.read_ms - item.appended_ms) / 1000.0
    return _letter(item.id, "unread", age_s, item.value)


def _letter(signal_id: str, state: str, age_s: float, value: bytes) -> Letter:
    signal = Codec(None).read(Signal, value, signed=False)
    if signal is None:
        return Letter(signal_id=signal_id, state=state, age_s=age_s)
    return Letter(
        signal_id=signal_id,
        state=state,
        age_s=age_s,
        type=signal.type,
        sender_id=signal.sender_id,
        correlation_id=signal.correlation_id,
        iteration=signal.iteration,
        epoch=signal.epoch,
        payload=signal.payload,
    )


def _is_alive(member: Record | None) -> bool:
    known = None if member is None else Codec(None).read(MemberRecord, member.value, signed=False)
    return known is not None and known.status == "alive"


def _waits(value: bytes) -> WaitStates | None:
    return Codec(None).read(WaitStates, value, signed=False)


async def _ids(store: Store, kind: str) -> list[str]:
    return [keys.member_id_of(name) for name in await _keys(store, kind)]


async def _keys(store: Store, kind: str) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        page = await store.list(kind, after=after, limit=1000)
        found += [entry.key for entry in page.entries]
        after = page.after
        if not after:
            return found
