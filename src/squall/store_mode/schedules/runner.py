"""Runs scheduled load tests on the agent that coordinates.

    due time ─► decided (record) ─► submitted under its key ─► job ─► ended ─► result kept,
                                                                       compared, recorded

`squall.coordination.scheduler` provides due times and the policy for missed ones (`Calendar`,
`due_now`). Its runner is not used: it never repeats a run that a dead coordinator left behind,
because it cannot know how far the run came. Here it can: every due time has a key, and the
managers make one job of it however often it is submitted. So a run is an entry of an outbox, and
the next coordinator continues it.

Invariants:
- A due time is decided by a conditional write under the term, on the version it is based on. Only
  the agent that made the write, or read it, submits the job.
- A schedule has one run at a time: two loads on one target would measure each other.
- A run that was decided but not submitted for too long is given up, but only if no job has its
  key, and while the managers still remember the keys of ended jobs.
- A blob is stored before a record names it, and removed after no record does.

It must never act for a term that has ended, nor stop because of one schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from squall.cluster.ledger.interface import Digest
from squall.cluster.wire.seal.secrets import Secrets
from squall.coordination.election.term import Term
from squall.coordination.errors import LeadershipLost, StaleEpochError, VersionConflict
from squall.coordination.member_parts import MemberParts
from squall.coordination.scheduler.due_times import Calendar
from squall.coordination.stores.interface import ABSENT, Put, Store
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log
from squall.store_mode.ledger.blobs import StoreBlobs
from squall.store_mode.ledger.layout import settings_for
from squall.store_mode.schedules.comparison import Judge, judge_here
from squall.store_mode.schedules.current_run import RunDriver
from squall.store_mode.schedules.next_state import decide
from squall.store_mode.schedules.records import (
    BLOBS,
    INDEX,
    Schedule,
    ScheduleIndex,
    ScheduleProgress,
    progress_key,
    progress_of,
    read,
)
from squall.store_mode.schedules.submit import JobSubmitter

TURN_S = 1.0
"""Poll interval for ended jobs. The lookup is served from memory."""
SOON_S = 0.01
COLLECT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class ScheduleDependencies:
    """What the runner needs of its agent."""

    runtime: Runtime
    store: Store
    submitter: JobSubmitter
    secrets: Secrets
    cluster: str
    now: Callable[[], float]
    """The calendar: store time, seconds since 1970."""
    poll_s: float
    """How often the index of schedules is read."""
    log: Log
    judge: Judge = judge_here


@dataclass
class _StoredProgress:
    """A progress as last read or written; the version is empty if there is no record."""

    progress: ScheduleProgress
    version: str


class ScheduleRunner:
    """Decides due times and drives their runs for one term."""

    def __init__(self, dependencies: ScheduleDependencies, term: Term) -> None:
        self._dependencies = dependencies
        self._term = term
        self._clock = dependencies.runtime.clock
        self._index = ScheduleIndex()
        self._version = ""
        self._read_index_at = self._clock.now()
        self._collect_at = self._clock.now() + COLLECT_S
        self._stored: dict[str, _StoredProgress] = {}
        self._calendars: dict[str, Calendar] = {}
        self._reported: dict[str, str] = {}
        self._blobs = schedule_blobs(dependencies.store, dependencies.runtime)
        self._runs = RunDriver(
            dependencies.submitter,
            self._blobs,
            dependencies.secrets,
            dependencies.cluster,
            dependencies.judge,
        )

    async def run(self) -> None:
        """Returns when the term has ended."""
        while True:
            try:
                await self.turn()
            except (LeadershipLost, StaleEpochError):
                return
            except Exception as error:
                self._report("", error)
            await self._clock.sleep(self._wait_s())

    async def turn(self) -> None:
        """Advances every schedule once."""
        self._term.check()
        if self._clock.now() >= self._read_index_at:
            await self._read_index()
        if not self._dependencies.submitter.is_open:
            return
        for schedule in self._index.schedules:
            try:
                await self._turn_of(schedule)
                self._reported.pop(schedule.name, None)
            except (LeadershipLost, StaleEpochError):
                raise
            except VersionConflict:
                # Another agent or client wrote it: the next turn reads it again.
                self._stored.pop(schedule.name, None)
            except Exception as error:
                self._stored.pop(schedule.name, None)
                self._report(schedule.name, error)
        await self._collect()
        self._reported.pop("", None)

    async def _turn_of(self, schedule: Schedule) -> None:
        stored = await self._progress(schedule)
        await self._advance(schedule, stored)
        calendar = self._calendar(schedule)
        decided = decide(schedule, stored.progress, calendar, self._dependencies.now())
        if decided is not None:
            await self._write(schedule, stored, decided)
            await self._advance(schedule, stored)

    async def _advance(self, schedule: Schedule, stored: _StoredProgress) -> None:
        run = stored.progress.under_way
        if run is None:
            return
        progress = await self._runs.advance(
            schedule, stored.progress, run, self._dependencies.now()
        )
        if progress is None:
            return
        await self._write(schedule, stored, progress)
        noted = next((each for each in progress.runs if each.slot == run.slot), run)
        noted = progress.under_way or noted
        self._dependencies.log.info(
            "schedule_run",
            schedule=schedule.name,
            slot=noted.slot,
            job=noted.job,
            state=noted.state,
            why=noted.reason,
        )

    # Records.

    async def _read_index(self) -> None:
        """Reads the index, and drops what is remembered of removed schedules."""
        (found,) = await self._dependencies.store.get(INDEX)
        self._read_index_at = self._clock.now() + self._dependencies.poll_s
        version = "" if found is None else found.version
        if version == self._version:
            return
        self._index = ScheduleIndex() if found is None else read(ScheduleIndex, found)
        self._version = version
        ids = {each.id for each in self._index.schedules}
        self._calendars = {key: each for key, each in self._calendars.items() if key in ids}
        self._stored = {key: each for key, each in self._stored.items() if each.progress.id in ids}

    async def _progress(self, schedule: Schedule) -> _StoredProgress:
        stored = self._stored.get(schedule.name)
        if stored is None:
            (found,) = await self._dependencies.store.get(progress_key(schedule.name))
            version = "" if found is None else found.version
            stored = self._stored[schedule.name] = _StoredProgress(
                progress_of(schedule, found), version
            )
        return stored

    async def _write(
        self, schedule: Schedule, stored: _StoredProgress, progress: ScheduleProgress
    ) -> None:
        put = Put(
            progress_key(schedule.name),
            msgspec.msgpack.encode(progress),
            expect=stored.version or ABSENT,
            ttl_s=None,
            silent=True,
        )
        (stored.version,) = await self._term.write(put)
        stored.progress = progress

    async def _collect(self) -> None:
        """Collects blobs without a reference; only if there ever was a schedule, and if every
        progress is known."""
        names = {each.name for each in self._index.schedules}
        due = self._version and self._clock.now() >= self._collect_at
        if not due or not names <= self._stored.keys():
            return
        self._collect_at = self._clock.now() + COLLECT_S
        named = {each for known in self._stored.values() for each in known.progress.results()}
        for schedule in self._index.schedules:
            named |= {schedule.bundle, schedule.submission}
        await self._blobs.collect(map(Digest, named))

    # Time and reports.

    def _calendar(self, schedule: Schedule) -> Calendar:
        known = self._calendars.get(schedule.id)
        if known is None:
            known = self._calendars[schedule.id] = Calendar(schedule.times)
        return known

    def _wait_s(self) -> float:
        """The time to the next due time, at most `TURN_S`."""
        wait_s, now_s = TURN_S, self._dependencies.now()
        for schedule in self._index.schedules if self._dependencies.submitter.is_open else ():
            stored = self._stored.get(schedule.name)
            if stored is not None and stored.progress.under_way is None:
                due_s = self._calendar(schedule).after(stored.progress.decided)
                wait_s = min(wait_s, due_s - now_s)
        return max(wait_s, SOON_S)

    def _report(self, name: str, error: Exception) -> None:
        """Logs the same error once, until it is resolved."""
        text = f"{type(error).__name__}: {error}"
        if self._reported.get(name) != text:
            self._reported[name] = text
            self._dependencies.log.warning("schedule_trouble", schedule=name, error=text)


def schedule_blobs(store: Store, runtime: Runtime) -> StoreBlobs:
    return StoreBlobs(
        store,
        BLOBS,
        settings_for(store.capabilities),
        group_ms=lambda: int(runtime.clock.now() * 1000.0),
        entropy=runtime.entropy,
    )


def calendar_of(parts: MemberParts) -> Callable[[], float]:
    """The store's time if several hosts share it, else the machine's, as in the scheduler."""
    shared = parts.patient.capabilities.cross_host
    return parts.store_time if shared else parts.clock.wall
