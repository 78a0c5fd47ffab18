"""Decides which workers get new work, from three signals: live, ready, progress.

A worker is live if it was heard lately and ready if it does not drain. Progress is judged by
comparison: a share stands still when it executes nothing while load is planned *and* other
shares of its job execute something. Where all stand still, the cause is the target, a pause
or the author's code, and the limits of the job apply. A standstill never takes running work
from a worker; only the lease does (R5).
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.cluster.control.health import (
    Decision,
    HealthSettings,
    Progress,
    decision,
    is_systemic,
    progress_of,
)
from squall.cluster.datacenter.records import JobRecord, WorkerRecord, WorkflowRecord
from squall.cluster.manager.primary.lease_rules import elapsed_s
from squall.cluster.manager.primary.placement import profile_of
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.sessions.time_limits import plans_load, stuck_after_s
from squall.cluster.protocol.job_keys import JobId
from squall.stats.snapshot import target_rate_per_s

CHECK_S = 1.0
"""How long a result is cached: computing it reads every live attempt."""
STARTS = 10
"""A share may execute nothing until this many of its starts were planned."""


def worker_decision(state: VolatileState, worker: WorkerRecord) -> Decision:
    progress = standing(state).get(worker.node, Progress.MOVING)
    return decision(live=state.is_present(worker), ready=not worker.draining, progress=progress)


def offered(state: VolatileState, workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    """The workers whose free cores are given out: healthy ones, if any of them has a free core."""
    decided = {worker.node: worker_decision(state, worker) for worker in workers}
    good = [w for w in workers if decided[w.node] is Decision.ROUTE]
    if any(state.tables.free_slots(worker) for worker in good):
        return good
    moving = [w for w in workers if decided[w.node] <= Decision.INVESTIGATE]
    return moving or list(workers)


def standing(state: VolatileState) -> dict[str, Progress]:
    """The workers that stand still, and how badly; computed once a second."""
    if state.now - state.standing_at >= CHECK_S:
        state.standing, state.standing_at = _standing(state), state.now
    return state.standing


def _standing(state: VolatileState) -> dict[str, Progress]:
    settings = HealthSettings(stalled_s=state.timers.stuck_s / 4.0, stuck_s=state.timers.stuck_s)
    still_s: dict[str, float] = {}
    for name, known in state.jobs.items():
        # A job that stands still as a whole says nothing about its workers.
        if known.executed_at is not None and state.now - known.executed_at < settings.stalled_s:
            _shortest_standstills(state, state.tables.jobs.get(name), name, still_s)
    found = {
        node: progress_of(busy=True, still_s=seconds, settings=settings)
        for node, seconds in still_s.items()
    }
    still = {node: how for node, how in found.items() if how is not Progress.MOVING}
    return {} if is_systemic(still, len(state.tables.workers), settings) else still


def _shortest_standstills(
    state: VolatileState, job: JobRecord | None, name: JobId, still_s: dict[str, float]
) -> None:
    """The shortest standstill among the shares of each worker: one share that executes is
    enough."""
    for key, attempt in state.tables.live_of(name) if job is not None else ():
        workflow = job.workflow(key.workflow) if job is not None else None
        status = state.status(key, attempt.node, attempt.boot)
        if job is None or workflow is None or status is None or status.phase != "running":
            continue
        if not workflow.running or not plans_load(state, job, workflow):
            continue
        begun = state.at(max(workflow.started_ms, attempt.created_ms))
        known = state.known_attempt(key)
        moved = known.moved if known is not None and known.moved is not None else begun
        since = max(moved, begun, state.began)
        slack = state.timers.stuck_s / _share_stuck_after_s(state, job, workflow)
        seconds = (state.now - since) * slack
        still_s[attempt.node] = min(still_s.get(attempt.node, seconds), seconds)


def _share_stuck_after_s(state: VolatileState, job: JobRecord, workflow: WorkflowRecord) -> float:
    """One share may execute nothing for longer than the whole workflow: until ten of its own
    starts were planned."""
    profile = profile_of(job, workflow.name)
    wanted_s = stuck_after_s(state, profile)
    at_s = elapsed_s(workflow, state.group_ms)
    rate = workflow.adjustment.rate_per_s or target_rate_per_s(profile, at_s) or 0.0
    return max(wanted_s, STARTS * workflow.shares / rate) if rate else wanted_s
