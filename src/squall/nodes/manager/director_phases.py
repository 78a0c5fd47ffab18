"""From placement to start: Ready of all shares, then one start for all of a phase.

A share that is refused for good fails its workflow; any other refusal, loss or delay
before the start returns the whole phase to the queue.
"""

from __future__ import annotations

import math

from squall.nodes.datacenter.commands import (
    ReturnWorkflows,
    Started,
    StartWorkflows,
    StopJob,
    StopWorkflow,
)
from squall.nodes.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.nodes.datacenter.states import WorkflowState
from squall.nodes.identity import AttemptKey, ShareKey
from squall.nodes.manager.director_extensions import extra_ms
from squall.nodes.manager.director_facts import Facts
from squall.nodes.messages import AttemptStatus

AVOID_S = 5.0
"""How long a worker that refused a job is tried after the others."""


def check_phase(facts: Facts, job: JobRecord) -> float:
    """Drives the placed workflows of a job; the moment at which to look again."""
    placed = [w for w in job.workflows if w.placed and not w.over]
    if not placed:
        return math.inf
    _confirm_returns(facts, job, [w for w in placed if w.returning])
    waiting = [w for w in placed if not w.returning and not w.stop]
    if not waiting:
        return facts.now + 1.0
    ready = True
    for workflow in waiting:
        for key, attempt, status in _statuses(facts, job, workflow):
            if status is not None and status.phase == "refused":
                _refused(facts, job, waiting, workflow, key, attempt, status)
                return facts.now + 1.0
            if attempt.state != "live" or (status and status.phase in ("ended", "unknown")):
                text = (status.text if status else "") or attempt.reason or "a share ended early"
                _return(facts, job, waiting, text)
                return facts.now + 1.0
            ready = ready and status is not None and status.phase == "ready"
    if ready:
        started = tuple(_started(facts, job, each) for each in waiting)
        ahead_ms = round(facts.timers.start_ahead_s * 1000)
        command = StartWorkflows(job=job.job, started=started, ahead_ms=ahead_ms)
        facts.submit(f"start {job.job}", command)
        return facts.now + 1.0
    return _too_late(facts, job, waiting)


def _too_late(facts: Facts, job: JobRecord, waiting: list[WorkflowRecord]) -> float:
    timeout_s = facts.timers.prepare_timeout_s
    due_ms = min(w.placed_ms for w in waiting) + round(timeout_s * 1000)
    due_ms += extra_ms(facts, job, waiting)
    if facts.group_ms < due_ms:
        return facts.at(due_ms)
    late = _unready(facts, job, waiting)
    for workflow in waiting:
        for _key, attempt, status in _statuses(facts, job, workflow):
            if status is None or status.phase != "ready":
                _avoid(facts, job, attempt, timeout_s)
    _return(facts, job, waiting, f"not ready in time on {', '.join(late)}")
    return facts.now + 1.0


def _unready(facts: Facts, job: JobRecord, waiting: list[WorkflowRecord]) -> list[str]:
    nodes = {
        attempt.node
        for workflow in waiting
        for _, attempt, status in _statuses(facts, job, workflow)
        if status is None or status.phase != "ready"
    }
    return sorted(nodes)


def _refused(
    facts: Facts,
    job: JobRecord,
    waiting: list[WorkflowRecord],
    workflow: WorkflowRecord,
    key: AttemptKey,
    attempt: AttemptFacts,
    status: AttemptStatus,
) -> None:
    # Who reads it is elsewhere, and only one of many may lack something.
    text = status.text.replace("this worker", f"worker {attempt.node}")
    if status.retryable:
        _avoid(facts, job, attempt, AVOID_S)
        _return(facts, job, waiting, text or "refused")
        return
    if not job.started_ms:
        # Nothing ran yet: as on one machine, the mistake is the whole outcome.
        stop = StopJob(
            job=job.job, kind="failed", reason=text, exit_code=status.exit_code, now=True
        )
        facts.submit(f"stop {job.job}", stop)
        return
    halt = StopWorkflow(
        job=job.job,
        workflow=workflow.name,
        error=text,
        exit_code=status.exit_code,
        now=True,
    )
    facts.submit(f"halt {job.job} {workflow.name}", halt)


def _return(facts: Facts, job: JobRecord, waiting: list[WorkflowRecord], reason: str) -> None:
    """Back into the queue, unless it was tried for too long."""
    limit_s = facts.timers.dispatch_timeout_s
    first_ms = min(w.first_placed_ms for w in waiting)
    if facts.group_ms >= first_ms + limit_s * 1000:
        text = f"could not be started within {limit_s:g} s: {reason}"
        for workflow in waiting:
            halt = StopWorkflow(job=job.job, workflow=workflow.name, error=text, now=True)
            facts.submit(f"halt {job.job} {workflow.name}", halt)
        return
    command = ReturnWorkflows(
        job=job.job,
        workflows=tuple(w.name for w in waiting),
        returned=tuple(key for w in waiting for key in _harmless(facts, job, w)),
        reason=reason,
    )
    facts.submit(f"return {job.job}", command)


def _confirm_returns(facts: Facts, job: JobRecord, workflows: list[WorkflowRecord]) -> None:
    keys = [key for each in workflows for key in _harmless(facts, job, each)]
    if keys:
        command = ReturnWorkflows(job=job.job, returned=tuple(keys), reason="returned")
        facts.submit(f"return {job.job}", command)


def return_unstarted(facts: Facts, job: JobRecord) -> None:
    """For workflows that are stopped before they started."""
    stopped = [
        workflow
        for workflow in job.workflows
        if not workflow.over
        and not workflow.started_ms
        and (workflow.stop or workflow.state is WorkflowState.CANCELLING)
    ]
    _confirm_returns(facts, job, stopped)


def _harmless(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> list[AttemptKey]:
    """Live attempts that certainly make no load and never will: their worker refused them
    or does not have them, or no lease for them was ever granted."""
    harmless: list[AttemptKey] = []
    for key, attempt, status in _statuses(facts, job, workflow):
        if attempt.state != "live":
            continue
        gone = status is not None and status.phase in ("refused", "unknown")
        empty = status is not None and status.phase == "ended" and not status.record
        never = key not in facts.granted and attempt.created_ms > facts.began_ms
        if never and not (gone or empty):
            facts.withheld[key] = None
        if gone or empty or never:
            harmless.append(key)
    return harmless


def _statuses(
    facts: Facts, job: JobRecord, workflow: WorkflowRecord
) -> list[tuple[AttemptKey, AttemptFacts, AttemptStatus | None]]:
    """The current attempt of every share, with what its worker says of it."""
    found: list[tuple[AttemptKey, AttemptFacts, AttemptStatus | None]] = []
    for share in range(workflow.shares):
        attempt = facts.tables.last(ShareKey(job.job, workflow.name, share))
        if attempt is not None:
            key = AttemptKey(job.job, workflow.name, share, attempt.number)
            found.append((key, attempt, facts.status(key, attempt.node, attempt.boot)))
    return found


def _started(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> Started:
    numbers = tuple(attempt.number for _, attempt, _ in _statuses(facts, job, workflow))
    return Started(workflow.name, numbers)


def _avoid(facts: Facts, job: JobRecord, attempt: AttemptFacts, for_s: float) -> None:
    facts.avoid[(job.job, attempt.node, attempt.boot)] = facts.now + for_s
