"""Reports the events of a namespace to an observer that only reads.

`Watcher` compares two reads of the members and reports the changes; it cannot see what came and
went between them. `past_events` are those that the store still holds: registrations, deaths,
warnings, the election, the last cleanup. This module never writes: the leader decides about
warnings and deaths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from squall.coordination import events
from squall.coordination.members.cleanup import last_report
from squall.coordination.operations.inspect import Leader, Member, find_leader, list_members
from squall.coordination.records import keys
from squall.coordination.records.schemas import (
    Codec,
    MemberRecord,
    Schema,
    Tombstone,
    WarningRecord,
)
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import Record

NO_MEMBER = "-"
PAGE = 1000
AT_ONCE = 100
T = TypeVar("T", bound=Schema)


class Watcher:
    """Compares each read with the one before; the first reports nothing."""

    def __init__(self) -> None:
        self._members: dict[str, Member] | None = None
        self._leader: Leader | None = None

    def see(self, members: Sequence[Member], leader: Leader | None) -> list[events.Event]:
        before, now = self._members, {each.member_id: each for each in members}
        led, self._leader = self._leader, leader
        self._members = now
        if before is None:
            return []
        changes: list[events.Event] = list(_change_of_leader(led, leader))
        for member_id in sorted(before.keys() | now.keys()):
            changes += _change_of_member(before.get(member_id), now.get(member_id))
        return changes


def _change_of_leader(before: Leader | None, now: Leader | None) -> Sequence[events.Event]:
    old, new = _holder(before), _holder(now)
    if old == new:
        return ()
    epoch = now.epoch if now is not None else before.epoch if before is not None else 0
    return (events.LeaderChanged(old=old[0], new=new[0], epoch=epoch),)


def _holder(leader: Leader | None) -> tuple[str, int]:
    if leader is None or not leader.holds:
        return "", 0
    return leader.member_id, leader.epoch


def _change_of_member(before: Member | None, now: Member | None) -> list[events.Event]:
    if now is None:
        assert before is not None
        return [events.MemberLeft(member_id=before.member_id, boot=before.boot)]
    changes: list[events.Event] = []
    if before is None or before.boot < now.boot:
        changes.append(events.MemberJoined(member_id=now.member_id, boot=now.boot))
    elif before.health != now.health:
        changes.append(
            events.MemberChanged(
                member_id=now.member_id,
                boot=now.boot,
                previous_health=before.health,
                health=now.health,
            )
        )
    return changes


async def read_changes(
    store: GuardedStore, watcher: Watcher, codec: Codec | None = None
) -> list[events.Event]:
    """Reads the members and the leader; returns what changed since the last read."""
    members = await list_members(store, codec)
    return watcher.see(members, await find_leader(store))


class PastEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event that the store still shows."""

    ago_s: float
    event: str
    who: str
    text: str = ""


async def past_events(store: GuardedStore, limit: int, *, but: str = "-") -> list[PastEvent]:
    """The newest `limit` events, the oldest first, without members whose id begins with `but`.
    They are not verified."""
    found: list[PastEvent] = []
    leader = await find_leader(store)
    if leader is not None and leader.member_id:
        found.append(
            PastEvent(
                ago_s=leader.elected_s,
                event=events.CoordinatorElected.name,
                who=leader.member_id,
                text=f"epoch {leader.epoch}" + (", released" if leader.released else ""),
            )
        )
    for kind, read in (("member", _member), ("tombstone", _death), ("warning", _warning)):
        found += await _pasts(store, kind, read)
    report = await last_report(store)
    if report is not None:
        ago_s = max(0.0, (await store.now_ms() - report.ended_ms) / 1000.0)
        text = f"{len(report.members)} members, {report.swept} expired records"
        found.append(PastEvent(ago_s=ago_s, event="cleanup:complete", who=NO_MEMBER, text=text))
    found = [past for past in found if past.who == NO_MEMBER or not past.who.startswith(but)]
    found.sort(key=lambda past: -past.ago_s)
    return found[-limit:] if limit else []


async def _pasts(
    store: GuardedStore, kind: str, read: Callable[[Record], PastEvent | None]
) -> list[PastEvent]:
    found: list[PastEvent] = []
    after = ""
    while True:
        page = await store.list(kind, after=after, limit=PAGE)
        names = [entry.key for entry in page.entries]
        for start in range(0, len(names), AT_ONCE):
            for record in await store.get(*names[start : start + AT_ONCE]):
                past = None if record is None else read(record)
                if past is not None:
                    found.append(past)
        after = page.after
        if not after:
            return found


def _member(record: Record) -> PastEvent | None:
    """The age of the record is the time since the member registered or left. A death has its own
    record."""
    known = _read(MemberRecord, record)
    if known is None or known.status == "dead":
        return None
    event = events.MemberJoined if known.status == "alive" else events.MemberLeft
    where = f"{known.hostname} pid {known.pid}" if known.hostname else ""
    return PastEvent(
        ago_s=record.age_s, event=event.name, who=keys.member_id_of(record.key), text=where
    )


def _death(record: Record) -> PastEvent | None:
    tombstone = _read(Tombstone, record)
    if tombstone is None:
        return None
    ago_s = max(0.0, record.read_ms / 1000.0 - tombstone.died_at)
    name = events.CoordinatorDead.name
    return PastEvent(ago_s=ago_s, event=name, who=tombstone.member_id, text=tombstone.reason)


def _warning(record: Record) -> PastEvent | None:
    warning = _read(WarningRecord, record)
    if warning is None or warning.health == "dead":
        return None
    text = f"{warning.health}, {warning.reason}"
    return PastEvent(
        ago_s=record.age_s,
        event=events.HeartbeatWarning.name,
        who=warning.member_id,
        text=text,
    )


def _read(kind: type[T], record: Record) -> T | None:
    return Codec(None).read(kind, record.value, signed=False)
