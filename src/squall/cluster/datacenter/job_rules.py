"""Applies commands about whole jobs: creation, stop, end, purge.

A job has one terminal state, which `FinishJob` sets once. Each function checks first and
changes afterwards.
"""

from __future__ import annotations

import msgspec

from squall.cluster.datacenter.commands import (
    Accepted,
    AdjustLoad,
    CommandOutcome,
    CreateJob,
    ExtendJob,
    FailJob,
    FinishJob,
    LeadJobs,
    Purge,
    Rejected,
    StopJob,
)
from squall.cluster.datacenter.records import (
    TERMINAL,
    JobRecord,
    KeyEntry,
    Transition,
    WorkflowRecord,
)
from squall.cluster.datacenter.tables import Tables, replace
from squall.cluster.datacenter.workflow_states import WorkflowState
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.job_rules import (
    adjusted,
    change_text,
    end_of_broken,
    end_text,
    extension_ms,
    extension_text,
    keep_key,
    known_key,
    purge_keys,
    stamp_fault,
    with_adjustments,
)
from squall.cluster.protocol.messages import JobState
from squall.cluster.protocol.submission_limits import (
    adjustment_fault,
    submission_fault,
)

NEVER_MS = 2**62


def create_job(tables: Tables, command: CreateJob) -> CommandOutcome:
    if not tables.group:
        return Rejected(text="the group is not configured yet; try again")
    known = known_key(tables.keys, command)
    if known is not None:
        return known
    if tables.gates and not command.direct:
        # The client is sent to the gates, which create a job for its key. A command that was under
        # way while the gates became known must not create a second one.
        return Rejected(text="this datacenter takes its jobs from gates")
    fault = new_job_fault(command)
    if fault:
        return Rejected(text=fault)
    job = JobId(f"{tables.group}-{tables.op}")
    add_job(tables, command, job)
    tables.keys[(command.principal, command.key)] = KeyEntry(command.fingerprint, job)
    return Accepted(job=job)


def new_job_fault(command: CreateJob) -> str:
    """Returns why no job can be created from the command, or ""."""
    fault = stamp_fault(command) or submission_fault(command.submission)
    if fault:
        return fault
    names = [name for layer in command.layers for name in layer]
    manifest = command.submission.manifest
    if not names or sorted(names) != sorted(each.name for each in manifest.workflows):
        return "the layers do not hold every workflow once"
    if len(set(names)) != len(names):
        return "two workflows have the same name"
    layer_of = _layers(command)
    for workflow in manifest.workflows:
        for needed in workflow.depends:
            if layer_of.get(needed, len(names)) >= layer_of[workflow.name]:
                return f"{workflow.name} does not come after {needed}"
    return ""


def add_job(
    tables: Tables,
    command: CreateJob,
    job: JobId,
    gate_job: str = "",
    handover: int = 0,
) -> None:
    """Adds a job that was checked; one of the gates is held until they start it."""
    tables.wall_s = max(tables.wall_s, command.created_at)
    first = Transition(tables.group_ms, WorkflowState.PENDING, "created")
    layer_of = _layers(command)
    tables.put_job(
        JobRecord(
            job=job,
            op=tables.op,
            principal=command.principal,
            key=command.key,
            fingerprint=command.fingerprint,
            submission=command.submission,
            sealed=command.sealed,
            leader=command.leader,
            created_ms=tables.group_ms,
            created_at=tables.wall_s,
            deadline_ms=tables.group_ms + command.timeout_ms if command.timeout_ms > 0 else 0,
            limited=command.timeout_ms > 0,
            workflows=tuple(
                WorkflowRecord(name=each.name, layer=layer_of[each.name], history=(first,))
                for each in command.submission.manifest.workflows
            ),
            gate_job=gate_job,
            handover=HandoverNumber(handover),
            held=bool(gate_job),
            undelivered=bool(gate_job),
        )
    )
    tables.event(job, f"created by {command.principal}")


def _layers(command: CreateJob) -> dict[str, int]:
    return {name: i for i, layer in enumerate(command.layers) for name in layer}


def stop_job(tables: Tables, command: StopJob) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None:
        return Rejected(text=f"no job {command.job}")
    if job.over or (job.stop and (job.stop_now or not command.now)):
        return Accepted(job=job.job, changed=False)
    if job.stop:
        tables.put_job(replace(job, stop_now=True, touched=tables.op))
        tables.event(job.job, f"everything that runs is cancelled now: {command.reason}")
        _cancel_workflows(tables, job, command)
        return Accepted(job=job.job)
    tables.put_job(
        replace(
            job,
            stop=command.kind,
            stop_ms=tables.group_ms,
            stop_now=command.now,
            reason=command.reason,
            exit_code=command.exit_code,
            touched=tables.op,
        )
    )
    tables.event(job.job, command.reason)
    _cancel_workflows(tables, job, command)
    return Accepted(job=job.job)


def _cancel_workflows(tables: Tables, job: JobRecord, command: StopJob) -> None:
    """Cancels every placed workflow, except `when="always"` ones unless the stop is `now`."""
    always = {each.name for each in job.submission.manifest.workflows if each.always}
    for workflow in job.workflows:
        if workflow.over or (workflow.name in always and not command.now):
            continue
        if workflow.state in (WorkflowState.DISPATCHED, WorkflowState.RUNNING):
            stopped = replace(workflow, returning=False)
            tables.move(job.job, stopped, WorkflowState.CANCELLING, command.reason)


def adjust_load(tables: Tables, command: AdjustLoad) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None:
        return Rejected(text=f"no job {command.job}")
    made = job.adjusted_by(command.request_id)
    if made:
        # The client did not hear of its first try, or this try was late on its way: applied again,
        # it would undo what others have changed since.
        return Accepted(job=job.job, changed=False, value=made)
    if job.over or job.stop:
        return Rejected(text=f"job {job.job} is {'over' if job.over else 'being stopped'}")
    fault = adjustment_fault(command.rate_per_s, command.vus, command.request_id)
    if fault:
        return Rejected(text=fault)
    named = [job.workflow(name) for name in command.workflows]
    if not named or None in named:
        missing = [name for name in command.workflows if job.workflow(name) is None]
        return Rejected(text=f"job {job.job} has no workflow {', '.join(missing)}")
    sequence = job.adjust_seq + 1
    adjustments = with_adjustments(
        job.adjustments, command, at_ms=tables.group_ms, sequence=sequence
    )
    tables.put_job(replace(job, adjust_seq=sequence, adjustments=adjustments, touched=tables.op))
    for workflow in named:
        if workflow is None:
            continue
        adjustment = adjusted(
            workflow.adjustment,
            sequence,
            paused=command.paused,
            rate_per_s=command.rate_per_s,
            vus=command.vus,
        )
        tables.put_workflow(job.job, replace(workflow, adjustment=adjustment))
        tables.event(job.job, f"{workflow.name}: {change_text(command)}")
    return Accepted(job=job.job, value=sequence)


def extend_job(tables: Tables, command: ExtendJob) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None or job.over:
        return Rejected(text=f"job {command.job} is over or unknown")
    granted = extension_ms(command, job.extension_ms)
    if granted < 1:
        return Accepted(job=job.job, changed=False, value=job.extension_ms)
    total_ms = job.extension_ms + granted
    tables.put_job(replace(job, extension_ms=total_ms))
    tables.event(job.job, extension_text(command, granted))
    return Accepted(job=job.job, value=total_ms)


def lead_jobs(tables: Tables, command: LeadJobs) -> CommandOutcome:
    changed = False
    for name, leader in command.leaders:
        job = tables.jobs.get(name)
        if job is not None and job.leader != leader:
            tables.put_job(replace(job, leader=leader))
            changed = True
    return Accepted(changed=changed)


def finish_job(tables: Tables, command: FinishJob) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None:
        return Rejected(text=f"no job {command.job}")
    if job.over:
        return Accepted(job=job.job, changed=False)
    if command.status not in TERMINAL:
        return Rejected(text=f"{command.status} is no end")
    if any(not workflow.over for workflow in job.workflows):
        return Rejected(text=f"job {job.job} has a workflow that is not over")
    if tables.live_of(job.job):
        return Rejected(text=f"job {job.job} has an attempt that may run")
    tables.event(job.job, end_text(command))
    end(tables, job, command)
    return Accepted(job=job.job)


def end(tables: Tables, job: JobRecord, command: FinishJob) -> None:
    """Ends a job, and drops everything but its result and the data that views show."""
    tables.drop_job(job.job)
    tables.put_job(
        replace(
            job,
            state=command.status,
            reason=command.reason or job.reason,
            exit_code=command.exit_code,
            ended_ms=tables.group_ms,
            # The retention of a gated job starts when the gates have its result (R9).
            purge_ms=NEVER_MS if job.undelivered else tables.group_ms + command.keep_ms,
            keep_ms=command.keep_ms if job.undelivered else 0,
            result=command.result,
            result_size=command.result_size,
            history=command.history,
            history_size=command.history_size,
            sealed=b"",
            touched=tables.op,
            workflows=tuple(
                replace(each, context=b"", context_blob="", values_blob="", history=())
                for each in job.workflows
            ),
        )
    )
    if command.history:
        tables.events.pop(job.job, None)


def purge(tables: Tables, command: Purge) -> CommandOutcome:
    changed = False
    for name in command.jobs:
        job = tables.jobs.get(name)
        if job is None or not job.over or job.undelivered:
            continue
        if tables.group_ms < job.purge_ms and not command.early:
            continue
        del tables.jobs[name]
        tables.events.pop(name, None)
        expires_ms = tables.group_ms + command.key_keep_ms
        keep_key(tables.keys, (job.principal, job.key), name, expires_ms)
        changed = True
    changed = purge_keys(tables.keys, command, tables.group_ms) or changed
    return Accepted(changed=changed)


def settle_state(tables: Tables, name: JobId) -> None:
    """Derives the job's state from its workflows, until `FinishJob` sets it for good."""
    job = tables.jobs.get(name)
    if job is not None and not job.over:
        state = state_of(job)
        if state != job.state:
            tables.put_job(replace(job, state=state))


def state_of(job: JobRecord) -> JobState:
    if all(workflow.over for workflow in job.workflows):
        return "completing"
    if job.stop:
        return "stopping"
    if job.started_ms:
        return "running"
    if any(workflow.placed for workflow in job.workflows):
        return "preparing"
    return "queued"


def fail_job(tables: Tables, command: FailJob) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None:
        return Rejected(text=f"no job {command.job}")
    if job.over:
        return Accepted(job=job.job, changed=False)
    broken(tables, job.job, command.error)
    return Accepted(job=job.job)


def broken(tables: Tables, name: JobId, text: str) -> None:
    """A job invariant does not hold: fails that job, the same on every member (R3)."""
    tables.alarms = (*tables.alarms, f"{name}: {text}")[-16:]
    job = tables.jobs.get(name)
    if job is None or job.over:
        return
    workflows = tuple(
        msgspec.structs.replace(
            each, outcome="failed", state=WorkflowState.FAILED, error="internal error"
        )
        if not each.over
        else each
        for each in job.workflows
    )
    tables.event(name, f"internal error: {text}")
    end(tables, replace(job, workflows=workflows), end_of_broken(name, text))
