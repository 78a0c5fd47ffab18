"""Extends preparations: a share that asks for more time and makes progress gets it, within bounds.

The shares of a workflow start together, so the time that one gets is time for all. It is
also added to the job's deadline, as far as the extensions of the job reach. The extensions of
a share are volatile; the extension of the deadline is in the log.
"""

from __future__ import annotations

from squall.cluster.control.extensions import Extensions
from squall.cluster.datacenter.commands import ExtendJob
from squall.cluster.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.cluster.group.job_deadlines import deadline_ms, extension_cap_ms
from squall.cluster.manager.primary.placement import extra_prepare_s
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.protocol.job_keys import AttemptKey, ShareKey
from squall.cluster.protocol.messages import AttemptStatus, MoreTime


def grant_extension(
    state: VolatileState,
    job: JobRecord,
    key: AttemptKey,
    attempt: AttemptFacts,
    status: AttemptStatus,
) -> MoreTime:
    """Answers a share that is being prepared and asks for more time."""
    known = state.attempt(key)
    if known.extensions is None:
        began = state.at(attempt.created_ms)
        base_s = state.timers.prepare_timeout_s + extra_prepare_s([state.shares_on(attempt)])
        known.extensions = Extensions(began, base_s)
    workflow = job.workflow(key.workflow)
    waiting = [workflow] if workflow is not None else []
    before_ms = extra_ms(state, job, waiting)
    given = known.extensions.ask(status.work, state.now)
    if given.is_granted:
        # Shares are late at the same time, so the longest extension counts, not their sum.
        _lengthen(state, job, extra_ms(state, job, waiting) - before_ms)
        state.touch(job.job)
    return MoreTime(
        key=key,
        granted_s=given.granted_s,
        left=given.left,
        denial=given.denial,
        is_warning=given.is_warning,
        grace_left_s=given.grace_left_s,
    )


def extra_ms(state: VolatileState, job: JobRecord, workflows: list[WorkflowRecord]) -> int:
    """By how much the preparation of these may be late: the longest extension of a share."""
    most_s = 0.0
    for workflow in workflows:
        for share in range(workflow.shares):
            last = state.tables.last(ShareKey(job.job, workflow.name, share))
            if last is None:
                continue
            known = state.known_attempt(AttemptKey(job.job, workflow.name, share, last.number))
            given = known.extensions if known is not None else None
            if given is not None:
                most_s = max(most_s, given.ends_at - given.began - given.base_s)
    return round(most_s * 1000)


def _lengthen(state: VolatileState, job: JobRecord, more_ms: int) -> None:
    cap_ms = extension_cap_ms(job)
    by_ms = min(more_ms, cap_ms - job.extension_ms)
    if deadline_ms(job) is not None and by_ms > 0:
        command = ExtendJob(job=job.job, by_ms=by_ms, cap_ms=cap_ms)
        state.submit(f"extend {job.job} {job.extension_ms}", command)
