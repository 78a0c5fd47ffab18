"""`squall coord schedule list | history | pause | resume | run | remove`: the jobs of a
`Scheduler`. Scheduled load tests are `squall schedule`.

Reading needs no secret and shows records as they are in the store. A change is signed, by a
member that never leads; the leader applies it when it next reads the schedules.
"""

from __future__ import annotations

import time
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any

from squall.api.errors import ConfigError, SquallError
from squall.api.quantities import format_duration
from squall.cli.coord.command import joined, opened, seconds_of
from squall.coordination.records.schemas import Codec
from squall.coordination.scheduler.due_times import Calendar
from squall.coordination.scheduler.plugin import Scheduler
from squall.coordination.scheduler.records import (
    SCHEDULES,
    JobRecord,
    RunHistory,
    RunRecord,
    Schedules,
    history_key,
)
from squall.coordination.stores.guarded_store import GuardedStore
from squall.reporting.text.layout import aligned
from squall.reporting.text.standard_streams import print_json, print_or_drop


async def answered(arguments: Namespace) -> int:
    command = arguments.schedule_command
    if command in _CHANGES:
        return await _changed(arguments)
    async with opened(arguments) as store:
        return await (_list if command == "list" else _history)(store, arguments)


async def read_jobs(store: GuardedStore) -> dict[str, JobRecord]:
    """The jobs as the store has them, without verification."""
    (found,) = await store.get(SCHEDULES)
    read = None if found is None else Codec(None).read(Schedules, found.value, signed=False)
    return {} if read is None else dict(read.jobs)


async def read_runs(store: GuardedStore, job: str) -> tuple[RunRecord, ...]:
    """The oldest first, without verification."""
    (found,) = await store.get(history_key(job))
    read = None if found is None else Codec(None).read(RunHistory, found.value, signed=False)
    return () if read is None else read.runs


async def _list(store: GuardedStore, arguments: Namespace) -> int:
    jobs = await read_jobs(store)
    # As a scheduler does: the store's time if several hosts share it, else the machine's.
    cross_host = store.capabilities.cross_host
    now_s = await store.now_ms() / 1000.0 if cross_host else time.time()
    views = [
        _view(name, job, now_s, await read_runs(store, name)) for name, job in sorted(jobs.items())
    ]
    if arguments.json:
        return print_json(views)
    if not views:
        print_or_drop("no jobs")
        return 0
    rows: list[tuple[str, ...]] = [("JOB", "WHEN", "NEXT", "LAST RUN", "OUTCOME")]
    for view in views:
        due = _moment(view["next_due"]) if view["enabled"] else "paused"
        last = view["last"]
        ran = ("-", "-") if last is None else (_moment(last.started or last.due), last.outcome)
        rows.append((view["job"], view["when"], due, *ran))
    print_or_drop("\n".join(aligned(rows)))
    return 0


def _view(name: str, job: JobRecord, now_s: float, runs: tuple[RunRecord, ...]) -> dict[str, Any]:
    return {
        "job": name,
        "when": when_text(job),
        "enabled": job.enabled,
        "next_due": Calendar(job).after(max(job.decided, now_s)) if job.enabled else None,
        "queue": job.queue or None,
        "misfire": job.misfire,
        "overlap": job.overlap,
        "last": runs[-1] if runs else None,
    }


def when_text(job: JobRecord) -> str:
    if job.cron:
        return job.cron if job.zone == "UTC" else f"{job.cron} {job.zone}"
    return f"every {format_duration(job.every, compact=True)}"


async def _history(store: GuardedStore, arguments: Namespace) -> int:
    runs = await read_runs(store, arguments.job)
    if not runs and arguments.job not in (jobs := await read_jobs(store)):
        known = ", ".join(sorted(jobs)) or "none"
        raise ConfigError(f"there is no job {arguments.job!r}; scheduled jobs: {known}")
    if arguments.json:
        return print_json(runs)
    if not runs:
        print_or_drop(f"{arguments.job} has not run yet")
        return 0
    rows = [("DUE", "OUTCOME", "TOOK", "MEMBER", "EPOCH", "ERROR")]
    for run in runs:
        took = f"{run.ended - run.started:.3f} s" if run.ended > run.started > 0.0 else "-"
        error = run.error.partition("\n")[0] or "-"
        rows.append(
            (_moment(run.due), run.outcome, took, run.member or "-", str(run.epoch or "-"), error)
        )
    print_or_drop("\n".join(aligned(rows)))
    return 0


def _moment(time_s: float | None) -> str:
    if time_s is None:
        return "-"
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S}Z"


# Changes.


async def _changed(arguments: Namespace) -> int:
    seconds_of(arguments.within, "--within")
    scheduler, name = Scheduler(), arguments.job
    slot = ""
    async with joined(arguments, scheduler):
        match arguments.schedule_command:
            case "pause":
                await scheduler.pause(name)
            case "resume":
                await scheduler.resume(name)
            case "remove":
                await scheduler.remove(name)
            case "run":
                slot = await scheduler.run_now(name)
            case other:
                raise SquallError(f"{other} does not change a schedule")
    done = _CHANGES[arguments.schedule_command]
    if arguments.json:
        return print_json({"job": name, "done": done, "slot": slot or None})
    print_or_drop(f"{name} is {done}" + (f" as {slot}" if slot else ""))
    return 0


_CHANGES = {"pause": "paused", "resume": "resumed", "run": "ordered", "remove": "removed"}
