"""How a schedule goes on: what is due, what is skipped, missed, over and forgotten. Pure.

Every function takes a standing and gives the next one; whether that counts is decided by who
writes it down first. `decided` only grows.
"""

from __future__ import annotations

import msgspec

from squall.coordination.scheduler.due import Calendar, Due, due_now
from squall.coordination.scheduler.records import slot_of
from squall.nodes.agent.schedules_records import (
    RUNS_MAX,
    Baseline,
    Run,
    RunState,
    Schedule,
    Standing,
)


def decide(
    schedule: Schedule, standing: Standing, calendar: Calendar, now_s: float
) -> Standing | None:
    """The next due time: begun, skipped because a run is under way, or missed. None: there
    is nothing to decide, or it waits for the run under way."""
    times = msgspec.structs.replace(schedule.times, decided=standing.decided)
    due = due_now(times, calendar, now_s)
    if due.missed:
        standing = _noted(schedule, standing, _missed(due, now_s), now_s)
        standing = _decided(standing, due.missed[-1])
    if not due.run:
        return standing if due.missed else None
    time_s = due.run[0]
    run = Run(slot=slot_of(time_s), due=time_s, began=now_s)
    before = standing.under_way
    if before is None:
        return _decided(msgspec.structs.replace(standing, under_way=run), time_s)
    if schedule.times.misfire == "run_all":
        return None
    reason = f"the run before it {f'(job {before.job}) ' if before.job else ''}had not ended"
    skipped = ended(run, "skipped", now_s, reason=reason)
    return _decided(_noted(schedule, standing, skipped, now_s), time_s)


def ended(
    run: Run, state: RunState, now_s: float, *, exit_code: int | None = None, reason: str = ""
) -> Run:
    return msgspec.structs.replace(
        run, state=state, ended=now_s, exit_code=exit_code, reason=reason
    )


def closed(
    schedule: Schedule,
    standing: Standing,
    run: Run,
    now_s: float,
    baseline: Baseline | None = None,
) -> Standing:
    """The run under way is over. The baseline stays if there is no newer one."""
    noted = _noted(schedule, standing, run, now_s)
    return msgspec.structs.replace(noted, under_way=None, baseline=baseline or standing.baseline)


def _noted(schedule: Schedule, standing: Standing, run: Run, now_s: float) -> Standing:
    """One more run in the history, in order of the due times, without those whose time is
    over."""
    begin_s = now_s - schedule.keep_s
    kept = [each for each in (*standing.runs, run) if each.due >= begin_s or each is run]
    kept.sort(key=lambda each: each.due)
    return msgspec.structs.replace(standing, runs=tuple(kept[-RUNS_MAX:]))


def _decided(standing: Standing, time_s: float) -> Standing:
    return msgspec.structs.replace(standing, decided=max(standing.decided, time_s))


def _missed(due: Due, now_s: float) -> Run:
    last = due.missed[-1]
    count = len(due.missed)
    many = f"{count} due times" if count > 1 else "this due time"
    reason = f"nobody coordinated at {many}"
    return ended(Run(slot=slot_of(last), due=last), "missed", now_s, reason=reason)
