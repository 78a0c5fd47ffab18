"""Assembles the result of a job from the records of its attempts: pure, the same on every manager.

The attempts of a share are disjoint segments of its time, and all count (R8). Thresholds are
judged once, here, on the windows of all shares together, second by second as in a local run;
so is the verdict, with one reason for every loss. Where records no longer hold single seconds,
sliding thresholds take what the job's leader found while the job ran.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from squall.cluster.results.job_result import JobResult, ResultInfo, close
from squall.cluster.results.losses import (
    TOLERATED_SHARE,
    failed_by_loss,
    lacking_rows,
    losses_of,
    missing_share,
)
from squall.cluster.results.parts import AttemptPart, JobParts
from squall.cluster.results.record_sums import RecordSums
from squall.cluster.results.replay import judged_while_running, replay
from squall.engine.load_change import change_line, iterations_taken_away
from squall.engine.outcome import Loss, ProcessInfo, RunStatus, WorkflowOutcome, cores_at_once
from squall.engine.run.metadata import squall_version
from squall.engine.run_options import RunOptions
from squall.reporting.loss_lines import loss_line
from squall.reporting.redaction import Redactor
from squall.stats.attempt_record import AttemptRecord
from squall.stats.manifest import FileManifest
from squall.stats.reports import ErrorSample, HealthReport
from squall.stats.run_notes import notes_of
from squall.stats.snapshot import VerdictState
from squall.stats.thresholds.binding import bind_all
from squall.stats.thresholds.judge import ThresholdJudge
from squall.stats.totals.run import RunStats
from squall.stats.verdict import judge


def assemble(
    manifest: FileManifest,
    options: RunOptions,
    parts: JobParts,
    *,
    secrets: Iterable[str] = (),
    gathered: RecordSums | None = None,
) -> JobResult:
    """`manifest` holds the profiles that were run. The values of `secrets` are removed from errors,
    because every client may ask for a result. If `gathered` has the sums of all records, the
    parts need only the gist of each."""
    redact = Redactor(secrets)
    records = [part.record for part in counted(parts.attempts) if part.record]
    if gathered is None:
        gathered = _gathered(manifest, options, parts.attempts)
    workflows = [_timed(outcome, records) for outcome in parts.workflows]
    losses = _losses(manifest, workflows, parts)
    processes = _processes(parts.attempts)
    missing: Counter[str] = Counter()
    for loss in losses:
        missing[loss.workflow] += loss.starts or 0
    result = JobResult(
        job=parts.job,
        state=parts.state,
        status=_status(parts),
        manifest=manifest,
        info=ResultInfo(
            squall=parts.version or squall_version(),
            python=parts.python or platform.python_version(),
            command=options.command,
            seed=options.seed,
            tags=dict(options.tags),
            cores=cores_at_once(processes, workflows),
            os=parts.os,
            memory_mb=parts.memory_mb,
            started_at=parts.started_at,
            warmup_s=options.warmup_s,
        ),
        elapsed_s=parts.elapsed_s,
        workflows=workflows,
        processes=processes,
        losses=losses,
        notes=_notes(parts, records),
        interrupted=parts.state == "cancelled",
        aborted_by=parts.aborted_by,
        reason=parts.reason,
        width_s=gathered.width_s,
        reports=gathered.reports(),
        generator=gathered.health,
        errors=[_shown(error, redact) for error in gathered.errors],
        missing_starts={name: count for name, count in sorted(missing.items()) if count},
        refusal=parts.refusal,
        refusal_code=parts.refusal_code,
    )
    return _judged(result, options, parts, records)


def _shown(error: ErrorSample, redact: Redactor) -> ErrorSample:
    return msgspec.structs.replace(
        error,
        reason=redact(error.reason),
        traceback=None if error.traceback is None else redact(error.traceback),
        request=redact(error.request),
        body=redact(error.body),
    )


def counted(attempts: Iterable[AttemptPart]) -> list[AttemptPart]:
    """The parts whose records count, ordered by workflow, share and attempt, so that every manager
    sums in the same order."""
    parts = sorted(attempts, key=lambda part: (part.workflow, part.share, part.attempt))
    return [part for part in parts if part.record is not None and part.fate != "dropped"]


def _gathered(
    manifest: FileManifest, options: RunOptions, attempts: Sequence[AttemptPart]
) -> RecordSums:
    """The sums of parts that hold whole records."""
    records = [(part.process, part.record) for part in counted(attempts) if part.record]
    width_s = max((record.width_s for _, record in records), default=1)
    found = RecordSums(manifest, options.warmup_s, width_s)
    healths: dict[int, list[list[HealthReport]]] = {}
    for process, record in records:
        found.add(record)
        healths.setdefault(process, []).append(record.health)
    for reports in healths.values():
        found.add_health(reports)
    return found


def _timed(outcome: WorkflowOutcome, records: Sequence[AttemptRecord]) -> WorkflowOutcome:
    ends = [
        record.end.elapsed_s if record.end is not None else record.silent_from_s
        for record in records
        if record.workflow == outcome.name
    ]
    elapsed_s = outcome.elapsed_s or max(ends, default=0.0)
    return WorkflowOutcome(
        name=outcome.name,
        status=outcome.status,
        error=outcome.error,
        started_at_s=outcome.started_at_s,
        elapsed_s=elapsed_s,
        cores=outcome.cores,
    )


def _losses(
    manifest: FileManifest, workflows: Sequence[WorkflowOutcome], parts: JobParts
) -> list[Loss]:
    stopped = _was_stopped(parts)
    found: list[Loss] = []
    for outcome in workflows:
        changed = any(each.workflow in ("", outcome.name) for each in parts.adjustments)
        found += losses_of(
            manifest.workflow(outcome.name),
            outcome,
            parts.attempts,
            as_planned=not stopped and not changed and outcome.status == "completed",
        )
    return sorted(found, key=lambda loss: (loss.at_s, loss.workflow, loss.share))


def _was_stopped(parts: JobParts) -> bool:
    """A user, a timeout or a threshold ended the job early."""
    return parts.state in ("cancelled", "timeout") or bool(parts.aborted_by)


def _processes(attempts: Sequence[AttemptPart]) -> list[ProcessInfo]:
    found: dict[int, ProcessInfo] = {}
    for part in sorted(attempts, key=lambda each: (each.process, each.attempt)):
        if part.fate == "dropped":
            continue
        info = found.setdefault(
            part.process, ProcessInfo(index=part.process, pid=0, worker=part.worker)
        )
        if part.fate == "lost":
            info.died = info.died or part.reason or "lost with its worker"
    return [found[index] for index in sorted(found)]


def _status(parts: JobParts) -> RunStatus:
    if parts.state == "cancelled":
        return "interrupted"
    if parts.state == "timeout":
        return "timeout"
    statuses = {outcome.status for outcome in parts.workflows}
    if statuses <= {"completed"} or parts.aborted_by:
        return "completed" if not parts.refusal else "failed"
    return "partial" if "completed" in statuses else "failed"


def _notes(parts: JobParts, records: Sequence[AttemptRecord]) -> list[str]:
    """The warnings of the shares, the adjustments of the load, and why the job ended early."""
    warnings = [text for r in records if r.end is not None for text in r.end.warnings]
    changes = [change_line(each) for each in parts.adjustments]
    reasons = [parts.reason] if parts.reason and parts.state != "completed" else []
    # Two changes in the same tenth of a second read alike, and both were made.
    return [*dict.fromkeys(warnings), *changes, *reasons]


# Judgement.


def _judged(
    result: JobResult, options: RunOptions, parts: JobParts, records: Sequence[AttemptRecord]
) -> JobResult:
    bound = bind_all(result.manifest, options.thresholds)
    stats = RunStats(result.manifest, options.warmup_s)
    judge_of_run = ThresholdJudge(bound, stats)
    replay([(stats, result)], judge_of_run)
    close(stats, result)
    thresholds = judged_while_running(judge_of_run.final(), bound, result.width_s, parts.judged)
    over = [] if _was_stopped(parts) else result.workflows
    completed = {each.name: 0 for each in over if each.status == "completed"}
    for loss in result.losses:
        if loss.workflow in completed:
            completed[loss.workflow] += loss.iterations or 0
    for name in completed:
        completed[name] += iterations_taken_away(stats.manifest.workflow(name), parts.adjustments)
    verdict = judge(stats, _findings(result, parts, records), completed=completed)
    # A workflow's warning may have come from its shares already.
    warnings = [text for text in stats.manifest.all_warnings if text not in result.notes]
    notes = [*dict.fromkeys(warnings), *result.notes]
    notes += [*notes_of(stats), *lacking_rows(stats, result.losses)]
    return msgspec.structs.replace(result, thresholds=thresholds, verdict=verdict, notes=notes)


def _findings(
    result: JobResult, parts: JobParts, records: Sequence[AttemptRecord]
) -> list[tuple[VerdictState, str]]:
    found: list[tuple[VerdictState, str]] = []
    notes = [note for r in records if r.end is not None for note in r.end.notes]
    for state, text in (*notes, *parts.notes):
        found.append(("INVALID" if state == "INVALID" else "DEGRADED", text))
    outcomes = {outcome.name: outcome for outcome in result.workflows}
    shares: dict[str, float] = dict.fromkeys(outcomes, 0.0)
    for loss in result.losses:
        workflow = result.manifest.workflow(loss.workflow)
        shares[loss.workflow] += missing_share(workflow, outcomes[loss.workflow], loss)
    for loss in result.losses:
        # A workflow that failed by its losses ended with its last report, so by its length
        # nothing seems to be missing: it counts as incomplete.
        whole = not failed_by_loss(outcomes[loss.workflow], parts.attempts)
        beyond = shares[loss.workflow] > TOLERATED_SHARE or not whole
        found.append(("INVALID" if beyond else "DEGRADED", loss_line(loss)))
    if parts.state == "timeout":
        found.append(("INVALID", parts.reason or "the job was ended by its timeout"))
    return found
