"""From placement to start: when all shares of a phase are ready, one command starts them (R7).

A share that is refused for good fails its workflow. Any other refusal, loss or delay before
the start returns the whole phase to the queue.
"""

from __future__ import annotations

import math
from collections import Counter

from squall.cluster.datacenter.commands import (
    ReadyHeld,
    ReturnWorkflows,
    Started,
    StartWorkflows,
    StopJob,
    StopWorkflow,
)
from squall.cluster.datacenter.gated_rules import try_of
from squall.cluster.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.cluster.datacenter.workflow_states import WorkflowState
from squall.cluster.manager.primary.placement import extra_prepare_s
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.sessions.extensions import extra_ms
from squall.cluster.protocol.job_keys import AttemptKey, ShareKey
from squall.cluster.protocol.messages import AttemptStatus

ROUND_TRIP_MAX_S = 5.0
"""A worker that stood still once reports a long round trip: a start does not wait longer."""
SHARE_START_S = 0.003
"""What a worker needs to begin one more share."""
AVOID_S = 5.0
"""How long a worker that refused a job is not tried again for it."""


def check_phase(state: VolatileState, job: JobRecord) -> float:
    """Drives the placed workflows of a job; returns the moment of the next check."""
    placed = [w for w in job.workflows if w.placed and not w.over]
    if not placed:
        return math.inf
    _confirm_returns(state, job, [w for w in placed if w.returning])
    waiting = [w for w in placed if not w.returning and not w.stop]
    if not waiting:
        return state.now + 1.0
    ready = True
    for workflow in waiting:
        for key, attempt, status in _statuses(state, job, workflow):
            if status is not None and status.phase == "refused":
                _refused(state, job, waiting, workflow, key, attempt, status)
                return state.now + 1.0
            if _drains(state, attempt):
                _return(state, job, waiting, f"worker {attempt.node} drains")
                return state.now + 1.0
            if attempt.state != "live" or (status and status.phase in ("ended", "unknown")):
                text = (status.text if status else "") or attempt.reason or "a share ended early"
                _return(state, job, waiting, text)
                return state.now + 1.0
            ready = ready and _is_prepared(job, status)
    if ready and job.held:
        return _await_gates(state, job, waiting)
    if ready:
        started = tuple(_started(state, job, each) for each in waiting)
        ahead_ms = round(_start_ahead_s(state, job, waiting) * 1000)
        command = StartWorkflows(job=job.job, started=started, ahead_ms=ahead_ms)
        state.submit(f"start {job.job}", command)
        return state.now + 1.0
    return _too_late(state, job, waiting)


def _is_prepared(job: JobRecord, status: AttemptStatus | None) -> bool:
    """Ready to begin; in a held job, which may not open users, all code is loaded."""
    if status is None:
        return False
    return status.phase == "ready" or (job.held and status.loaded)


def _await_gates(state: VolatileState, job: JobRecord, waiting: list[WorkflowRecord]) -> float:
    """Commits that the part is ready. The gates start it when all parts are (R15)."""
    tried = try_of(state.tables, job)
    if tried is not None and tried.state == "accepted":
        loaded = tuple(_started(state, job, each) for each in waiting)
        state.submit(f"ready {job.job}", ReadyHeld(job=job.job, loaded=loaded))
    return state.now + 1.0


def _start_ahead_s(state: VolatileState, job: JobRecord, waiting: list[WorkflowRecord]) -> float:
    """From the command that starts the workflows to their start. The slowest worker needs one and a
    half round trips: for the push, for its request and for the answer with the order; and it begins
    its shares one after the other."""
    nodes = Counter(
        attempt.node for each in waiting for _, attempt, _ in _statuses(state, job, each)
    )
    trips_s = [state.workers[node].round_trip_s for node in nodes if node in state.workers]
    slowest_s = min(max(trips_s, default=0.0), ROUND_TRIP_MAX_S)
    most = max(nodes.values(), default=1)
    return state.timers.start_ahead_s + 1.5 * slowest_s + SHARE_START_S * (most - 1)


def _drains(state: VolatileState, attempt: AttemptFacts) -> bool:
    worker = state.tables.workers.get(attempt.node)
    return worker is not None and worker.draining and worker.boot == attempt.boot


def _too_late(state: VolatileState, job: JobRecord, waiting: list[WorkflowRecord]) -> float:
    placed = state.tables.live_of(job.job)
    extra_s = extra_prepare_s(state.shares_on(attempt) for _, attempt in placed)
    timeout_s = state.timers.prepare_timeout_s + extra_s
    # The users of a held job open only after the gates have started it.
    since_ms = max(min(w.placed_ms for w in waiting), job.released_ms)
    due_ms = since_ms + round(timeout_s * 1000)
    due_ms += extra_ms(state, job, waiting)
    if state.group_ms < due_ms:
        return state.at(due_ms)
    late = _unready(state, job, waiting)
    for workflow in waiting:
        for _key, attempt, status in _statuses(state, job, workflow):
            if not _is_prepared(job, status):
                _avoid(state, job, attempt, timeout_s)
    _return(state, job, waiting, f"not ready in time on {', '.join(late)}")
    return state.now + 1.0


def _unready(state: VolatileState, job: JobRecord, waiting: list[WorkflowRecord]) -> list[str]:
    nodes = {
        attempt.node
        for workflow in waiting
        for _, attempt, status in _statuses(state, job, workflow)
        if not _is_prepared(job, status)
    }
    return sorted(nodes)


def _refused(
    state: VolatileState,
    job: JobRecord,
    waiting: list[WorkflowRecord],
    workflow: WorkflowRecord,
    key: AttemptKey,
    attempt: AttemptFacts,
    status: AttemptStatus,
) -> None:
    # The reader is not on that machine, so the text must name it.
    text = status.text.replace("this worker", f"worker {attempt.node}")
    if status.retryable:
        _avoid(state, job, attempt, AVOID_S)
        _return(state, job, waiting, text or "refused")
        return
    if not job.started_ms:
        # Nothing ran yet: as on one machine, the refusal is the outcome of the whole job.
        stop = StopJob(
            job=job.job, kind="failed", reason=text, exit_code=status.exit_code, now=True
        )
        state.submit(f"stop {job.job}", stop)
        return
    halt = StopWorkflow(
        job=job.job,
        workflow=workflow.name,
        error=text,
        exit_code=status.exit_code,
        now=True,
    )
    state.submit(f"halt {job.job} {workflow.name}", halt)


def _return(
    state: VolatileState, job: JobRecord, waiting: list[WorkflowRecord], reason: str
) -> None:
    """Returns the phase to the queue, unless it was tried for too long."""
    limit_s = state.timers.dispatch_timeout_s
    first_ms = max(min(w.first_placed_ms for w in waiting), job.released_ms)
    if state.group_ms >= first_ms + limit_s * 1000:
        text = f"could not be started within {limit_s:g} s: {reason}"
        for workflow in waiting:
            halt = StopWorkflow(job=job.job, workflow=workflow.name, error=text, now=True)
            state.submit(f"halt {job.job} {workflow.name}", halt)
        return
    command = ReturnWorkflows(
        job=job.job,
        workflows=tuple(w.name for w in waiting),
        returned=tuple(key for w in waiting for key in _harmless(state, job, w)),
        reason=reason,
    )
    state.submit(f"return {job.job}", command)


def _confirm_returns(state: VolatileState, job: JobRecord, workflows: list[WorkflowRecord]) -> None:
    keys = [key for each in workflows for key in _harmless(state, job, each)]
    if keys:
        command = ReturnWorkflows(job=job.job, returned=tuple(keys), reason="returned")
        state.submit(f"return {job.job}", command)


def return_unstarted(state: VolatileState, job: JobRecord) -> None:
    """Returns the attempts of workflows that were stopped before they started."""
    stopped = [
        workflow
        for workflow in job.workflows
        if not workflow.over
        and not workflow.started_ms
        and (workflow.stop or workflow.state is WorkflowState.CANCELLING)
    ]
    _confirm_returns(state, job, stopped)


def _harmless(state: VolatileState, job: JobRecord, workflow: WorkflowRecord) -> list[AttemptKey]:
    """The live attempts that certainly make no load and never will: their worker refused or
    does not know them, or they never got a lease. The latter are withheld from now on."""
    harmless: list[AttemptKey] = []
    for key, attempt, status in _statuses(state, job, workflow):
        if attempt.state != "live":
            continue
        gone = status is not None and status.phase in ("refused", "unknown")
        empty = status is not None and status.phase == "ended" and not status.record
        known = state.attempt(key)
        # Of a held job no primary ever granted anything, so its cores are free at once, also after
        # a failover.
        never = job.held or (known.granted is None and attempt.created_ms > state.began_ms)
        if never and not (gone or empty):
            known.withheld = True
        if gone or empty or never:
            harmless.append(key)
    return harmless


def _statuses(
    state: VolatileState, job: JobRecord, workflow: WorkflowRecord
) -> list[tuple[AttemptKey, AttemptFacts, AttemptStatus | None]]:
    """The current attempt of every share, with its status by the worker's last session."""
    found: list[tuple[AttemptKey, AttemptFacts, AttemptStatus | None]] = []
    for share in range(workflow.shares):
        attempt = state.tables.last(ShareKey(job.job, workflow.name, share))
        if attempt is not None:
            key = AttemptKey(job.job, workflow.name, share, attempt.number)
            found.append((key, attempt, state.status(key, attempt.node, attempt.boot)))
    return found


def _started(state: VolatileState, job: JobRecord, workflow: WorkflowRecord) -> Started:
    numbers = tuple(attempt.number for _, attempt, _ in _statuses(state, job, workflow))
    return Started(workflow.name, numbers)


def _avoid(state: VolatileState, job: JobRecord, attempt: AttemptFacts, for_s: float) -> None:
    state.job(job.job).avoided[attempt.node, attempt.boot] = state.now + for_s
