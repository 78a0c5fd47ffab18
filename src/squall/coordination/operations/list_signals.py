"""Lists the inboxes of a namespace, their signals and the blocking waits, for operators.

It reads records without a secret, so they are not verified. It never writes, and never takes a
signal away from its receiver.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, MemberRecord, Signal, WaitStates
from squall.coordination.stores.interface import Item, Record, Store

PAGE = 500
AT_ONCE = 100
QUARANTINE = "quarantine"


class InboxSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How full the inbox of one member is."""

    member_id: str
    unread: int
    oldest_s: float
    refused: int
    """Signals of the last hour that the member refused."""
    waits: int
    """Blocked callers in the member."""


class ListedSignal(msgspec.Struct, frozen=True, kw_only=True):
    """One signal in the store. `type` is "" if it cannot be decoded."""

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
    """One blocking wait."""

    correlation_id: str
    awaiting: tuple[str, ...]
    signal_types: tuple[str, ...]
    waited_s: float
    left_s: float


class SignalList(msgspec.Struct, frozen=True, kw_only=True):
    """The signals and the waits of one member."""

    member_id: str
    signals: tuple[ListedSignal, ...] = msgspec.field(name="letters")
    waits: tuple[OpenWait, ...]


async def list_inboxes(store: Store) -> list[InboxSummary]:
    """All inboxes, sorted by id. Those of members that left or died appear while they hold
    something."""
    ids = sorted(await _ids(store, "member"))
    refused: dict[str, int] = {}
    for member_id in await _ids(store, QUARANTINE):
        refused[member_id] = refused.get(member_id, 0) + 1
    found: list[InboxSummary] = []
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        depths = await asyncio.gather(*(store.depth(keys.inbox(each)) for each in some))
        states = await store.get(*map(keys.state, some))
        members = await store.get(*map(keys.member, some))
        for member_id, depth, state, member in zip(some, depths, states, members, strict=True):
            waits = None if state is None else _waits(state.value)
            inbox = InboxSummary(
                member_id=member_id,
                unread=depth.items,
                oldest_s=depth.oldest_ms / 1000.0,
                refused=refused.get(member_id, 0),
                waits=0 if waits is None else len(waits.waits),
            )
            if _is_alive(member) or inbox.unread or inbox.refused or inbox.waits:
                found.append(inbox)
    return found


async def list_signals(store: Store, member_id: str) -> SignalList | None:
    """Unread signals in the order of the inbox, then refused ones. None if no member of this id
    ever registered and nothing was sent to it."""
    signals: list[ListedSignal] = []
    after = ""
    while True:
        page = await store.read(keys.inbox(member_id), after=after, limit=PAGE)
        signals += map(_unread, page)
        if len(page) < PAGE:
            break
        after = page[-1].cursor
    names = [name for name in await _keys(store, QUARANTINE) if name.split("/")[1] == member_id]
    for start in range(0, len(names), AT_ONCE):
        for record in await store.get(*names[start : start + AT_ONCE]):
            if record is not None:
                signal_id = record.key.split("/")[2]
                signals.append(_listed(signal_id, "refused", record.age_s, record.value))
    state, member = await store.get(keys.state(member_id), keys.member(member_id))
    if member is None and not signals:
        return None
    waits = None if state is None else _waits(state.value)
    now = 0.0 if state is None else state.read_ms / 1000.0
    return SignalList(
        member_id=member_id,
        signals=tuple(signals),
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


def _unread(item: Item) -> ListedSignal:
    age_s = max(0, item.read_ms - item.appended_ms) / 1000.0
    return _listed(item.id, "unread", age_s, item.value)


def _listed(signal_id: str, state: str, age_s: float, value: bytes) -> ListedSignal:
    signal = Codec(None).read(Signal, value, signed=False)
    if signal is None:
        return ListedSignal(signal_id=signal_id, state=state, age_s=age_s)
    return ListedSignal(
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
