"""Applies commands about jobs that gates handed over (R15).

Accept creates a handover that is not known and repeats its answer for one that is; refusals are
stored too. Start acts only on an accepted handover and never creates one. Cancel of an unknown
handover leaves a tombstone, which a later Accept meets. Forget leaves the highest number for a
day. Every command of a gate carries its fence: the highest is kept for each job, and lower ones,
as those of gates that were replaced by a recovery, are refused.

Each function checks first and changes afterwards: a rejected command changes nothing.
"""

from __future__ import annotations

from squall.cluster.datacenter.commands import (
    Accepted,
    AcceptJob,
    AdjustHeld,
    CancelHeld,
    CommandOutcome,
    DisownHeld,
    ForgetGated,
    KnowGates,
    MarkDelivered,
    PurgeGated,
    ReadyHeld,
    Rejected,
    StartHeld,
)
from squall.cluster.datacenter.gated_records import GatedRecord, GatedTry, KnownGates
from squall.cluster.datacenter.job_rules import add_job, new_job_fault, stop_job
from squall.cluster.datacenter.records import ADJUSTMENTS_MAX, AdjustEvent, Adjustment, JobRecord
from squall.cluster.datacenter.tables import Tables, replace
from squall.cluster.protocol.gates.handover_keys import (
    GateFence,
    HandoverNumber,
    fence_fault,
    part_job_id,
)
from squall.cluster.protocol.job_commands import StopJob
from squall.cluster.protocol.job_keys import JobId, ShareKey
from squall.cluster.protocol.submission_limits import adjustment_fault

CLOSED_KEEP_MS = 24 * 3_600_000
"""How long (job, highest number, closed) is kept: no message is under way for a day."""


def accept_job(tables: Tables, command: AcceptJob) -> CommandOutcome:
    if not tables.group:
        return Rejected(text="the group is not configured yet; try again")
    fault = _fence_fault(tables, command.gate_job, command.fence)
    if fault:
        return Rejected(text=fault)
    record = _fenced(tables, command.gate_job, command.handover, command.fence)
    known = record.find(command.handover)
    if record.closed or known is not None:
        # A repeated order: the manager answers with what was decided the first time.
        return Accepted(job=known.job if known else JobId(""), changed=False)
    if command.handover < record.highest:
        # A later handover is known, so the gates have cancelled this one.
        _put(tables, record, _tombstone(command.handover, "a later handover is known"))
        return Accepted()
    for each in record.tries:
        # The gates recorded Cancel for these before they assigned a higher number.
        record = _cancel(tables, record, each, StopJob(
            job=each.job, kind="cancelled", reason="handed over again", now=True
        ))  # fmt: skip
    refusal = command.refusal or new_job_fault(command.create)
    if refusal:
        refused = GatedTry(
            handover=command.handover,
            state="refused",
            reason=refusal,
            exit_code=command.exit_code,
            # A fault of the submission itself is one everywhere.
            is_final=command.is_final or not command.refusal,
        )
        _put(tables, record, refused)
        return Accepted()
    job = part_job_id(command.gate_job, command.datacenter, command.handover)
    add_job(tables, command.create, job, gate_job=command.gate_job, handover=command.handover)
    _put(tables, record, GatedTry(handover=command.handover, job=job, state="accepted"))
    return Accepted(job=job)


def start_held(tables: Tables, command: StartHeld) -> CommandOutcome:
    fault = _fence_fault(tables, command.gate_job, command.fence)
    if fault:
        return Rejected(text=fault)
    record = tables.gated.get(command.gate_job)
    tried = record.find(command.handover) if record is not None else None
    job = tables.jobs.get(tried.job) if tried is not None else None
    if record is None or tried is None or job is None:
        # A start never creates a job (R15): it may be late, after a cancellation or a recovery.
        return Accepted(changed=False)
    record = _fenced(tables, command.gate_job, command.handover, command.fence)
    if tried.state not in ("accepted", "ready") or job.stop or job.over:
        # A repeat, or the job is being stopped: a stop wins over a start.
        return Accepted(job=job.job, changed=False)
    # The limit counts from here: if no gate ever comes back, the datacenter ends its part itself.
    deadline_ms = tables.group_ms + command.timeout_ms if command.timeout_ms > 0 else 0
    tables.put_job(
        replace(
            job,
            held=False,
            released_ms=tables.group_ms,
            deadline_ms=deadline_ms or job.deadline_ms,
            limited=job.limited or bool(deadline_ms),
            touched=tables.op,
        )
    )
    _put(tables, record, replace(tried, state="started", revision=tried.revision + 1))
    tables.event(job.job, "the gates start it")
    return Accepted(job=job.job)


def ready_held(tables: Tables, command: ReadyHeld) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    tried = try_of(tables, job)
    if job is None or tried is None or not job.held or job.over or job.stop:
        return Rejected(text=f"job {command.job} does not wait for the gates")
    for loaded in command.loaded:
        workflow = job.workflow(loaded.workflow)
        if workflow is None or not workflow.placed or workflow.returning:
            return Rejected(text=f"{loaded.workflow} is not placed")
        for share, number in enumerate(loaded.attempts):
            last = tables.last(ShareKey(job.job, workflow.name, share))
            # A worker may have been lost after it loaded the code: its share must load again.
            if last is None or last.number != number or last.state != "live":
                return Rejected(text=f"{workflow.name}: attempt {number} is not current")
    if tried.state != "accepted":
        return Accepted(job=job.job, changed=False)
    _put_try(tables, job, replace(tried, state="ready", revision=tried.revision + 1))
    tables.event(job.job, "ready: waits for the other datacenters")
    return Accepted(job=job.job)


def cancel_held(tables: Tables, command: CancelHeld) -> CommandOutcome:
    fault = _fence_fault(tables, command.gate_job, command.fence)
    if fault:
        return Rejected(text=fault)
    record = _fenced(tables, command.gate_job, command.handover, command.fence)
    if record.closed:
        return Accepted(changed=False)
    tried = record.find(command.handover)
    if tried is None:
        _put(tables, record, _tombstone(command.handover, command.reason))
        return Accepted()
    stop = StopJob(
        job=tried.job,
        kind=command.kind,
        reason=command.reason,
        now=command.now,
        exit_code=command.exit_code,
    )
    before = tables.jobs.get(tried.job)
    _cancel(tables, record, tried, stop)
    return Accepted(job=tried.job, changed=tables.jobs.get(tried.job) != before)


def adjust_held(tables: Tables, command: AdjustHeld) -> CommandOutcome:
    fault = _fence_fault(tables, command.gate_job, command.fence)
    if fault:
        return Rejected(text=fault)
    record = tables.gated.get(command.gate_job)
    tried = record.find(command.handover) if record is not None else None
    job = tables.jobs.get(tried.job) if tried is not None else None
    if record is None or tried is None or job is None or job.over or job.stop:
        return Accepted(changed=False)
    for each in command.workflows:
        fault = adjustment_fault(each.rate_per_s, each.vus)
        if fault or job.workflow(each.workflow) is None:
            return Rejected(text=fault or f"job {job.job} has no workflow {each.workflow}")
    record = _fenced(tables, command.gate_job, command.handover, command.fence)
    changed = False
    if command.extension_ms > job.extension_ms:
        tables.put_job(replace(job, extension_ms=command.extension_ms))
        changed = True
    if command.adjust_seq > tried.adjust_seq:
        _adjust(tables, job.job, command)
        _put(tables, record, replace(tried, adjust_seq=command.adjust_seq))
        changed = True
    return Accepted(job=job.job, changed=changed)


def _adjust(tables: Tables, name: JobId, command: AdjustHeld) -> None:
    job = tables.jobs[name]
    sequence = job.adjust_seq + 1
    events: list[AdjustEvent] = []
    for each in command.workflows:
        workflow = job.workflow(each.workflow)
        wanted = Adjustment(
            adjust_seq=sequence, paused=each.paused, rate_per_s=each.rate_per_s, vus=each.vus
        )
        if workflow is None or replace(workflow.adjustment, adjust_seq=sequence) == wanted:
            continue
        tables.put_workflow(name, replace(workflow, adjustment=wanted))
        events.append(
            AdjustEvent(
                at_ms=tables.group_ms,
                workflow=each.workflow,
                paused=each.paused,
                rate_per_s=each.rate_per_s,
                vus=each.vus,
                by=command.by,
                adjust_seq=sequence,
            )
        )
        tables.event(name, f"{each.workflow}: adjusted by the gates")
    if events:
        job = tables.jobs[name]
        adjustments = (*job.adjustments, *events)[-ADJUSTMENTS_MAX:]
        tables.put_job(
            replace(job, adjust_seq=sequence, adjustments=adjustments, touched=tables.op)
        )


def mark_delivered(tables: Tables, command: MarkDelivered) -> CommandOutcome:
    record = tables.gated.get(command.gate_job)
    tried = record.find(command.handover) if record is not None else None
    if record is None or tried is None or tried.delivered >= command.revision:
        return Accepted(changed=False)
    if not _is_led_by(tables, record, command.group):
        # An answer of gates that a recovery replaced: the new ones may not have the report.
        return Rejected(text=f"the gates {command.group} were replaced")
    tried = replace(tried, delivered=min(command.revision, tried.revision))
    _put(tables, record, tried)
    if tried.over and tried.is_delivered:
        _start_retention(tables, tried)
    return Accepted(job=tried.job)


def disown_held(tables: Tables, command: DisownHeld) -> CommandOutcome:
    record = tables.gated.get(command.gate_job)
    tried = record.find(command.handover) if record is not None else None
    if record is None or tried is None or tried.disowned:
        return Accepted(changed=False)
    if not _is_led_by(tables, record, command.group):
        return Rejected(text=f"the gates {command.group} were replaced")
    _disown(tables, command.gate_job, tried, command.reason)
    return Accepted(job=tried.job)


def _disown(tables: Tables, job: JobId, tried: GatedTry, reason: str) -> None:
    tried = replace(tried, disowned=True)
    _put(tables, tables.gated[job], tried)
    if tried.over:
        _close_disowned(tables, job)
    else:
        stop_job(tables, StopJob(job=tried.job, kind="cancelled", reason=reason, now=True))


def forget_gated(tables: Tables, command: ForgetGated) -> CommandOutcome:
    """Closes the job once nothing of it runs; until then it is answered as open, and repeated."""
    fault = _fence_fault(tables, command.gate_job, command.fence)
    if fault:
        return Rejected(text=fault)
    record = _fenced(tables, command.gate_job, command.handover, command.fence)
    if record.closed:
        return Accepted(changed=False)
    changed = False
    for tried in record.tries:
        if tried.handover > command.handover and not tried.disowned:
            # The gates name the highest number that they know. They were recovered from a copy
            # of their log in which this one did not exist yet, so nobody waits for it.
            _disown(tables, record.job, tried, "the gates do not know this part")
            changed = True
    record = tables.gated[record.job]
    if record.closed or any(not each.over for each in record.tries):
        return Accepted(changed=changed)
    _close(tables, record)
    return Accepted()


def know_gates(tables: Tables, command: KnowGates) -> CommandOutcome:
    for known in tables.gates.values():
        if command.group in known.former:
            return Rejected(text=f"the gates {command.group} were replaced by {known.group}")
    before = tables.gates.get(command.group)
    after = KnownGates(
        group=command.group,
        former=tuple(command.former),
        addresses=tuple(sorted(command.addresses)),
        known_ms=before.known_ms if before is not None else tables.group_ms,
    )
    if before == after:
        return Accepted(changed=False)
    for group in command.former:
        tables.gates.pop(group, None)
    tables.gates[command.group] = after
    for record in list(tables.gated.values()):
        if record.fence.group in command.former and not record.closed:
            # Gates that were recovered from an older copy may lack what the former ones have
            # committed: everything is reported once more, and what they do not know is ended.
            tries = tuple(replace(each, delivered=0) for each in record.tries)
            tables.gated[record.job] = replace(record, tries=tries)
    return Accepted()


def purge_gated(tables: Tables, command: PurgeGated) -> CommandOutcome:
    changed = False
    for name in command.jobs:
        record = tables.gated.get(name)
        if record is not None and record.closed and record.expires_ms <= tables.group_ms:
            del tables.gated[name]
            changed = True
    return Accepted(changed=changed)


def settle_gated(tables: Tables, name: JobId) -> None:
    """Derives the state of a handover from its local job, after a command that changed the job."""
    job = tables.jobs.get(name)
    tried = try_of(tables, job)
    if job is None or tried is None or tried.over:
        return
    if job.over:
        _put_try(tables, job, _ended(job, tried))
        if tried.disowned:
            _close_disowned(tables, JobId(job.gate_job))
    elif tried.state == "ready" and not _holds_cores(tables, job):
        # A worker was lost or drained: the part prepares again, and says so to the gates.
        _put_try(tables, job, replace(tried, state="accepted", revision=tried.revision + 1))


def gates_of(tables: Tables, record: GatedRecord) -> KnownGates | None:
    """The gates that lead a job: those of its fence, or the recovery that replaced them."""
    group = record.fence.group
    found = tables.gates.get(group)
    if found is not None:
        return found
    return next((each for each in tables.gates.values() if group in each.former), None)


def _is_led_by(tables: Tables, record: GatedRecord, group: str) -> bool:
    gates = gates_of(tables, record)
    return gates is not None and gates.group == group


def try_of(tables: Tables, job: JobRecord | None) -> GatedTry | None:
    record = tables.gated.get(JobId(job.gate_job)) if job is not None and job.gate_job else None
    return record.find(job.handover) if record is not None and job is not None else None


def _ended(job: JobRecord, tried: GatedTry) -> GatedTry:
    after = replace(tried, revision=tried.revision + 1, reason=job.reason, exit_code=job.exit_code)
    # A held job never started, so no load of it counts, whatever ended it.
    if not job.held:
        return replace(
            after, state="ended", outcome=job.state, result=job.result, result_size=job.result_size
        )
    if tried.cancelled:
        return replace(after, state="cancelled")
    # What one datacenter cannot load for the author's fault, no other can.
    return replace(after, state="refused", is_final=job.stop == "failed")


def _holds_cores(tables: Tables, job: JobRecord) -> bool:
    placed = [each for each in job.workflows if each.placed]
    return bool(placed) and all(
        not each.returning and len(tables.live_of(job.job, each.name)) == each.shares
        for each in placed
    )


def _fence_fault(tables: Tables, job: JobId, fence: GateFence) -> str:
    for known in tables.gates.values():
        if fence.group in known.former:
            return f"the gates {fence.group} were replaced by {known.group}"
    record = tables.gated.get(job)
    return fence_fault(job, record.fence if record is not None else None, fence)


def _fenced(tables: Tables, job: JobId, handover: HandoverNumber, fence: GateFence) -> GatedRecord:
    """The record of a job after a command with this fence, which was checked; made if absent."""
    record = tables.gated.get(job)
    if record is None:
        record = GatedRecord(job=job, fence=fence, highest=handover)
    if record.fence != fence:
        record = replace(record, fence=fence)
    tables.gated[job] = record
    return record


def _tombstone(handover: HandoverNumber, reason: str) -> GatedTry:
    return GatedTry(handover=handover, state="cancelled", cancelled=True, reason=reason)


def _cancel(tables: Tables, record: GatedRecord, tried: GatedTry, stop: StopJob) -> GatedRecord:
    if tried.over:
        return record
    record = _put(tables, record, replace(tried, cancelled=True))
    if tried.job:
        stop_job(tables, stop)
    return record


def _put(tables: Tables, record: GatedRecord, tried: GatedTry) -> GatedRecord:
    others = [each for each in record.tries if each.handover != tried.handover]
    tries = tuple(sorted((*others, tried), key=lambda each: each.handover))
    highest = max(record.highest, tried.handover)
    after = replace(record, tries=tries, highest=highest)
    tables.gated[record.job] = after
    return after


def _put_try(tables: Tables, job: JobRecord, tried: GatedTry) -> None:
    _put(tables, tables.gated[JobId(job.gate_job)], tried)


def _start_retention(tables: Tables, tried: GatedTry) -> None:
    """The gates hold the result: the local job is kept as long as any other from now on (R9)."""
    job = tables.jobs.get(tried.job)
    if job is not None and job.undelivered:
        tables.put_job(replace(job, undelivered=False, purge_ms=tables.group_ms + job.keep_ms))


def _close(tables: Tables, record: GatedRecord) -> None:
    for tried in record.tries:
        _start_retention(tables, tried)
    tables.gated[record.job] = replace(
        record, tries=(), closed=True, expires_ms=tables.group_ms + CLOSED_KEEP_MS
    )


def _close_disowned(tables: Tables, job: JobId) -> None:
    """No gate will ever forget this job, so it closes by itself."""
    record = tables.gated[job]
    if all(each.over and each.is_delivered for each in record.tries):
        _close(tables, record)
