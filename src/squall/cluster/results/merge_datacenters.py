"""Merges the results of the datacenters that ran one job into its result.

Reports are added second by second of each workflow's own clock, so the totals are exact and leave
out the same warm-up everywhere. Thresholds are judged once, on the sums; those with a scope on the
numbers of their datacenter. Each datacenter has judged its own generator: the verdict is the worst
of theirs and names the datacenter of each reason. A datacenter that was lost is a result that ends
where its reports end, with all that is missing as a loss.

Pure: a gate and the client that split a job itself use it alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from squall.cluster.results.job_result import (
    DatacenterResult,
    JobResult,
    ResultInfo,
    close,
)
from squall.cluster.results.replay import judged_while_running, replay
from squall.engine.outcome import (
    Loss,
    ProcessInfo,
    RunStatus,
    WorkflowOutcome,
    WorkflowStatus,
    cores_at_once,
)
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest
from squall.stats.report_sums import over_shares
from squall.stats.reports import ErrorSample, WindowReport
from squall.stats.run_notes import notes_of
from squall.stats.snapshot import VerdictState
from squall.stats.thresholds.binding import bind_all
from squall.stats.thresholds.judge import ThresholdJudge, ThresholdResult
from squall.stats.totals.generator_health_summary import HealthPoint, HealthSummary
from squall.stats.totals.run import RunStats
from squall.stats.verdict import Verdict

_VERDICTS: tuple[VerdictState, ...] = ("VALID", "DEGRADED", "INVALID")
# The worst comes last.
_STATUSES: tuple[WorkflowStatus, ...] = (
    "completed",
    "skipped",
    "interrupted",
    "timeout",
    "failed",
)
LATER_S = 1.0
"""A datacenter that begins later than this is named in the notes."""


@dataclass(frozen=True)
class EndedPart:
    """The part of one datacenter at its end."""

    name: str
    part: float
    """Its share of the load, from 0 to 1."""
    result: JobResult
    tries: int = 1

    @property
    def state(self) -> str:
        return self.result.state


def merge_results(
    job: str,
    manifest: FileManifest,
    options: RunOptions,
    parts: Sequence[EndedPart],
    *,
    aborted_by: str = "",
    judged: Sequence[ThresholdResult] = (),
) -> JobResult:
    """`manifest` and `options` are those of the whole job. `aborted_by` is the threshold that ended
    it; `judged` is what was judged while it ran, used where single seconds are no longer known."""
    numbers = _process_numbers(parts)
    began = min(part.result.info.started_at for part in parts)
    later = [part.result.info.started_at - began for part in parts]
    workflows = _workflows(manifest, parts, numbers, aborted=bool(aborted_by))
    processes = [
        replace(process, index=numbers[place, process.index], worker=_worker(part, process))
        for place, part in enumerate(parts)
        for process in part.result.processes
    ]
    cancelled = any(part.state == "cancelled" for part in parts) and not aborted_by
    width_s = max(part.result.width_s for part in parts)
    result = JobResult(
        job=job,
        state=_state(parts, aborted=bool(aborted_by)),
        status=_status(parts, aborted=bool(aborted_by)),
        manifest=manifest,
        info=_info(parts, options, began, cores_at_once(processes, workflows)),
        elapsed_s=max(
            after + part.result.elapsed_s for after, part in zip(later, parts, strict=True)
        ),
        workflows=workflows,
        processes=processes,
        verdict=_verdict(parts),
        losses=_losses(parts, numbers),
        interrupted=cancelled,
        aborted_by=aborted_by,
        reason=next((part.result.reason for part in parts if part.result.reason), ""),
        width_s=width_s,
        reports=_reports(parts, width_s),
        generator=_health(parts, numbers),
        errors=_errors(manifest, parts),
        missing_starts=_missing(parts),
        datacenters=[
            DatacenterResult(
                name=part.name,
                part=part.part,
                tries=part.tries,
                state=part.state,
                later_s=round(after, 3),
                result=_bare(part.result),
            )
            for after, part in zip(later, parts, strict=True)
        ],
    )
    return _judged(result, options, judged)


def _judged(result: JobResult, options: RunOptions, judged: Sequence[ThresholdResult]) -> JobResult:
    names = [each.name for each in result.datacenters]
    bound = bind_all(result.manifest, options.thresholds, names)
    stats = RunStats(result.manifest, options.warmup_s)
    scopes = {
        each.name: RunStats(each.result.manifest, options.warmup_s) for each in result.datacenters
    }
    judge = ThresholdJudge(bound, stats, scopes)
    parts = [(scopes[each.name], each.result) for each in result.datacenters]
    replay([(stats, result), *parts], judge)
    for own, part in [(stats, result), *parts]:
        close(own, part)
    thresholds = judged_while_running(judge.final(), bound, result.width_s, judged)
    known = [*result.manifest.all_warnings, *notes_of(stats)]
    every = [*known, *_notes(result, known)]
    return msgspec.structs.replace(result, thresholds=thresholds, notes=list(dict.fromkeys(every)))


def _notes(result: JobResult, known: Sequence[str]) -> list[str]:
    """What the datacenters noted beyond what is `known` of the whole, and how far apart they
    began."""
    first = next((each.name for each in result.datacenters if not each.later_s), "")
    notes: list[str] = []
    for each in result.datacenters:
        if each.later_s > LATER_S:
            notes.append(
                f"{each.name} began {each.later_s:.1f} s after {first}; windows count from the "
                "start of each"
            )
        notes += [f"{each.name}: {note}" for note in each.result.notes if note not in known]
    return notes


def _bare(result: JobResult) -> JobResult:
    """Without what the merged result has: errors, the health of processes."""
    return msgspec.structs.replace(
        result, errors=[], generator=HealthSummary(), processes=[], thresholds=[]
    )


def _info(parts: Sequence[EndedPart], options: RunOptions, began: float, cores: int) -> ResultInfo:
    infos = [part.result.info for part in parts]
    return msgspec.structs.replace(
        infos[0],
        command=options.command,
        seed=options.seed,
        tags=dict(options.tags),
        cores=cores,
        memory_mb=sum(info.memory_mb for info in infos),
        started_at=began,
        warmup_s=options.warmup_s,
    )


def _state(parts: Sequence[EndedPart], *, aborted: bool) -> str:
    """The terminal state of the job."""
    states = {part.state for part in parts}
    if aborted:
        return "completed"
    for state in ("cancelled", "timeout"):
        if state in states:
            return state
    if states == {"completed"}:
        return "completed"
    return "partial" if states & {"completed", "partial"} else "failed"


def _status(parts: Sequence[EndedPart], *, aborted: bool) -> RunStatus:
    statuses = {part.result.status for part in parts}
    if aborted or statuses == {"completed"}:
        return "completed"
    if "interrupted" in statuses:
        return "interrupted"
    if "timeout" in statuses:
        return "timeout"
    return "partial" if statuses & {"completed", "partial"} else "failed"


def _workflows(
    manifest: FileManifest,
    parts: Sequence[EndedPart],
    numbers: Mapping[tuple[int, int], int],
    *,
    aborted: bool,
) -> list[WorkflowOutcome]:
    found: dict[str, list[tuple[int, EndedPart, WorkflowOutcome]]] = {}
    for place, part in enumerate(parts):
        for outcome in part.result.workflows:
            found.setdefault(outcome.name, []).append((place, part, outcome))
    merged: list[WorkflowOutcome] = []
    for workflow in manifest.workflows:
        same = found.get(workflow.name, [])
        if not same:
            merged.append(WorkflowOutcome(name=workflow.name, status="skipped"))
            continue
        _, where, worst = max(same, key=lambda each: _STATUSES.index(each[2].status))
        status = worst.status
        if aborted and status == "interrupted":
            # The threshold ended it: it did what it was to do until then.
            status = "completed"
        ran = [outcome for _, _, outcome in same if outcome.elapsed_s]
        merged.append(
            WorkflowOutcome(
                name=workflow.name,
                status=status,
                error=f"{where.name}: {worst.error}" if worst.error else "",
                started_at_s=min((each.started_at_s for each in ran), default=0.0),
                elapsed_s=max((each.elapsed_s for each in ran), default=0.0),
                cores=tuple(
                    numbers.get((place, core), core)
                    for place, _, outcome in same
                    for core in outcome.cores
                ),
            )
        )
    return merged


def _process_numbers(parts: Sequence[EndedPart]) -> dict[tuple[int, int], int]:
    """A number of its own for every process: (place of the part, its number there) to number."""
    numbers: dict[tuple[int, int], int] = {}
    for place, part in enumerate(parts):
        result = part.result
        known = {each.index for each in result.processes}
        known |= {each.index for each in result.generator.processes}
        known |= {core for outcome in result.workflows for core in outcome.cores}
        first = len(numbers)
        for number, index in enumerate(sorted(known)):
            numbers[place, index] = first + number
    return numbers


def _worker(part: EndedPart, process: ProcessInfo) -> str:
    return f"{part.name}/{process.worker}" if process.worker else part.name


def _losses(parts: Sequence[EndedPart], numbers: Mapping[tuple[int, int], int]) -> list[Loss]:
    found = [
        replace(
            loss, process=numbers.get((place, loss.process), loss.process), datacenter=part.name
        )
        for place, part in enumerate(parts)
        for loss in part.result.losses
    ]
    return sorted(found, key=lambda loss: (loss.at_s, loss.workflow, loss.datacenter, loss.share))


def _verdict(parts: Sequence[EndedPart]) -> Verdict:
    order = sorted(parts, key=lambda part: -_VERDICTS.index(part.result.verdict.state))
    worst = order[0].result.verdict
    return Verdict(
        state=worst.state,
        reasons=[
            # The loss of a whole datacenter names it already.
            reason if part.state == "lost" else f"{part.name}: {reason}"
            for part in order
            for reason in part.result.verdict.reasons
        ],
        headline=f"{order[0].name}: {worst.headline}" if worst.headline else "",
    )


def _reports(parts: Sequence[EndedPart], width_s: int) -> list[WindowReport]:
    """One for each workflow and window, summed over all datacenters."""
    return over_shares(
        (
            msgspec.structs.replace(report, share=place)
            for place, part in enumerate(parts)
            for report in part.result.reports
        ),
        width_s,
    )


def _errors(manifest: FileManifest, parts: Sequence[EndedPart]) -> list[ErrorSample]:
    """The first error of each kind over all datacenters."""
    stats = RunStats(manifest)
    for part in parts:
        for error in part.result.errors:
            stats.add(error)
    return list(stats.errors.values())


def _missing(parts: Sequence[EndedPart]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for name, count in part.result.missing_starts.items():
            found[name] = found.get(name, 0) + count
    return found


def _health(parts: Sequence[EndedPart], numbers: Mapping[tuple[int, int], int]) -> HealthSummary:
    summaries = [part.result.generator for part in parts]
    width_s = max(summary.width_s for summary in summaries)
    points: dict[int, HealthPoint] = {}
    for summary in summaries:
        for place, point in enumerate(summary.points):
            at = place * summary.width_s // width_s
            known = points.get(at, HealthPoint(0, 0.0, 0.0, 0.0, 0.0))
            points[at] = HealthPoint(
                known.reports + point.reports,
                known.cpu_sum + point.cpu_sum,
                max(known.cpu_max, point.cpu_max),
                max(known.lag_p99_s, point.lag_p99_s),
                max(known.lag_max_s, point.lag_max_s),
            )
    last = max(points, default=-1)
    return HealthSummary(
        processes=[
            msgspec.structs.replace(process, index=numbers[place, process.index])
            for place, summary in enumerate(summaries)
            for process in summary.processes
        ],
        width_s=width_s,
        points=[points.get(at, HealthPoint(0, 0.0, 0.0, 0.0, 0.0)) for at in range(last + 1)],
    )
