"""The views of the gates' jobs that clients get, and why a job is in its state.

Pure functions of the committed state and, on the primary, of what the steward knows. They never
decide anything.
"""

from __future__ import annotations

import msgspec

from squall.cluster.assignments.records import GateJobRecord, PartRecord
from squall.cluster.assignments.tables import AssignmentTables
from squall.cluster.gate.steward.policy import Steward
from squall.cluster.group.job_deadlines import deadline_ms
from squall.cluster.protocol.messages import JobView, PartView, WorkflowView
from squall.engine.load_change import change_line

WORKFLOW_STATES = {"preparing": "preparing", "running": "running", "queued": "queued"}
"""The state of a workflow while the gates know only that of the job: its datacenters have more."""


def job_view(tables: AssignmentTables, job: GateJobRecord, group_ms: int) -> JobView:
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
        position=_position(tables, job),
        workflows=[
            WorkflowView(
                name=each.name,
                state=WORKFLOW_STATES.get(job.state, job.state),
                priority=each.priority,
            )
            for each in job.submission.manifest.workflows
        ],
        reason=job.reason,
        exit_code=job.exit_code if job.over else None,
        result=job.result,
        result_size=job.result_size,
        datacenters=[part_view(job, part) for part in job.parts],
    )


def _position(tables: AssignmentTables, job: GateJobRecord) -> int:
    """Its place among the jobs that wait for datacenters, from 1."""
    if job.state != "queued":
        return 0
    waiting = [tables.jobs[name] for name in tables.active]
    return 1 + sum(each.state == "queued" and each.op < job.op for each in waiting)


def part_view(job: GateJobRecord, part: PartRecord) -> PartView:
    tried = part.current
    if tried is None:
        targets = job.submission.targets
        named = targets.weights[part.index][0] if targets and targets.weights else ""
        return PartView(datacenter=named, part=part.weight)
    state = tried.outcome or tried.state if tried.state == "ended" else tried.state
    return PartView(
        datacenter=tried.datacenter,
        part=part.weight,
        tries=len(part.tries),
        state=state,
        reason=tried.reason or tried.cancel_reason,
        why=tried.why,
    )


def detailed_view(view: JobView, job: GateJobRecord) -> JobView:
    began_ms = job.started_ms or job.created_ms
    lines = [change_line(each.applied(began_ms)) for each in job.adjustments]
    return msgspec.structs.replace(view, adjustments=lines)


def why(job: GateJobRecord, group_ms: int, steward: Steward | None) -> list[str]:
    """Lines that say which state a job is in, where its parts are and why, and what it waits
    for. Only the primary has a steward."""
    if job.over:
        text = f"{job.job} is over: {job.state}"
        lines = [text + (f" ({job.reason})" if job.reason else "")]
    else:
        lines = [f"{job.job} is {job.state}" + (f": {job.reason}" if job.reason else "")]
    limit_ms = deadline_ms(job)
    if limit_ms is not None and not job.stop and not job.over:
        lines.append(f"its timeout ends it in {max(limit_ms - group_ms, 0) / 1000:.0f} s")
    waits_for = steward.waits_for(job.job) if steward is not None and not job.over else ""
    if waits_for:
        lines.append(f"it waits in the queue of the gates: {waits_for}")
    for part in job.parts:
        lines += _part_lines(part, is_over=job.over)
    return lines


def _part_lines(part: PartRecord, *, is_over: bool) -> list[str]:
    """The tries of a part: "us part, try 2, started: chosen of ap, us for 40 %", then a line for
    each datacenter that was compared."""
    lines: list[str] = []
    for number, tried in enumerate(part.tries, start=1):
        chosen, *candidates = tried.why.splitlines() or [""]
        state = tried.outcome or tried.state
        reason = tried.reason or tried.cancel_reason
        notes = [text for text in (chosen, reason) if text]
        text = f"{tried.datacenter} part, try {number}, {state}"
        lines.append(": ".join([text, "; ".join(notes)] if notes else [text]))
        lines += candidates
        if tried.cancel and not tried.settled and not is_over:
            lines.append(f"  {tried.datacenter} has not confirmed yet that it stopped")
    return lines
