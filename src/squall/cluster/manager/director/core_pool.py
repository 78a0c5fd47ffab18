"""Gives free cores to waiting jobs.

One command at a time gives out cores, so that no two plans count the same core. A worker may
get work when it was heard lately, is not draining, and did not just refuse the same job. One that
membership suspects gets none until its next session. A worker that stands still gets none while
there are others (`worker_health`); one whose machine is loaded, or which is suspected although
its sessions arrive, comes after the others.
"""

from __future__ import annotations

import math
from collections import Counter

from squall.api.errors import ExitCode
from squall.cluster.datacenter.commands import PlaceWorkflows, StopJob, StopWorkflow
from squall.cluster.datacenter.records import JobRecord, WorkerRecord
from squall.cluster.group.job_deadlines import longest_run_ms
from squall.cluster.manager.director.layers import is_exclusive, next_phase
from squall.cluster.manager.director.worker_health import offered
from squall.cluster.manager.primary.effects import StoreValues
from squall.cluster.manager.primary.placement import (
    DoesNotFit,
    FreeCores,
    extra_prepare_s,
    least_cores,
    place_phase,
    pool_of,
)
from squall.cluster.manager.primary.queue_order import (
    WaitingJob,
    admitted,
    ordered,
    passing_ends_s,
    rank_of,
)
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.sessions.answers import inline_values
from squall.stats.manifest import WorkflowManifest

VALUES_INLINE_MAX = 2048
"""Values for a workflow travel in every preparation up to this size, else as a blob."""
NO_WORKERS = "no worker is available to run it"


def usable_pool(state: VolatileState, job: JobRecord) -> FreeCores:
    return _pool(state, [w for w in usable(state) if not _avoided(state, job, w)])


def _pool(state: VolatileState, workers: list[WorkerRecord]) -> FreeCores:
    loaded = [w.node for w in workers if state.is_loaded(w) or state.is_suspect(w)]
    return pool_of(state.tables, workers, offered(state, workers), loaded)


def usable(state: VolatileState) -> list[WorkerRecord]:
    found = [
        worker
        for worker in state.tables.workers.values()
        if state.is_present(worker) and not worker.draining and not state.is_doubted(worker)
    ]
    return sorted(found, key=lambda worker: worker.node)


def waiting_jobs(state: VolatileState) -> list[WaitingJob]:
    """The queue, first job first."""
    pools: dict[tuple[str, ...], FreeCores] = {}
    workers = usable(state)
    queue: list[WaitingJob] = []
    for name in state.tables.active:
        try:
            waiting = _waiting_job(state, state.tables.jobs[name], workers, pools)
        except Exception as error:
            state.fail_job(name, error)
            continue
        if waiting is not None:
            queue.append(waiting)
    return ordered(queue)


def _waiting_job(
    state: VolatileState,
    job: JobRecord,
    workers: list[WorkerRecord],
    pools: dict[tuple[str, ...], FreeCores],
) -> WaitingJob | None:
    """The place of a job in the queue; None if it does not wait. `pools` are those of the jobs
    before it: most jobs may use the same workers."""
    phase = wanted_phase(state, job)
    if not phase:
        return None
    mine = [w for w in workers if not _avoided(state, job, w)]
    names = tuple(worker.node for worker in mine)
    if names not in pools:
        pools[names] = _pool(state, mine)
    ended_ms = max((w.ended_ms for w in job.workflows), default=0)
    return WaitingJob(
        job=job.job,
        op=job.op,
        rank=rank_of(w.priority for w in phase if w.is_test),
        age_s=(state.group_ms - job.created_ms) / 1000.0,
        waited_s=(state.group_ms - max(job.created_ms, ended_ms)) / 1000.0,
        least=least_cores(phase, pools[names]),
        free=pools[names].free_cores,
    )


def wanted_phase(state: VolatileState, job: JobRecord) -> list[WorkflowManifest]:
    """`next_phase`, cached: most jobs of a long queue have not changed."""
    known = state.job(job.job)
    if known.phase is None or known.phase[0] is not job:
        known.phase = (job, next_phase(job))
    return known.phase[1]


def check_queue(state: VolatileState) -> float:
    """Places the jobs that may begin; returns the moment of the next check."""
    state.queue_dirty = False
    workers = usable(state)
    if workers and not any(state.tables.free_slots(worker) for worker in workers):
        # All cores are taken. The queue is checked again when one becomes free.
        state.no_workers_since = math.inf
        return state.now + 1.0
    queue = waiting_jobs(state)
    if not queue:
        state.no_workers_since = math.inf
        return math.inf
    if not workers:
        return _no_workers(state, queue)
    state.no_workers_since = math.inf
    check_at = state.now + (passing_ends_s(queue) or 1.0)
    if state.is_under_way("place") or _exclusive_runs(state):
        return check_at
    while queue:
        first = admitted(queue)
        if first is None:
            break
        queue.remove(first)
        try:
            placed = _place(state, state.tables.jobs[first.job])
        except Exception as error:
            state.fail_job(first.job, error)
            continue
        if placed:
            break
    return min(check_at, state.now + 1.0)


def position(state: VolatileState, job: JobRecord) -> int:
    """The position in the queue, from 1; 0 when the job does not wait."""
    if job.over or not wanted_phase(state, job):
        return 0
    moment = (state.now, state.tables.op)
    if state.queue_seen is None or state.queue_seen[0] != moment:
        places = {each.job: place for place, each in enumerate(waiting_jobs(state), 1)}
        state.queue_seen = (moment, places)
    return state.queue_seen[1].get(job.job, 0)


def _place(state: VolatileState, job: JobRecord) -> bool:
    """Submits the placement of a job's next phase; False if the job is not ready for it."""
    if not state.may_place(job.job):
        return False
    phase = next_phase(job)
    values = _values(state, job, phase)
    if values is None:
        return False
    pool = usable_pool(state, job)
    if any(is_exclusive(w) for w in phase) and pool.free_cores < pool.total:
        return False
    try:
        placements = place_phase(state.tables, job, phase, pool, values)
    except DoesNotFit as error:
        _does_not_fit(state, job, error)
        return False
    done = {w.name for w in job.workflows if w.over}
    on_core = Counter((a.node, a.slot) for placed in placements for a in placed.assignments)
    extra_ms = round(extra_prepare_s(on_core.values()) * 1000)
    command = PlaceWorkflows(
        job=job.job,
        placements=tuple(placements),
        run_ms=longest_run_ms(job.submission.manifest, state.timers, done) + extra_ms,
    )
    return state.submit("place", command)


def _does_not_fit(state: VolatileState, job: JobRecord, error: DoesNotFit) -> None:
    text, name = str(error), error.workflow
    if not job.started_ms:
        stop = StopJob(job=job.job, kind="failed", reason=text, exit_code=ExitCode.CONFIG, now=True)
        state.submit(f"stop {job.job}", stop)
        return
    halt = StopWorkflow(job=job.job, workflow=name, error=text, exit_code=ExitCode.CONFIG, now=True)
    state.submit(f"halt {job.job} {name}", halt)


def _values(
    state: VolatileState, job: JobRecord, phase: list[WorkflowManifest]
) -> dict[str, tuple[str, int]] | None:
    """The blobs of values that are too large to travel inline; None while one is being stored."""
    found: dict[str, tuple[str, int]] = {}
    for workflow in phase:
        over = [each for each in job.workflows if each.over]
        large = any(each.context_blob for each in over)
        if not large:
            values = inline_values(job, workflow.name)
            sizes = [len(v) for v in (*values.values.values(), *values.received.values())]
            large = sum(sizes) > VALUES_INLINE_MAX
        if not large:
            continue
        stored = state.job(job.job).workflow(workflow.name).values
        if stored is None:
            contexts = tuple((each.name, each.context, each.context_blob) for each in over)
            tag = f"values {job.job} {workflow.name}"
            state.ask(StoreValues(tag, job.job, workflow.name, contexts))
            return None
        found[workflow.name] = (stored.blob, stored.size)
    return found


def _no_workers(state: VolatileState, queue: list[WaitingJob]) -> float:
    if math.isinf(state.no_workers_since):
        state.no_workers_since = state.now
    limit_s = state.timers.dispatch_timeout_s
    for each in queue:
        if state.now - state.no_workers_since >= limit_s and each.waited_s >= limit_s:
            text = f"{NO_WORKERS} for {limit_s:g} s"
            stop = StopJob(job=each.job, kind="failed", reason=text, exit_code=ExitCode.UNREACHABLE)
            state.submit(f"stop {each.job}", stop)
    waits = [limit_s - each.waited_s for each in queue if each.waited_s < limit_s]
    return state.now + max(min(waits, default=1.0), 1.0)


def _exclusive_runs(state: VolatileState) -> bool:
    """While an EXCLUSIVE workflow has cores, no other job gets any."""
    for name in state.tables.active:
        job = state.tables.jobs[name]
        for workflow in job.workflows:
            busy = not workflow.over and workflow.state.value != "pending"
            if busy and is_exclusive(job.submission.manifest.workflow(workflow.name)):
                return True
    return False


def _avoided(state: VolatileState, job: JobRecord, worker: WorkerRecord) -> bool:
    avoided = state.job(job.job).avoided
    return bool(avoided) and avoided.get((worker.node, worker.boot), -math.inf) > state.now
