"""Applies commands about placements and attempts.

A new attempt at a share needs the end, the loss or the return of the one before, in the log
(R5). Workflows run layer by layer; a start names the current attempts (R7). Each function
checks first and changes afterwards: a command that takes cores takes all or none.
"""

from __future__ import annotations

from collections.abc import Iterable

from squall.cluster.datacenter.commands import (
    Accepted,
    Assignment,
    CommandOutcome,
    ConcludeWorkflows,
    Conclusion,
    EndAttempts,
    LoseAttempts,
    PlaceWorkflows,
    RefillShares,
    Rejected,
    ReturnWorkflows,
    StartWorkflows,
    StopWorkflow,
)
from squall.cluster.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.cluster.datacenter.tables import Tables, loss_text, replace
from squall.cluster.datacenter.worker_rules import better, end_with
from squall.cluster.datacenter.workflow_states import RETRY_PATH, WorkflowState
from squall.cluster.protocol.job_keys import JobId, ShareKey
from squall.reporting.number_format import plural

_CONCLUDED = {
    "completed": WorkflowState.COMPLETED,
    "failed": WorkflowState.FAILED,
    "skipped": WorkflowState.CANCELLED,
    "interrupted": WorkflowState.CANCELLED,
    "timeout": WorkflowState.CANCELLED,
}


def place_workflows(tables: Tables, command: PlaceWorkflows) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None or job.over:
        return Rejected(text=f"job {command.job} is over or unknown")
    if not command.placements:
        return Rejected(text="nothing to place")
    taken: dict[tuple[str, int], int] = {}
    for placement in command.placements:
        workflow = job.workflow(placement.workflow)
        refused = _may_place(job, workflow, placement.workflow)
        if refused:
            return Rejected(text=refused)
        if [each.share for each in placement.assignments] != list(range(placement.shares)):
            return Rejected(text=f"{placement.workflow}: the shares are not 0 to n - 1")
        refused = _cores_refused(tables, job.job, placement.workflow, placement.assignments)
        if refused:
            return Rejected(text=refused)
        for each in placement.assignments:
            taken[(each.node, each.slot)] = each.process
    for placement in command.placements:
        workflow = tables.jobs[job.job].workflow(placement.workflow)
        if workflow is None:
            continue
        workflow = replace(
            workflow,
            shares=placement.shares,
            profile=placement.profile,
            cores=tuple(each.process for each in placement.assignments),
            placed_ms=tables.group_ms,
            first_placed_ms=workflow.first_placed_ms or tables.group_ms,
            attempts=workflow.attempts + placement.shares,
            values_blob=placement.values_blob,
            values_size=placement.values_size,
        )
        nodes = len({each.node for each in placement.assignments})
        reason = f"{plural(placement.shares, 'share')} on {plural(nodes, 'worker')}"
        tables.move(job.job, workflow, WorkflowState.DISPATCHED, reason)
        tables.event(job.job, f"{workflow.name} placed: {reason}")
        _add(tables, job.job, workflow.name, placement.assignments, refill=False)
    job = tables.jobs[job.job]
    deadline_ms = job.deadline_ms
    if not job.limited and command.run_ms > 0:
        deadline_ms = tables.group_ms + command.run_ms
    tables.put_job(replace(job, touched=tables.op, deadline_ms=deadline_ms))
    return Accepted(job=job.job, value=len(taken))


def return_workflows(tables: Tables, command: ReturnWorkflows) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None or job.over:
        return Rejected(text=f"job {command.job} is over or unknown")
    changed = False
    for name in command.workflows:
        workflow = job.workflow(name)
        if workflow is None or not workflow.placed or workflow.returning:
            continue
        tables.put_workflow(job.job, replace(workflow, returning=True))
        tables.event(job.job, f"{name} goes back into the queue: {command.reason}")
        changed = True
    for key in command.returned:
        attempt = tables.attempt(key)
        if key.job != job.job or attempt is None or attempt.state != "live":
            continue
        given = replace(attempt, state="returned", ended_ms=tables.group_ms, reason=command.reason)
        tables.put_attempt(key, given)
        changed = True
    tables.put_job(replace(tables.jobs[job.job], touched=tables.op))
    _queue_again(tables, job.job)
    return Accepted(job=job.job, changed=changed)


def start_workflows(tables: Tables, command: StartWorkflows) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None or job.over:
        return Rejected(text=f"job {command.job} is over or unknown")
    for started in command.started:
        workflow = job.workflow(started.workflow)
        if workflow is None or not workflow.placed or workflow.returning or workflow.stop:
            return Rejected(text=f"{started.workflow} is not placed")
        if len(started.attempts) != workflow.shares:
            return Rejected(text=f"{started.workflow} has {workflow.shares} shares")
        for share, number in enumerate(started.attempts):
            last = tables.last(ShareKey(job.job, workflow.name, share))
            if last is None or last.number != number or last.state != "live":
                return Rejected(text=f"{workflow.name}: attempt {number} is not current")
    ahead_ms = max(command.ahead_ms, 0)
    for started in command.started:
        workflow = tables.jobs[job.job].workflow(started.workflow)
        if workflow is None:
            continue
        workflow = replace(workflow, started_ms=tables.group_ms + ahead_ms)
        tables.move(job.job, workflow, WorkflowState.RUNNING, "all shares are ready")
        tables.event(job.job, f"{workflow.name} started")
    job = tables.jobs[job.job]
    first = job.started_ms or tables.group_ms + ahead_ms
    tables.put_job(replace(job, started_ms=first, touched=tables.op))
    return Accepted(job=job.job)


def end_attempts(tables: Tables, command: EndAttempts) -> CommandOutcome:
    changed = False
    jobs: dict[JobId, None] = {}
    for facts in command.ended:
        attempt = tables.attempt(facts.key)
        if attempt is None:
            continue
        if attempt.state == "live":
            end_with(tables, facts.key, facts)
            changed = True
        elif attempt.state == "lost" and not _complete(attempt):
            tables.put_attempt(facts.key, replace(attempt, facts=facts))
            changed = True
            tables.event(
                facts.key.job,
                f"{facts.key.workflow} share {facts.key.share}: the record of the lost "
                f"attempt {facts.key.attempt} arrived",
            )
        jobs[facts.key.job] = None
    for job in jobs:
        _queue_again(tables, job)
    return Accepted(changed=changed)


def lose_attempts(tables: Tables, command: LoseAttempts) -> CommandOutcome:
    changed = False
    jobs: dict[JobId, None] = {}
    for lost in command.lost:
        attempt = tables.attempt(lost.key)
        if attempt is None or attempt.state != "live":
            continue
        tables.put_attempt(
            lost.key,
            replace(
                attempt,
                state="lost",
                ended_ms=tables.group_ms,
                reason=lost.reason,
                facts=better(attempt.facts, lost.facts),
                silent_to_s=lost.silent_to_s,
            ),
        )
        job = tables.jobs[lost.key.job]
        workflow = job.workflow(lost.key.workflow)
        if workflow is not None:
            tables.put_workflow(job.job, replace(workflow, lost=workflow.lost + 1))
        tables.event(job.job, loss_text(lost.key, attempt.node, lost.reason))
        jobs[job.job] = None
        changed = True
    for name in jobs:
        _queue_again(tables, name)
    return Accepted(changed=changed)


def refill_shares(tables: Tables, command: RefillShares) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    workflow = job.workflow(command.workflow) if job is not None else None
    if job is None or workflow is None or not workflow.running:
        return Rejected(text=f"{command.workflow} of {command.job} does not run")
    if job.stop or workflow.stop:
        return Rejected(text=f"{command.workflow} is being stopped")
    if any(not 0 <= each.share < workflow.shares for each in command.assignments):
        return Rejected(text=f"{workflow.name} has {workflow.shares} shares")
    refused = _cores_refused(tables, job.job, workflow.name, command.assignments)
    if refused:
        return Rejected(text=refused)
    _add(tables, job.job, workflow.name, command.assignments, refill=True)
    count = len(command.assignments)
    tables.put_workflow(job.job, replace(workflow, attempts=workflow.attempts + count))
    for each in command.assignments:
        tables.event(
            job.job,
            f"{workflow.name} share {each.share} continues on {each.node}, attempt {each.attempt}",
        )
    tables.put_job(replace(tables.jobs[job.job], touched=tables.op))
    return Accepted(job=job.job)


def stop_workflow(tables: Tables, command: StopWorkflow) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    workflow = job.workflow(command.workflow) if job is not None else None
    if job is None or workflow is None or job.over:
        return Rejected(text=f"{command.workflow} of {command.job} is over or unknown")
    if workflow.over or (workflow.stop and (workflow.stop_now or not command.now)):
        return Accepted(job=job.job, changed=False)
    first = not workflow.stop
    stopped = replace(
        workflow,
        stop=workflow.stop or command.kind,
        stop_ms=workflow.stop_ms or tables.group_ms,
        stop_now=command.now,
        returning=False,
        error=workflow.error or command.error,
        exit_code=workflow.exit_code or command.exit_code,
    )
    tables.put_workflow(job.job, stopped)
    tables.put_job(replace(tables.jobs[job.job], touched=tables.op))
    if first:
        tables.event(job.job, f"{workflow.name}: {command.error}")
    return Accepted(job=job.job)


def conclude_workflows(tables: Tables, command: ConcludeWorkflows) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None or job.over:
        return Rejected(text=f"job {command.job} is over or unknown")
    for conclusion in command.conclusions:
        workflow = job.workflow(conclusion.workflow)
        if workflow is None:
            return Rejected(text=f"job {job.job} has no workflow {conclusion.workflow}")
        if tables.live_of(job.job, workflow.name):
            return Rejected(text=f"{workflow.name} has an attempt that may run")
        if workflow.started_ms == 0 and conclusion.outcome == "completed":
            return Rejected(text=f"{workflow.name} never started")
    changed = False
    for conclusion in command.conclusions:
        workflow = tables.jobs[job.job].workflow(conclusion.workflow)
        if workflow is not None and not workflow.over:
            _conclude(tables, job.job, workflow, conclusion)
            changed = True
    return Accepted(job=job.job, changed=changed)


def _conclude(tables: Tables, job: JobId, workflow: WorkflowRecord, conclusion: Conclusion) -> None:
    error = conclusion.error or workflow.error
    target = _CONCLUDED[conclusion.outcome]
    if target is WorkflowState.CANCELLED and workflow.state is WorkflowState.RUNNING:
        workflow = tables.move(job, workflow, WorkflowState.CANCELLING, error)
    if target is not workflow.state:
        workflow = tables.move(job, workflow, target, error or conclusion.outcome)
    tables.put_workflow(
        job,
        replace(
            workflow,
            outcome=conclusion.outcome,
            error=error,
            exit_code=conclusion.exit_code or workflow.exit_code,
            returning=False,
            ended_ms=tables.group_ms,
            elapsed_s=conclusion.elapsed_s,
            context=conclusion.context,
            context_blob=conclusion.context_blob,
            context_size=conclusion.context_size,
        ),
    )
    tables.event(job, f"{workflow.name} {conclusion.outcome}" + (f": {error}" if error else ""))


def _may_place(job: JobRecord, workflow: WorkflowRecord | None, name: str) -> str:
    """Returns why the workflow may not be placed; "" if it may."""
    if workflow is None:
        return f"job {job.job} has no workflow {name}"
    if workflow.state is not WorkflowState.PENDING:
        return f"{name} is {workflow.state.value}"
    if any(other.layer < workflow.layer and not other.over for other in job.workflows):
        return f"{name} waits for an earlier layer"
    manifest = next((w for w in job.submission.manifest.workflows if w.name == name), None)
    if job.stop and not (manifest is not None and manifest.always):
        return f"job {job.job} is being stopped"
    return ""


def _cores_refused(
    tables: Tables, job: JobId, workflow: str, assignments: Iterable[Assignment]
) -> str:
    seen: dict[int, None] = {}
    for each in assignments:
        worker = tables.workers.get(each.node)
        if worker is None or worker.boot != each.boot or worker.gone:
            return f"worker {each.node} is not the boot {each.boot}"
        if not 0 <= each.slot < worker.cores:
            return f"worker {each.node} has no core {each.slot}"
        use = tables.slots.get((each.node, each.slot))
        if use is not None and use.job != job:
            return f"core {each.slot} of {each.node} belongs to {use.job}"
        if each.share in seen:
            return f"share {each.share} is placed twice"
        seen[each.share] = None
        attempts = tables.attempts.get(ShareKey(job, workflow, each.share), ())
        if each.attempt != tables.next_attempt(ShareKey(job, workflow, each.share)):
            return f"{workflow} share {each.share}: attempt {each.attempt} is not next"
        if attempts and attempts[-1].state == "live":
            return f"{workflow} share {each.share} has a live attempt"
    return ""


def _add(
    tables: Tables,
    job: JobId,
    workflow: str,
    assignments: Iterable[Assignment],
    *,
    refill: bool,
) -> None:
    for each in assignments:
        tables.add_attempt(
            ShareKey(job, workflow, each.share),
            AttemptFacts(
                number=each.attempt,
                node=each.node,
                boot=each.boot,
                slot=each.slot,
                process=each.process,
                created_ms=tables.group_ms,
                lease_ms=tables.lease_ms,
                iterations_done=each.iterations_done,
                refill=refill,
            ),
        )


def _queue_again(tables: Tables, name: JobId) -> None:
    """Makes a returning workflow pending again once none of its attempts may run."""
    job = tables.jobs.get(name)
    if job is None:
        return
    for workflow in job.workflows:
        if not workflow.returning or workflow.over or tables.live_of(name, workflow.name):
            continue
        back = replace(workflow, returning=False, shares=0, cores=())
        lost = any(
            facts.state == "lost" and facts.created_ms >= workflow.placed_ms
            for key, facts in tables.attempts_of(name)
            if key.workflow == workflow.name
        )
        path = RETRY_PATH if lost else (WorkflowState.PENDING,)
        for state in path:
            back = tables.move(name, back, state, "queued again")


def _complete(attempt: AttemptFacts) -> bool:
    return attempt.facts is not None and attempt.facts.complete
