"""What happens in a namespace, seen by somebody who only looks.

`Watcher` compares what it sees with what it saw before and says what changed; what came and
went in between two looks it does not know. `remembered` is what the store itself still knows
of the past: registrations, deaths, warnings, the election, the last cleanup.

It decides nothing and must never write: warnings and deaths are the coordinator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from squall.coordination import events, keys
from squall.coordination.cleanup import last_report
from squall.coordination.inspection import Leader, Member, find_leader, list_members
from squall.coordination.records import Codec, MemberRecord, Schema, Tombstone, WarningRecord
from squall.coordination.stores.guard import GuardedStore
from squall.coordination.stores.interface import Record

NOBODY = "-"
PAGE = 1000
AT_ONCE = 100
T = TypeVar("T", bound=Schema)


class Watcher:
    """Feed it one look after the other; the first tells nothing."""

    def __init__(self) -> None:
        self._members: dict[str, Member] | None = None
        self._leader: Leader | None = None

    def see(self, members: Sequence[Member], leader: Leader | None) -> list[events.Event]:
        before, now = self._members, {each.member_id: each for each in members}
        led, self._leader = self._leader, leader
        self._members = now
        if before is None:
            return []
        told: list[events.Event] = list(_change_of_leader(led, leader))
        for member_id in sorted(before.keys() | now.keys()):
            told += _change_of_member(before.get(member_id), now.get(member_id))
        return told


def _change_of_leader(before: Leader | None, now: Leader | None) -> Sequence[events.Event]:
    old, new = _holder(before), _holder(now)
    if old == new:
        return ()
    epoch = now.epoch if now is not None else before.epoch if before is not None else 0
    return (events.LeaderChanged(old=old[0], new=new[0], epoch=epoch),)


def _holder(leader: Leader | None) -> tuple[str, int]:
    if leader is None or not leader.holds:
        return "", 0
    return leader.worker_id, leader.epoch


def _change_of_member(before: Member | None, now: Member | None) -> list[events.Event]:
    if now is None:
        assert before is not None
        return [events.MemberLeft(coordinator_id=before.member_id, incarnation=before.incarnation)]
    told: list[events.Event] = []
    if before is None or before.incarnation < now.incarnation:
        told.append(events.MemberJoined(coordinator_id=now.member_id, incarnation=now.incarnation))
    elif before.health != now.health:
        told.append(
            events.MemberChanged(
                coordinator_id=now.member_id,
                incarnation=now.incarnation,
                previous_health=before.health,
                health=now.health,
            )
        )
    return told


async def look_once(
    store: GuardedStore, watcher: Watcher, codec: Codec | None = None
) -> list[events.Event]:
    """One look at members and coordinator; what changed since the last one."""
    members = await list_members(store, codec)
    return watcher.see(members, await find_leader(store))


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the store remembers."""

    ago_s: float
    event: str
    who: str
    text: str = ""


async def remembered(store: GuardedStore, limit: int, *, but: str = "-") -> list[Past]:
    """The newest `limit`, the oldest first, without members whose id begins with `but`. Not
    verified."""
    found: list[Past] = []
    leader = await find_leader(store)
    if leader is not None and leader.worker_id:
        found.append(
            Past(
                ago_s=leader.elected_s,
                event=events.CoordinatorElected.name,
                who=leader.worker_id,
                text=f"epoch {leader.epoch}" + (", released" if leader.released else ""),
            )
        )
    for kind, read in (("member", _member), ("tombstone", _death), ("warning", _warning)):
        found += await _pasts(store, kind, read)
    report = await last_report(store)
    if report is not None:
        ago_s = max(0.0, (await store.now_ms() - report.ended_ms) / 1000.0)
        text = f"{len(report.members)} members, {report.swept} expired records"
        found.append(Past(ago_s=ago_s, event="cleanup:complete", who=NOBODY, text=text))
    found = [past for past in found if past.who == NOBODY or not past.who.startswith(but)]
    found.sort(key=lambda past: -past.ago_s)
    return found[-limit:] if limit else []


async def _pasts(
    store: GuardedStore, kind: str, read: Callable[[Record], Past | None]
) -> list[Past]:
    found: list[Past] = []
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


def _member(record: Record) -> Past | None:
    """When an id registered or left is when its record was written; a death has its own."""
    known = _read(MemberRecord, record)
    if known is None or known.status == "dead":
        return None
    event = events.MemberJoined if known.status == "alive" else events.MemberLeft
    where = f"{known.hostname} pid {known.pid}" if known.hostname else ""
    return Past(ago_s=record.age_s, event=event.name, who=keys.member_id_of(record.key), text=where)


def _death(record: Record) -> Past | None:
    tomb = _read(Tombstone, record)
    if tomb is None:
        return None
    ago_s = max(0.0, record.read_ms / 1000.0 - tomb.died_at)
    name = events.CoordinatorDead.name
    return Past(ago_s=ago_s, event=name, who=tomb.member_id, text=tomb.reason)


def _warning(record: Record) -> Past | None:
    warning = _read(WarningRecord, record)
    if warning is None or warning.health == "dead":
        return None
    text = f"{warning.health}, {warning.reason}"
    return Past(
        ago_s=record.age_s,
        event=events.HeartbeatWarning.name,
        who=warning.coordinator_id,
        text=text,
    )


def _read(kind: type[T], record: Record) -> T | None:
    return Codec(None).read(kind, record.value, signed=False)
