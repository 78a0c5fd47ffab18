"""The next progress of a schedule: runs that are due, skipped, missed, ended or dropped. Pure.

Every function takes a progress and returns the next one; it counts for the agent whose write to
the store succeeds first. `decided` only grows.
"""

from __future__ import annotations

import msgspec

from squall.coordination.scheduler.due_times import Calendar, DueTimes, due_now
from squall.coordination.scheduler.records import slot_of
from squall.store_mode.schedules.records import (
    RUNS_MAX,
    Baseline,
    RunState,
    Schedule,
    ScheduledRun,
    ScheduleProgress,
)


def decide(
    schedule: Schedule, progress: ScheduleProgress, calendar: Calendar, now_s: float
) -> ScheduleProgress | None:
    """Decides the next due time: it is started, skipped because a run is still going, or missed.
    None if nothing is due, or if the due time waits for the current run."""
    times = msgspec.structs.replace(schedule.times, decided=progress.decided)
    due = due_now(times, calendar, now_s)
    if due.missed:
        progress = _noted(schedule, progress, _missed(due, now_s), now_s)
        progress = _decided(progress, due.missed[-1])
    if not due.run:
        return progress if due.missed else None
    time_s = due.run[0]
    run = ScheduledRun(slot=slot_of(time_s), due=time_s, began=now_s)
    before = progress.under_way
    if before is None:
        return _decided(msgspec.structs.replace(progress, under_way=run), time_s)
    if schedule.times.misfire == "run_all":
        return None
    reason = f"the run before it {f'(job {before.job}) ' if before.job else ''}had not ended"
    skipped = ended(run, "skipped", now_s, reason=reason)
    return _decided(_noted(schedule, progress, skipped, now_s), time_s)


def ended(
    run: ScheduledRun,
    state: RunState,
    now_s: float,
    *,
    exit_code: int | None = None,
    reason: str = "",
) -> ScheduledRun:
    return msgspec.structs.replace(
        run, state=state, ended=now_s, exit_code=exit_code, reason=reason
    )


def closed(
    schedule: Schedule,
    progress: ScheduleProgress,
    run: ScheduledRun,
    now_s: float,
    baseline: Baseline | None = None,
) -> ScheduleProgress:
    """Moves the ended current run to the history. The baseline stays if there is no newer one."""
    noted = _noted(schedule, progress, run, now_s)
    return msgspec.structs.replace(noted, under_way=None, baseline=baseline or progress.baseline)


def _noted(
    schedule: Schedule, progress: ScheduleProgress, run: ScheduledRun, now_s: float
) -> ScheduleProgress:
    """Adds a run to the history, ordered by due time, and drops runs older than `keep_s`."""
    begin_s = now_s - schedule.keep_s
    kept = [each for each in (*progress.runs, run) if each.due >= begin_s or each is run]
    kept.sort(key=lambda each: each.due)
    return msgspec.structs.replace(progress, runs=tuple(kept[-RUNS_MAX:]))


def _decided(progress: ScheduleProgress, time_s: float) -> ScheduleProgress:
    return msgspec.structs.replace(progress, decided=max(progress.decided, time_s))


def _missed(due: DueTimes, now_s: float) -> ScheduledRun:
    last = due.missed[-1]
    count = len(due.missed)
    many = f"{count} due times" if count > 1 else "this due time"
    reason = f"no agent coordinated at {many}"
    return ended(ScheduledRun(slot=slot_of(last), due=last), "missed", now_s, reason=reason)
