"""Jobs that run on the leader, or enqueue a ticket, at most once per due time.

    scheduler = Scheduler()

    @scheduler.cron("*/5 * * * *", zone="Europe/Berlin")
    async def report(run: RunRecord) -> None: ...

This module is what applications call. Due times are in `due_times` and `cron`, running is in
`runner`. Jobs are stored, so every member knows them; the handler of a job is the code of each
member. A job without a handler on the present leader stays due.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, Unpack

import msgspec

from squall.coordination.errors import ConfigurationError, CoordinationError, VersionConflict
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.queue.plugin import Queue
from squall.coordination.records.plain_json import plain_json
from squall.coordination.scheduler.due_times import Calendar
from squall.coordination.scheduler.records import (
    ORDERS,
    RUN_TTL_S,
    SCHEDULE_TTL_S,
    SCHEDULES,
    JobOptions,
    JobRecord,
    JobTimes,
    RunHistory,
    RunOrder,
    RunRecord,
    Schedules,
    history_key,
    run_key,
)
from squall.coordination.scheduler.runner import ScheduleRunner
from squall.coordination.stores.interface import ABSENT, Append, Put, Record, make_key
from squall.coordination.value_rules import async_function, check
from squall.coordination.value_rules import seconds as seconds_rule

JobHandler = Callable[[RunRecord], Awaitable[Any]]
H = TypeVar("H", bound=JobHandler)
ID_BYTES = 8
EVERY_RULE = seconds_rule(above=0.0, example=60.0)
# State of a job that declaring it again must not reset.
RUNTIME_FIELDS = ("enabled", "decided", "opened")


class Scheduler(CoordinatorPlugin):
    """Runs scheduled jobs. Pass it to the `Coordinator` of every member that may run them. A queue
    that a job enqueues to is passed here and to the `Coordinator`."""

    name = "scheduler"
    work_interval = 0.001

    def __init__(self, *queues: Queue) -> None:
        super().__init__()
        self.queues = {queue.keys.queue: queue for queue in queues}
        self.handlers: dict[str, JobHandler] = {}
        self._declared: dict[str, JobRecord] = {}
        self._runner: ScheduleRunner | None = None

    # Declarations, before the start.

    def every(
        self, seconds: float, *, name: str = "", **options: Unpack[JobOptions]
    ) -> Callable[[H], H]:
        """Decorator: runs the function at each multiple of so many seconds since 1970."""
        check("seconds", seconds, EVERY_RULE)
        return self._decorator(name, JobRecord(every=seconds, **options))

    def cron(
        self, text: str, *, zone: str = "UTC", name: str = "", **options: Unpack[JobOptions]
    ) -> Callable[[H], H]:
        """Decorator: runs the function at the times of a cron expression of five fields."""
        return self._decorator(name, JobRecord(cron=text, zone=zone, **options))

    def enqueue(
        self, name: str, queue: str, payload: Any = None, **options: Unpack[JobTimes]
    ) -> None:
        """Declares a job that enqueues exactly one ticket per due time that is run."""
        self._declare(name, JobRecord(queue=queue, payload=payload, **options))

    def _decorator(self, name: str, job: JobRecord) -> Callable[[H], H]:
        def declared(handler: H) -> H:
            check("handler", handler, async_function("f, and asyncio.to_thread for blocking code"))
            chosen = name or getattr(handler, "__name__", "")
            self._declare(chosen, job)
            self.handlers[chosen] = handler
            return handler

        return declared

    def _declare(self, name: str, job: JobRecord) -> None:
        check_job(name, job)
        if name in self._declared:
            raise ConfigurationError(f"job {name!r} is declared twice: rename one of them")
        self._declared[name] = job

    # Changes, on any member, for all of them.

    async def add(self, name: str, job: JobRecord) -> None:
        """Adds a job or changes its definition. Which due times are decided, and whether it is
        paused, stays."""
        check_job(name, job)
        now = self.now()

        def change(jobs: dict[str, JobRecord]) -> None:
            jobs[name] = merged(jobs.get(name), job, now)

        await self._change(change)

    async def remove(self, name: str) -> None:
        """Removes a job; a run that has begun ends normally."""
        await self._change(lambda jobs: jobs.pop(_known(jobs, name)))

    async def pause(self, name: str) -> None:
        """Runs the job no more until `resume`."""
        await self._enable(name, False)

    async def resume(self, name: str) -> None:
        """Runs the job again from its next due time on. Due times of the pause are skipped."""
        await self._enable(name, True)

    async def run_now(self, name: str) -> str:
        """Orders a run outside of the schedule, and returns its slot."""
        _known((await self.jobs()), name)
        slot = f"now-{self.coordinator.parts.runtime.entropy(ID_BYTES).hex()}"
        order = self.coordinator.parts.codec.encode(RunOrder(job=name))
        await self.coordinator.parts.patient.write(Append(ORDERS, slot, order, ttl_s=RUN_TTL_S))
        return slot

    # Questions.

    async def jobs(self) -> dict[str, JobRecord]:
        """All jobs by name."""
        return dict((await self._read())[0].jobs)

    async def next_due(self, name: str) -> float | None:
        """The next due time in seconds since 1970; None while the job is paused."""
        job = (await self.jobs())[_known(await self.jobs(), name)]
        return Calendar(job).after(max(job.decided, self.now())) if job.enabled else None

    async def history(self, name: str) -> tuple[RunRecord, ...]:
        """The last 50 runs, the newest last."""
        (found,) = await self.coordinator.parts.patient.get(history_key(name))
        codec = self.coordinator.parts.codec
        record = None if found is None else codec.read(RunHistory, found.value, key=found.key)
        return () if record is None else record.runs

    async def run(self, name: str, slot: str) -> RunRecord | None:
        """One run of a job; None if there is none, or it was forgotten."""
        (found,) = await self.coordinator.parts.patient.get(run_key(name, slot))
        return (
            None
            if found is None
            else self.coordinator.parts.codec.read(RunRecord, found.value, key=found.key)
        )

    def now(self) -> float:
        """The time of the calendar: that of a store which several hosts share, else that of the
        machine."""
        parts = self.coordinator.parts
        if parts.patient.capabilities.cross_host:
            return parts.store_time()
        return parts.clock.wall()

    # The life of the plugin.

    async def on_start(self) -> None:
        """Declares the jobs of this member's code. A schedule that does not verify here is left to
        the leader."""
        with contextlib.suppress(UnverifiedScheduleError):
            await self._declare_all()

    async def _declare_all(self) -> None:
        now = self.now()

        def change(jobs: dict[str, JobRecord]) -> None:
            for name, job in self._declared.items():
                jobs[name] = merged(jobs.get(name), job, now)

        if self._declared:
            await self._change(change)

    async def on_become_coordinator(self) -> None:
        self._runner = ScheduleRunner(self, self.coordinator.parts, self.term)
        await self._runner.take_over()
        if self._runner.schedule_was_unreadable:
            await self._declare_all()

    async def coordinator_work(self) -> None:
        if self._runner is not None:
            await self._runner.turn()

    async def on_stop_being_coordinator(self) -> None:
        if self._runner is not None:
            await self._runner.stop()
            self._runner = None
        metrics = self.coordinator.parts.metrics
        for (namespace, _), lag in metrics.families.schedule_lag_s:
            if namespace == metrics.namespace:
                lag.set(0.0)

    async def _enable(self, name: str, enabled: bool) -> None:
        now = self.now()

        def change(jobs: dict[str, JobRecord]) -> None:
            job = jobs[_known(jobs, name)]
            decided = max(job.decided, now) if enabled and not job.enabled else job.decided
            jobs[name] = msgspec.structs.replace(job, enabled=enabled, decided=decided)

        await self._change(change)

    async def _read(self) -> tuple[Schedules, Record | None]:
        (found,) = await self.coordinator.parts.patient.get(SCHEDULES)
        if found is None:
            return Schedules(), None
        read = self.coordinator.parts.codec.read(Schedules, found.value, key=found.key)
        if read is None:
            raise UnverifiedScheduleError(
                "the schedule is not signed with a secret that this member has: give it the secret"
                " of the other members; if no member has it any more, the next leader starts a new"
                " schedule with the jobs of its code"
            )
        return read, found

    async def _change(self, change: Callable[[dict[str, JobRecord]], object]) -> None:
        """Reads, changes and writes the schedule, again if another member was faster."""
        while True:
            known, found = await self._read()
            jobs = dict(known.jobs)
            change(jobs)
            if found is not None and jobs == known.jobs:
                return
            over = None if found is None else found.value
            value = self.coordinator.parts.codec.encode(Schedules(jobs=jobs), over=over)
            expect = ABSENT if found is None else found.version
            try:
                await self.coordinator.parts.patient.write(
                    Put(SCHEDULES, value, expect=expect, ttl_s=SCHEDULE_TTL_S)
                )
                return
            except VersionConflict:
                continue


class UnverifiedScheduleError(CoordinationError):
    """The stored schedule does not verify with the secrets of this member."""


def merged(known: JobRecord | None, job: JobRecord, now_s: float) -> JobRecord:
    """The definition from the code with the state from the store. A new job starts now: it has no
    due times in the past."""
    if known is None:
        return msgspec.structs.replace(job, decided=now_s)
    kept = {name: getattr(known, name) for name in RUNTIME_FIELDS}
    return msgspec.structs.replace(job, **kept)


def check_job(name: str, job: JobRecord) -> None:
    make_key(name)
    calendar = Calendar(job)
    if job.payload is not None:
        plain_json("payload", job.payload)
    if job.misfire not in ("skip", "run_once", "run_all"):
        raise ConfigurationError(f"misfire is {job.misfire!r}: use skip, run_once or run_all")
    if job.overlap not in ("skip", "queue"):
        raise ConfigurationError(f"overlap is {job.overlap!r}: use skip or queue")
    if job.max_runtime <= 0.0 or job.jitter < 0.0:
        raise ConfigurationError(f"job {name}: max_runtime must be above 0, jitter at least 0")
    if job.jitter and job.jitter >= calendar.least_gap_s:
        raise ConfigurationError(
            f"jitter is {job.jitter!r}: it must be below the {calendar.least_gap_s:g} s between two"
            " due times"
        )


def _known(jobs: dict[str, JobRecord], name: str) -> str:
    if name not in jobs:
        known = ", ".join(jobs) or "none"
        raise ConfigurationError(f"there is no job {name!r}; scheduled jobs: {known}")
    return name
