"""Declares attempts lost and puts records into the log, in few commands.

One round either grants an attempt or declares it lost: from the moment a loss is decided,
`Facts.losing` holds the attempt and no session grants it again. Its last cumulative record
is stored before the loss is committed.
"""

from __future__ import annotations

import math

from squall.nodes.datacenter.commands import EndAttempts, LoseAttempts, LostAttempt
from squall.nodes.datacenter.records import (
    AttemptFacts,
    JobRecord,
    RecordFacts,
    WorkflowRecord,
)
from squall.nodes.datacenter.worker_rules import better
from squall.nodes.identity import AttemptKey
from squall.nodes.manager.director_effects import StoreCut
from squall.nodes.manager.director_facts import Facts
from squall.nodes.manager.losses import Grants, elapsed_s, lease_end, lost_at, over_at
from squall.nodes.manager.placement import profile_of

COALESCE_S = 0.05
BATCH_MAX = 256
"""Records or losses in one command: some 100 kB."""


def check_losses(facts: Facts, job: JobRecord) -> float:
    """Begins and completes losses of a job; the moment at which to look again."""
    look_at = math.inf
    ready: list[LostAttempt] = []
    for key, attempt in facts.tables.live_of(job.job):
        if key in facts.records:
            continue
        if key not in facts.losing:
            reason, at = _verdict(facts, key, attempt)
            if not reason:
                look_at = min(look_at, at)
                continue
            facts.losing[key] = reason
        if key not in facts.cuts:
            facts.ask(StoreCut(f"cut {key}", key))
            look_at = min(look_at, facts.now + 1.0)
            continue
        ready.append(_lost(facts, job, key, attempt))
    if ready:
        facts.submit(f"lose {job.job}", LoseAttempts(lost=tuple(ready[:BATCH_MAX])))
        look_at = min(look_at, facts.now + 1.0)
    return look_at


def grants_of(facts: Facts, key: AttemptKey, attempt: AttemptFacts) -> Grants:
    return Grants(facts.granted.get(key), facts.began, facts.at(attempt.created_ms))


def flush_records(facts: Facts) -> None:
    """Final records become `EndAttempts`: at once when nothing else is awaited, else after
    a moment in which others may come."""
    if "records" in facts.out:
        return
    if not facts.records:
        facts.records_since = math.inf
        return
    jobs = dict.fromkeys(key.job for key in facts.records)
    awaited = sum(facts.tables.live_count.get(job, 0) for job in jobs)
    complete = len(facts.records) >= awaited or len(facts.records) >= BATCH_MAX
    if not complete and facts.now < facts.records_since + COALESCE_S:
        return
    batch = sorted(facts.records)[:BATCH_MAX]
    if facts.submit("records", EndAttempts(ended=tuple(facts.records[key] for key in batch))):
        facts.records_since = facts.now


def forget_records(facts: Facts) -> None:
    """Drops records that are in the log, or of no use to it."""
    for key in list(facts.records):
        attempt = facts.tables.attempt(key)
        stored = attempt is None or attempt.state in ("ended", "returned")
        if stored or (attempt is not None and attempt.facts is not None and attempt.facts.complete):
            del facts.records[key]
            facts.granted.pop(key, None)
            facts.actions.pop(key, None)
            facts.moved.pop(key, None)


def _verdict(facts: Facts, key: AttemptKey, attempt: AttemptFacts) -> tuple[str, float]:
    """Why it is lost, or "" and from when on it may be."""
    status = facts.status(key, attempt.node, attempt.boot)
    job = facts.tables.jobs[key.job]
    workflow = job.workflow(key.workflow)
    started = workflow is not None and workflow.running
    if status is not None and started:
        if status.phase == "unknown":
            return "its worker does not have it", facts.now
        if status.phase == "ended" and not status.record:
            return status.text or "it ended without a record", facts.now
        if status.phase == "refused" and not attempt.refill:
            return status.text, facts.now
    least_s = _least_s(job, workflow)
    grants = grants_of(facts, key, attempt)
    at = lost_at(attempt, grants, facts.timers, least_s)
    if least_s and workflow is not None:
        # Nobody takes over its load: it is enough that it has ended by itself, and that its
        # worker had the time to tell, to whoever leads now.
        profile = profile_of(job, key.workflow)
        over = over_at(workflow, profile, facts.now, facts.group_ms, facts.timers)
        at = min(at, max(over, lost_at(attempt, grants, facts.timers)))
    if attempt.dead:
        return f"worker {attempt.node} restarted", at
    at = max(at, facts.judges_from)
    if facts.now < at:
        return "", at
    since = facts.granted.get(key, facts.began)
    return f"no sign of life of {attempt.node} for {facts.now - since:.1f} s", at


def _least_s(job: JobRecord, workflow: WorkflowRecord | None) -> float:
    """A job may ask for longer leases of what runs; before that, nothing runs on."""
    running = workflow is not None and bool(workflow.started_ms)
    return job.submission.options.lease_min_s if running else 0.0


def _lost(facts: Facts, job: JobRecord, key: AttemptKey, attempt: AttemptFacts) -> LostAttempt:
    workflow = job.workflow(key.workflow)
    silent_to_s = 0.0
    if workflow is not None:
        grants = grants_of(facts, key, attempt)
        ended = lease_end(attempt, grants, facts.now, _least_s(job, workflow))
        silent_to_s = elapsed_s(workflow, facts.group_ms) - (facts.now - ended)
    cut = better(attempt.facts, facts.cuts[key])
    if workflow is not None and _spans_a_restart(facts, workflow, cut):
        profile = profile_of(job, key.workflow)
        longest_s = max(silent_to_s, profile.duration_s + profile.grace_s)
        silent_to_s = min(silent_to_s + attempt.lease_ms / 1000.0, longest_s)
    return LostAttempt(key, facts.losing[key], cut, max(silent_to_s, 0.0))


def _spans_a_restart(facts: Facts, workflow: WorkflowRecord, cut: RecordFacts | None) -> bool:
    """Whether the only manager was away during the silence. How long it was away it knows
    from its wall clock alone, which may be wrong; what ran meanwhile had one lease more."""
    heard_s = cut.silent_from_s if cut is not None else 0.0
    began_s = (facts.began_ms - workflow.started_ms) / 1000.0
    return not facts.timers.failover_bound_s and bool(workflow.started_ms) and heard_s < began_s
