"""The result of a datacenter that was lost: what its reports say, cut where they end.

Whether its load went on is not known: its managers may live and only be out of reach. So the
result says between 0 and how many requests it may have made after its last report, at most to the
end of its plan.
"""

from __future__ import annotations

from squall.cluster.results.datacenter_totals import DatacenterTotals
from squall.cluster.results.job_result import JobResult, ResultInfo
from squall.cluster.results.parts import AttemptPart
from squall.cluster.results.uncounted_load import UncountedLoad, pace_of, unknown_of
from squall.engine.load.schedule import StartSchedule
from squall.engine.outcome import Loss, WorkflowOutcome
from squall.engine.run_options import RunOptions
from squall.reporting.loss_lines import loss_line
from squall.stats.manifest import FileManifest, WorkflowManifest
from squall.stats.report_sums import over_shares
from squall.stats.verdict import Verdict


def lost_result(
    job: str,
    manifest: FileManifest,
    options: RunOptions,
    part: DatacenterTotals,
    *,
    started_at: float,
) -> JobResult:
    """`manifest` is that of the part; `started_at` its start on the wall clock of the caller."""
    reports = [report for builder in part.records.values() for report in builder.record.reports]
    width_s = max((each.record.width_s for each in part.records.values()), default=1)
    workflows = [_outcome(each, manifest, part) for each in manifest.workflows]
    losses = [
        _loss(each, part)
        for each in manifest.workflows
        if each.is_test and each.name not in part.elapsed_s
    ]
    missing = {loss.workflow: loss.starts for loss in losses if loss.starts}
    reasons = [loss_line(loss) for loss in losses]
    return JobResult(
        job=job,
        state="lost",
        status="failed",
        manifest=manifest,
        info=ResultInfo(
            seed=options.seed,
            tags=dict(options.tags),
            started_at=started_at,
            warmup_s=options.warmup_s,
        ),
        elapsed_s=max((each.started_at_s + each.elapsed_s for each in workflows), default=0.0),
        workflows=workflows,
        losses=losses,
        reason=part.reason,
        width_s=width_s,
        reports=over_shares(reports, width_s),
        errors=list(part.stats.errors.values()),
        missing_starts=missing,
        verdict=Verdict(
            state="INVALID",
            reasons=reasons or [f"datacenter {part.name} lost: {part.reason}"],
            headline="datacenter lost",
        ),
    )


def _outcome(
    workflow: WorkflowManifest, manifest: FileManifest, part: DatacenterTotals
) -> WorkflowOutcome:
    name = workflow.name
    if name not in part.started_at_s:
        followers = [each.name for each in manifest.workflows if name in each.depends]
        if any(each in part.started_at_s for each in followers):
            # It was too short for a report, and what waits for it began.
            return WorkflowOutcome(name=name, status="completed")
        # Whether it began is not known.
        return WorkflowOutcome(name=name, status="failed", error="the datacenter was lost")
    ended_s = part.elapsed_s.get(name)
    return WorkflowOutcome(
        name=name,
        status="completed" if ended_s is not None else "failed",
        error="" if ended_s is not None else "the datacenter was lost",
        started_at_s=part.started_at_s[name],
        elapsed_s=ended_s if ended_s is not None else _heard_s(workflow, part),
    )


def _heard_s(workflow: WorkflowManifest, part: DatacenterTotals) -> float:
    """The workflow's time up to which reports cover it."""
    return float(part.newest.get(workflow.name, -1) + 1)


def _loss(workflow: WorkflowManifest, part: DatacenterTotals) -> Loss:
    profile, stats = workflow.profile, part.stats.workflows[workflow.name]
    heard_s = _heard_s(workflow, part)
    # The duration of a number of iterations is only its limit.
    counts = profile.model == "iterations"
    made = sum(window.made for window in stats.windows)
    starts: int | None = None
    if profile.is_open:
        planned = StartSchedule(profile).total
        starts = max(planned - sum(window.planned for window in stats.windows), 0)
    unknown = _unknown(workflow, part)
    return Loss(
        process=0,
        workflow=workflow.name,
        at_s=part.started_at_s.get(workflow.name, 0.0) + heard_s,
        reason=part.reason,
        users=profile.max_vus if not profile.is_open else 0,
        starts=starts,
        cut_at_s=heard_s,
        below_target_s=0.0 if counts else max(profile.duration_s - heard_s, 0.0),
        iterations=max(profile.iterations - made, 0) if counts else None,
        unknown_requests=unknown.requests,
        unknown_iterations=unknown.iterations,
        is_estimate=True,
        is_last_heard=True,
        datacenter=part.name,
    )


def _unknown(workflow: WorkflowManifest, part: DatacenterTotals) -> UncountedLoad:
    """The bound of a lost attempt, for all shares of the datacenter as one. No lease ends its load
    before the plan and its grace are over."""
    profile = workflow.profile
    builder = part.records.get(workflow.name)
    record = builder.record if builder is not None else None
    whole = AttemptPart(
        workflow=workflow.name,
        share=0,
        attempt=1,
        shares=1,
        worker=part.name,
        fate="lost",
        record=record,
        users=profile.max_vus,
        iterations=profile.iterations,
        lost_at_s=profile.duration_s + profile.grace_s,
    )
    return unknown_of(whole, workflow, pace_of([record]))
