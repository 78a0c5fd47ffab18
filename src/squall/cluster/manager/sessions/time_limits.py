"""The time limits of a job: its deadline, stuck load, the length of a workflow.

Deadlines are on the group's clock, so that they survive a change of primary (R10). A job is
stuck when no step was executed for `stuck_s` while load is planned; a job that waits for
cores, or only for the records of shares that have ended, is not stuck.
"""

from __future__ import annotations

from squall.cluster.datacenter.commands import StopJob, StopWorkflow
from squall.cluster.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.cluster.group.job_deadlines import deadline_ms, timeout_text
from squall.cluster.manager.primary.lease_rules import elapsed_s
from squall.cluster.manager.primary.placement import profile_of
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.sessions.stops import is_always
from squall.stats.manifest import Profile
from squall.stats.snapshot import target_rate_per_s


def check_limits(state: VolatileState, job: JobRecord) -> float:
    """Stops what exceeds its limit; returns the moment of the next check."""
    if job.stop:
        return _not_yet(state) or _always_limits(state, job)
    limit_ms = deadline_ms(job)
    check_at = float("inf")
    if limit_ms is not None:
        if state.group_ms >= limit_ms:
            _stop(state, job, timeout_text(job))
            return state.now + 1.0
        check_at = state.at(limit_ms)
    # The deadline holds even if this primary was away. Whether load is stuck or late, it can
    # only judge after the workers had the time to report.
    return min(check_at, _not_yet(state) or min(_stuck(state, job), _lengths(state, job)))


def _not_yet(state: VolatileState) -> float | None:
    """The moment before which workers are not judged, if it is in the future."""
    return state.judges_from if state.now < state.judges_from else None


def _stop(state: VolatileState, job: JobRecord, text: str) -> None:
    command = StopJob(job=job.job, kind="timeout", reason=text)
    state.submit(f"stop {job.job}", command)


def _stuck(state: VolatileState, job: JobRecord) -> float:
    running = [
        w
        for w in job.workflows
        if w.running and plans_load(state, job, w) and _executes(state, job, w)
    ]
    known = state.job(job.job)
    if not running:
        known.executed_at = None
        return float("inf")
    if known.executed_at is None:
        known.executed_at = state.now
    longest_s = max(stuck_after_s(state, profile_of(job, w.name)) for w in running)
    silent_s = state.now - known.executed_at
    if silent_s >= longest_s:
        text = f"stuck: no step was executed for {longest_s:g} s"
        causes = [f"{node}: {why}" for node, why in standstills(state, job)]
        more = f" (and {len(causes) - 1} more shares)" if len(causes) > 1 else ""
        _stop(state, job, f"{text}; {causes[0]}{more}" if causes else text)
        return state.now + 1.0
    return known.executed_at + longest_s


def _executes(state: VolatileState, job: JobRecord, workflow: WorkflowRecord) -> bool:
    """Whether a share of it may still execute steps. Shares that made all their iterations have
    ended before the plan; their records may be slow to arrive, which has a time limit of its
    own."""
    statuses = [
        state.status(key, attempt.node, attempt.boot)
        for key, attempt in state.tables.live_of(job.job, workflow.name)
    ]
    # None are live while lost shares wait to be refilled: that may take too long.
    return not statuses or any(each is None or each.phase != "ended" for each in statuses)


def standstills(state: VolatileState, job: JobRecord) -> list[tuple[str, str]]:
    """(worker, reason) of the shares that run and execute nothing, as the workers report."""
    found: list[tuple[str, str]] = []
    for key, attempt in state.tables.live_of(job.job):
        status = state.status(key, attempt.node, attempt.boot)
        if status is not None and status.phase == "running" and status.text:
            found.append((attempt.node, status.text))
    return found


def plans_load(state: VolatileState, job: JobRecord, workflow: WorkflowRecord) -> bool:
    """Whether load is planned now. Set-up work (`once`) has an upper bound of its own and no
    plan that it could fall behind."""
    profile = profile_of(job, workflow.name)
    at_s = elapsed_s(workflow, state.group_ms)
    if profile.model == "once" or workflow.adjustment.paused or at_s >= profile.duration_s:
        return False
    if profile.is_open:
        return bool(workflow.adjustment.rate_per_s or target_rate_per_s(profile, at_s))
    return plans_users(profile, at_s)


def plans_users(profile: Profile, at_s: float) -> bool:
    """Whether a closed model has a user at this moment. `UserSchedule` says the same, but holds
    every change of the number of users, which may be a million in each stage."""
    level, start_s = profile.vus, 0.0
    for stage in profile.stages if profile.model == "ramp" else ():
        target = int(stage.target)
        if at_s < start_s + stage.duration_s:
            # On the way up the first user joins at once, on the way down the last one leaves at
            # the end of the stage.
            return at_s >= start_s and max(level, target) > 0
        start_s, level = start_s + stage.duration_s, target
    return level > 0


def stuck_after_s(state: VolatileState, profile: Profile) -> float:
    """How long a workflow may execute nothing: at least twice the longest pause of its users."""
    pause_s = max(profile.think_s[1] if profile.think_s else 0.0, profile.pacing_s or 0.0)
    return max(state.timers.stuck_s, 2.0 * pause_s)


def _lengths(state: VolatileState, job: JobRecord) -> float:
    """Stops a workflow whose shares do not end by themselves in time. A share whose worker is
    silent ends by its loss (R5), which is bounded too: it is no reason to call the job late."""
    check_at = float("inf")
    for workflow in job.workflows:
        if not workflow.running or workflow.stop:
            continue
        profile = profile_of(job, workflow.name)
        allowed_s = profile.duration_s + profile.grace_s + 2.0 * state.timers.stop_grace_s
        allowed_s += 5.0 * state.interval_s() + 1.0
        live = state.tables.live_of(job.job, workflow.name)
        since_ms = workflow.started_ms
        if profile.model == "once":
            since_ms = max((facts_.created_ms for _, facts_ in live), default=since_ms)
            since_ms = max(since_ms, workflow.started_ms)
        at_ms = since_ms + round(allowed_s * 1000)
        late = state.group_ms >= at_ms
        if late and not any(_is_heard(state, facts_) for _, facts_ in live):
            at_ms = state.group_ms + 1000
        elif late:
            text = f"did not end within {allowed_s:g} s"
            command = StopWorkflow(
                job=job.job, workflow=workflow.name, kind="timeout", error=text, now=True
            )
            state.submit(f"halt {job.job} {workflow.name}", command)
            at_ms = state.group_ms + 1000
        if live:
            check_at = min(check_at, state.at(at_ms))
    return check_at


def _is_heard(state: VolatileState, attempt: AttemptFacts) -> bool:
    worker = state.tables.workers.get(attempt.node)
    return worker is not None and worker.boot == attempt.boot and state.is_present(worker)


def _always_limits(state: VolatileState, job: JobRecord) -> float:
    """The limit of `when="always"` workflows after a stop of their job."""
    check_at = float("inf")
    for workflow in job.workflows:
        if workflow.over or not is_always(job, workflow.name):
            continue
        if workflow.stop or any(
            other.layer < workflow.layer and not other.over for other in job.workflows
        ):
            continue
        # Its time begins when the last workflow of an earlier layer has stopped.
        before_ms = max((o.ended_ms for o in job.workflows if o.layer < workflow.layer), default=0)
        since_ms = max(before_ms, job.stop_ms)
        at_ms = since_ms + round(state.timers.always_limit_s * 1000)
        if state.group_ms >= at_ms:
            text = f"was not over {state.timers.always_limit_s:g} s after the stop"
            command = StopWorkflow(job=job.job, workflow=workflow.name, kind="timeout", error=text)
            state.submit(f"halt {job.job} {workflow.name}", command)
            at_ms = state.group_ms + 1000
        check_at = min(check_at, state.at(at_ms))
    return check_at
