"""The coordinator's part of a scheduler.

Before anything is done for a due time its record `run/<job>/<slot>` is created, once, under
the fence; with it the schedule notes that the due time is decided. Who finds the record does
not run it, unless it is of this very term: then our own write made it, and only the answer was
lost. A run that a dead coordinator left unfinished is marked `interrupted` and never repeated:
nobody can know how far it came. Runs that only enqueue are the exception: the ticket has an id
made of job and slot, so that it is enqueued again until the record says so, and exists once.

Work is cancelled at the end of the term. It must never start a run whose record it did not
create.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from squall.coordination.assembly import Assembly
from squall.coordination.errors import (
    ConfigurationError,
    LeadershipLost,
    StaleEpochError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.plain import error_text
from squall.coordination.queue.records import Ticket, TicketTooLargeError
from squall.coordination.scheduler.due import Calendar, due_now
from squall.coordination.scheduler.records import (
    HISTORY_MAX,
    ORDERS,
    RUN_TTL_S,
    SCHEDULES,
    HandlerMissing,
    JobRecord,
    Outcome,
    RunEnded,
    RunHistory,
    RunOrder,
    RunRecord,
    RunsMissed,
    RunStarted,
    Schedules,
    history_key,
    run_key,
    slot_of,
)
from squall.coordination.stores.errors import StreamFullError
from squall.coordination.stores.guard import TOKEN_BYTES
from squall.coordination.stores.interface import (
    ABSENT,
    Appended,
    Changed,
    Item,
    Put,
    Record,
    Remove,
    Watch,
    Write,
)
from squall.coordination.terms import Term
from squall.coordination.waits import while_leading

if TYPE_CHECKING:
    from squall.coordination.scheduler.plugin import Scheduler

SLICE_S = 5.0
SOON_S = 0.001
BUSY_S = 0.1
KEPT_S = 366 * 86_400.0
STOP_S = 5.0
PAGE = 100
REST_S = 30.0


class Runner:
    """Of one term."""

    def __init__(self, scheduler: Scheduler, parts: Assembly, term: Term) -> None:
        self._scheduler = scheduler
        self._parts = parts
        self._term = term
        self._tasks = parts.tasks.group("scheduler")
        self._jobs: dict[str, JobRecord] = {}
        self._version = ""
        self._value: bytes | None = None
        """Of the schedule, as it was last read or written."""
        self.began_anew = False
        """The schedule that was there is not believed, and has gone."""
        self._calendars: dict[str, tuple[JobRecord, Calendar]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._settled: dict[str, str] = {}
        """By job, the last slot that needs nothing more to be begun."""
        self._resting: dict[str, float] = {}
        self._told: set[str] = set()
        self._orders_wait = False
        self._orders_seen = ""
        """The last order that was left where it is."""

    async def take_over(self) -> None:
        """Puts the schedule under this epoch, and ends what predecessors left."""
        self._tasks.start("end of term", self._cancel_at_end())
        while True:
            await self._read()
            self.began_anew = self._version != "" and self._value is None
            try:
                await self._decide({})
                break
            except VersionConflict:
                continue
        for name in self._jobs:
            await self._each(name, self._adopt)

    async def turn(self) -> None:
        await self._read()
        for name in list(self._jobs):
            if not self._rests(name):
                await self._each(name, self._attend)
        await self._orders()
        await self._wait()

    async def _each(self, name: str, work: Callable[[str], Awaitable[None]]) -> None:
        """One job that cannot be done must not keep the others from it: it rests, then it is tried
        again."""
        try:
            await work(name)
            self._resting.pop(name, None)
        except (LeadershipLost, StaleEpochError, StoreUnavailableError):
            raise
        except Exception as error:
            self._resting[name] = self._parts.clock.now() + REST_S
            self._parts.on_failure("job_not_begun", error)

    def _rests(self, name: str) -> bool:
        return self._resting.get(name, 0.0) > self._parts.clock.now()

    async def _adopt(self, name: str) -> None:
        await self._interrupt(name)
        self._settled[name] = self._jobs[name].opened

    async def _attend(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is not None and job.opened not in ("", self._settled.get(name)):
            await self._resume(name, job, job.opened)
        if job is not None and job.enabled:
            await self._look(name, job)

    async def _cancel_at_end(self) -> None:
        await self._term.ended.wait()
        for task in self._running.values():
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    # Due times.

    async def _look(self, name: str, job: JobRecord) -> None:
        if not self._can_run(name, job):
            return
        now = self._scheduler.now()
        due = due_now(job, self._calendar(name, job), now)
        decided = False
        for time_s in due.run:
            catches_up = len(due.run) > 1
            if name in self._running and (catches_up or job.overlap == "queue"):
                return
            if now < time_s + self._delay_s(name, time_s, job.jitter):
                return
            is_last = time_s == due.run[-1]
            upto = due.decided if is_last else time_s
            decided = await self._begin(name, slot_of(time_s), time_s, upto)
            if not decided:
                return
        if due.missed and not due.run:
            decided = await self._note(name, due.decided)
        if due.missed and decided:
            # Once for a gap: until it is decided it is found in every turn.
            missed = due.missed
            self._parts.bus.emit(
                RunsMissed(job=name, count=len(missed), first=missed[0], last=missed[-1])
            )

    def _can_run(self, name: str, job: JobRecord) -> bool:
        """Tells once of a job that another member has to run."""
        if job.queue or name in self._scheduler.handlers:
            return True
        if name not in self._told:
            self._told.add(name)
            self._parts.bus.emit(HandlerMissing(job=name))
        return False

    async def _begin(self, name: str, slot: str, due: float, decided: float | None) -> bool:
        """Creates the record; who does not create it does nothing more. Whether the schedule
        says so: if not, it is read again, and this is looked at again."""
        job = self._jobs[name]
        overlaps = name in self._running
        run = RunRecord(
            job=name,
            slot=slot,
            due=due,
            outcome="skipped" if overlaps else "running",
            member=self._parts.member_id,
            epoch=self._term.epoch,
            started=self._scheduler.now(),
        )
        key = run_key(name, slot)
        created = Put(key, self._parts.codec.encode(run), expect=ABSENT, ttl_s=RUN_TTL_S)
        opened = "" if overlaps else slot
        noted = True
        try:
            (version, *_) = await self._decide({name: (decided, opened)}, created)
        except VersionConflict as conflict:
            if conflict.key == key:
                # Decided before us, or by a write of ours that got no answer; the schedule did
                # not hear of it.
                begun = await self._resume(name, job, slot)
                if decided is None and not begun:
                    return True
                return await self._note(name, decided, slot if begun else "")
            if conflict.applied == 0:
                return False
            # The record is ours, the note is not written yet: now, or in the next turn.
            (found,) = await self._parts.patient.get(key)
            version = "" if found is None else found.version
            noted = False
            with contextlib.suppress(StoreUnavailableError):
                await self._read()
                noted = await self._note(name, decided, opened)
        metrics = self._parts.metrics
        lag = metrics.families.schedule_lag_s
        metrics.gauge(lag, name).set(max(0.0, run.started - due))
        self._parts.bus.emit(RunStarted(job=name, slot=slot, due=due, epoch=self._term.epoch))
        if overlaps:
            await self._ended(run, "skipped", "the run before it has not ended", version)
        else:
            await self._start(run, job, version)
        return noted

    async def _start(
        self, run: RunRecord, job: JobRecord, version: str, over: bytes | None = None
    ) -> None:
        if job.queue:
            await self._enqueue(run, job, version, over)
        else:
            token = self._tasks.start(f"job {run.job}", self._run(run, job, version, over))
            if token.task is not None:
                self._running[run.job] = token.task
        self._settled[run.job] = run.slot

    async def _resume(self, name: str, job: JobRecord, slot: str) -> bool:
        """Begins a run of this term whose record was written though the answer never came:
        nobody else will. Whether there was one."""
        if name in self._running or self._settled.get(name) == slot:
            return False
        found = await self._open_run(name, slot)
        if found is None or found[0].epoch != self._term.epoch:
            self._settled[name] = slot
            return False
        run, record = found
        await self._start(run, job, record.version, record.value)
        return True

    async def _run(self, run: RunRecord, job: JobRecord, version: str, over: bytes | None) -> None:
        outcome: Outcome = "ok"
        error = ""
        try:
            async with asyncio.timeout(job.max_runtime):
                await self._scheduler.handlers[run.job](run)
        except TimeoutError as late:
            outcome, error = (
                "timeout",
                error_text(str(late)) or f"longer than {job.max_runtime:g} s",
            )
        except asyncio.CancelledError:
            self._running.pop(run.job, None)
            raise
        except Exception as failed:
            outcome, error = "failed", error_text(failed)
            self._parts.on_failure("job_failed", failed)
        try:
            await self._ended(run, outcome, error, version, over)
        except (LeadershipLost, StaleEpochError):
            return
        finally:
            self._running.pop(run.job, None)

    async def _enqueue(
        self, run: RunRecord, job: JobRecord, version: str, over: bytes | None = None
    ) -> None:
        queue = self._scheduler.queues.get(job.queue)
        if queue is None:
            await self._ended(run, "failed", f"queue {job.queue} is not known here", version, over)
            return
        digest = hashlib.sha256(f"{run.job}/{run.slot}".encode()).hexdigest()[:32]
        ticket = Ticket(
            ticket_id=f"s-{digest}",
            queue=job.queue,
            payload=job.payload,
            max_attempts=queue.max_attempts,
            created_at=self._parts.store_time(),
        )
        try:
            await self._term.write(*queue.enqueue_writes(ticket))
        except (ConfigurationError, StreamFullError, TicketTooLargeError) as error:
            self._parts.on_failure("job_failed", error)
            await self._ended(run, "failed", error_text(error), version, over)
            return
        await self._ended(run, "enqueued", "", version, over)

    async def _ended(
        self, run: RunRecord, outcome: Outcome, error: str, version: str, over: bytes | None = None
    ) -> None:
        """`over` is the record as it was read. It is tried for as long as this term lasts: else a
        run that is over would be told as one that goes on."""
        ended = msgspec.structs.replace(
            run, outcome=outcome, error=error, ended=self._scheduler.now()
        )
        end = Put(
            run_key(run.job, run.slot),
            self._parts.codec.encode(ended, over=over),
            expect=version,
            ttl_s=RUN_TTL_S,
            token=self._parts.random.randbytes(TOKEN_BYTES).hex(),
        )
        await self._until_answered(lambda: self._term.write(end))
        await self._until_answered(lambda: self._remember(ended))
        metrics = self._parts.metrics
        metrics.counter(metrics.families.schedule_runs, run.job, outcome).add()
        self._parts.bus.emit(RunEnded(job=run.job, slot=run.slot, outcome=outcome, error=error))

    async def _until_answered(self, call: Callable[[], Awaitable[Any]]) -> None:
        while True:
            try:
                await call()
                return
            except StoreUnavailableError:
                await self._parts.clock.sleep(BUSY_S)

    async def _remember(self, run: RunRecord) -> None:
        key = history_key(run.job)
        (found,) = await self._parts.patient.get(key)
        known = (
            None
            if found is None
            else self._parts.codec.read(RunHistory, found.value, key=found.key)
        )
        if known is not None and run in known.runs:
            return
        runs = ((*known.runs, run) if known is not None else (run,))[-HISTORY_MAX:]
        over = None if found is None or known is None else found.value
        value = self._parts.codec.encode(RunHistory(runs=runs), over=over)
        try:
            expect = ABSENT if found is None else found.version
            await self._term.write(Put(key, value, expect=expect, ttl_s=KEPT_S, silent=True))
        except VersionConflict:
            await self._remember(run)

    # What predecessors left, and what people ask for.

    async def _interrupt(self, name: str) -> None:
        """The last run that was begun, or one that the schedule did not hear of."""
        job = self._jobs[name]
        unseen = slot_of(self._calendar(name, job).after(job.decided))
        for slot in (job.opened, unseen):
            if not slot:
                continue
            found = await self._open_run(name, slot)
            if found is None:
                continue
            run, record = found
            if job.queue:
                await self._enqueue(run, job, record.version, record.value)
            else:
                why = "its coordinator ended"
                await self._ended(run, "interrupted", why, record.version, record.value)

    async def _open_run(self, name: str, slot: str) -> tuple[RunRecord, Record] | None:
        """One that was begun and has no end."""
        (found,) = await self._parts.patient.get(run_key(name, slot))
        if found is None:
            return None
        run = self._parts.codec.read(RunRecord, found.value, key=found.key)
        return None if run is None or run.outcome != "running" else (run, found)

    async def _orders(self) -> None:
        self._orders_wait = False
        self._orders_seen = after = ""
        while items := await self._parts.patient.read(ORDERS, after=after, limit=PAGE):
            for item in items:
                after = item.cursor
                if await self._obey(item):
                    await self._term.write(Remove(ORDERS, item.cursor))
                else:
                    self._orders_seen = item.cursor
            if len(items) < PAGE:
                return

    async def _obey(self, item: Item) -> bool:
        """Whether the order is done with; else it stays where it is."""
        order = self._parts.codec.read(RunOrder, item.value)
        job = None if order is None else self._jobs.get(order.job)
        if order is None or job is None:
            return True
        if order.job in self._running or self._rests(order.job):
            self._orders_wait = True
            return False
        if not self._can_run(order.job, job):
            return False
        done = False

        async def begin(name: str) -> None:
            nonlocal done
            done = await self._begin(name, item.id, self._scheduler.now(), None)

        await self._each(order.job, begin)
        if done:
            return True
        # The schedule changed meanwhile, or the job failed: soon again.
        self._orders_wait = True
        return False

    # The schedule.

    async def _note(self, name: str, decided: float | None, opened: str = "") -> bool:
        """Whether it is written; a job that is gone needs no note."""
        if name not in self._jobs:
            return True
        try:
            await self._decide({name: (decided, opened)})
        except VersionConflict:
            await self._read()
            return False
        return True

    async def _decide(
        self, decided: dict[str, tuple[float | None, str]], *first: Write
    ) -> tuple[str, ...]:
        jobs = dict(self._jobs)
        for name, (time_s, opened) in decided.items():
            job = jobs[name]
            jobs[name] = msgspec.structs.replace(
                job,
                decided=max(job.decided, time_s or 0.0),
                opened=opened or job.opened,
            )
        value = self._parts.codec.encode(Schedules(jobs=jobs), over=self._value)
        expect = self._version or ABSENT
        written = await self._term.write(
            *first, Put(SCHEDULES, value, expect=expect, ttl_s=KEPT_S, silent=True)
        )
        self._jobs, self._version, self._value = jobs, written[-1], value
        return written

    async def _read(self) -> None:
        (found,) = await self._parts.patient.get(SCHEDULES)
        if found is None:
            self._jobs, self._version, self._value = {}, "", None
        elif found.version != self._version:
            read = self._parts.codec.read(Schedules, found.value, key=found.key)
            if read is None and self._value is not None:
                # Nobody of ours wrote that: what was known before goes back.
                self._version = found.version
                with contextlib.suppress(VersionConflict):
                    await self._decide({})
                return
            self._jobs, self._version = (read.jobs if read else {}), found.version
            self._value = found.value if read else None

    def _calendar(self, name: str, job: JobRecord) -> Calendar:
        known = self._calendars.get(name)
        definition = msgspec.structs.replace(job, decided=0.0)
        if known is None or known[0] != definition:
            known = (definition, Calendar(job))
            self._calendars[name] = known
        return known[1]

    async def _wait(self) -> None:
        now = self._scheduler.now()
        limit_s = SLICE_S
        for name, job in self._jobs.items():
            if self._rests(name):
                limit_s = min(limit_s, self._resting[name] - self._parts.clock.now())
            elif job.enabled and (job.queue or name in self._scheduler.handlers):
                at = self._next_at(name, job, now)
                if name in self._running:
                    at = max(at, now + BUSY_S)
                limit_s = min(limit_s, at - now)
        watches: list[Watch] = [Changed(SCHEDULES, self._version)]
        if self._orders_wait:
            limit_s = min(limit_s, BUSY_S)
        else:
            watches.append(Appended(ORDERS, self._orders_seen))
        call = self._parts.patient.wait(*watches, timeout_s=max(SOON_S, limit_s))
        await while_leading(self._tasks, self._term, call)

    def _next_at(self, name: str, job: JobRecord, now: float) -> float:
        """When there is something to begin: what is due already waits for its jitter."""
        calendar = self._calendar(name, job)
        due = due_now(job, calendar, now).run
        time_s = due[0] if due else calendar.after(max(job.decided, now))
        return time_s + self._delay_s(name, time_s, job.jitter)

    @staticmethod
    def _delay_s(name: str, due: float, jitter: float) -> float:
        """The same for all members, so that a change of coordinator moves nothing."""
        if jitter <= 0.0:
            return 0.0
        digest = hashlib.sha256(f"{name}/{due}".encode()).digest()
        return jitter * int.from_bytes(digest[:4], "big") / 2**32
