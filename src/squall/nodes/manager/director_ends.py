"""Drives running workflows to their end: refills, conclusions, the end of the job."""

from __future__ import annotations

import math

from squall.nodes.datacenter.commands import (
    Assignment,
    ConcludeWorkflows,
    Conclusion,
    FinishJob,
    RefillShares,
    ReturnWorkflows,
    StopWorkflow,
)
from squall.nodes.datacenter.contexts import exports_of
from squall.nodes.datacenter.records import JobRecord, WorkflowRecord
from squall.nodes.identity import AttemptKey, ShareKey
from squall.nodes.manager.director_effects import AssembleResult, CollectContext
from squall.nodes.manager.director_facts import Facts
from squall.nodes.manager.director_layers import (
    elapsed_of,
    ending,
    final_status,
    records_of,
    skipped,
)
from squall.nodes.manager.director_losses import BATCH_MAX
from squall.nodes.manager.director_pool import usable_pool
from squall.nodes.manager.losses import Need, share_need
from squall.nodes.manager.placement import (
    Core,
    next_attempt,
    process_numbers,
    profile_of,
    refill_core,
)
from squall.nodes.manager.session_answers import specs

REFUSED_AVOID_S = 5.0
CONCLUSIONS_MAX_BYTES = 128 * 1024
FINISHED: tuple[str, ...] = ("completed", "partial")


def check_workflows(facts: Facts, job: JobRecord) -> float:
    """Concludes what is over and refills what is lost; the moment to look again."""
    look_at = math.inf
    conclusions: list[Conclusion] = [
        Conclusion(workflow=name, outcome="skipped", error=reason) for name, reason in skipped(job)
    ]
    for workflow in job.workflows:
        if workflow.over:
            continue
        if workflow.started_ms:
            over, at = _check_running(facts, job, workflow)
            look_at = min(look_at, at)
        else:
            stopped = workflow.stop or (job.stop and workflow.state.value == "cancelling")
            over = bool(stopped) and not facts.tables.live_of(job.job, workflow.name)
        if over:
            conclusion = _conclusion(facts, job, workflow)
            if conclusion is not None:
                conclusions.append(conclusion)
    if conclusions:
        command = ConcludeWorkflows(job=job.job, conclusions=_batch(conclusions))
        facts.submit(f"conclude {job.job}", command)
        look_at = min(look_at, facts.now + 1.0)
    return look_at


def _batch(conclusions: list[Conclusion]) -> tuple[Conclusion, ...]:
    """As many as one command holds with their contexts; the rest follows."""
    size = 0
    for count, each in enumerate(conclusions):
        size += len(each.context) + len(each.error) + 200
        if size > CONCLUSIONS_MAX_BYTES and count:
            return tuple(conclusions[:count])
    return tuple(conclusions)


def check_end(facts: Facts, job: JobRecord) -> float:
    """Once every workflow is over: the result, then the one terminal state."""
    if not all(workflow.over for workflow in job.workflows) or facts.tables.live_of(job.job):
        return math.inf
    status = final_status(job)
    result = facts.results.get(job.job)
    if result is None:
        facts.ask(AssembleResult(f"result {job.job}", job.job, status, job.reason))
        return facts.now + 1.0
    timers = facts.timers
    keep_s = timers.retention_s if status in FINISHED else timers.retention_failed_s
    command = FinishJob(
        job=job.job,
        status=status,
        reason=result.reason or job.reason,
        exit_code=result.exit_code or job.exit_code,
        result=result.result,
        result_size=result.size,
        history=result.history,
        history_size=result.history_size,
        keep_ms=round(keep_s * 1000),
    )
    facts.submit(f"finish {job.job}", command)
    return facts.now + 1.0


def _check_running(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> tuple[bool, float]:
    """Whether it is over, and when to look again."""
    look_at = math.inf
    refills: list[tuple[int, Need]] = []
    over = True
    for share, need in _needs(facts, job, workflow):
        over = over and need.kind == "settled"
        match need.kind:
            case "wait":
                look_at = min(look_at, facts.at(need.until_ms))
            case "refill":
                refills.append((share, need))
            case "exhausted":
                tries = len(facts.tables.attempts[ShareKey(job.job, workflow.name, share)])
                text = f"share {share} was lost in all {tries} attempts: {need.reason}"
                halt = StopWorkflow(job=job.job, workflow=workflow.name, error=text)
                facts.submit(f"halt {job.job} {workflow.name}", halt)
            case _:
                pass
    refused = _refused_refills(facts, job, workflow)
    if refused:
        command = ReturnWorkflows(job=job.job, returned=tuple(refused), reason="refused")
        facts.submit(f"return {job.job}", command)
    if refills:
        _refill(facts, job, workflow, refills)
        look_at = min(look_at, facts.now + 1.0)
    return over and not facts.tables.live_of(job.job, workflow.name), look_at


def _needs(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> list[tuple[int, Need]]:
    profile = profile_of(job, workflow.name)
    iterations = [spec.iterations for spec in specs(facts, job, workflow)]
    needs: list[tuple[int, Need]] = []
    for share in range(workflow.shares):
        attempts = facts.tables.attempts.get(ShareKey(job.job, workflow.name, share), ())
        if attempts:
            planned = iterations[share] if share < len(iterations) else 0
            need = share_need(
                job, workflow, profile, attempts, planned, facts.group_ms, facts.timers
            )
            needs.append((share, need))
    return needs


def _refill(
    facts: Facts, job: JobRecord, workflow: WorkflowRecord, refills: list[tuple[int, Need]]
) -> None:
    pool = usable_pool(facts, job)
    taken: list[Core] = []
    number = max(process_numbers(facts.tables, job.job).values(), default=-1) + 1
    assignments: list[Assignment] = []
    for share, need in refills[:BATCH_MAX]:
        key = ShareKey(job.job, workflow.name, share)
        last = facts.tables.last(key)
        core = refill_core(facts.tables, job, pool, last.node if last else "", taken)
        if core is None:
            break
        taken.append(core)
        attempt = next_attempt(facts.tables, key)
        process = number + len(assignments)
        assignments.append(
            Assignment(
                share, attempt, core.node, core.boot, core.slot, process, need.iterations_done
            )
        )
    if assignments:
        command = RefillShares(job=job.job, workflow=workflow.name, assignments=tuple(assignments))
        # Cores are given out by one command at a time, whoever asks for them.
        facts.submit("place", command)


def _refused_refills(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> list[AttemptKey]:
    refused: list[AttemptKey] = []
    timers = facts.timers
    for key, attempt in facts.tables.live_of(job.job, workflow.name):
        if not attempt.refill:
            continue
        status = facts.status(key, attempt.node, attempt.boot)
        late_ms = attempt.created_ms + round(timers.prepare_timeout_s * 1000)
        unheard = status is None and key not in facts.granted and facts.group_ms >= late_ms
        if unheard and attempt.created_ms > facts.began_ms:
            facts.withheld[key] = None
            avoid_s = timers.prepare_timeout_s
        elif status is not None and status.phase == "refused":
            avoid_s = REFUSED_AVOID_S if status.retryable else timers.dispatch_timeout_s
        else:
            continue
        facts.avoid[(job.job, attempt.node, attempt.boot)] = facts.now + avoid_s
        refused.append(key)
    return refused


def _conclusion(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> Conclusion | None:
    """None while its context is still collected."""
    end = ending(facts.tables, job, workflow)
    manifest = job.submission.manifest
    gives = bool(exports_of(manifest, workflow.name) or manifest.workflow(workflow.name).provides)
    digests = records_of(facts.tables, job, workflow) if gives else ()
    context = facts.contexts.get((job.job, workflow.name))
    if digests and context is None:
        tag = f"context {job.job} {workflow.name}"
        facts.ask(CollectContext(tag, job.job, workflow.name, digests))
        return None
    return Conclusion(
        workflow=workflow.name,
        outcome=end.outcome,
        error=end.error,
        elapsed_s=elapsed_of(facts.tables, job, workflow),
        context=context.inline if context is not None else b"",
        context_blob=context.blob if context is not None else "",
        context_size=context.size if context is not None else 0,
    )
