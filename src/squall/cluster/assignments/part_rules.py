"""Applies commands about the parts of jobs: assignment, reports, start, loss (R15).

The invariants:
- The number of a try rises for its part and for its job in a datacenter. It rises only if the try
  before was refused or cancelled, or was never started; the same command records its cancellation.
- All parts of a job start by one command, which is committed before any gate sends a start.
- After its start a part does not move. It ends by the datacenter's report or by `LosePart`; what
  comes after the loss is kept as information.
- A job of several parts holds a ticket for all its datacenters or for none, and a datacenter has
  at most one: so no two jobs wait for each other (no hold and wait).

Each function checks first and changes afterwards: a rejected command changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from squall.cluster.assignments.commands import (
    AssignParts,
    ForgetTries,
    LosePart,
    PartChoice,
    PartFacts,
    QueueAgain,
    ReportParts,
    StartParts,
)
from squall.cluster.assignments.records import WAITING, GateJobRecord, PartRecord, PartTry
from squall.cluster.assignments.tables import AssignmentTables, replace
from squall.cluster.protocol.command_outcomes import Accepted, CommandOutcome, Rejected
from squall.cluster.protocol.gates.gate_messages import OVER
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.job_records import StopKind


def assign_parts(tables: AssignmentTables, command: AssignParts) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None or job.over:
        return Rejected(text=f"job {command.job} is over or unknown")
    if _is_assigned(job, command.choices):
        return Accepted(job=job.job, changed=False)
    fault = choices_fault(tables, job, command.choices)
    if fault:
        return Rejected(text=fault)
    assign(tables, job, command.choices)
    return Accepted(job=job.job)


def choices_fault(
    tables: AssignmentTables, job: GateJobRecord, choices: Sequence[PartChoice]
) -> str:
    """Returns why the parts of a job may not be given to these datacenters, or ""."""
    chosen = {choice.part: choice for choice in choices}
    if not chosen or len(chosen) != len(choices):
        return "no part is assigned, or one is assigned twice"
    if job.started_ms or job.stop:
        return f"job {job.job} is {'being stopped' if job.stop else 'started'}"
    if tables.is_copied(job.job):
        return f"job {job.job} was created by gates that are gone"
    for index, choice in chosen.items():
        if not 0 <= index < len(job.parts):
            return f"job {job.job} has no part {index}"
        record = tables.datacenters.get(choice.datacenter)
        if record is None or not record.managers:
            return f"there is no datacenter {choice.datacenter}"
        fault = raise_fault(job.parts[index])
        if fault:
            return fault
        if choice.handover != tables.next_handover(job, index, choice.datacenter):
            return f"part {index} of {job.job}: {choice.handover} is not the next try"
    where: list[str] = []
    for part in job.parts:
        if part.index in chosen:
            where.append(chosen[part.index].datacenter)
        elif part.current is not None and part.current.waits:
            where.append(part.current.datacenter)
        else:
            return f"part {part.index} of {job.job} has no datacenter: all parts or none"
    if len(set(where)) != len(where):
        return f"two parts of {job.job} would be in one datacenter"
    if len(job.parts) > 1:
        taken = [each for each in where if tables.tickets.get(each, job.job) != job.job]
        if taken:
            return f"another job reserves in {', '.join(sorted(taken))}"
    return ""


def raise_fault(part: PartRecord) -> str:
    """Returns why the part may not be tried again, or "" (R15: "e rises only after ...")."""
    last = part.current
    if last is None or last.state in WAITING:
        return ""
    if last.state == "refused" and last.is_final:
        return f"part {part.index} was refused for good"
    if last.state in ("refused", "cancelled"):
        return ""
    return f"part {part.index} was started in {last.datacenter}"


def assign(
    tables: AssignmentTables, job: GateJobRecord, choices: Iterable[PartChoice]
) -> GateJobRecord:
    """Adds the next try of each part, and cancels the one before."""
    for choice in sorted(choices, key=lambda each: each.part):
        _cancel_try(tables, job.job, choice.part, "cancelled", f"moved to {choice.datacenter}")
        part = tables.jobs[job.job].parts[choice.part]
        tried = PartTry(
            datacenter=choice.datacenter,
            handover=choice.handover,
            assigned_ms=tables.group_ms,
            why=choice.why,
        )
        tables.put_part(job.job, replace(part, tries=(*part.tries, tried)))
        # The lines after the first are the candidates, for `squall why`.
        short = choice.why.partition("\n")[0]
        why = f": {short}" if short else ""
        tables.event(job.job, f"part {choice.part} is given to {choice.datacenter}{why}")
    return tables.jobs[job.job]


def _is_assigned(job: GateJobRecord, choices: Iterable[PartChoice]) -> bool:
    """Whether the command is a repeat: each part has had exactly this try."""
    return all(
        0 <= each.part < len(job.parts)
        and any(
            tried.handover == each.handover and tried.datacenter == each.datacenter
            for tried in job.parts[each.part].tries
        )
        for each in choices
    )


def report_parts(tables: AssignmentTables, command: ReportParts) -> CommandOutcome:
    changed = False
    for facts in command.reports:
        changed = _report(tables, facts) or changed
    return Accepted(changed=changed)


def _report(tables: AssignmentTables, facts: PartFacts) -> bool:
    job = tables.jobs.get(facts.job)
    found = job.find(facts.datacenter, facts.handover) if job is not None else None
    if job is None or found is None:
        return False
    part, tried = found
    # Datacenters repeat reports and may reorder them: only a newer revision changes anything.
    if tried.settled or facts.revision <= tried.revision:
        return False
    after = replace(tried, revision=facts.revision)
    if facts.state in OVER:
        after = _over(tables, job, part, after, facts)
    # A late "ready" must not take a started or lost try back to waiting.
    elif facts.state in ("accepted", "ready") and tried.state in WAITING:
        ready_ms = tables.group_ms if facts.state == "ready" else 0
        after = replace(after, state=facts.state, ready_ms=ready_ms)
    tables.put_try(job.job, part.index, after)
    return True


def _over(
    tables: AssignmentTables,
    job: GateJobRecord,
    part: PartRecord,
    tried: PartTry,
    facts: PartFacts,
) -> PartTry:
    """The try after a report of its end. Only the current try of a part can have a result that
    counts, and only if the gates have not given it up."""
    settled = replace(tried, settled=True, ended_ms=tables.group_ms)
    where = f"part {part.index} in {tried.datacenter}"
    is_current = part.current is not None and part.current.handover == tried.handover
    if tried.state == "lost" or (facts.state == "ended" and not is_current):
        tables.event(job.job, f"{where} is over after all; its result is not counted")
        return replace(settled, late_result=facts.result, late_size=facts.result_size)
    # A try that this log did not start may have been started by the log of which this is a copy.
    if tried.state == "started" or facts.state == "ended":
        tables.event(job.job, f"{where} is over: {facts.outcome or facts.state}")
        return replace(
            settled,
            state="ended",
            outcome=facts.outcome or "failed",
            reason=facts.reason,
            exit_code=facts.exit_code,
            result=facts.result,
            result_size=facts.result_size,
        )
    if facts.state == "refused" and not tried.cancel:
        tables.event(job.job, f"{tried.datacenter} refused part {part.index}: {facts.reason}")
    return replace(
        settled,
        state="cancelled" if tried.cancel else "refused",
        reason=facts.reason,
        exit_code=facts.exit_code,
        is_final=facts.is_final,
    )


def start_parts(tables: AssignmentTables, command: StartParts) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None or job.over or job.stop:
        return Rejected(text=f"job {command.job} is over, being stopped or unknown")
    current = tuple(part.current.handover if part.current else 0 for part in job.parts)
    # The steward decided on an earlier state: a part may have moved to a new try since.
    if current != tuple(command.handovers):
        return Rejected(text=f"job {job.job}: these are not the current tries")
    if job.started_ms:
        return Accepted(job=job.job, changed=False)
    if tables.is_copied(job.job):
        return Rejected(text=f"job {job.job} was created by gates that are gone")
    for part in job.parts:
        if part.current is None or part.current.state != "ready" or part.current.cancel:
            return Rejected(text=f"part {part.index} of {job.job} is not ready")
    for part in job.parts:
        if part.current is not None:
            tables.put_try(job.job, part.index, replace(part.current, state="started"))
    job = tables.jobs[job.job]
    deadline_ms = job.deadline_ms
    if not deadline_ms and command.run_ms > 0:
        deadline_ms = tables.group_ms + command.run_ms
    tables.put_job(replace(job, started_ms=max(tables.group_ms, 1), deadline_ms=deadline_ms))
    tables.event(job.job, "all parts are ready: started")
    return Accepted(job=job.job)


def queue_again(tables: AssignmentTables, command: QueueAgain) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None or job.over or job.stop or job.started_ms:
        return Rejected(text=f"job {command.job} does not wait for its start")
    if not job.reserves:
        return Accepted(job=job.job, changed=False)
    for part in job.parts:
        _cancel_try(tables, job.job, part.index, "cancelled", command.reason)
    job = tables.jobs[job.job]
    tables.put_job(replace(job, queued_ms=tables.group_ms, holds=job.holds + 1))
    tables.event(job.job, f"waits in the queue again: {command.reason}")
    return Accepted(job=job.job)


def lose_part(tables: AssignmentTables, command: LosePart) -> CommandOutcome:
    job = tables.jobs.get(command.job)
    if job is None or job.over or not 0 <= command.part < len(job.parts):
        return Rejected(text=f"job {command.job} is over or unknown")
    tried = job.parts[command.part].current
    if tried is None or tried.handover != command.handover:
        return Rejected(text=f"part {command.part}: {command.handover} is not the current try")
    if tried.state == "lost":
        return Accepted(job=job.job, changed=False)
    if tried.state != "started":
        return Rejected(text=f"part {command.part} is {tried.state}: only a started part is lost")
    # Cancel is recorded with the loss: a datacenter that comes back ends its part at once, because
    # the part counts by the gates' record from now on.
    lost = replace(
        tried,
        state="lost",
        reason=command.reason,
        cancel=tried.cancel or "cancelled",
        cancel_reason=tried.cancel_reason or command.reason,
        cancel_now=True,
        result=command.result,
        result_size=command.result_size,
        ended_ms=tables.group_ms,
    )
    tables.put_try(job.job, command.part, lost)
    tables.event(job.job, f"part {command.part} in {tried.datacenter} is lost: {command.reason}")
    return Accepted(job=job.job)


def forget_tries(tables: AssignmentTables, command: ForgetTries) -> CommandOutcome:
    changed = False
    for name, datacenter in command.forgotten:
        job = tables.jobs.get(name)
        if job is None or not job.over:
            continue
        for part in job.parts:
            for tried in part.tries:
                if tried.datacenter == datacenter and tried.settled and not tried.forgotten:
                    tables.put_try(name, part.index, replace(tried, forgotten=True))
                    changed = True
    return Accepted(changed=changed)


def cancel_parts(
    tables: AssignmentTables, job: JobId, kind: StopKind, reason: str, *, now: bool = False
) -> None:
    """Records Cancel for the current try of every part."""
    for index in range(len(tables.jobs[job].parts)):
        _cancel_try(tables, job, index, kind, reason, now=now)


def _cancel_try(
    tables: AssignmentTables, job: JobId, index: int, kind: StopKind, reason: str, now: bool = False
) -> None:
    """Records Cancel for the current try of a part; the first reason stays."""
    tried = tables.jobs[job].parts[index].current
    if tried is None or tried.settled or (tried.cancel and (tried.cancel_now or not now)):
        return
    tables.put_try(
        job,
        index,
        replace(
            tried,
            cancel=tried.cancel or kind,
            cancel_reason=tried.cancel_reason or reason,
            cancel_now=tried.cancel_now or now,
        ),
    )
