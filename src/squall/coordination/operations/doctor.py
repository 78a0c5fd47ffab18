"""Examines a namespace: what is wrong, what is doubtful, and what to do about it.

It reads records without a secret and never writes. Opening the store already tested that it keeps
its conditions. `production` adds checks that only a real service needs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from squall.coordination.member_stats import FLAPPING_ADVICE
from squall.coordination.members.housekeeping import NamespaceMeta, read_meta
from squall.coordination.operations.findings import Finding, Verdict
from squall.coordination.operations.inspect import (
    Member,
    NamespaceStatus,
    list_members,
    read_status,
)
from squall.coordination.options import Options
from squall.coordination.queue.records import QueueKeys
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, MemberRecord, Tombstone
from squall.coordination.secrets.sources import ROTATION_S
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.kinds import KINDS, WORK_KINDS
from squall.coordination.timing import Timing

CLOCK_S = 60.0
KEYS_MAX = 10_000
MEMORY_PART = 0.8
CLEANUP_AGO_S = 600.0
CLEANUP_S = 60.0
STUCK_S = 600.0
# How many records of one kind are examined.
KEYS_CHECKED_MAX = 1000
CHANGES_MAX, CHANGES_S = 5, 600.0
# A member that registers this soon after its death had not crashed.
AT_ONCE_S = 10.0
# S3 reports ages in whole seconds.
ROUNDED_S = 2.0
# Kinds whose records may be kept without an end.
FOR_EVER = frozenset(name for name, kind in KINDS.items() if kind.kept_s is None)


async def examine(
    store: GuardedStore,
    wall_s: float,
    *,
    queues: Sequence[str] = (),
    production: bool = False,
    timing: Timing | None = None,
) -> list[Finding]:
    """`wall_s` is the clock of this machine, `timing` that of the members."""
    pace = timing or Options().timing_for(store.capabilities)
    status = await read_status(store)
    members = await list_members(store)
    (record,) = await store.get(keys.META)
    meta = None if record is None else read_meta(record.value)
    found = [
        Finding(about="store", verdict="good", text=f"{store.url} answers and keeps its conditions")
    ]
    found += _clock(status, wall_s)
    found += _leader(status, members)
    found += _changes(status)
    found += _idle(status, members)
    found += _members(status, members)
    found += _silence(status, members, pace)
    found += [finding async for finding in _deaths(store, status)]
    found += _secret(status, members, meta, production)
    found += [finding async for finding in _refused(store, meta)]
    found += _room(status)
    found += [finding async for finding in _endless(store, status)]
    found += [finding async for finding in _queues(store, queues)]
    found += _cleanup(status, production)
    return found


def _clock(status: NamespaceStatus, wall_s: float) -> Iterator[Finding]:
    off_s = wall_s - status.now_ms / 1000.0
    text = f"this machine is {off_s:+.1f} s off the store"
    if abs(off_s) <= CLOCK_S:
        yield Finding(about="clock", verdict="good", text=text)
    else:
        advice = "set the clock by NTP; members work anyway, but the times that are shown are wrong"
        yield Finding(about="clock", verdict="doubtful", text=text, advice=advice)


def _leader(status: NamespaceStatus, members: Sequence[Member]) -> Iterator[Finding]:
    leader = status.leader
    if leader is not None and leader.holds:
        text = (
            f"{leader.member_id} leads in epoch {leader.epoch}, renewed {leader.renewed_s:.1f} s "
            f"ago, lease {leader.lease_ttl:g} s"
        )
        yield Finding(about="coordinator", verdict="good", text=text)
        return
    text = "no member leads"
    if leader is not None:
        text += f"; the last epoch is {leader.epoch}"
    advice = (
        "members run with enable_coordinator=False, send no heartbeats, are still in a cold start,"
        " or log errors of the election"
    )
    live = [each for each in members if each.health == "healthy"]
    if live and not any(each.eligible for each in live):
        text += f"; none of the {len(live)} live members may lead"
        advice = "start a member with eligible=True"
    yield Finding(
        about="coordinator", verdict="bad" if live else "doubtful", text=text, advice=advice
    )


def _changes(status: NamespaceStatus) -> Iterator[Finding]:
    """More than five elections in the last ten minutes."""
    if status.leader is None:
        return
    ago_s = status.leader.recent_s
    if len(ago_s) > CHANGES_MAX and ago_s[0] <= CHANGES_S:
        text = f"{len(ago_s)} elections in {ago_s[0] - ago_s[-1]:.0f} s"
        yield Finding(about="changes", verdict="doubtful", text=text, advice=FLAPPING_ADVICE)


def _idle(status: NamespaceStatus, members: Sequence[Member]) -> Iterator[Finding]:
    """A member holds the lease, but does not do the work of a leader."""
    leader = status.leader
    if leader is None or not leader.holds:
        return
    own = [
        each for each in members if each.member_id == leader.member_id and each.boot == leader.boot
    ]
    for member in own:
        if member.failing:
            text = f"{member.member_id} leads, but {', '.join(member.failing)} keeps failing"
            advice = (
                "read the errors of coordinator_work in its log (<name>_failed); after five"
                " failures in a row another member takes over"
            )
            yield Finding(about="work", verdict="bad", text=text, advice=advice)
        elif not member.says_leads and member.heard_s + ROUNDED_S < leader.elected_s:
            text = f"{member.member_id} has the lease, but its heartbeat says that it does not lead"
            advice = (
                "its renewals come too late, or it is still in the preparation phase of a cold"
                " start"
            )
            yield Finding(about="work", verdict="doubtful", text=text, advice=advice)


def _silence(
    status: NamespaceStatus, members: Sequence[Member], timing: Timing
) -> Iterator[Finding]:
    """Silent members that are not declared dead."""
    silent = [each for each in members if each.health in ("stale", "warning", "critical")]
    if status.leader is None or not status.leader.holds:
        if silent:
            text = f"{_some(silent)} silent, and no member leads: only a leader declares deaths"
            advice = "start a member that may lead (eligible=True, enable_coordinator=True)"
            yield Finding(about="detection", verdict="bad", text=text, advice=advice)
        return
    limit_s = 2.0 * timing.dead_after
    late = [each for each in silent if each.heard_s > limit_s]
    if late:
        text = f"{_some(late)} silent for more than {limit_s:g} s and not declared dead"
        advice = (
            "the leader checks every monitor_interval: read the errors of its monitor in the log;"
            " if members use another profile, name it with --profile"
        )
        yield Finding(about="detection", verdict="doubtful", text=text, advice=advice)


def _some(members: Sequence[Member]) -> str:
    return ", ".join(each.member_id for each in members[:3])


async def _deaths(store: GuardedStore, status: NamespaceStatus) -> AsyncIterator[Finding]:
    """Examines tombstones: members that were alive when declared dead, and missing cleanups."""
    page = await store.list("tombstone", limit=KEYS_CHECKED_MAX)
    ids = [keys.member_id_of(entry.key) for entry in page.entries]
    tombstones = await store.get(*map(keys.tombstone, ids)) if ids else ()
    lives = await store.get(*map(keys.member, ids)) if ids else ()
    reader, back, left = Codec(None), list[str](), list[str]()
    for member_id, stored, alive in zip(ids, tombstones, lives, strict=True):
        tombstone = None if stored is None else reader.read(Tombstone, stored.value, signed=False)
        known = None if alive is None else reader.read(MemberRecord, alive.value, signed=False)
        if tombstone is None or known is None:
            continue
        # The number of a boot is the store time of its registration in milliseconds.
        came_back_s = known.boot / 1000.0 - tombstone.died_at
        if known.boot > tombstone.boot and 0.0 <= came_back_s <= AT_ONCE_S:
            back.append(member_id)
        died_s = status.now_ms / 1000.0 - tombstone.died_at
        if known.status == "dead" and not tombstone.cleaned and died_s > CLEANUP_AGO_S:
            left.append(member_id)
    if back:
        text = f"{', '.join(back[:3])} was declared dead and came back at once"
        advice = "the process was paused, or heartbeat_ttl is too short for this network"
        yield Finding(about="false deaths", verdict="doubtful", text=text, advice=advice)
    if left:
        text = f"{', '.join(left[:3])} died and was not cleaned up"
        advice = "auto_cleanup is off, or a cleanup fails: look for cleanup:failed in the log"
        yield Finding(about="leftovers", verdict="doubtful", text=text, advice=advice)


def _members(status: NamespaceStatus, members: Sequence[Member]) -> Iterator[Finding]:
    shown = ", ".join(f"{number} {health}" for health, number in status.members.items())
    healthy = status.members.get("healthy", 0)
    if not members:
        advice = "start members, or examine another namespace or prefix"
        yield Finding(about="members", verdict="doubtful", text="none", advice=advice)
        return
    if healthy == len(members):
        yield Finding(about="members", verdict="good", text=shown)
    else:
        advice = "squall coord members lists them; a cleanup removes records of the dead"
        yield Finding(about="members", verdict="doubtful", text=shown, advice=advice)
    epoch = 0 if status.leader is None else status.leader.epoch
    ahead = [member.member_id for member in members if member.epoch > epoch]
    if ahead:
        text = f"{', '.join(ahead[:3])} saw a higher epoch than the store has ({epoch})"
        advice = "the store lost data; the next election starts above the highest epoch seen"
        yield Finding(about="epoch", verdict="bad", text=text, advice=advice)


def _secret(
    status: NamespaceStatus, members: Sequence[Member], meta: NamespaceMeta | None, production: bool
) -> Iterator[Finding]:
    if meta is None:
        yield Finding(about="environment", verdict="doubtful", text="no member ever registered")
        return
    if production and meta.environment != "production":
        advice = 'start members with environment="production"'
        text = f"the namespace belongs to {meta.environment!r}"
        yield Finding(about="environment", verdict="bad", text=text, advice=advice)
    else:
        yield Finding(about="environment", verdict="good", text=meta.environment)
    accepted = [set(member.key_ids) for member in members if member.health == "healthy"]
    if not any(accepted):
        return
    common = set[str].intersection(*accepted)
    if not common:
        advice = "give all members the same secret: they refuse each other's signals"
        text = "there is no key that every live member accepts"
        yield Finding(about="secret", verdict="bad", text=text, advice=advice)
        return
    newest_ms = max(meta.keys_seen_ms.get(key, 0) for key in common)
    age_s = max(0.0, (status.now_ms - newest_ms) / 1000.0)
    limit_s = ROTATION_S.get(meta.environment)
    text = f"first seen {age_s / 86_400:.0f} days ago"
    if limit_s is not None and age_s > limit_s:
        advice = "squall coord secret rotate start"
        yield Finding(about="secret", verdict="doubtful", text=text, advice=advice)
    else:
        yield Finding(about="secret", verdict="good", text=text)


async def _refused(store: GuardedStore, meta: NamespaceMeta | None) -> AsyncIterator[Finding]:
    """Members that lived in this namespace until another environment bound it after a loss."""
    page = await store.list(keys.REFUSED)
    for name in (entry.key.split("/")[1] for entry in page.entries):
        if meta is None or name == meta.environment:
            continue
        text = (
            f"members of {name!r} cannot come back: the store lost its data, and a member of"
            f" {meta.environment!r} was the first to register after that"
        )
        advice = (
            f"stop the members of {meta.environment!r}: those of {name!r} then take the namespace"
            " back; if none of them runs, delete the record `meta`"
        )
        yield Finding(about="environment", verdict="bad", text=text, advice=advice)


def _room(status: NamespaceStatus) -> Iterator[Finding]:
    # As in the alert: records of work that was done say nothing about trouble.
    number = sum(count for kind, count in status.keys.items() if kind not in WORK_KINDS)
    verdict: Verdict = "good" if number <= KEYS_MAX else "doubtful"
    advice = "" if verdict == "good" else "look for members that start and die in a loop"
    yield Finding(about="keys", verdict=verdict, text=f"{number:,}", advice=advice)
    used, limit = status.memory_bytes, status.memory_max_bytes
    if used is None or not limit:
        return
    verdict = "good" if used <= MEMORY_PART * limit else "bad"
    text = f"{used / limit:.0%} of {limit:,} bytes"
    advice = "" if verdict == "good" else "with noeviction the store refuses writes when it is full"
    yield Finding(about="memory", verdict=verdict, text=text, advice=advice)


async def _endless(store: GuardedStore, status: NamespaceStatus) -> AsyncIterator[Finding]:
    """Finds records without an expiry, which nothing will ever remove."""
    endless: list[str] = []
    for kind in status.keys:
        if kind in FOR_EVER:
            continue
        page = await store.list(kind, limit=KEYS_CHECKED_MAX)
        names = [entry.key for entry in page.entries]
        records = await store.get(*names) if names else ()
        endless += [each.key for each in records if each is not None and each.expires_ms is None]
    if not endless:
        yield Finding(about="expiry", verdict="good", text="every record expires")
        return
    text = f"{len(endless)} records never expire: {', '.join(endless[:3])}"
    advice = "write them with ttl_s if they are yours; otherwise another program wrote them"
    yield Finding(about="expiry", verdict="doubtful", text=text, advice=advice)


async def _queues(store: GuardedStore, queues: Sequence[str]) -> AsyncIterator[Finding]:
    for name in queues:
        depth = await store.depth(QueueKeys(name).ready)
        oldest_s = depth.oldest_ms / 1000.0
        text = f"{depth.items} tickets, {depth.held} held, the oldest {oldest_s:.0f} s old"
        verdict: Verdict = "good" if oldest_s <= STUCK_S else "doubtful"
        advice = "" if verdict == "good" else "no worker takes them, or their handler never ends"
        yield Finding(about=f"queue {name}", verdict=verdict, text=text, advice=advice)


def _cleanup(status: NamespaceStatus, production: bool) -> Iterator[Finding]:
    report = status.cleanup
    advice = "run squall coord install cleanup --systemd, or keep a member running"
    if report is None:
        verdict: Verdict = "bad" if production else "doubtful"
        text = "none in the last day"
        yield Finding(about="cleanup", verdict=verdict, text=text, advice=advice)
        return
    ago_s = max(0.0, (status.now_ms - report.ended_ms) / 1000.0)
    text = f"{ago_s:.0f} s ago, took {report.duration_s:.1f} s"
    if ago_s > CLEANUP_AGO_S:
        yield Finding(about="cleanup", verdict="doubtful", text=text, advice=advice)
    elif not report.finished or report.duration_s > CLEANUP_S:
        slow = "the store is slow, or thousands of members vanished at once"
        yield Finding(about="cleanup", verdict="doubtful", text=text, advice=slow)
    else:
        yield Finding(about="cleanup", verdict="good", text=text)
