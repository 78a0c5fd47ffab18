"""The leader's part of a scheduler: decides due times and begins their runs.

**At most once.** Before anything is done for a due time, its record `run/<job>/<slot>` is created
under the fence, and in the same batch the schedule notes the due time as decided. A leader that
finds the record already there does not run it, unless the record is of this very term: then our
own write made it, and only the answer was lost.

**Interrupted.** A run that a former leader left without an end is marked `interrupted` and never
repeated, because its progress is unknown. Runs that only enqueue are the exception: the ticket's id
is made of job and slot, so it can be enqueued again until the record says so, and exists once.

Runs are cancelled at the end of the term. A run must never start whose record this term did not
create.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from squall.coordination.election.term import Term, write_library_records
from squall.coordination.election.while_leading import while_leading
from squall.coordination.errors import (
    ConfigurationError,
    LeadershipLost,
    StaleEpochError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.member_parts import MemberParts
from squall.coordination.queue.records import Ticket, TicketTooLargeError
from squall.coordination.records.plain_json import error_text
from squall.coordination.scheduler.due_times import Calendar, due_now
from squall.coordination.scheduler.records import (
    HISTORY_MAX,
    ORDERS,
    RUN_TTL_S,
    SCHEDULE_TTL_S,
    SCHEDULES,
    HandlerMissing,
    JobRecord,
    RunEnded,
    RunHistory,
    RunOrder,
    RunOutcome,
    RunRecord,
    RunsMissed,
    RunStarted,
    Schedules,
    history_key,
    run_key,
    slot_of,
)
from squall.coordination.store_errors import StreamFullError
from squall.coordination.stores.guarded_store import TOKEN_BYTES
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
from squall.runtime.backoff import Backoff

if TYPE_CHECKING:
    from squall.coordination.scheduler.plugin import Scheduler

# The longest wait before the next turn.
SLICE_S = 5.0
# The shortest wait, so that the loop cannot spin.
SOON_S = 0.001
# Between two checks of a job whose run has not ended, and of orders that cannot run yet.
BUSY_S = 0.1
# How long runs may take to end when the term does.
STOP_S = 5.0
PAGE = 100
# A job that cannot be begun has an error in its record or in its queue: trying it sooner would only
# fill the log. Other jobs are not held up meanwhile.
JOB_RETRY = Backoff(first_s=30.0, factor=1.0)
# The guarded store has already backed off before it fails, and the term may end any moment.
END_RETRY = Backoff(first_s=0.1, factor=1.0)


class ScheduleRunner:
    """Runs the schedule during one term."""

    def __init__(self, scheduler: Scheduler, parts: MemberParts, term: Term) -> None:
        self._scheduler = scheduler
        self._parts = parts
        self._term = term
        self._tasks = parts.tasks.group("scheduler")
        self._jobs: dict[str, JobRecord] = {}
        # The schedule as it was last read or written. `_value` is None if it did not verify.
        self._version = ""
        self._value: bytes | None = None
        # The stored schedule did not verify, and was replaced by an empty one.
        self.schedule_was_unreadable = False
        self._calendars: dict[str, tuple[JobRecord, Calendar]] = {}
        # By job, the run of this term that has not ended. At most one: runs do not overlap.
        self._running: dict[str, asyncio.Task[None]] = {}
        # By job, the last slot that is begun or not ours to begin. `opened` differs from it when
        # the record of a run was written but its answer was lost.
        self._settled: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        self._reported_missing: set[str] = set()
        self._orders_pending = False
        # The last order that was left in the stream: the wait must not end for it again.
        self._orders_cursor = ""

    async def take_over(self) -> None:
        """Rewrites the schedule under this epoch, and ends the runs that former leaders left. From
        then on their delayed writes to the schedule are refused."""
        self._tasks.start("end of term", self._cancel_at_end())
        while True:
            await self._read()
            self.schedule_was_unreadable = self._version != "" and self._value is None
            try:
                await self._decide({})
                break
            except VersionConflict:
                continue
        for name in self._jobs:
            await self._with_backoff(name, self._adopt)

    async def turn(self) -> None:
        await self._read()
        for name in list(self._jobs):
            if not self._is_backing_off(name):
                await self._with_backoff(name, self._begin_open_and_due)
        await self._execute_orders()
        await self._wait()

    async def _with_backoff(self, name: str, work: Callable[[str], Awaitable[None]]) -> None:
        """Runs one job's work. A job that fails is left alone for `JOB_RETRY`, so that it does not
        keep the others from theirs. The end of the term and of the store's answers end all of
        them."""
        try:
            await work(name)
            self._retry_at.pop(name, None)
        except (LeadershipLost, StaleEpochError, StoreUnavailableError):
            raise
        except Exception as error:
            self._retry_at[name] = self._parts.clock.now() + JOB_RETRY.first_s
            self._parts.on_failure("job_not_begun", error)

    def _is_backing_off(self, name: str) -> bool:
        return self._retry_at.get(name, 0.0) > self._parts.clock.now()

    async def _adopt(self, name: str) -> None:
        await self._interrupt(name)
        self._settled[name] = self._jobs[name].opened

    async def _begin_open_and_due(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is not None and job.opened not in ("", self._settled.get(name)):
            await self._resume(name, job, job.opened)
        if job is not None and job.enabled:
            await self._begin_due(name, job)

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

    async def _begin_due(self, name: str, job: JobRecord) -> None:
        """Begins the due runs of a job in order, as far as they can begin now."""
        if not self._can_run(name, job):
            return
        now = self._scheduler.now()
        due = due_now(job, self._calendar(name, job), now)
        decided = False
        for time_s in due.run:
            # Several due times at once are the runs of a gap under `run_all`: each waits for the
            # one before, because `overlap="skip"` would skip all but the first.
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
            # Reported only when decided: until then every turn finds the same gap.
            missed = due.missed
            self._parts.bus.emit(
                RunsMissed(job=name, count=len(missed), first=missed[0], last=missed[-1])
            )

    def _can_run(self, name: str, job: JobRecord) -> bool:
        """Whether this member has code for the job. Reports one without code once per term."""
        if job.queue or name in self._scheduler.handlers:
            return True
        if name not in self._reported_missing:
            self._reported_missing.add(name)
            self._parts.bus.emit(HandlerMissing(job=name))
        return False

    async def _begin(self, name: str, slot: str, due: float, decided: float | None) -> bool:
        """Creates the record of a run and starts it. Returns whether the schedule has noted the
        due time; if not, the schedule was read again, and the next turn decides again."""
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
                # The record exists. A former leader decided this due time, or our own earlier
                # write did and got no answer; either way the schedule has not noted it.
                begun = await self._resume(name, job, slot)
                if decided is None and not begun:
                    return True
                return await self._note(name, decided, slot if begun else "")
            if conflict.applied == 0:
                return False
            # Without transactions: the record was created, but the schedule changed before the
            # note. The run is ours; the note is written now or in the next turn.
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
        """Begins a run whose record this term wrote without getting the answer: no other leader
        will. Returns whether there was one."""
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
        outcome: RunOutcome = "ok"
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
            await write_library_records(self._term, *queue.enqueue_writes(ticket))
        except (ConfigurationError, StreamFullError, TicketTooLargeError) as error:
            self._parts.on_failure("job_failed", error)
            await self._ended(run, "failed", error_text(error), version, over)
            return
        await self._ended(run, "enqueued", "", version, over)

    async def _ended(
        self,
        run: RunRecord,
        outcome: RunOutcome,
        error: str,
        version: str,
        over: bytes | None = None,
    ) -> None:
        """Writes the end of a run; `over` is the record as it was read. Repeated as long as the
        term lasts: else an ended run would be shown as running."""
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
        await self._until_answered(lambda: write_library_records(self._term, end))
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
                await self._parts.clock.sleep(END_RETRY.first_s)

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
            await write_library_records(
                self._term, Put(key, value, expect=expect, ttl_s=SCHEDULE_TTL_S, silent=True)
            )
        except VersionConflict:
            await self._remember(run)

    # What former leaders left, and what operators ordered.

    async def _interrupt(self, name: str) -> None:
        """Ends the run that a former leader left: the last one that the schedule noted, or the one
        after it, whose record was created before the leader died without noting it."""
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
        """A run that was begun and has no end."""
        (found,) = await self._parts.patient.get(run_key(name, slot))
        if found is None:
            return None
        run = self._parts.codec.read(RunRecord, found.value, key=found.key)
        return None if run is None or run.outcome != "running" else (run, found)

    async def _execute_orders(self) -> None:
        self._orders_pending = False
        self._orders_cursor = after = ""
        while items := await self._parts.patient.read(ORDERS, after=after, limit=PAGE):
            for item in items:
                after = item.cursor
                if await self._execute_order(item):
                    await write_library_records(self._term, Remove(ORDERS, item.cursor))
                else:
                    self._orders_cursor = item.cursor
            if len(items) < PAGE:
                return

    async def _execute_order(self, item: Item) -> bool:
        """Whether the order is done; else it stays in the stream."""
        order = self._parts.codec.read(RunOrder, item.value)
        job = None if order is None else self._jobs.get(order.job)
        if order is None or job is None:
            return True
        if order.job in self._running or self._is_backing_off(order.job):
            self._orders_pending = True
            return False
        if not self._can_run(order.job, job):
            return False
        done = False

        async def begin(name: str) -> None:
            nonlocal done
            done = await self._begin(name, item.id, self._scheduler.now(), None)

        await self._with_backoff(order.job, begin)
        if done:
            return True
        # The schedule changed meanwhile, or the job failed: try again soon.
        self._orders_pending = True
        return False

    # The schedule.

    async def _note(self, name: str, decided: float | None, opened: str = "") -> bool:
        """Notes a decision in the schedule. Returns whether it is noted; a job that was removed
        needs no note."""
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
        """Writes the schedule with new decisions, on the version that was last read, in one batch
        after `first`. `VersionConflict` if the schedule was changed meanwhile."""
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
        written = await write_library_records(
            self._term,
            *first,
            Put(SCHEDULES, value, expect=expect, ttl_s=SCHEDULE_TTL_S, silent=True),
        )
        self._jobs, self._version, self._value = jobs, written[-1], value
        return written

    async def _read(self) -> None:
        """Reads the schedule, if it has changed."""
        (found,) = await self._parts.patient.get(SCHEDULES)
        if found is None:
            self._jobs, self._version, self._value = {}, "", None
        elif found.version != self._version:
            read = self._parts.codec.read(Schedules, found.value, key=found.key)
            if read is None and self._value is not None:
                # A schedule without a valid signature replaced ours: ours is written back.
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
            if self._is_backing_off(name):
                limit_s = min(limit_s, self._retry_at[name] - self._parts.clock.now())
            elif job.enabled and (job.queue or name in self._scheduler.handlers):
                at = self._next_at(name, job, now)
                if name in self._running:
                    at = max(at, now + BUSY_S)
                limit_s = min(limit_s, at - now)
        watches: list[Watch] = [Changed(SCHEDULES, self._version)]
        if self._orders_pending:
            limit_s = min(limit_s, BUSY_S)
        else:
            watches.append(Appended(ORDERS, self._orders_cursor))
        call = self._parts.patient.wait(*watches, timeout_s=max(SOON_S, limit_s))
        await while_leading(self._tasks, self._term, call)

    def _next_at(self, name: str, job: JobRecord, now: float) -> float:
        """When the next run can begin. A due time that passed may still wait for its jitter."""
        calendar = self._calendar(name, job)
        due = due_now(job, calendar, now).run
        time_s = due[0] if due else calendar.after(max(job.decided, now))
        return time_s + self._delay_s(name, time_s, job.jitter)

    @staticmethod
    def _delay_s(name: str, due: float, jitter: float) -> float:
        """The jitter of a due time. Derived from its name, so that a new leader delays it by the
        same time."""
        if jitter <= 0.0:
            return 0.0
        digest = hashlib.sha256(f"{name}/{due}".encode()).digest()
        return jitter * int.from_bytes(digest[:4], "big") / 2**32
