"""Computes the load that a job lost: on which worker, when, how much, and for how long.

A loss begins where the reports of an attempt end and lasts until the next attempt at the share
joined, or to the end of the workflow; so does the gap of a share that a drained worker handed
over. The log says which attempts were lost; one whose closed
record shows that it ended by itself lost nothing. The planned starts of a share are those that
its attempts reported plus those of its losses: their sum is the plan, unless the load was
adjusted or the job was stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from squall.cluster.protocol.messages import DRAINED
from squall.cluster.results.parts import AttemptPart
from squall.cluster.results.uncounted_load import (
    Pace,
    UncountedLoad,
    cut_of,
    finished,
    pace_of,
    unfinished,
    unknown_of,
)
from squall.engine.load.schedule import StartSchedule, UserSchedule
from squall.engine.outcome import Loss, WorkflowOutcome
from squall.reporting.loss_lines import STARTED_LATE
from squall.reporting.number_format import plural
from squall.stats.manifest import WorkflowManifest
from squall.stats.totals.run import RunStats

LATE_START_S = 0.5
"""A share that joined earlier after the start counts as on time: by so much the clock of its
workflow may differ from that of its manager (`START_SKEW_S`)."""
TOLERATED_SHARE = 0.05
"""If more of a workflow's load is missing, the result is INVALID. The same limit applies to
planned starts that were not made."""


def losses_of(
    workflow: WorkflowManifest,
    outcome: WorkflowOutcome,
    attempts: Sequence[AttemptPart],
    *,
    as_planned: bool,
) -> list[Loss]:
    """`as_planned`: the load was not adjusted and the workflow was not stopped early."""
    shares: dict[int, list[AttemptPart]] = {}
    for part in sorted(attempts, key=lambda each: (each.share, each.attempt)):
        if part.workflow == workflow.name and part.fate != "dropped":
            shares.setdefault(part.share, []).append(part)
    pace = pace_of(part.record for parts in shares.values() for part in parts)
    end_s = _end_s(workflow, outcome, lost=failed_by_loss(outcome, attempts))
    found: list[Loss] = []
    for parts in shares.values():
        late = _started_late(workflow, parts[0])
        losses = [_late_start(workflow, outcome, parts[0])] if late else []
        losses += [
            _loss(workflow, outcome, part, parts[index + 1 :], pace, end_s)
            for index, part in enumerate(parts)
            if _was_cut(part)
        ]
        if losses:
            _count_planned(workflow, outcome, parts, losses, as_planned=as_planned)
        found += [loss for loss in losses if not _nothing_missing(workflow, loss)]
    return found


def _started_late(workflow: WorkflowManifest, part: AttemptPart) -> bool:
    """The first attempt at a share joined after the start. Of an open model only a refill leaves
    planned starts out; the reports of others count them as late or dropped. A number of iterations
    is made whenever it starts."""
    is_timed = workflow.profile.model not in ("iterations", "once")
    return is_timed and part.record is not None and part.joined_s >= LATE_START_S


def _late_start(workflow: WorkflowManifest, outcome: WorkflowOutcome, part: AttemptPart) -> Loss:
    return Loss(
        process=part.process,
        workflow=workflow.name,
        at_s=round(outcome.started_at_s, 3),
        reason=STARTED_LATE,
        users=_users(workflow, part, 0.0, part.joined_s),
        worker=part.worker,
        share=part.share,
        attempt=part.attempt,
        cut_at_s=0.0,
        below_target_s=round(part.joined_s, 3),
    )


def _nothing_missing(workflow: WorkflowManifest, loss: Loss) -> bool:
    """A drained worker handed its share over, and the next one did all that was left of it."""
    if loss.reason != DRAINED or loss.unknown_requests:
        return False
    if workflow.profile.is_open:
        return not loss.starts
    if workflow.profile.model == "iterations":
        return not loss.iterations
    return not loss.below_target_s


def lacking_rows(stats: RunStats, losses: Sequence[Loss]) -> list[str]:
    """One note for each workflow whose step rows lack requests of lost shares: those that were
    under way at the last report, that only counters know, and that may have followed."""
    found: list[str] = []
    for workflow in stats.workflows.values():
        unknown = sum(each.unknown_requests for each in losses if each.workflow == workflow.name)
        flying = sum(max(row.in_flight, 0) for row in workflow.rows.values())
        lacking = flying + workflow.unmeasured + unknown
        if lacking and any(each.workflow == workflow.name for each in losses):
            what = plural(lacking, "request")
            found.append(f"the step rows of {workflow.name} lack up to {what} of lost shares")
    return found


def failed_by_loss(outcome: WorkflowOutcome, attempts: Iterable[AttemptPart]) -> bool:
    """The workflow failed because its workers were lost, not because code raised."""
    parts = [part for part in attempts if part.workflow == outcome.name]
    ends = [part.record.end for part in parts if part.record is not None]
    raised = any(end is not None and end.error for end in ends)
    return outcome.status == "failed" and not raised and any(map(_was_cut, parts))


def missing_share(workflow: WorkflowManifest, outcome: WorkflowOutcome, loss: Loss) -> float:
    """The part of the workflow's whole load that this loss is."""
    whole_s = outcome.elapsed_s or workflow.profile.duration_s
    profile = workflow.profile
    if profile.is_open and loss.starts is not None:
        planned = StartSchedule(profile).total
        return loss.starts / planned if planned else 0.0
    if profile.model in ("iterations", "once") and loss.iterations is not None:
        planned = profile.iterations if profile.model == "iterations" else profile.vus
        return loss.iterations / planned if planned else 0.0
    users = max(profile.vus, profile.max_vus, 1)
    return loss.users * loss.below_target_s / (users * whole_s) if whole_s else 0.0


def _was_cut(part: AttemptPart) -> bool:
    """Lost, and not known to have ended by itself."""
    end = part.record.end if part.record is not None else None
    return part.fate == "lost" and (end is None or bool(end.cut))


def _loss(
    workflow: WorkflowManifest,
    outcome: WorkflowOutcome,
    part: AttemptPart,
    later: Sequence[AttemptPart],
    pace: Pace,
    end_s: float,
) -> Loss:
    cut_s = cut_of(part)
    next_one = next((each for each in later if each.record is not None), None)
    until_s = next_one.joined_s if next_one is not None else end_s
    unknown = _unknown(part, workflow, pace)
    died_at_s = part.died_at_s
    end = part.record.end if part.record is not None else None
    return Loss(
        process=part.process,
        workflow=workflow.name,
        at_s=round(outcome.started_at_s + (cut_s if died_at_s is None else died_at_s), 3),
        is_last_heard=died_at_s is None,
        reason=part.reason or (end.cut if end is not None else "") or "the worker was lost",
        users=_users(workflow, part, cut_s, until_s),
        worker=part.worker,
        share=part.share,
        attempt=part.attempt,
        cut_at_s=round(cut_s, 3),
        below_target_s=round(max(until_s - cut_s, 0.0), 3),
        refilled_by=next_one.worker if next_one is not None else "",
        unknown_requests=unknown.requests,
        unknown_iterations=unknown.iterations,
        is_estimate=unknown.is_estimate,
        rows=unfinished(part.record) if workflow.feeds else 0,
    )


def _users(workflow: WorkflowManifest, part: AttemptPart, from_s: float, until_s: float) -> int:
    """The users that are missing from one time to another. Of open models and ramps the most that
    a share may have says little: there those count that ran, or were planned."""
    profile = workflow.profile
    if profile.model == "ramp":
        plan = UserSchedule(profile, part.share, part.shares)
        return max(plan.target(from_s), plan.target(until_s))
    if profile.is_open and part.record is not None and part.record.reports:
        return part.record.reports[-1].users
    return part.users


def _unknown(part: AttemptPart, workflow: WorkflowManifest, pace: Pace) -> UncountedLoad:
    if part.unknown is None:
        return unknown_of(part, workflow, pace)
    return UncountedLoad(part.unknown, part.unknown_iterations, part.is_estimate)


def _end_s(workflow: WorkflowManifest, outcome: WorkflowOutcome, *, lost: bool) -> float:
    """When the workflow's load was to end: as planned, or earlier if it ended earlier for another
    reason than being `lost`."""
    if workflow.profile.model in ("iterations", "once"):
        return outcome.elapsed_s
    planned_s = workflow.profile.duration_s
    if not lost and outcome.status in ("interrupted", "timeout", "failed") and outcome.elapsed_s:
        return min(planned_s, outcome.elapsed_s)
    return planned_s


def _count_planned(
    workflow: WorkflowManifest,
    outcome: WorkflowOutcome,
    parts: Sequence[AttemptPart],
    losses: Sequence[Loss],
    *,
    as_planned: bool,
) -> None:
    profile = workflow.profile
    if profile.model == "iterations":
        done = sum(finished(part.record) for part in parts)
        losses[-1].iterations = max(parts[0].iterations - done, 0)
        for loss in losses[:-1]:
            loss.iterations = 0
        return
    if not profile.is_open:
        return
    schedule = StartSchedule(profile, parts[0].share, parts[0].shares)
    for loss in losses:
        if loss.reason == STARTED_LATE and not parts[0].refill:
            loss.starts = 0
            continue
        cut_s = loss.cut_at_s or 0.0
        until_s = cut_s + loss.below_target_s
        loss.starts = max(schedule.planned_until(until_s) - schedule.planned_until(cut_s), 0)
    if as_planned:
        # Reports end a little before or after a planned start, but their sum is exact.
        reported = sum(r.starts.planned for p in parts if p.record for r in p.record.reports)
        others = sum(loss.starts or 0 for loss in losses[:-1])
        losses[-1].starts = max(schedule.total - reported - others, 0)
