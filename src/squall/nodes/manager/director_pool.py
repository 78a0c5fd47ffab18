"""The cores that may be given out now, and the jobs that wait for them.

One command at a time gives out cores, so that no two plans count the same core. A worker
may be given work when it was heard of lately, is not draining, and did not just refuse
the same job; one that stands still is given none while there are others
(`director_health`).
"""

from __future__ import annotations

import math

from squall.nodes.datacenter.commands import PlaceWorkflows, StopJob, StopWorkflow
from squall.nodes.datacenter.records import JobRecord, WorkerRecord
from squall.nodes.manager.director_effects import StoreValues
from squall.nodes.manager.director_facts import Facts
from squall.nodes.manager.director_health import offered
from squall.nodes.manager.director_layers import is_exclusive, next_phase
from squall.nodes.manager.director_limits import run_ms
from squall.nodes.manager.placement import (
    DoesNotFit,
    Pool,
    least_cores,
    place_phase,
    pool_of,
)
from squall.nodes.manager.queue_order import (
    Waiting,
    admitted,
    ordered,
    passing_ends_s,
    rank_of,
)
from squall.nodes.manager.session_answers import inline_values
from squall.stats.manifest import WorkflowManifest

VALUES_INLINE_MAX = 2048
"""What is handed over travels in every preparation up to this size, else as a blob."""
NO_WORKERS = "no worker is there to run it"


def usable_pool(facts: Facts, job: JobRecord) -> Pool:
    workers = [w for w in usable(facts) if not _avoided(facts, job, w)]
    return pool_of(facts.tables, workers, offered(facts, workers))


def usable(facts: Facts) -> list[WorkerRecord]:
    found = [w for w in facts.tables.workers.values() if facts.is_present(w) and not w.draining]
    return sorted(found, key=lambda worker: worker.node)


def waiting_jobs(facts: Facts) -> list[Waiting]:
    """The queue, the first one first."""
    pools: dict[tuple[str, ...], Pool] = {}
    workers = usable(facts)
    queue: list[Waiting] = []
    for name in facts.tables.active:
        job = facts.tables.jobs[name]
        phase = wanted_phase(facts, job)
        if not phase:
            continue
        mine = [w for w in workers if not _avoided(facts, job, w)]
        names = tuple(worker.node for worker in mine)
        if names not in pools:
            pools[names] = pool_of(facts.tables, mine, offered(facts, mine))
        ended_ms = max((w.ended_ms for w in job.workflows), default=0)
        queue.append(
            Waiting(
                job=job.job,
                op=job.op,
                rank=rank_of(w.priority for w in phase if w.is_test),
                age_s=(facts.group_ms - job.created_ms) / 1000.0,
                waited_s=(facts.group_ms - max(job.created_ms, ended_ms)) / 1000.0,
                least=least_cores(phase, pools[names]),
                free=pools[names].free_cores,
            )
        )
    return ordered(queue)


def wanted_phase(facts: Facts, job: JobRecord) -> list[WorkflowManifest]:
    """`next_phase`, looked up: most jobs of a long queue have not changed."""
    known = facts.phases.get(job.job)
    if known is None or known[0] is not job:
        known = facts.phases[job.job] = (job, next_phase(job))
    return known[1]


def check_queue(facts: Facts) -> float:
    """Places what may begin; the moment at which to look again."""
    facts.queue_dirty = False
    workers = usable(facts)
    if workers and not any(facts.tables.free_slots(worker) for worker in workers):
        # Whoever waits is looked at when a core becomes free.
        facts.no_workers_since = math.inf
        return facts.now + 1.0
    queue = waiting_jobs(facts)
    if not queue:
        facts.no_workers_since = math.inf
        return math.inf
    if not workers:
        return _no_workers(facts, queue)
    facts.no_workers_since = math.inf
    look_at = facts.now + (passing_ends_s(queue) or 1.0)
    if "place" in facts.out or _exclusive_runs(facts):
        return look_at
    while queue:
        first = admitted(queue)
        if first is None:
            break
        queue.remove(first)
        if _place(facts, facts.tables.jobs[first.job]):
            break
    return min(look_at, facts.now + 1.0)


def position(facts: Facts, job: JobRecord) -> int:
    """In the queue, from 1; 0 when it does not wait."""
    if job.over or not wanted_phase(facts, job):
        return 0
    moment = (facts.now, facts.tables.op)
    if facts.queue_seen is None or facts.queue_seen[0] != moment:
        places = {each.job: place for place, each in enumerate(waiting_jobs(facts), 1)}
        facts.queue_seen = (moment, places)
    return facts.queue_seen[1].get(job.job, 0)


def _place(facts: Facts, job: JobRecord) -> bool:
    """Asks for the placement of a job's next phase; False if it is not ready for it."""
    phase = next_phase(job)
    values = _values(facts, job, phase)
    if values is None:
        return False
    pool = usable_pool(facts, job)
    if any(is_exclusive(w) for w in phase) and pool.free_cores < pool.total:
        return False
    try:
        placements = place_phase(facts.tables, job, phase, pool, values)
    except DoesNotFit as error:
        _does_not_fit(facts, job, str(error))
        return False
    done = {w.name for w in job.workflows if w.over}
    command = PlaceWorkflows(
        job=job.job,
        placements=tuple(placements),
        run_ms=run_ms(job.submission.manifest, facts, done),
    )
    return facts.submit("place", command)


def _does_not_fit(facts: Facts, job: JobRecord, text: str) -> None:
    if not job.started_ms:
        stop = StopJob(job=job.job, kind="failed", reason=text, exit_code=104, now=True)
        facts.submit(f"stop {job.job}", stop)
        return
    name = text.partition(":")[0]
    halt = StopWorkflow(job=job.job, workflow=name, error=text, exit_code=104, now=True)
    facts.submit(f"halt {job.job} {name}", halt)


def _values(
    facts: Facts, job: JobRecord, phase: list[WorkflowManifest]
) -> dict[str, tuple[str, int]] | None:
    """Blobs of what is handed over, where it is large; None while one is being stored."""
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
        stored = facts.values.get((job.job, workflow.name))
        if stored is None:
            contexts = tuple((each.name, each.context, each.context_blob) for each in over)
            tag = f"values {job.job} {workflow.name}"
            facts.ask(StoreValues(tag, job.job, workflow.name, contexts))
            return None
        found[workflow.name] = (stored.blob, stored.size)
    return found


def _no_workers(facts: Facts, queue: list[Waiting]) -> float:
    if math.isinf(facts.no_workers_since):
        facts.no_workers_since = facts.now
    limit_s = facts.timers.dispatch_timeout_s
    for each in queue:
        if facts.now - facts.no_workers_since >= limit_s and each.waited_s >= limit_s:
            text = f"{NO_WORKERS} for {limit_s:g} s"
            stop = StopJob(job=each.job, kind="failed", reason=text, exit_code=3)
            facts.submit(f"stop {each.job}", stop)
    waits = [limit_s - each.waited_s for each in queue if each.waited_s < limit_s]
    return facts.now + max(min(waits, default=1.0), 1.0)


def _exclusive_runs(facts: Facts) -> bool:
    """While an EXCLUSIVE workflow has cores, no other job gets any."""
    for name in facts.tables.active:
        job = facts.tables.jobs[name]
        for workflow in job.workflows:
            busy = not workflow.over and workflow.state.value != "pending"
            if busy and is_exclusive(job.submission.manifest.workflow(workflow.name)):
                return True
    return False


def _avoided(facts: Facts, job: JobRecord, worker: WorkerRecord) -> bool:
    return facts.avoid.get((job.job, worker.node, worker.boot), -math.inf) > facts.now
