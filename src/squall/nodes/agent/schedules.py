"""Scheduled load tests, on the agent that coordinates.

    due time ─► decided (record) ─► handed in under its key ─► job ─► over ─► result kept,
                                                                      compared, noted

Due times and what becomes of missed ones are those of `squall.coordination.scheduler` (its
`Calendar` and `due_now`). Its runner is not used: a run that a dead coordinator left behind
is never repeated there, because nobody can know how far it came. Here it can be known: a
due time has a key, and the managers make one job of it however often it is handed in. So a
run is an entry of an outbox, and whoever coordinates next goes on with it.

Invariants:
- A due time is decided by a write that names the version of what it is based on, under the
  term. Only who made that write, or reads it, hands the job in.
- One run of a schedule at a time: two loads on one target measure each other.
- What was decided and not handed in for too long is given up, but only if no job has its
  key, and while the managers still know the keys of jobs that are over.
- A blob is stored before a record names it, and goes after none does.

It must never act for a term that has ended, nor end because of one schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from squall.coordination.assembly import Assembly
from squall.coordination.errors import LeadershipLost, StaleEpochError, VersionConflict
from squall.coordination.scheduler.due import Calendar
from squall.coordination.stores.interface import ABSENT, Put, Store
from squall.coordination.terms import Term
from squall.ledger.interface import Digest
from squall.nodes.agent.blobs import StoreBlobs
from squall.nodes.agent.schedules_desk import Desk
from squall.nodes.agent.schedules_judging import Judge, judge_here
from squall.nodes.agent.schedules_records import (
    BLOBS,
    INDEX,
    Index,
    Schedule,
    Standing,
    read,
    standing_key,
    standing_of,
)
from squall.nodes.agent.schedules_runs import Runs
from squall.nodes.agent.schedules_standing import decide
from squall.nodes.agent.slots import settings_for
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log
from squall.wire.secrets import Secrets

TURN_S = 1.0
"""How often is looked whether jobs are over; the answer is in memory."""
SOON_S = 0.01
COLLECT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Office:
    """What schedules are looked after with."""

    runtime: Runtime
    store: Store
    desk: Desk
    secrets: Secrets
    cluster: str
    now: Callable[[], float]
    """The calendar: store time, seconds since 1970."""
    look_s: float
    """How often is looked which schedules there are."""
    log: Log
    judge: Judge = judge_here


@dataclass
class _Kept:
    """A standing as it was last read or written; the version is empty where there is none."""

    standing: Standing
    version: str


class Schedules:
    """Of one term."""

    def __init__(self, office: Office, term: Term) -> None:
        self._office = office
        self._term = term
        self._clock = office.runtime.clock
        self._index = Index()
        self._version = ""
        self._look_at = self._clock.now()
        self._collect_at = self._clock.now() + COLLECT_S
        self._kept: dict[str, _Kept] = {}
        self._calendars: dict[str, Calendar] = {}
        self._told: dict[str, str] = {}
        self._blobs = schedule_blobs(office.store, office.runtime)
        self._runs = Runs(office.desk, self._blobs, office.secrets, office.cluster, office.judge)

    async def run(self) -> None:
        """Until it is cancelled, or the term is over."""
        while True:
            try:
                await self.turn()
            except (LeadershipLost, StaleEpochError):
                return
            except Exception as error:
                self._tell("", error)
            await self._clock.sleep(self._wait_s())

    async def turn(self) -> None:
        """Looks at every schedule once."""
        self._term.check()
        if self._clock.now() >= self._look_at:
            await self._look()
        if not self._office.desk.is_open:
            return
        for schedule in self._index.schedules:
            try:
                await self._turn_of(schedule)
                self._told.pop(schedule.name, None)
            except (LeadershipLost, StaleEpochError):
                raise
            except VersionConflict:
                # Somebody else wrote it: it is read again, and looked at again.
                self._kept.pop(schedule.name, None)
            except Exception as error:
                self._kept.pop(schedule.name, None)
                self._tell(schedule.name, error)
        await self._collect()
        self._told.pop("", None)

    async def _turn_of(self, schedule: Schedule) -> None:
        kept = await self._standing(schedule)
        await self._pursue(schedule, kept)
        calendar = self._calendar(schedule)
        decided = decide(schedule, kept.standing, calendar, self._office.now())
        if decided is not None:
            await self._write(schedule, kept, decided)
            await self._pursue(schedule, kept)

    async def _pursue(self, schedule: Schedule, kept: _Kept) -> None:
        run = kept.standing.under_way
        if run is None:
            return
        standing = await self._runs.pursue(schedule, kept.standing, run, self._office.now())
        if standing is None:
            return
        await self._write(schedule, kept, standing)
        noted = next((each for each in standing.runs if each.slot == run.slot), run)
        noted = standing.under_way or noted
        self._office.log.info(
            "schedule_run",
            schedule=schedule.name,
            slot=noted.slot,
            job=noted.job,
            state=noted.state,
            why=noted.reason,
        )

    # Records.

    async def _look(self) -> None:
        """Which schedules there are."""
        (found,) = await self._office.store.get(INDEX)
        self._look_at = self._clock.now() + self._office.look_s
        version = "" if found is None else found.version
        if version == self._version:
            return
        self._index = Index() if found is None else read(Index, found)
        self._version = version
        ids = {each.id for each in self._index.schedules}
        self._calendars = {key: each for key, each in self._calendars.items() if key in ids}
        self._kept = {key: each for key, each in self._kept.items() if each.standing.id in ids}

    async def _standing(self, schedule: Schedule) -> _Kept:
        kept = self._kept.get(schedule.name)
        if kept is None:
            (found,) = await self._office.store.get(standing_key(schedule.name))
            version = "" if found is None else found.version
            kept = self._kept[schedule.name] = _Kept(standing_of(schedule, found), version)
        return kept

    async def _write(self, schedule: Schedule, kept: _Kept, standing: Standing) -> None:
        put = Put(
            standing_key(schedule.name),
            msgspec.msgpack.encode(standing),
            expect=kept.version or ABSENT,
            ttl_s=None,
            silent=True,
        )
        (kept.version,) = await self._term.write(put)
        kept.standing = standing

    async def _collect(self) -> None:
        """Blobs that nothing refers to any more; only where there was ever a schedule, and
        only if every standing is known."""
        names = {each.name for each in self._index.schedules}
        due = self._version and self._clock.now() >= self._collect_at
        if not due or not names <= self._kept.keys():
            return
        self._collect_at = self._clock.now() + COLLECT_S
        named = {each for known in self._kept.values() for each in known.standing.results()}
        for schedule in self._index.schedules:
            named |= {schedule.bundle, schedule.submission}
        await self._blobs.collect(map(Digest, named))

    # Time and telling.

    def _calendar(self, schedule: Schedule) -> Calendar:
        known = self._calendars.get(schedule.id)
        if known is None:
            known = self._calendars[schedule.id] = Calendar(schedule.times)
        return known

    def _wait_s(self) -> float:
        """Until the next due time, and not longer than a turn."""
        wait_s, now_s = TURN_S, self._office.now()
        for schedule in self._index.schedules if self._office.desk.is_open else ():
            kept = self._kept.get(schedule.name)
            if kept is not None and kept.standing.under_way is None:
                due_s = self._calendar(schedule).after(kept.standing.decided)
                wait_s = min(wait_s, due_s - now_s)
        return max(wait_s, SOON_S)

    def _tell(self, name: str, error: Exception) -> None:
        """The same trouble once, until it is over."""
        text = f"{type(error).__name__}: {error}"
        if self._told.get(name) != text:
            self._told[name] = text
            self._office.log.warning("schedule_trouble", schedule=name, error=text)


def schedule_blobs(store: Store, runtime: Runtime) -> StoreBlobs:
    return StoreBlobs(
        store,
        BLOBS,
        settings_for(store.capabilities),
        group_ms=lambda: int(runtime.clock.now() * 1000.0),
        entropy=runtime.entropy,
    )


def calendar_of(parts: Assembly) -> Callable[[], float]:
    """The store's time if hosts share it, else the machine's, as for the scheduler."""
    shared = parts.patient.capabilities.cross_host
    return parts.store_time if shared else parts.clock.wall
