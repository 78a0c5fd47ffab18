"""The client side of schedules: adds, lists and removes them and reads their history.

A client writes schedules into the store itself, so no agent needs to run; the coordinator finds
them there. The blobs of a schedule are stored before the index names it, so a client that dies
half-way leaves only blobs, which are collected.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from squall.api.errors import UsageError
from squall.cluster.ledger.interface import Digest
from squall.cluster.protocol.bundle import Bundle
from squall.cluster.protocol.submission import Submission
from squall.cluster.results.job_result import JobResult, decode_result
from squall.cluster.wire.seal.secrets import Secrets
from squall.coordination.errors import ConfigurationError, VersionConflict
from squall.coordination.scheduler.due_times import Calendar
from squall.coordination.scheduler.plugin import check_job
from squall.coordination.scheduler.records import JobRecord
from squall.coordination.store_errors import InvalidIdentifierError
from squall.coordination.stores.interface import ABSENT, ANY, Delete, Put, Store, make_key
from squall.runtime.interfaces import Runtime
from squall.store_mode.schedules.records import (
    INDEX,
    KEEP_S,
    NAME_MAX,
    SCHEDULES_MAX,
    CompareTo,
    Schedule,
    ScheduledRun,
    ScheduleIndex,
    ScheduleProgress,
    progress_key,
    progress_of,
    read,
)
from squall.store_mode.schedules.runner import schedule_blobs
from squall.store_mode.schedules.sealed_submission import seal

ID_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class ScheduleRequest:
    """A schedule to add."""

    name: str
    times: JobRecord
    compare_to: CompareTo = ""
    keep_s: float = KEEP_S


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule with its progress."""

    schedule: Schedule
    progress: ScheduleProgress
    next_due: float

    @property
    def last(self) -> ScheduledRun | None:
        return self.progress.runs[-1] if self.progress.runs else None


def check_request(request: ScheduleRequest) -> None:
    """Raises `UsageError` if the name or the times are wrong."""
    try:
        if len(make_key(request.name)) > NAME_MAX:
            raise UsageError(f"--name {request.name}: at most {NAME_MAX} characters")
        check_job(request.name, request.times)
    except InvalidIdentifierError:
        raise UsageError(
            f"--name {request.name!r}: use letters, digits and _ . - such as shop-nightly"
        ) from None
    except ConfigurationError as error:
        raise UsageError(str(error)) from None


class ScheduleClient:
    """Reads and writes the schedules in an open store, with the secrets of a client."""

    def __init__(self, store: Store, runtime: Runtime, secrets: Secrets, cluster: str) -> None:
        self._store = store
        self._runtime = runtime
        self._secrets = secrets
        self._cluster = cluster
        self._blobs = schedule_blobs(store, runtime)

    async def refuse_taken(self, name: str) -> None:
        """Raises `UsageError` if a schedule of this name cannot be added; called before anything
        is loaded or stored."""
        _refuse_taken(await self._index(), name)

    async def add(
        self, request: ScheduleRequest, submission: Submission, bundle: Bundle
    ) -> ScheduleEntry:
        check_request(request)
        schedule = Schedule(
            name=request.name,
            id=self._runtime.entropy(ID_BYTES).hex(),
            principal=self._secrets.name,
            operator=self._secrets.operator,
            file=submission.options.file or submission.options.url,
            times=request.times,
            compare_to=request.compare_to,
            keep_s=request.keep_s,
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
            _refuse_taken(index, request.name)
            if await self._written(ScheduleIndex(schedules=(*index.schedules, schedule)), version):
                return await self._entry(schedule)

    async def entries(self) -> list[ScheduleEntry]:
        index = await self._index()
        found = [await self._entry(each) for each in index.schedules]
        return sorted(found, key=lambda entry: entry.schedule.name)

    async def entry(self, name: str) -> ScheduleEntry:
        return await self._entry(_known(await self._index(), name))

    async def remove(self, name: str) -> ScheduleEntry:
        """Returns the removed entry. A running job of it goes on."""
        while True:
            index, version = await self._read()
            entry = await self._entry(_known(index, name))
            left = tuple(each for each in index.schedules if each.name != name)
            if await self._written(ScheduleIndex(schedules=left), version):
                await self._store.write(Delete(progress_key(name), ANY, silent=True))
                return entry

    async def result(self, name: str, job: str = "") -> JobResult:
        """The result of one of its runs; without `job` that of the last run that left one."""
        runs = (await self.entry(name)).progress.runs
        if job and all(run.job != job for run in runs):
            raise UsageError(
                f"schedule {name} has no run {job}; squall schedule history {name} lists its runs"
            )
        found = [run for run in runs if run.result and job in ("", run.job)]
        if not found:
            raise UsageError(f"schedule {name} has no result{f' of {job}' if job else ''} yet")
        try:
            return decode_result(await self._blobs.get(Digest(found[-1].result)))
        except KeyError:
            raise UsageError(f"the result of job {found[-1].job} is not in the store") from None

    async def _entry(self, schedule: Schedule) -> ScheduleEntry:
        (found,) = await self._store.get(progress_key(schedule.name))
        progress = progress_of(schedule, found)
        now_s = await self._store.now_ms() / 1000.0
        return ScheduleEntry(
            schedule, progress, Calendar(schedule.times).after(max(progress.decided, now_s))
        )

    async def _index(self) -> ScheduleIndex:
        return (await self._read())[0]

    async def _read(self) -> tuple[ScheduleIndex, str]:
        (found,) = await self._store.get(INDEX)
        return (
            (ScheduleIndex(), "") if found is None else (read(ScheduleIndex, found), found.version)
        )

    async def _written(self, index: ScheduleIndex, version: str) -> bool:
        """False if another client changed the index meanwhile."""
        value = msgspec.msgpack.encode(index)
        try:
            await self._store.write(Put(INDEX, value, expect=version or ABSENT, ttl_s=None))
        except VersionConflict:
            return False
        return True


def _known(index: ScheduleIndex, name: str) -> Schedule:
    found = index.find(name)
    if found is None:
        names = ", ".join(sorted(each.name for each in index.schedules))
        raise UsageError(f"there is no schedule {name}; schedules here: {names or 'none'}")
    return found


def _refuse_taken(index: ScheduleIndex, name: str) -> None:
    if index.find(name) is not None:
        raise UsageError(
            f"schedule {name} already exists: choose another --name, or remove it first "
            f"(squall schedule remove {name})"
        )
    if len(index.schedules) >= SCHEDULES_MAX:
        raise UsageError(
            f"there are already {SCHEDULES_MAX} schedules, the most that one store holds; "
            "remove one first (squall schedule remove NAME)"
        )
