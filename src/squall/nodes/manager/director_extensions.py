"""Longer preparations: who asks and moves on gets more time, within bounds.

The time that one share of a workflow gets is time for all of it, since they start together;
it is added to the job's own deadline too, as far as its extensions reach. What is granted is
volatile, what the job's deadline gets is in the log.
"""

from __future__ import annotations

from squall.control.extensions import Extensions
from squall.nodes.datacenter.commands import ExtendJob
from squall.nodes.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.nodes.identity import AttemptKey, ShareKey
from squall.nodes.manager.director_facts import Facts
from squall.nodes.manager.director_limits import deadline_ms, extension_cap_ms
from squall.nodes.messages import AttemptStatus, MoreTime


def answered(
    facts: Facts,
    job: JobRecord,
    key: AttemptKey,
    attempt: AttemptFacts,
    status: AttemptStatus,
) -> MoreTime:
    """Of a share that is prepared and asks for longer."""
    known = facts.extensions.get(key)
    if known is None:
        began = facts.at(attempt.created_ms)
        known = Extensions(began, facts.timers.prepare_timeout_s)
        facts.extensions[key] = known
    workflow = job.workflow(key.workflow)
    waiting = [workflow] if workflow is not None else []
    before_ms = extra_ms(facts, job, waiting)
    given = known.ask(status.work, facts.now)
    if given.is_granted:
        # Shares are late at the same time: the time of one is not added to that of another.
        _lengthen(facts, job, extra_ms(facts, job, waiting) - before_ms)
        facts.touch(job.job)
    return MoreTime(
        key=key,
        granted_s=given.granted_s,
        left=given.left,
        denial=given.denial,
        is_warning=given.is_warning,
        grace_left_s=given.grace_left_s,
    )


def extra_ms(facts: Facts, job: JobRecord, workflows: list[WorkflowRecord]) -> int:
    """By how much the preparation of these may be late: the most that one share got."""
    most_s = 0.0
    for workflow in workflows:
        for share in range(workflow.shares):
            last = facts.tables.last(ShareKey(job.job, workflow.name, share))
            if last is None:
                continue
            known = facts.extensions.get(AttemptKey(job.job, workflow.name, share, last.number))
            if known is not None:
                most_s = max(most_s, known.ends_at - known.began - known.base_s)
    return round(most_s * 1000)


def _lengthen(facts: Facts, job: JobRecord, more_ms: int) -> None:
    cap_ms = extension_cap_ms(job)
    by_ms = min(more_ms, cap_ms - job.extension_ms)
    if deadline_ms(job) is not None and by_ms > 0:
        command = ExtendJob(job=job.job, by_ms=by_ms, cap_ms=cap_ms)
        facts.submit(f"extend {job.job} {job.extension_ms}", command)
