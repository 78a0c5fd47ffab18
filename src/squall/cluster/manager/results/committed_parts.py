"""Derives the parts of a job's result from the committed state.

Every attempt is a part with a fate. An attempt that ended before its time although it was
not stopped (its core process died, its lease ran out) counts as lost: its record counts, and
the load that it did not make is missing load (R8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from squall.cluster.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.cluster.datacenter.tables import Tables
from squall.cluster.manager.primary.placement import profile_of, specs_of
from squall.cluster.protocol.job_keys import AttemptKey, ShareKey
from squall.cluster.protocol.messages import DRAINED, JobState, SpecValues
from squall.cluster.results.parts import AttemptFate, AttemptPart, JobParts
from squall.cluster.results.uncounted_load import pace_of, unknown_of
from squall.engine.outcome import WorkflowOutcome
from squall.stats.attempt_record import AttemptRecord, RecordEnd
from squall.stats.manifest import FileManifest

SILENCE_MIN_S = 0.01
"""The last report always ends shortly before the process does; only a longer gap is a silence."""


def record_digests(tables: Tables, job: JobRecord, workflow: str = "") -> Iterator[str]:
    """The digests of the records that `job_parts` needs; with `workflow`, of it alone."""
    for key, facts in tables.attempts_of(job.job):
        if workflow not in ("", key.workflow):
            continue
        if facts.facts is not None and facts.facts.digest:
            yield facts.facts.digest


def fitted_manifest(job: JobRecord, workflow: str = "") -> FileManifest:
    """The manifest with the profiles that the placements ran; with `workflow`, of it alone."""
    manifest = job.submission.manifest
    return msgspec.structs.replace(
        manifest,
        workflows=[
            msgspec.structs.replace(each, profile=profile_of(job, each.name))
            for each in manifest.workflows
            if workflow in ("", each.name)
        ],
    )


def job_parts(
    tables: Tables,
    job: JobRecord,
    status: JobState,
    records: Mapping[str, AttemptRecord],
    group_ms: int,
) -> JobParts:
    """`records` holds each record, or its `gist`, by digest; a record that could not be read is
    missing and counts as nothing. The caller adds the thresholds that were judged."""
    began_ms = job.started_ms or job.created_ms
    last_ms = max((w.ended_ms for w in job.workflows), default=group_ms)
    refused = job.stop == "failed" and not job.started_ms
    wall = job.created_at + (began_ms - job.created_ms) / 1000.0
    plan = {
        (workflow.name, spec.share): (spec.users_max, spec.iterations, spec.shares)
        for workflow in job.workflows
        if workflow.shares
        for spec in specs_of(job, workflow, SpecValues())
    }
    parts = [
        _part(tables, job, key, facts, records, plan) for key, facts in tables.attempts_of(job.job)
    ]
    return JobParts(
        job=job.job,
        state=status,
        reason=job.reason,
        started_at=wall,
        elapsed_s=max(last_ms - began_ms, 0) / 1000.0 if job.started_ms else 0.0,
        workflows=[_outcome(job, each) for each in job.workflows],
        attempts=parts,
        adjustments=[each.applied(began_ms) for each in job.adjustments],
        notes=_notes(job, parts),
        aborted_by=job.reason if job.stop == "aborted" else "",
        refusal=job.reason if refused else "",
        refusal_code=job.exit_code if refused else 0,
    )


def _notes(job: JobRecord, parts: list[AttemptPart]) -> list[tuple[str, str]]:
    lost = [part for part in parts if part.fate == "lost" and part.reason != DRAINED]
    if job.submission.on_control_loss != "continue" or not lost:
        return []
    workers = ", ".join(sorted({part.worker for part in lost}))
    return [("DEGRADED", f"load may overlap: {workers} continued without a manager")]


def _outcome(job: JobRecord, workflow: WorkflowRecord) -> WorkflowOutcome:
    started_s = (workflow.started_ms - job.started_ms) / 1000.0 if workflow.started_ms else 0.0
    return WorkflowOutcome(
        name=workflow.name,
        status=workflow.outcome or "skipped",
        error=workflow.error,
        started_at_s=started_s,
        elapsed_s=workflow.elapsed_s,
        cores=workflow.cores,
    )


def _part(
    tables: Tables,
    job: JobRecord,
    key: AttemptKey,
    facts: AttemptFacts,
    records: Mapping[str, AttemptRecord],
    plan: Mapping[tuple[str, int], tuple[int, int, int]],
) -> AttemptPart:
    workflow = job.workflow(key.workflow)
    digest = facts.facts.digest if facts.facts is not None else ""
    record = records.get(digest)
    users, iterations, shares = plan.get((key.workflow, key.share), (0, 0, 1))
    early = _is_early(tables, job, key, facts, record)
    started_ms = workflow.started_ms if workflow is not None else 0
    # Without a report: it cannot have joined before it was placed.
    created_s = max(facts.created_ms - started_ms, 0) / 1000.0 if started_ms else 0.0
    lost_s = max(facts.ended_ms - started_ms, 0) / 1000.0 if started_ms else 0.0
    part = AttemptPart(
        workflow=key.workflow,
        share=key.share,
        attempt=key.attempt,
        shares=shares,
        worker=facts.node,
        fate=fate_of(tables, job, key, facts, record),
        record=record,
        process=facts.process,
        users=users,
        iterations=iterations,
        joined_s=record.joined_s if record is not None else created_s,
        refill=facts.refill,
        lost_at_s=lost_s,
        died_at_s=facts.died_at_s(started_ms),
        silence_end_s=facts.silent_to_s if facts.state == "lost" else None,
        reason=facts.reason,
    )
    closed = record is not None and record.end is not None
    if facts.facts is not None and (early or (facts.state == "lost" and closed)):
        # A closed record, in time or late, lacks only what a process that died had not
        # reported yet.
        part.silence_end_s = facts.facts.elapsed_s
        _count_silence(job, part)
    return part


def fate_of(
    tables: Tables,
    job: JobRecord,
    key: AttemptKey,
    facts: AttemptFacts,
    record: AttemptRecord | None,
) -> AttemptFate:
    workflow = job.workflow(key.workflow)
    started_ms = workflow.started_ms if workflow is not None else 0
    if facts.state == "lost" and facts.ended_ms <= (started_ms or facts.ended_ms):
        # It was lost while it was prepared: it never got a Go and made no load.
        return "dropped"
    if facts.state == "lost" or _is_early(tables, job, key, facts, record):
        return "lost"
    return "ended" if facts.state == "ended" else "dropped"


def _is_early(
    tables: Tables,
    job: JobRecord,
    key: AttemptKey,
    facts: AttemptFacts,
    record: AttemptRecord | None,
) -> bool:
    return _ended_early(tables, job, key, facts) or _died(record)


def _ended_early(tables: Tables, job: JobRecord, key: AttemptKey, facts: AttemptFacts) -> bool:
    """The attempt ended before its time and before any stop of its job or workflow."""
    known = facts.facts
    workflow = job.workflow(key.workflow)
    if facts.state != "ended" or known is None or not known.cut or workflow is None:
        return False
    if not workflow.started_ms or facts.ended_ms < workflow.started_ms:
        return False
    last = tables.last(ShareKey(key.job, key.workflow, key.share))
    if last is not None and last.number > key.attempt:
        return True
    stops = [at for at in (job.stop_ms, workflow.stop_ms) if at]
    return not stops or facts.ended_ms < min(stops)


def _died(record: AttemptRecord | None) -> bool:
    """Its process died before it had reported everything, perhaps during a stop."""
    return record is not None and record.end is not None and _fell_silent(record, record.end)


def _fell_silent(record: AttemptRecord, end: RecordEnd) -> bool:
    """The attempt went on after its last report, and had more to report."""
    silent = end.elapsed_s - record.silent_from_s >= SILENCE_MIN_S
    return bool(end.cut) and not end.reported_by_process and silent


def _count_silence(job: JobRecord, part: AttemptPart) -> None:
    """Adds what a process that died may have sent after its last report (R8)."""
    record = part.record
    if record is None or record.end is None or not _fell_silent(record, record.end):
        return
    manifest = msgspec.structs.replace(
        job.submission.manifest.workflow(part.workflow), profile=profile_of(job, part.workflow)
    )
    open_part = msgspec.structs.replace(part, record=msgspec.structs.replace(record, end=None))
    unknown = unknown_of(open_part, manifest, pace_of([record]))
    part.unknown, part.is_estimate = unknown.requests, unknown.is_estimate
    part.unknown_iterations = unknown.iterations
