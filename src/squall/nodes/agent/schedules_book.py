"""Scheduled load tests as their people see them: added, listed, removed, looked back on.

A client writes them into the store itself, so no agent needs to be there; whoever
coordinates finds them. What a schedule needs is stored before it is named, so what ends
half-way leaves only blobs that are collected.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from squall.api.errors import UsageError
from squall.coordination.errors import ConfigurationError, VersionConflict
from squall.coordination.scheduler.due import Calendar
from squall.coordination.scheduler.plugin import check_job
from squall.coordination.scheduler.records import JobRecord
from squall.coordination.stores.errors import InvalidIdentifierError
from squall.coordination.stores.interface import ABSENT, ANY, Delete, Put, Store, make_key
from squall.ledger.interface import Digest
from squall.nodes.agent.schedules import schedule_blobs
from squall.nodes.agent.schedules_records import (
    INDEX,
    KEEP_S,
    NAME_MAX,
    SCHEDULES_MAX,
    CompareTo,
    Index,
    Run,
    Schedule,
    Standing,
    read,
    standing_key,
    standing_of,
)
from squall.nodes.agent.schedules_seal import seal
from squall.nodes.bundle import Bundle
from squall.nodes.results.result import JobResult, decode_result
from squall.nodes.submission import Submission
from squall.runtime.interfaces import Runtime
from squall.wire.secrets import Secrets

ID_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A schedule that somebody wants."""

    name: str
    times: JobRecord
    compare_to: CompareTo = ""
    keep_s: float = KEEP_S


@dataclass(frozen=True)
class Entry:
    """A schedule and how it stands."""

    schedule: Schedule
    standing: Standing
    next_due: float

    @property
    def last(self) -> Run | None:
        return self.standing.runs[-1] if self.standing.runs else None


def check_wish(wish: Wish) -> None:
    """`UsageError` says what is wrong with the name or the times."""
    try:
        if len(make_key(wish.name)) > NAME_MAX:
            raise UsageError(f"--name {wish.name}: at most {NAME_MAX} characters")
        check_job(wish.name, wish.times)
    except InvalidIdentifierError:
        raise UsageError(
            f"--name {wish.name!r}: use letters, digits and _ . - such as shop-nightly"
        ) from None
    except ConfigurationError as error:
        raise UsageError(str(error)) from None


class ScheduleBook:
    """In an open store. `secrets` are those of a client."""

    def __init__(self, store: Store, runtime: Runtime, secrets: Secrets, cluster: str) -> None:
        self._store = store
        self._runtime = runtime
        self._secrets = secrets
        self._cluster = cluster
        self._blobs = schedule_blobs(store, runtime)

    async def refuse_taken(self, name: str) -> None:
        """Before anything is loaded or stored for it."""
        _refuse_taken(await self._index(), name)

    async def add(self, wish: Wish, submission: Submission, bundle: Bundle) -> Entry:
        check_wish(wish)
        schedule = Schedule(
            name=wish.name,
            id=self._runtime.entropy(ID_BYTES).hex(),
            principal=self._secrets.name,
            file=submission.options.file or submission.options.url,
            times=wish.times,
            compare_to=wish.compare_to,
            keep_s=wish.keep_s,
            added_at=await self._store.now_ms() / 1000.0,
            bundle=submission.bundle,
        )
        if submission.bundle:
            await self._blobs.put(bundle.data)
        sealed = seal(submission, schedule, self._secrets, self._cluster, self._runtime.entropy)
        digest = await self._blobs.put(sealed)
        schedule = msgspec.structs.replace(schedule, submission=digest)
        while True:
            index, version = await self._read()
            _refuse_taken(index, wish.name)
            if await self._written(Index(schedules=(*index.schedules, schedule)), version):
                return await self._entry(schedule)

    async def entries(self) -> list[Entry]:
        index = await self._index()
        found = [await self._entry(each) for each in index.schedules]
        return sorted(found, key=lambda entry: entry.schedule.name)

    async def entry(self, name: str) -> Entry:
        return await self._entry(_known(await self._index(), name))

    async def remove(self, name: str) -> Entry:
        """What it was. A job of it that runs goes on."""
        while True:
            index, version = await self._read()
            entry = await self._entry(_known(index, name))
            left = tuple(each for each in index.schedules if each.name != name)
            if await self._written(Index(schedules=left), version):
                await self._store.write(Delete(standing_key(name), ANY, silent=True))
                return entry

    async def result(self, name: str, job: str = "") -> JobResult:
        """Of one of its runs; without a job of the last that left one."""
        runs = (await self.entry(name)).standing.runs
        if job and all(run.job != job for run in runs):
            raise UsageError(f"schedule {name} has no run {job}: squall schedule history {name}")
        found = [run for run in runs if run.result and job in ("", run.job)]
        if not found:
            raise UsageError(f"schedule {name} has no result{f' of {job}' if job else ''} yet")
        try:
            return decode_result(await self._blobs.get(Digest(found[-1].result)))
        except KeyError:
            raise UsageError(f"the result of {found[-1].job} is not in the store") from None

    async def _entry(self, schedule: Schedule) -> Entry:
        (found,) = await self._store.get(standing_key(schedule.name))
        standing = standing_of(schedule, found)
        now_s = await self._store.now_ms() / 1000.0
        return Entry(
            schedule, standing, Calendar(schedule.times).after(max(standing.decided, now_s))
        )

    async def _index(self) -> Index:
        return (await self._read())[0]

    async def _read(self) -> tuple[Index, str]:
        (found,) = await self._store.get(INDEX)
        return (Index(), "") if found is None else (read(Index, found), found.version)

    async def _written(self, index: Index, version: str) -> bool:
        """False: somebody else was quicker."""
        value = msgspec.msgpack.encode(index)
        try:
            await self._store.write(Put(INDEX, value, expect=version or ABSENT, ttl_s=None))
        except VersionConflict:
            return False
        return True


def _known(index: Index, name: str) -> Schedule:
    found = index.find(name)
    if found is None:
        names = ", ".join(sorted(each.name for each in index.schedules))
        raise UsageError(f"no schedule {name} here; there is {names or 'none'}")
    return found


def _refuse_taken(index: Index, name: str) -> None:
    if index.find(name) is not None:
        raise UsageError(
            f"there is a schedule {name} already: give another --name, or remove it first "
            f"(squall schedule remove {name})"
        )
    if len(index.schedules) >= SCHEDULES_MAX:
        raise UsageError(f"there are {SCHEDULES_MAX} schedules, the most that one store holds")
