"""Reads the members and the leader of a namespace, for operators and programs that are no members.

It reads records without a secret, so they are not verified: do not act on them. It never writes.
"""

from __future__ import annotations

import math

import msgspec

from squall.coordination.members.cleanup import CleanupReport, last_report
from squall.coordination.members.health_rules import Health, judge
from squall.coordination.members.housekeeping import MemoryReporter
from squall.coordination.records import keys
from squall.coordination.records.schemas import (
    Codec,
    HeartbeatRecord,
    LeaseRecord,
    MemberRecord,
    WarningRecord,
)
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import Record, Store

PAGE = 1000
AT_ONCE = 100


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One member, as its heartbeat and the warnings about it show it."""

    member_id: str
    health: Health
    heard_s: float
    boot: int = msgspec.field(default=0, name="incarnation")
    sequence: int = 0
    eligible: bool = False
    is_coordinator: bool = False
    """Whether this boot holds the lease. The heartbeat of a killed leader goes on saying so."""
    says_leads: bool = False
    """As the member said in its last heartbeat."""
    epoch: int = 0
    hostname: str = ""
    pid: int = 0
    key_ids: tuple[str, ...] = ()
    history: tuple[tuple[int, float], ...] = ()
    """Sequence and wall-clock time of its last beats, if it keeps them."""
    failing: tuple[str, ...] = ()
    """Its works as the leader that keep failing."""


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The last holder of the lease."""

    member_id: str = msgspec.field(name="worker_id")
    epoch: int
    boot: int = msgspec.field(name="incarnation")
    renewed_s: float
    lease_ttl: float
    released: bool
    holds: bool
    """Whether it still leads: renewed within the lease, by store time."""
    standbys: tuple[str, ...]
    elected_s: float = 0.0
    """How long ago its term began."""
    term_left_s: float = 0.0
    renewals: int = 0
    profile: str = ""
    """The profile in force, if members use `profile="auto"`."""
    recent_s: tuple[float, ...] = ()
    """How long ago the last elections were, the newest last."""


class NamespaceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An overview of one namespace."""

    store: str
    now_ms: int
    leader: Leader | None
    members: dict[str, int]
    """By health."""
    keys: dict[str, int]
    """By kind."""
    memory_bytes: int | None
    memory_max_bytes: int | None
    cleanup: CleanupReport | None


async def read_status(store: GuardedStore) -> NamespaceStatus:
    healths: dict[str, int] = {}
    for member in await list_members(store):
        healths[member.health] = healths.get(member.health, 0) + 1
    used, limit = (
        await store.inner.memory() if isinstance(store.inner, MemoryReporter) else (None, None)
    )
    return NamespaceStatus(
        store=store.url,
        now_ms=await store.now_ms(),
        leader=await find_leader(store),
        members=dict(sorted(healths.items())),
        keys=dict(sorted((await store.count()).items())),
        memory_bytes=used,
        memory_max_bytes=limit,
        cleanup=await last_report(store),
    )


async def list_members(store: GuardedStore, codec: Codec | None = None) -> list[Member]:
    """All members, sorted by id, also those whose record expired. With a codec heartbeats are
    verified: a wrong one makes its member `unreadable`."""
    idle_s: dict[str, float] = {}
    after = ""
    while True:
        page = await store.list(keys.HEARTBEAT, after=after, limit=PAGE)
        for entry in page.entries:
            idle_s[keys.member_id_of(entry.key)] = entry.idle_ms / 1000.0
        after = page.after
        if not after:
            break
    leader = await find_leader(store)
    ids = sorted(idle_s)
    found: list[Member] = []
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        beats = await store.get(*map(keys.heartbeat, some))
        warnings = await store.get(*map(keys.warning, some))
        # A registration is needed only where the heartbeat expired.
        missing = [member_id for member_id, beat in zip(some, beats, strict=True) if beat is None]
        records = await store.get(*map(keys.member, missing)) if missing else ()
        registered = dict(zip(missing, records, strict=True))
        for member_id, beat, warned in zip(some, beats, warnings, strict=True):
            records = (registered.get(member_id), beat, warned)
            found.append(_member(member_id, idle_s[member_id], records, leader, codec))
    return found


def _member(
    member_id: str,
    heard_s: float,
    records: tuple[Record | None, Record | None, Record | None],
    leader: Leader | None,
    codec: Codec | None,
) -> Member:
    reader, signed = codec or Codec(None), codec is not None
    member, beat, warned = records
    record = None if beat is None else reader.read(HeartbeatRecord, beat.value, signed=signed)
    if beat is not None and record is None:
        return Member(member_id=member_id, health="unreadable", heard_s=heard_s)
    known = None if member is None else reader.read(MemberRecord, member.value, signed=signed)
    warning = None if warned is None else reader.read(WarningRecord, warned.value, signed=signed)
    if record is None:
        # The heartbeat expired: whatever the profile, it is older than its limit.
        health = judge(known, None, warning, math.inf, 0.0)
        boot = 0 if known is None else known.boot
        return Member(member_id=member_id, health=health, heard_s=heard_s, boot=boot)
    lease = (leader.member_id, leader.boot) if leader is not None and leader.holds else None
    return Member(
        member_id=member_id,
        health=judge(known, record, warning, heard_s, record.heartbeat_ttl),
        heard_s=heard_s,
        boot=record.boot,
        sequence=record.sequence,
        eligible=record.eligible,
        is_coordinator=lease == (member_id, record.boot),
        says_leads=record.is_coordinator,
        epoch=record.epoch,
        hostname=record.hostname,
        pid=record.pid,
        key_ids=record.key_ids,
        history=record.history,
        failing=record.failing,
    )


async def find_leader(store: Store) -> Leader | None:
    """The last holder of the lease; None if there never was one."""
    (record,) = await store.get(keys.LEADER)
    lease = None if record is None else Codec(None).read(LeaseRecord, record.value, signed=False)
    if record is None or lease is None:
        return None
    return Leader(
        member_id=lease.member_id,
        epoch=lease.epoch,
        boot=lease.boot,
        renewed_s=record.age_s,
        lease_ttl=lease.lease_ttl,
        released=lease.released,
        holds=not lease.released and bool(lease.member_id) and record.age_s <= lease.lease_ttl,
        standbys=lease.standbys,
        elected_s=max(0.0, record.read_ms / 1000.0 - lease.elected_at),
        term_left_s=max(0.0, lease.term_ends_at - record.read_ms / 1000.0),
        renewals=lease.renewals,
        profile="" if lease.pace is None else lease.pace.profile,
        recent_s=tuple(max(0.0, record.read_ms / 1000.0 - each) for each in lease.recent),
    )
