"""Whether an attempt is to be stopped, how, and until when it still gets leases.

The stop of a job or workflow first lets iterations end within their grace, then cancels what
runs, then grants no more leases: from there the attempts are lost (R5). So every stop is
bounded, whatever the worker does. `when="always"` workflows are not stopped with their job;
they have a limit of their own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from squall.cluster.datacenter.records import JobRecord, WorkflowRecord
from squall.cluster.manager.primary.placement import profile_of
from squall.cluster.manager.primary.volatile_state import VolatileState


class StopDecision(NamedTuple):
    """How the attempts of a workflow are to stop."""

    now: bool
    """Cancel, without grace for iterations."""
    why: str
    since_ms: int
    """When the stop was committed, on the group's clock."""


def stop_of(state: VolatileState, job: JobRecord, workflow: WorkflowRecord) -> StopDecision | None:
    """The order for the attempts of a workflow; None: they go on."""
    if workflow.returning:
        return StopDecision(True, "queued again", state.group_ms)
    found: list[StopDecision] = []
    if workflow.stop:
        found.append(StopDecision(workflow.stop_now, workflow.error, workflow.stop_ms))
    if job.stop and (not is_always(job, workflow.name) or job.stop_now):
        found.append(StopDecision(job.stop_now, job.reason, job.stop_ms))
    if not found:
        return None
    stop = min(found, key=lambda each: each.since_ms)
    now = any(each.now for each in found) or state.group_ms >= escalation_ms(
        state, job, workflow, stop.since_ms
    )
    return StopDecision(now, stop.why, stop.since_ms)


def is_always(job: JobRecord, name: str) -> bool:
    return job.submission.manifest.workflow(name).always


def escalation_ms(
    state: VolatileState, job: JobRecord, workflow: WorkflowRecord, since_ms: int
) -> int:
    """The moment at which a graceful stop becomes a cancellation."""
    grace_s = profile_of(job, workflow.name).grace_s
    return since_ms + round((grace_s + state.timers.stop_grace_s) * 1000)


def grants_end_ms(state: VolatileState, job: JobRecord, workflow: WorkflowRecord) -> float:
    """The moment from which its attempts get no more leases; infinity while they are to run."""
    if workflow.returning:
        return -math.inf
    stop = stop_of(state, job, workflow)
    if stop is None:
        return math.inf
    # The worker's kill ladder takes one more stop grace, and some sessions may be lost.
    extra_s = 2.0 * state.timers.stop_grace_s + 5.0 * state.interval_s()
    since_ms = stop.since_ms if _cancelled_at_once(job, workflow) else 0
    at_ms = since_ms or escalation_ms(state, job, workflow, stop.since_ms)
    return at_ms + extra_s * 1000


def _cancelled_at_once(job: JobRecord, workflow: WorkflowRecord) -> bool:
    return bool(job.stop and job.stop_now) or bool(workflow.stop and workflow.stop_now)
