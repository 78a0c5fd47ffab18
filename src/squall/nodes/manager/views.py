"""A datacenter as people see it: jobs, nodes, and why a job is where it is.

Pure functions of the committed state and, on the primary, of what sessions told. They
show; they never decide.
"""

from __future__ import annotations

from collections.abc import Iterable

from squall.nodes.datacenter.records import JobEvent, JobRecord, WorkerRecord, WorkflowRecord
from squall.nodes.datacenter.states import WorkflowState, public
from squall.nodes.datacenter.tables import Tables
from squall.nodes.manager.director_facts import Facts
from squall.nodes.manager.director_health import standing
from squall.nodes.manager.director_layers import next_phase
from squall.nodes.manager.director_limits import deadline_ms, standstills
from squall.nodes.manager.director_pool import NO_WORKERS, position, usable, waiting_jobs
from squall.nodes.manager.losses import elapsed_s
from squall.nodes.manager.placement import profile_of
from squall.nodes.messages import JobView, NodeView, WorkflowView
from squall.reporting.format import plural

STANDSTILLS_SHOWN = 10


def job_view(tables: Tables, job: JobRecord, group_ms: int, facts: Facts | None = None) -> JobView:
    """`facts` are the primary's; others cannot say the place in the queue."""
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
        position=position(facts, job) if facts is not None and not job.over else 0,
        workflows=[_workflow_view(each) for each in job.workflows],
        reason=job.reason,
        exit_code=job.exit_code,
        result=job.result,
        result_size=job.result_size,
    )


def node_views(tables: Tables, facts: Facts | None = None) -> list[NodeView]:
    """The workers, by name."""
    return [
        NodeView(
            name=worker.node,
            role="worker",
            address=worker.address or worker.host,
            pid=worker.pid,
            state=worker_state(tables, worker, facts),
            boot=worker.boot,
            cores=worker.cores,
            free=0 if worker.gone else len(tables.free_slots(worker)),
            heard_s=_heard_s(worker, facts),
            version=worker.version,
        )
        for worker in sorted(tables.workers.values(), key=lambda each: each.node)
    ]


def worker_state(tables: Tables, worker: WorkerRecord, facts: Facts | None) -> str:
    if worker.gone:
        return "gone"
    if facts is not None and not facts.is_present(worker):
        return "silent"
    if worker.draining:
        return "draining" if tables.live.get(worker.node) else "drained"
    if facts is not None and worker.node in standing(facts):
        return standing(facts)[worker.node].value
    return "busy" if tables.live.get(worker.node) else "idle"


def why(facts: Facts, job: JobRecord) -> list[str]:
    """Where a job is and what it waits for."""
    if job.over:
        text = f"{job.job} is over: {job.state}"
        return [text + (f" ({job.reason})" if job.reason else "")]
    lines = [f"{job.job} is {job.state}" + (f": {job.reason}" if job.reason else "")]
    limit_ms = deadline_ms(job)
    if limit_ms is not None and not job.stop:
        lines.append(
            f"it is ended by its timeout in {max(limit_ms - facts.group_ms, 0) / 1000:.0f} s"
        )
    for workflow in job.workflows:
        if not workflow.over:
            lines += _workflow_lines(facts, job, workflow)
    if all(workflow.over for workflow in job.workflows):
        lines.append("all workflows are over; its result is being assembled")
    lines += _queue_lines(facts, job)
    if not job.stop:
        told = standstills(facts, job)
        lines += [f"{node}: {why}" for node, why in told[:STANDSTILLS_SHOWN]]
    return lines + silent_lines(facts, job)


def silent_lines(facts: Facts, job: JobRecord) -> list[str]:
    """The workers that run a part of a job and are not heard."""
    lines: list[str] = []
    shares: dict[str, int] = {}
    for _, attempt in facts.tables.live_of(job.job):
        shares[attempt.node] = shares.get(attempt.node, 0) + 1
    for node, count in sorted(shares.items()):
        worker = facts.tables.workers.get(node)
        if worker is not None and not facts.is_present(worker):
            lines.append(
                f"{node} runs {plural(count, 'share')} of it and was last heard "
                f"{_heard_s(worker, facts):.1f} s ago; after {facts.timers.lost_after_s:.1f} s "
                "what it runs is lost"
            )
    return lines


def events(job: JobRecord, happened: Iterable[JobEvent]) -> list[str]:
    """What happened to a job, with seconds since its creation."""
    return [f"{(event.at_ms - job.created_ms) / 1000.0:8.1f} s  {event.text}" for event in happened]


def _workflow_view(workflow: WorkflowRecord) -> WorkflowView:
    return WorkflowView(
        name=workflow.name,
        state=workflow.outcome or public(workflow.state, workflow.over),
        layer=workflow.layer,
        cores=len(set(workflow.cores)),
        attempts=workflow.attempts,
        lost=workflow.lost,
        error=workflow.error,
        adjusted="" if workflow.over else _adjusted(workflow),
    )


def _adjusted(workflow: WorkflowRecord) -> str:
    wish = workflow.adjustment
    wishes = [
        "" if wish.rate_per_s is None else f"{wish.rate_per_s:g}/s",
        "" if wish.vus is None else plural(wish.vus, "user"),
        "paused" if wish.paused else "",
    ]
    return ", ".join(text for text in wishes if text)


def _workflow_lines(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> list[str]:
    name = workflow.name
    live = facts.tables.live_of(job.job, name)
    if workflow.state is WorkflowState.PENDING:
        before = [w.name for w in job.workflows if w.layer < workflow.layer and not w.over]
        return [f"{name} waits for {', '.join(before)}"] if before else []
    if workflow.returning:
        return [f"{name} goes back into the queue when {len(live)} attempts have stopped"]
    phases: dict[str, int] = {}
    for key, attempt in live:
        status = facts.status(key, attempt.node, attempt.boot)
        phase = status.phase if status is not None else "not heard of"
        phases[phase] = phases.get(phase, 0) + 1
    told = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))
    if not workflow.started_ms:
        return [f"{name} is being prepared: {told or 'nothing left to prepare'}"]
    at_s, length_s = elapsed_s(workflow, facts.group_ms), profile_of(job, name).duration_s
    lost = f", {workflow.lost} lost" if workflow.lost else ""
    changed = _adjusted(workflow)
    changed = f"; changed by hand: {changed}" if changed else ""
    return [f"{name} is at {at_s:.0f} of {length_s:g} s: {told or 'no attempt'}{lost}{changed}"]


def _queue_lines(facts: Facts, job: JobRecord) -> list[str]:
    phase = next_phase(job)
    if not phase:
        return []
    names = ", ".join(workflow.name for workflow in phase)
    if not usable(facts):
        return [f"{names}: {NO_WORKERS}"]
    queue = waiting_jobs(facts)
    place = next((i for i, each in enumerate(queue) if each.job == job.job), None)
    if place is None:
        return []
    mine = queue[place]
    text = f"{names} waits for cores: needs {mine.least}, {mine.free} are free"
    if place:
        text += f"; {place} before it in the queue, the first is {queue[0].job}"
    return [text]


def _heard_s(worker: WorkerRecord, facts: Facts | None) -> float:
    if facts is None:
        return 0.0
    presence = facts.present.get(worker.node)
    since = presence.heard if presence is not None else facts.began
    return max(facts.now - since, 0.0)
