"""Declares attempts lost and commits final records, in few commands.

A round either grants an attempt or declares it lost (R5): as soon as a loss is decided,
`VolatileAttempt.losing` is set and no session grants the attempt again. The last cumulative
record of the attempt is stored before the loss is committed.
"""

from __future__ import annotations

import math

from squall.cluster.datacenter.commands import EndAttempts, LoseAttempts, LostAttempt
from squall.cluster.datacenter.records import (
    AttemptFacts,
    JobRecord,
    WorkflowRecord,
)
from squall.cluster.datacenter.worker_rules import better
from squall.cluster.manager.primary.effects import StoreCut
from squall.cluster.manager.primary.lease_rules import (
    Grants,
    elapsed_s,
    lease_end,
    lost_at,
    over_at,
)
from squall.cluster.manager.primary.placement import profile_of
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.protocol.job_keys import AttemptKey

COALESCE_S = 0.05
"""How long a final record waits for others to share its command (R1)."""
BATCH_MAX = 256
"""Records or losses in one command: about 100 kB of the 256 kB that it may have."""


def check_losses(state: VolatileState, job: JobRecord) -> float:
    """Begins and completes the losses of a job; returns the moment of the next check."""
    check_at = math.inf
    ready: list[LostAttempt] = []
    for key, attempt in state.tables.live_of(job.job):
        if key in state.records:
            continue
        known = state.attempt(key)
        if not known.losing:
            reason, at = _why_lost(state, key, attempt)
            if not reason:
                check_at = min(check_at, at)
                continue
            known.losing = reason
        if not known.cut_stored:
            state.ask(StoreCut(f"cut {key}", key))
            check_at = min(check_at, state.now + 1.0)
            continue
        ready.append(_lost(state, job, key, attempt))
    if ready:
        state.submit(f"lose {job.job}", LoseAttempts(lost=tuple(ready[:BATCH_MAX])))
        check_at = min(check_at, state.now + 1.0)
    return check_at


def grants_of(state: VolatileState, key: AttemptKey, attempt: AttemptFacts) -> Grants:
    """The moments from which the silence of an attempt counts."""
    job = state.tables.jobs[key.job]
    granted = state.attempt(key).granted
    if job.held:
        # It gets no lease, for as long as the other datacenters need (R15). Its worker lives while
        # it is heard.
        worker = state.workers.get(attempt.node)
        granted = worker.heard if worker is not None and worker.boot == attempt.boot else None
    # A part that the gates have just started is older than a lease and got none yet.
    dispatched = state.at(max(attempt.created_ms, job.released_ms))
    return Grants(granted, state.began, dispatched)


def flush_records(state: VolatileState) -> None:
    """Submits final records: at once when no other attempt of their jobs is live, else after
    `COALESCE_S`, in which others may arrive."""
    if state.is_under_way("records"):
        return
    if not state.records:
        state.records_since = math.inf
        return
    jobs = dict.fromkeys(key.job for key in state.records)
    awaited = sum(state.tables.live_count.get(job, 0) for job in jobs)
    complete = len(state.records) >= awaited or len(state.records) >= BATCH_MAX
    if not complete and state.now < state.records_since + COALESCE_S:
        return
    batch = sorted(state.records)[:BATCH_MAX]
    if state.submit("records", EndAttempts(ended=tuple(state.records[key] for key in batch))):
        state.records_since = state.now


def forget_records(state: VolatileState) -> None:
    """Drops records that the log has, or will not take."""
    for key in list(state.records):
        attempt = state.tables.attempt(key)
        stored = attempt is None or attempt.state in ("ended", "returned")
        if stored or (attempt is not None and attempt.facts is not None and attempt.facts.complete):
            del state.records[key]
            state.forget_attempt(key)


def _why_lost(state: VolatileState, key: AttemptKey, attempt: AttemptFacts) -> tuple[str, float]:
    """Returns why the attempt is lost, or "" and the moment from which it may be."""
    status = state.status(key, attempt.node, attempt.boot)
    job = state.tables.jobs[key.job]
    workflow = job.workflow(key.workflow)
    started = workflow is not None and workflow.running
    if status is not None and started:
        if status.phase == "unknown":
            return "its worker does not know it", state.now
        if status.phase == "ended" and not status.record:
            return status.text or "it ended without a record", state.now
        if status.phase == "refused" and not attempt.refill:
            return status.text, state.now
    least_s = _least_s(job, workflow)
    grants = grants_of(state, key, attempt)
    at = lost_at(attempt, grants, state.timers, least_s)
    if least_s and workflow is not None:
        # Once its plan is over there is no load left that another attempt could take over, so
        # the longer lease need not be awaited: it is enough that the attempt has ended by
        # itself and that its worker had the time to report it.
        profile = profile_of(job, key.workflow)
        over = over_at(workflow, profile, state.now, state.group_ms, state.timers)
        at = min(at, max(over, lost_at(attempt, grants, state.timers)))
    if attempt.dead:
        after_s = (state.group_ms - attempt.dead_ms) / 1000.0
        since = f", {max(after_s, 0.0):.1f} s after its death" if attempt.dead_ms else ""
        return f"worker {attempt.node} restarted{since}", at
    at = max(at, state.judges_from)
    if state.now < at:
        return "", at
    since = grants.granted if grants.granted is not None else state.began
    return f"no sign of life of {attempt.node} for {state.now - since:.1f} s", at


def _least_s(job: JobRecord, workflow: WorkflowRecord | None) -> float:
    """The least lease that the job asks for. It holds only for workflows that have started: a
    preparation makes no load that could run on."""
    running = workflow is not None and bool(workflow.started_ms)
    return job.submission.options.lease_min_s if running else 0.0


def _lost(
    state: VolatileState, job: JobRecord, key: AttemptKey, attempt: AttemptFacts
) -> LostAttempt:
    workflow = job.workflow(key.workflow)
    silent_to_s = 0.0
    if workflow is not None:
        grants = grants_of(state, key, attempt)
        ended = lease_end(attempt, grants, state.now, _least_s(job, workflow))
        silent_to_s = elapsed_s(workflow, state.group_ms) - (state.now - ended)
        if attempt.dead_ms:
            silent_to_s = min(silent_to_s, elapsed_s(workflow, attempt.dead_ms))
    known = state.attempt(key)
    cut = better(attempt.facts, known.cut)
    if workflow is not None and _spans_a_restart(state, workflow, attempt):
        profile = profile_of(job, key.workflow)
        longest_s = max(silent_to_s, profile.duration_s + profile.grace_s)
        silent_to_s = min(silent_to_s + attempt.lease_ms / 1000.0, longest_s)
    return LostAttempt(key, known.losing, cut, max(silent_to_s, 0.0))


def _spans_a_restart(state: VolatileState, workflow: WorkflowRecord, attempt: AttemptFacts) -> bool:
    """Whether a group of one restarted since the attempt began. After a reboot it knows only from
    its wall clock, which may be wrong, how long it was away: the clock of the attempt may be ahead
    of the group's, and the attempt may have run for one lease more. The cut record cannot tell:
    its times are those of the attempt."""
    is_older = attempt.created_ms < state.began_ms
    return not state.timers.failover_bound_s and bool(workflow.started_ms) and is_older
