"""Applies commands about whole jobs and about the group: creation, stop, end, purge.

A job has one terminal state, which `FinishJob` sets once. Each function checks first and changes
afterwards.
"""

from __future__ import annotations

import math

from squall.cluster.assignments.commands import (
    AdjustParts,
    ConfigureGates,
    CreateGateJob,
    KnowDatacenters,
    PartLoad,
)
from squall.cluster.assignments.part_rules import assign, cancel_parts, choices_fault
from squall.cluster.assignments.records import (
    WAITING,
    DatacenterRecord,
    GateJobRecord,
    PartRecord,
)
from squall.cluster.assignments.tables import AssignmentTables, replace
from squall.cluster.protocol.command_outcomes import Accepted, CommandOutcome, Rejected
from squall.cluster.protocol.job_commands import (
    ExtendJob,
    FailJob,
    FinishJob,
    LeadJobs,
    Purge,
    StopJob,
)
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.job_records import (
    TERMINAL,
    Adjustment,
    KeyEntry,
)
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

PARTS_MAX = 100
"""Parts of one job: as many datacenters as one group of gates is meant for."""
UNFORGOTTEN_MS = 24 * 3_600_000
"""How long after its retention a job is kept for a datacenter that has not acknowledged its end."""


def configure(tables: AssignmentTables, command: ConfigureGates) -> CommandOutcome:
    if not command.group:
        return Rejected(text="the group has no name")
    if tables.group:
        return Accepted(changed=False)
    tables.group = command.group
    return Accepted()


def know_datacenters(tables: AssignmentTables, command: KnowDatacenters) -> CommandOutcome:
    changed = False
    if not all(name for name, _ in command.datacenters):
        return Rejected(text="a datacenter has no name")
    for name, managers in command.datacenters:
        record = DatacenterRecord(name=name, managers=tuple(managers))
        if tables.datacenters.get(name) == record:
            continue
        if managers or (name in tables.datacenters and _is_used(tables, name)):
            # One that leaves stays without managers while a part is there: it gets no other.
            tables.datacenters[name] = record
            changed = True
        elif name in tables.datacenters:
            del tables.datacenters[name]
            changed = True
    return Accepted(changed=changed)


def _is_used(tables: AssignmentTables, datacenter: str) -> bool:
    return any(
        tried.datacenter == datacenter and not tried.forgotten
        for name in tables.open
        for part in tables.jobs[name].parts
        for tried in part.tries
    )


def create_job(tables: AssignmentTables, command: CreateGateJob) -> CommandOutcome:
    if not tables.group:
        return Rejected(text="the group is not configured yet; try again")
    known = known_key(tables.keys, command)
    if known is not None:
        return known
    fault = _creation_fault(command) or submission_fault(command.submission)
    if fault:
        return Rejected(text=fault)
    job = JobId(f"{tables.group}-{tables.op}")
    tables.wall_s = max(tables.wall_s, command.created_at)
    record = GateJobRecord(
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
        queued_ms=tables.group_ms,
        deadline_ms=tables.group_ms + command.timeout_ms if command.timeout_ms > 0 else 0,
        limited=command.timeout_ms > 0,
        parts=tuple(
            PartRecord(index=index, weight=weight) for index, weight in enumerate(command.weights)
        ),
    )
    tables.put_job(record)
    tables.keys[(command.principal, command.key)] = KeyEntry(command.fingerprint, job)
    tables.event(job, f"created by {command.principal}")
    # The choice is the primary's advice of a moment ago: a job whose tickets were taken meanwhile
    # is created all the same, and waits.
    if not choices_fault(tables, record, command.choices):
        assign(tables, record, command.choices)
    return Accepted(job=job)


def _creation_fault(command: CreateGateJob) -> str:
    """Checks what the gate adds to a submission."""
    if not 1 <= len(command.weights) <= PARTS_MAX:
        return f"the job has {len(command.weights)} parts; it must have 1 to {PARTS_MAX}"
    if not all(0.0 < each <= 1.0 for each in command.weights):
        return "the weight of a part is not between 0 and 1"
    if not math.isclose(math.fsum(command.weights), 1.0, abs_tol=1e-6):
        return "the weights of the parts do not sum to 1"
    return stamp_fault(command)


def stop_job(tables: AssignmentTables, command: StopJob) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None:
        return Rejected(text=f"no job {command.job}")
    if job.over or (job.stop and (job.stop_now or not command.now)):
        return Accepted(job=job.job, changed=False)
    if job.stop:
        tables.put_job(replace(job, stop_now=True, touched=tables.op))
        tables.event(job.job, f"everything that runs is cancelled now: {command.reason}")
    else:
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
    cancel_parts(tables, job.job, command.kind, command.reason, now=command.now)
    return Accepted(job=job.job)


def adjust_parts(tables: AssignmentTables, command: AdjustParts) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None:
        return Rejected(text=f"no job {command.job}")
    made = job.adjusted_by(command.request_id)
    if made:
        return Accepted(job=job.job, changed=False, value=made)
    fault = _adjustment_fault(job, command)
    if fault:
        return Rejected(text=fault)
    sequence = job.adjust_seq + 1
    for part in job.parts:
        load = command.parts[part.index] if command.parts else PartLoad()
        wanted = dict(part.adjustments)
        for name in command.workflows:
            before = wanted.get(name, Adjustment())
            wanted[name] = adjusted(
                before,
                sequence,
                paused=command.paused,
                rate_per_s=load.rate_per_s,
                vus=load.vus,
            )
        tables.put_part(job.job, replace(part, adjustments=tuple(sorted(wanted.items()))))
    adjustments = with_adjustments(
        job.adjustments, command, at_ms=tables.group_ms, sequence=sequence
    )
    job = tables.jobs[job.job]
    tables.put_job(replace(job, adjust_seq=sequence, adjustments=adjustments, touched=tables.op))
    tables.event(job.job, f"{', '.join(command.workflows)}: {change_text(command)}")
    return Accepted(job=job.job, value=sequence)


def _adjustment_fault(job: GateJobRecord, command: AdjustParts) -> str:
    if job.over or job.stop:
        return f"job {job.job} is {'over' if job.over else 'being stopped'}"
    names = {each.name for each in job.submission.manifest.workflows}
    missing = [name for name in command.workflows if name not in names]
    if missing or not command.workflows:
        return f"job {job.job} has no workflow {', '.join(missing)}"
    if command.parts and len(command.parts) != len(job.parts):
        return f"job {job.job} has {len(job.parts)} parts"
    changes = command.rate_per_s is not None or command.vus is not None
    if changes and not command.parts:
        return "the load was not apportioned to the parts"
    for load in (PartLoad(command.rate_per_s, command.vus), *command.parts):
        fault = adjustment_fault(load.rate_per_s, load.vus, command.request_id)
        if fault:
            return fault
    return ""


def extend_job(tables: AssignmentTables, command: ExtendJob) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None or job.over:
        return Rejected(text=f"job {command.job} is over or unknown")
    granted = extension_ms(command, job.extension_ms)
    if granted < 1:
        return Accepted(job=job.job, changed=False, value=job.extension_ms)
    total_ms = job.extension_ms + granted
    tables.put_job(replace(job, extension_ms=total_ms, touched=tables.op))
    tables.event(job.job, extension_text(command, granted))
    return Accepted(job=job.job, value=total_ms)


def lead_jobs(tables: AssignmentTables, command: LeadJobs) -> CommandOutcome:
    changed = False
    for name, leader in command.leaders:
        job = tables.jobs.get(name)
        if job is not None and job.leader != leader:
            tables.put_job(replace(job, leader=leader))
            changed = True
    return Accepted(changed=changed)


def part_over(job: GateJobRecord, part: PartRecord) -> bool:
    """Whether the gates expect nothing more from a part. A part that never started makes no load,
    so the end of its job does not wait for the datacenter's report; its cancellation goes on."""
    tried = part.current
    if tried is None or tried.state in (*WAITING, "cancelled"):
        return bool(job.stop)
    if tried.state == "refused":
        return tried.is_final or bool(job.stop)
    return tried.state in ("ended", "lost")


def finish_job(tables: AssignmentTables, command: FinishJob) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None:
        return Rejected(text=f"no job {command.job}")
    if job.over:
        return Accepted(job=job.job, changed=False)
    if command.status not in TERMINAL:
        return Rejected(text=f"{command.status} is no end")
    if any(not part_over(job, part) for part in job.parts):
        return Rejected(text=f"job {job.job} has a part that is not over")
    tables.event(job.job, end_text(command))
    _end(tables, job, command)
    return Accepted(job=job.job)


def _end(tables: AssignmentTables, job: GateJobRecord, command: FinishJob) -> None:
    """Ends a job. Its tries stay until their datacenters have settled and forgotten them."""
    cancel_parts(tables, job.job, "cancelled", "the job is over", now=True)
    job = tables.jobs[job.job]
    tables.put_job(
        replace(
            job,
            state=command.status,
            reason=command.reason or job.reason,
            exit_code=command.exit_code,
            ended_ms=tables.group_ms,
            purge_ms=tables.group_ms + command.keep_ms,
            result=command.result,
            result_size=command.result_size,
            history=command.history,
            history_size=command.history_size,
            sealed=b"",
            touched=tables.op,
        )
    )
    if command.history:
        tables.events.pop(job.job, None)


def purge(tables: AssignmentTables, command: Purge) -> CommandOutcome:
    changed = False
    for name in command.jobs:
        job = tables.jobs.get(name)
        if job is None or not may_purge(tables, job, early=command.early):
            continue
        tables.drop_job(name)
        expires_ms = tables.group_ms + command.key_keep_ms
        keep_key(tables.keys, (job.principal, job.key), name, expires_ms)
        changed = True
    changed = purge_keys(tables.keys, command, tables.group_ms) or changed
    return Accepted(changed=changed)


def may_purge(tables: AssignmentTables, job: GateJobRecord, *, early: bool = False) -> bool:
    """A job is removed after its retention, but not before all datacenters have forgotten it: its
    cancellations are driven from its record. A datacenter that never comes back delays this by a
    day at most; should it come back later, its reports are answered with "not known", which ends
    its part."""
    if not job.over:
        return False
    if tables.group_ms >= job.purge_ms + UNFORGOTTEN_MS:
        return True
    return job.job not in tables.open and (early or tables.group_ms >= job.purge_ms)


def fail_job(tables: AssignmentTables, command: FailJob) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None:
        return Rejected(text=f"no job {command.job}")
    if job.over:
        return Accepted(job=job.job, changed=False)
    broken(tables, job.job, command.error)
    return Accepted(job=job.job)


def broken(tables: AssignmentTables, name: JobId, text: str) -> None:
    """Fails a job whose invariant does not hold, the same way on every member (R3), and cancels
    its parts in their datacenters."""
    tables.alarms = (*tables.alarms, f"{name}: {text}")[-16:]
    job = tables.jobs.get(name)
    if job is None or job.over:
        return
    tables.event(name, f"internal error: {text}")
    _end(tables, replace(job, stop=job.stop or "failed"), end_of_broken(name, text))


def settle_state(tables: AssignmentTables, name: JobId) -> None:
    """Derives the job's state from its parts, until `FinishJob` sets it for good."""
    job = tables.jobs.get(name)
    if job is not None and not job.over:
        state = state_of(job)
        if state != job.state:
            tables.put_job(replace(job, state=state))


def state_of(job: GateJobRecord) -> JobState:
    if all(part_over(job, part) for part in job.parts):
        return "completing"
    if job.stop:
        return "stopping"
    if job.started_ms:
        return "running"
    return "preparing" if job.reserves else "queued"


def recover_copied_jobs(tables: AssignmentTables) -> None:
    """Stops the jobs of a copied log that were not started in it. The log that was copied may have
    gone on: it may have started them, or given their parts to other datacenters, of which nothing
    is known here. No try is ever added to a copied job, so no part of it can run twice."""
    text = "the gates were recovered from a copy in which the job was not started; submit it again"
    for name in sorted(tables.active):
        job = tables.jobs[name]
        if not job.started_ms and not job.stop:
            stop_job(tables, StopJob(job=name, kind="failed", reason=text, now=True))
            settle_state(tables, name)
