"""Whether an attempt is to be stopped, how, and until when it may go on to be leased.

A job or a workflow that is being ended first lets iterations end within their grace, then
cancels what runs, then grants no more leases: from there the rule of loss ends it. So
every stop is bounded, whatever its worker does. `when="always"` workflows are not stopped
with their job; they have a limit of their own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from squall.nodes.datacenter.records import JobRecord, WorkflowRecord
from squall.nodes.manager.director_facts import Facts
from squall.nodes.manager.placement import profile_of


class Stop(NamedTuple):
    now: bool
    why: str
    since_ms: int
    """On the group's clock: when it was first told to stop."""


def stop_of(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> Stop | None:
    """What its attempts are told; None: go on."""
    if workflow.returning:
        return Stop(True, "queued again", facts.group_ms)
    found: list[Stop] = []
    if workflow.stop:
        found.append(Stop(workflow.stop_now, workflow.error, workflow.stop_ms))
    if job.stop and (not is_always(job, workflow.name) or job.stop_now):
        found.append(Stop(job.stop_now, job.reason, job.stop_ms))
    if not found:
        return None
    stop = min(found, key=lambda each: each.since_ms)
    now = any(each.now for each in found) or facts.group_ms >= escalation_ms(
        facts, job, workflow, stop.since_ms
    )
    return Stop(now, stop.why, stop.since_ms)


def is_always(job: JobRecord, name: str) -> bool:
    return job.submission.manifest.workflow(name).always


def escalation_ms(facts: Facts, job: JobRecord, workflow: WorkflowRecord, since_ms: int) -> int:
    """When a graceful stop becomes a cancellation."""
    grace_s = profile_of(job, workflow.name).grace_s
    return since_ms + round((grace_s + facts.timers.stop_grace_s) * 1000)


def grants_end_ms(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> float:
    """From when on its attempts get no lease any more; infinity while they are wanted."""
    if workflow.returning:
        return -math.inf
    stop = stop_of(facts, job, workflow)
    if stop is None:
        return math.inf
    # The kill ladder of a worker takes one more stop grace, and its session a moment.
    extra_s = 2.0 * facts.timers.stop_grace_s + 5.0 * facts.interval_s()
    since_ms = stop.since_ms if _cancelled_at_once(job, workflow) else 0
    at_ms = since_ms or escalation_ms(facts, job, workflow, stop.since_ms)
    return at_ms + extra_s * 1000


def _cancelled_at_once(job: JobRecord, workflow: WorkflowRecord) -> bool:
    return bool(job.stop and job.stop_now) or bool(workflow.stop and workflow.stop_now)
