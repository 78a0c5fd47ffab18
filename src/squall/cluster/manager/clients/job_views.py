"""The views of jobs and nodes that clients get, and why a job is in its state.

Pure functions of the committed state and, on the primary, of its volatile state. They never
decide anything.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from squall.cluster.datacenter.records import JobRecord, WorkerRecord, WorkflowRecord
from squall.cluster.datacenter.tables import Tables
from squall.cluster.datacenter.workflow_states import WorkflowState, public
from squall.cluster.group.job_deadlines import deadline_ms
from squall.cluster.manager.director.core_pool import NO_WORKERS, position, usable, waiting_jobs
from squall.cluster.manager.director.layers import next_phase
from squall.cluster.manager.director.worker_health import standing
from squall.cluster.manager.primary.lease_rules import elapsed_s
from squall.cluster.manager.primary.placement import profile_of
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.sessions.time_limits import standstills
from squall.cluster.membership.effects import State
from squall.cluster.membership.job_liveness import NodeStatus, status_for_job
from squall.cluster.protocol.messages import Counters, JobView, NodeView, WorkerLoad, WorkflowView
from squall.engine.load_change import change_line
from squall.reporting.number_format import plural

STANDSTILLS_SHOWN = 10


def job_view(
    tables: Tables, job: JobRecord, group_ms: int, state: VolatileState | None = None
) -> JobView:
    """Only the primary has `state`; without it the position in the queue is unknown."""
    ended_ms = job.ended_ms or group_ms
    return JobView(
        job=job.job,
        state=job.state,
        file=job.submission.manifest.path,
        principal=job.principal,
        key=job.key,
        created_at=job.created_at,
        age_s=max(group_ms - job.created_ms, 0) / 1000.0,
        elapsed_s=max(ended_ms - job.started_ms, 0) / 1000.0 if job.started_ms else 0.0,
        leader=job.leader,
        position=position(state, job) if state is not None and not job.over else 0,
        workflows=[_workflow_view(job, each) for each in job.workflows],
        reason=job.reason,
        exit_code=job.exit_code if job.over else None,
        result=job.result,
        result_size=job.result_size,
    )


def detailed_view(
    view: JobView, tables: Tables, job: JobRecord, state: VolatileState | None
) -> JobView:
    """Adds what costs a look at every attempt. Only the primary knows the counters of running
    attempts, which their sessions report. A job that is over has no attempts any more."""
    workers: dict[str, set[str]] = {}
    counters: dict[str, list[Counters]] = {}
    for key, attempt in tables.attempts_of(job.job):
        counted = attempt.counted
        if attempt.state == "live":
            workers.setdefault(key.workflow, set()).add(attempt.node)
            known = state.status(key, attempt.node, attempt.boot) if state is not None else None
            counted = known.counters if known is not None else counted
        counters.setdefault(key.workflow, []).append(counted)
    began_ms = job.started_ms or job.created_ms
    return msgspec.structs.replace(
        view,
        workflows=[
            msgspec.structs.replace(
                each,
                workers=sorted(workers.get(each.name, ())),
                counters=None if job.over else sum_of(counters.get(each.name, ())),
            )
            for each in view.workflows
        ],
        adjustments=[change_line(each.applied(began_ms)) for each in job.adjustments],
        silent=silent_lines(state, job) if state is not None else [],
    )


def sum_of(counters: Iterable[Counters]) -> Counters:
    columns = zip(*(msgspec.structs.astuple(each) for each in counters), strict=True)
    return Counters(*(sum(column) for column in columns))


def node_views(tables: Tables, state: VolatileState | None = None) -> list[NodeView]:
    """The workers, sorted by name."""
    return [
        NodeView(
            name=worker.node,
            role="worker",
            address=worker.address or worker.host,
            pid=worker.pid,
            state=worker_state(tables, worker, state),
            boot=worker.boot,
            cores=worker.cores,
            free=0 if worker.gone else len(tables.free_slots(worker)),
            heard_s=_heard_s(worker, state),
            load=_load(worker, state),
            version=worker.version,
        )
        for worker in sorted(tables.workers.values(), key=lambda each: each.node)
    ]


def _load(worker: WorkerRecord, state: VolatileState | None) -> WorkerLoad | None:
    known = state.workers.get(worker.node) if state is not None and not worker.gone else None
    return known.load if known is not None and known.boot == worker.boot else None


def worker_state(tables: Tables, worker: WorkerRecord, state: VolatileState | None) -> str:
    if worker.gone:
        return "gone"
    if state is not None and not state.is_present(worker):
        return "silent"
    if worker.draining:
        return "draining" if tables.live.get(worker.node) else "drained"
    if state is not None and worker.node in standing(state):
        return standing(state)[worker.node].value
    return "busy" if tables.live.get(worker.node) else "idle"


def why(state: VolatileState, job: JobRecord) -> list[str]:
    """Lines that say which state a job is in and what it waits for."""
    if job.over:
        text = f"{job.job} is over: {job.state}"
        return [text + (f" ({job.reason})" if job.reason else "")]
    lines = [f"{job.job} is {job.state}" + (f": {job.reason}" if job.reason else "")]
    limit_ms = deadline_ms(job)
    if limit_ms is not None and not job.stop:
        lines.append(f"its timeout ends it in {max(limit_ms - state.group_ms, 0) / 1000:.0f} s")
    for workflow in job.workflows:
        if not workflow.over:
            lines += _workflow_lines(state, job, workflow)
    if all(workflow.over for workflow in job.workflows):
        lines.append("all workflows are over; its result is being assembled")
    lines += _queue_lines(state, job)
    if not job.stop:
        shown = standstills(state, job)[:STANDSTILLS_SHOWN]
        lines += [f"{node}: {why}" for node, why in shown]
    return lines + silent_lines(state, job)


def silent_lines(state: VolatileState, job: JobRecord) -> list[str]:
    """A line for each silent worker that runs shares of the job."""
    lines: list[str] = []
    shares: dict[str, int] = {}
    for _, attempt in state.tables.live_of(job.job):
        shares[attempt.node] = shares.get(attempt.node, 0) + 1
    for node, count in sorted(shares.items()):
        worker = state.tables.workers.get(node)
        if worker is not None and not state.is_present(worker):
            lines.append(
                f"{node} runs {plural(count, 'share')} of it and was last heard "
                f"{_heard_s(worker, state):.1f} s ago; after {state.timers.lost_after_s:.1f} s "
                "its shares are lost"
            )
    return lines


def doubted_workers(state: VolatileState, job: JobRecord) -> list[str]:
    """The workers of a job that respond to neither membership nor their sessions as they should."""
    nodes = {attempt.node for _, attempt in state.tables.live_of(job.job)}
    workers = [state.tables.workers[node] for node in sorted(nodes) if node in state.tables.workers]
    return [each.node for each in workers if not _status_for_job(state, each).takes_new_work]


def _status_for_job(state: VolatileState, worker: WorkerRecord) -> NodeStatus:
    return status_for_job(
        State.SUSPECT if state.is_suspect(worker) else None,
        _heard_s(worker, state),
        suspect_after_s=state.silence_allowed_s,
        dead_after_s=state.timers.lost_after_s,
    )


def _workflow_view(job: JobRecord, workflow: WorkflowRecord) -> WorkflowView:
    return WorkflowView(
        name=workflow.name,
        state=workflow.outcome or public(workflow.state, workflow.over),
        layer=workflow.layer,
        cores=len(set(workflow.cores)),
        attempts=workflow.attempts,
        lost=workflow.lost,
        error=workflow.error,
        adjusted="" if workflow.over else _adjusted(workflow),
        priority=job.submission.manifest.workflow(workflow.name).priority,
    )


def _adjusted(workflow: WorkflowRecord) -> str:
    adjustment = workflow.adjustment
    changes = [
        "" if adjustment.rate_per_s is None else f"{adjustment.rate_per_s:g}/s",
        "" if adjustment.vus is None else plural(adjustment.vus, "user"),
        "paused" if adjustment.paused else "",
    ]
    return ", ".join(text for text in changes if text)


def _workflow_lines(state: VolatileState, job: JobRecord, workflow: WorkflowRecord) -> list[str]:
    name = workflow.name
    live = state.tables.live_of(job.job, name)
    if workflow.state is WorkflowState.PENDING:
        before = [w.name for w in job.workflows if w.layer < workflow.layer and not w.over]
        return [f"{name} waits for {', '.join(before)}"] if before else []
    if workflow.returning:
        return [f"{name} goes back into the queue when {len(live)} attempts have stopped"]
    phases: dict[str, int] = {}
    for key, attempt in live:
        status = state.status(key, attempt.node, attempt.boot)
        phase = status.phase if status is not None else "not heard of"
        phases[phase] = phases.get(phase, 0) + 1
    counts = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))
    if not workflow.started_ms:
        return [f"{name} is being prepared: {counts or 'nothing left to prepare'}"]
    at_s, profile = elapsed_s(workflow, state.group_ms), profile_of(job, name)
    # Of the other models the duration is a limit that is seldom reached.
    timed = profile.model not in ("iterations", "once")
    length = f" of {profile.duration_s:g}" if timed else ""
    lost = f", {workflow.lost} lost" if workflow.lost else ""
    changed = _adjusted(workflow)
    changed = f"; changed by hand: {changed}" if changed else ""
    return [f"{name} is at {at_s:.0f}{length} s: {counts or 'no attempt'}{lost}{changed}"]


def _queue_lines(state: VolatileState, job: JobRecord) -> list[str]:
    phase = next_phase(job)
    if not phase:
        return []
    names = ", ".join(workflow.name for workflow in phase)
    if not usable(state):
        return [f"{names}: {NO_WORKERS}"]
    queue = waiting_jobs(state)
    place = next((i for i, each in enumerate(queue) if each.job == job.job), None)
    if place is None:
        return []
    mine = queue[place]
    text = f"{names} waits for cores: needs {mine.least}, {mine.free} are free"
    if place:
        text += f"; {place} before it in the queue, the first is {queue[0].job}"
    return [text]


def _heard_s(worker: WorkerRecord, state: VolatileState | None) -> float:
    if state is None:
        return 0.0
    known = state.workers.get(worker.node)
    since = known.heard if known is not None else state.began
    return max(state.now - since, 0.0)
