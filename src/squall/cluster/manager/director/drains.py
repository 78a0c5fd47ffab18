"""Empties a worker that drains: its running shares end in time, or other workers continue them.

A share whose plan ends within the drain's time goes on. Another one is handed over as soon as
some worker has a core for it: its attempt stops starting iterations, ends with a complete record,
and the next attempt joins elsewhere. At the end of the drain's time every share is handed over,
whether there is a core or not; what is then missing is a loss in the result.
"""

from __future__ import annotations

import math

from squall.cluster.datacenter.records import AttemptFacts, JobRecord, WorkerRecord, WorkflowRecord
from squall.cluster.manager.director.core_pool import usable_pool
from squall.cluster.manager.primary.effects import Push
from squall.cluster.manager.primary.lease_rules import remaining_s
from squall.cluster.manager.primary.placement import profile_of, refill_core
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.protocol.job_keys import AttemptKey

CHECK_S = 1.0
"""How often a share that no other worker can take is checked again: a core may become free."""


def check_drains(state: VolatileState, job: JobRecord) -> float:
    """Decides which attempts of a job are handed over; returns the moment of the next check."""
    check_at = math.inf
    for key, attempt in state.tables.live_of(job.job):
        worker = _draining(state, attempt)
        workflow = job.workflow(key.workflow)
        known = state.attempt(key)
        if worker is None or workflow is None:
            # It does not drain, or takes work again.
            known.hands_over = False
            continue
        if known.hands_over:
            continue
        if _hands_over(state, job, workflow, key, worker):
            known.hands_over = True
            state.ask(Push(worker.node))
        else:
            check_at = min(check_at, state.now + CHECK_S, state.at(worker.drain_by_ms))
    return check_at


def _draining(state: VolatileState, attempt: AttemptFacts) -> WorkerRecord | None:
    """The worker of an attempt, if it drains within a time."""
    worker = state.tables.workers.get(attempt.node)
    if worker is None or worker.boot != attempt.boot:
        return None
    return worker if worker.draining and worker.drain_by_ms else None


def _hands_over(
    state: VolatileState,
    job: JobRecord,
    workflow: WorkflowRecord,
    key: AttemptKey,
    worker: WorkerRecord,
) -> bool:
    status = state.status(key, worker.node, worker.boot)
    if status is None or status.phase != "running" or job.stop or workflow.stop:
        return False
    if state.group_ms >= worker.drain_by_ms:
        return True
    profile = profile_of(job, workflow.name)
    if profile.model == "once" or job.submission.options.on_agent_loss == "continue":
        # Another attempt would repeat it from the start, or there is none.
        return False
    ends_ms = workflow.started_ms + round((profile.duration_s + profile.grace_s) * 1000)
    left_s = remaining_s(workflow, profile, state.group_ms)
    if ends_ms <= worker.drain_by_ms or left_s < state.timers.refill_min_s:
        return False
    return refill_core(state.tables, job, usable_pool(state, job), key.of, ()) is not None
