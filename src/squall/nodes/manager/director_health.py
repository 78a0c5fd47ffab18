"""Which workers are given work: the three signals of each, as the primary sees them.

Heard of lately is live, not draining is ready. Progress is judged by comparison: a share
stands still when it executes nothing while load is planned *and* other shares of its job
execute something. Where all stand still it is the target, a pause or the author's code; the
job's own limits are for that. What a worker runs is taken from it by its lease only, never by
what is found here.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.control.health import (
    Decision,
    HealthSettings,
    Progress,
    decision,
    is_systemic,
    progress_of,
)
from squall.nodes.datacenter.records import JobRecord, WorkerRecord, WorkflowRecord
from squall.nodes.identity import JobId
from squall.nodes.manager.director_facts import Facts
from squall.nodes.manager.director_limits import patience_s, plans_load
from squall.nodes.manager.losses import elapsed_s
from squall.nodes.manager.placement import profile_of
from squall.stats.snapshot import target_rate_per_s

LOOK_AGAIN_S = 1.0
STARTS = 10


def worker_decision(facts: Facts, worker: WorkerRecord) -> Decision:
    progress = standing(facts).get(worker.node, Progress.MOVING)
    return decision(live=facts.is_present(worker), ready=not worker.draining, progress=progress)


def offered(facts: Facts, workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    """Those of them whose free cores are given out: the others count, and wait."""
    decided = {worker.node: worker_decision(facts, worker) for worker in workers}
    good = [w for w in workers if decided[w.node] is Decision.ROUTE]
    if any(facts.tables.free_slots(worker) for worker in good):
        return good
    moving = [w for w in workers if decided[w.node] <= Decision.INVESTIGATE]
    return moving or list(workers)


def standing(facts: Facts) -> dict[str, Progress]:
    """The workers that stand still, and how; looked at once a second."""
    if facts.now - facts.standing_at >= LOOK_AGAIN_S:
        facts.standing, facts.standing_at = _standing(facts), facts.now
    return facts.standing


def _standing(facts: Facts) -> dict[str, Progress]:
    settings = HealthSettings(stalled_s=facts.timers.stuck_s / 4.0, stuck_s=facts.timers.stuck_s)
    still_s: dict[str, float] = {}
    for name, since in facts.progress.items():
        # A job that stands still as a whole says nothing of its workers.
        if facts.now - since.since < settings.stalled_s:
            _still_of(facts, facts.tables.jobs.get(name), name, still_s)
    found = {
        node: progress_of(busy=True, still_s=seconds, settings=settings)
        for node, seconds in still_s.items()
    }
    still = {node: how for node, how in found.items() if how is not Progress.MOVING}
    return {} if is_systemic(still, len(facts.tables.workers), settings) else still


def _still_of(facts: Facts, job: JobRecord | None, name: JobId, still_s: dict[str, float]) -> None:
    """The shortest standstill of each worker's shares: one that moves is enough."""
    for key, attempt in facts.tables.live_of(name) if job is not None else ():
        workflow = job.workflow(key.workflow) if job is not None else None
        status = facts.status(key, attempt.node, attempt.boot)
        if job is None or workflow is None or status is None or status.phase != "running":
            continue
        if not workflow.running or not plans_load(facts, job, workflow):
            continue
        begun = facts.at(max(workflow.started_ms, attempt.created_ms))
        since = max(facts.moved.get(key, begun), begun, facts.began)
        slack = facts.timers.stuck_s / _patience_s(facts, job, workflow)
        seconds = (facts.now - since) * slack
        still_s[attempt.node] = min(still_s.get(attempt.node, seconds), seconds)


def _patience_s(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> float:
    """One share may rest longer than all together: until ten of its starts were planned."""
    profile = profile_of(job, workflow.name)
    wanted_s = patience_s(facts, profile)
    at_s = elapsed_s(workflow, facts.group_ms)
    rate = workflow.adjustment.rate_per_s or target_rate_per_s(profile, at_s) or 0.0
    return max(wanted_s, STARTS * workflow.shares / rate) if rate else wanted_s
