"""Removes the records of members that have been silent for long, and expired records.

It runs every five minutes on the leader, or from a timer (`squall coord cleanup`). It finds members
through the index of heartbeats, which also names those whose record has expired. Each deletion
names the version that was stale, so that a member that came back meanwhile loses nothing, and exact
keys, so that `coord-1` never touches `coord-10`. The inbox, idempotency records, the registration
(it remembers the boot) and the tombstone stay until they expire; the queue returns its own claims.

A guard record that expires allows one run at a time. The report stays in the store, where the
leader reads it for its metrics.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Iterator

import msgspec

from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.records import keys
from squall.coordination.store_errors import StoreUnavailableError, VersionConflict
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Condition,
    Delete,
    Put,
    Record,
    Store,
    kind_of,
    make_key,
)
from squall.coordination.stores.kinds import KINDS, kept_s
from squall.runtime.interfaces import Clock

STALE_S = 600.0
GUARD_TTL_S = 120.0
# Runs begin every 300 s: one that takes longer than this leaves the rest to the next.
ABORT_S = 240.0
PAGE = 100
RESULT_TTL_S = kept_s("cleanup")
GUARD = make_key("cleanup", "guard")
RESULT = make_key("cleanup", "result")
# Kinds whose expired records and streams are removed. Not heartbeats: the monitor notices a death
# by the index entry of an expired one.
SWEPT = tuple(name for name, kind in KINDS.items() if kind.kept_s and name != keys.HEARTBEAT)


class CleanedMember(msgspec.Struct, frozen=True, kw_only=True):
    """One stale member and what a run did with its records."""

    member_id: str
    idle_s: float
    keys_deleted: int
    error: str = ""


class CleanupReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run. Only `already_running` is set if another run held the guard."""

    members: tuple[CleanedMember, ...] = ()
    came_back: tuple[str, ...] = ()
    swept: int = 0
    duration_s: float = 0.0
    finished: bool = True
    """False if it reached its time limit or lost its guard; the next run continues."""
    already_running: bool = False
    dry_run: bool = False
    ended_ms: int = 0

    @property
    def failed(self) -> tuple[CleanedMember, ...]:
        return tuple(member for member in self.members if member.error)

    @property
    def exit_code(self) -> int:
        """0 if all is done or another run is at it, 1 if something is left."""
        return 1 if self.failed or not self.finished else 0


async def clean_up(
    store: Store,
    clock: Clock,
    *,
    stale_s: float = STALE_S,
    dry_run: bool = False,
    metrics: CoordinationMetrics | None = None,
) -> CleanupReport:
    """One run. The report contains failures for single members; `StoreUnavailableError` means that
    the store did not answer at all. With an infinite `stale_s` only expired records go."""
    begun = clock.now()
    if dry_run:
        stale = [entry async for entry in _stale(store, stale_s)]
        return CleanupReport(
            members=tuple(
                CleanedMember(member_id=member, idle_s=idle_s, keys_deleted=0)
                for member, idle_s in stale
            ),
            dry_run=True,
        )
    guard = _Guard(store, clock)
    if not await guard.take():
        return CleanupReport(already_running=True)
    try:
        report = await _run(store, clock, stale_s, begun, guard)
        await _leave(store, report)
    finally:
        await guard.release()
    if metrics is not None:
        count(metrics, report)
    return report


class _Guard:
    """The record that keeps other runs away. A run that was so slow that it lost the guard ends,
    and never touches the guard of the next run."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._version = ""
        self._renew_at = 0.0

    async def take(self) -> bool:
        return await self._put(ABSENT)

    async def keep(self) -> bool:
        """Renews the guard in time; whether this run may go on."""
        return self._clock.now() < self._renew_at or await self._put(self._version)

    async def release(self) -> None:
        with contextlib.suppress(VersionConflict):
            await self._store.write(Delete(GUARD, self._version))

    async def _put(self, expect: Condition) -> bool:
        self._renew_at = self._clock.now() + GUARD_TTL_S / 2.0
        try:
            (self._version,) = await self._store.write(
                Put(GUARD, b"{}", expect=expect, ttl_s=GUARD_TTL_S)
            )
        except VersionConflict:
            return False
        return True


async def last_report(store: Store) -> CleanupReport | None:
    """The report of the last run of any process."""
    (record,) = await store.get(RESULT)
    return None if record is None else msgspec.json.decode(record.value, type=CleanupReport)


def count(metrics: CoordinationMetrics, report: CleanupReport) -> None:
    families = metrics.families
    metrics.histogram(families.cleanup_s).observe(report.duration_s)
    failed = len(report.failed)
    metrics.counter(families.cleanups, "done").add(len(report.members) - failed)
    metrics.counter(families.cleanups, "failed").add(failed)


async def _run(
    store: Store, clock: Clock, stale_s: float, begun: float, guard: _Guard
) -> CleanupReport:
    members: list[CleanedMember] = []
    came_back: list[str] = []
    finished = True
    # Read the whole list first: deletions shift the pages of the index.
    for member_id, idle_s in [entry async for entry in _stale(store, stale_s)]:
        if clock.now() - begun > ABORT_S or not await guard.keep():
            finished = False
            break
        cleaned = await _clean(store, member_id, idle_s, stale_s)
        if cleaned is None:
            came_back.append(member_id)
        else:
            members.append(cleaned)
    swept = 0
    for kind in await _swept_kinds(store) if finished else ():
        if clock.now() - begun > ABORT_S or not await guard.keep():
            finished = False
            break
        swept += await store.sweep(kind, limit=10 * PAGE, idle_ms=idle_ms_of(kind))
    return CleanupReport(
        members=tuple(members),
        came_back=tuple(came_back),
        swept=swept,
        duration_s=clock.now() - begun,
        finished=finished,
        ended_ms=await store.now_ms(),
    )


async def _swept_kinds(store: Store) -> list[str]:
    """All kinds, or only those that exist where each kind costs a request. Such a count leaves out
    streams that have expired, except on S3. A store that removes expired records itself (Redis)
    keeps their places in the index, also those of the application's kinds."""
    if not store.capabilities.cross_host:
        return list(SWEPT)
    there = await store.count()
    if store.capabilities.native_expiry:
        return [kind for kind in there if kind != keys.HEARTBEAT]
    return [kind for kind in SWEPT if kind in there]


def idle_ms_of(kind: str) -> int:
    """How long records of a kind live at least after their last write: younger ones need not be
    examined. 0 for streams, for records of the application, and for the guard, which is brief."""
    known = KINDS.get(kind)
    if known is None or known.is_stream or kind == kind_of(GUARD):
        return 0
    return round((known.kept_s or 0.0) * 1000.0)


async def _stale(store: Store, stale_s: float) -> AsyncIterator[tuple[str, float]]:
    after = ""
    while stale_s < math.inf:
        page = await store.list(
            keys.HEARTBEAT, idle_ms=round(stale_s * 1000), after=after, limit=PAGE
        )
        for entry in page.entries:
            yield keys.member_id_of(entry.key), entry.idle_ms / 1000.0
        after = page.after
        if not after:
            return


async def _clean(
    store: Store, member_id: str, idle_s: float, stale_s: float
) -> CleanedMember | None:
    """None if the member came back. The heartbeat is deleted first: its version decides."""
    names = (keys.heartbeat(member_id), keys.warning(member_id), keys.state(member_id))
    try:
        beat, *others = await store.get(*names)
        if beat is not None and beat.age_s < stale_s:
            return None
        first = Delete(names[0], ABSENT if beat is None else beat.version)
        deletions = (first, *_deletions(others))
        await store.write(*deletions)
    except VersionConflict as conflict:
        if conflict.key == names[0]:
            return None
        return CleanedMember(
            member_id=member_id, idle_s=idle_s, keys_deleted=0, error=str(conflict)
        )
    except StoreUnavailableError as error:
        return CleanedMember(member_id=member_id, idle_s=idle_s, keys_deleted=0, error=str(error))
    return CleanedMember(member_id=member_id, idle_s=idle_s, keys_deleted=len(deletions))


def _deletions(records: list[Record | None]) -> Iterator[Delete]:
    for record in records:
        if record is not None:
            yield Delete(record.key, record.version)


async def _leave(store: Store, report: CleanupReport) -> None:
    value = msgspec.json.encode(report)
    await store.write(Put(RESULT, value, expect=ANY, ttl_s=RESULT_TTL_S))
