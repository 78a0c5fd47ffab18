"""Ends running workflows and jobs: refills lost shares, concludes workflows, finishes the job."""

from __future__ import annotations

import math

from squall.cluster.datacenter.commands import (
    Assignment,
    ConcludeWorkflows,
    Conclusion,
    RefillShares,
    ReturnWorkflows,
    StopWorkflow,
)
from squall.cluster.datacenter.records import JobRecord, WorkflowRecord
from squall.cluster.group.primary.job_end import FINISHED, finish_command
from squall.cluster.manager.director.core_pool import usable_pool
from squall.cluster.manager.director.layers import (
    elapsed_of,
    ending,
    final_reason,
    final_status,
    records_of,
    skipped,
)
from squall.cluster.manager.director.loss_decisions import BATCH_MAX
from squall.cluster.manager.primary.effects import AssembleResult, CollectContext
from squall.cluster.manager.primary.lease_rules import ShareNeed, share_need
from squall.cluster.manager.primary.placement import (
    WorkerCore,
    process_numbers,
    profile_of,
    refill_core,
)
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.sessions.answers import specs
from squall.cluster.protocol.job_keys import AttemptKey, ShareKey
from squall.engine.plan.received_values import exports_of

REFUSED_AVOID_S = 5.0
"""How long a worker that refused a refill is not tried again for that job."""
CONCLUSIONS_MAX_BYTES = 128 * 1024
"""Half of what a command may have."""


def check_workflows(state: VolatileState, job: JobRecord) -> float:
    """Concludes workflows that are over and refills lost shares; returns the moment of the next
    check."""
    check_at = math.inf
    conclusions: list[Conclusion] = [
        Conclusion(workflow=name, outcome="skipped", error=reason) for name, reason in skipped(job)
    ]
    for workflow in job.workflows:
        if workflow.over:
            continue
        if workflow.started_ms:
            over, at = _check_running(state, job, workflow)
            check_at = min(check_at, at)
        else:
            stopped = workflow.stop or (job.stop and workflow.state.value == "cancelling")
            over = bool(stopped) and not state.tables.live_of(job.job, workflow.name)
        if over:
            conclusion = _conclusion(state, job, workflow)
            if conclusion is not None:
                conclusions.append(conclusion)
    if conclusions:
        command = ConcludeWorkflows(job=job.job, conclusions=_batch(conclusions))
        state.submit(f"conclude {job.job}", command)
        check_at = min(check_at, state.now + 1.0)
    return check_at


def _batch(conclusions: list[Conclusion]) -> tuple[Conclusion, ...]:
    """As many as fit into one command with their contexts; the rest follows in the next."""
    size = 0
    for count, each in enumerate(conclusions):
        size += len(each.context) + len(each.error) + 200
        if size > CONCLUSIONS_MAX_BYTES and count:
            return tuple(conclusions[:count])
    return tuple(conclusions)


def check_end(state: VolatileState, job: JobRecord) -> float:
    """Once every workflow is over: assembles the result, then commits the one terminal state."""
    if not all(workflow.over for workflow in job.workflows) or state.tables.live_of(job.job):
        return math.inf
    status = final_status(job)
    result = state.job(job.job).result
    if result is None:
        state.ask(AssembleResult(f"result {job.job}", job.job, status, job.reason))
        return state.now + 1.0
    timers = state.timers
    keep_s = timers.retention_s if status in FINISHED else timers.retention_failed_s
    command = finish_command(job, status, final_reason(job), result, keep_s)
    state.submit(f"finish {job.job}", command)
    return state.now + 1.0


def _check_running(
    state: VolatileState, job: JobRecord, workflow: WorkflowRecord
) -> tuple[bool, float]:
    """Returns whether the workflow is over, and the moment of the next check."""
    check_at = math.inf
    refills: list[tuple[int, ShareNeed]] = []
    over = True
    for share, need in _needs(state, job, workflow):
        over = over and need.kind == "settled"
        match need.kind:
            case "wait":
                check_at = min(check_at, state.at(need.until_ms))
            case "refill":
                refills.append((share, need))
            case "exhausted":
                tries = len(state.tables.attempts[ShareKey(job.job, workflow.name, share)])
                text = f"share {share} was lost in all {tries} attempts: {need.reason}"
                halt = StopWorkflow(job=job.job, workflow=workflow.name, error=text)
                state.submit(f"halt {job.job} {workflow.name}", halt)
            case _:
                pass
    refused = _refused_refills(state, job, workflow)
    if refused:
        command = ReturnWorkflows(job=job.job, returned=tuple(refused), reason="refused")
        state.submit(f"return {job.job}", command)
    if refills:
        _refill(state, job, workflow, refills)
        check_at = min(check_at, state.now + 1.0)
    return over and not state.tables.live_of(job.job, workflow.name), check_at


def _needs(
    state: VolatileState, job: JobRecord, workflow: WorkflowRecord
) -> list[tuple[int, ShareNeed]]:
    profile = profile_of(job, workflow.name)
    iterations = [spec.iterations for spec in specs(state, job, workflow)]
    needs: list[tuple[int, ShareNeed]] = []
    for share in range(workflow.shares):
        attempts = state.tables.attempts.get(ShareKey(job.job, workflow.name, share), ())
        if attempts:
            planned = iterations[share] if share < len(iterations) else 0
            worker = state.tables.workers.get(attempts[-1].node)
            need = share_need(
                job,
                workflow,
                profile,
                attempts,
                planned,
                state.group_ms,
                state.timers,
                may_return=worker is not None and worker.boot == attempts[-1].boot,
            )
            needs.append((share, need))
    return needs


def _refill(
    state: VolatileState,
    job: JobRecord,
    workflow: WorkflowRecord,
    refills: list[tuple[int, ShareNeed]],
) -> None:
    if not state.may_place(job.job):
        return
    pool = usable_pool(state, job)
    taken: list[WorkerCore] = []
    number = max(process_numbers(state.tables, job.job).values(), default=-1) + 1
    assignments: list[Assignment] = []
    for share, need in refills[:BATCH_MAX]:
        key = ShareKey(job.job, workflow.name, share)
        core = refill_core(state.tables, job, pool, key, taken)
        if core is None:
            break
        taken.append(core)
        attempt = state.tables.next_attempt(key)
        process = number + len(assignments)
        assignments.append(
            Assignment(
                share, attempt, core.node, core.boot, core.slot, process, need.iterations_done
            )
        )
    if assignments:
        command = RefillShares(job=job.job, workflow=workflow.name, assignments=tuple(assignments))
        # The same tag as a placement: one command at a time gives out cores.
        state.submit("place", command)


def _refused_refills(
    state: VolatileState, job: JobRecord, workflow: WorkflowRecord
) -> list[AttemptKey]:
    refused: list[AttemptKey] = []
    timers = state.timers
    for key, attempt in state.tables.live_of(job.job, workflow.name):
        if not attempt.refill:
            continue
        status = state.status(key, attempt.node, attempt.boot)
        late_ms = attempt.created_ms + round(timers.prepare_timeout_s * 1000)
        known = state.attempt(key)
        unheard = status is None and known.granted is None and state.group_ms >= late_ms
        if unheard and attempt.created_ms > state.began_ms:
            known.withheld = True
            avoid_s = timers.prepare_timeout_s
        elif status is not None and status.phase == "refused":
            avoid_s = REFUSED_AVOID_S if status.retryable else timers.dispatch_timeout_s
        else:
            continue
        state.job(job.job).avoided[attempt.node, attempt.boot] = state.now + avoid_s
        refused.append(key)
    return refused


def _conclusion(
    state: VolatileState, job: JobRecord, workflow: WorkflowRecord
) -> Conclusion | None:
    """Returns None while the context of the workflow is still being collected."""
    end = ending(state.tables, job, workflow)
    manifest = job.submission.manifest
    gives = bool(exports_of(manifest, workflow.name) or manifest.workflow(workflow.name).provides)
    digests = records_of(state.tables, job, workflow) if gives else ()
    context = state.job(job.job).workflow(workflow.name).context
    if digests and context is None:
        tag = f"context {job.job} {workflow.name}"
        state.ask(CollectContext(tag, job.job, workflow.name, digests))
        return None
    return Conclusion(
        workflow=workflow.name,
        outcome=end.outcome,
        error=end.error,
        elapsed_s=elapsed_of(state.tables, job, workflow),
        context=context.inline if context is not None else b"",
        context_blob=context.blob if context is not None else "",
        context_size=context.size if context is not None else 0,
    )
