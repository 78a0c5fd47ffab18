"""Which workflows of a job run next, and how the workflows and the job end.

The rules are those of a run on one machine: layers run one after the other; a workflow whose
dependency did not complete is skipped; a stopped job runs only `when="always"`; an EXCLUSIVE
workflow runs by itself, after the others of its layer. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from squall.cluster.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.cluster.datacenter.tables import Tables
from squall.cluster.datacenter.workflow_states import WorkflowState
from squall.cluster.manager.sessions.stops import is_always
from squall.cluster.protocol.job_keys import ShareKey
from squall.cluster.protocol.messages import JobState
from squall.engine.outcome import WorkflowStatus
from squall.stats.manifest import WorkflowManifest


class WorkflowEnd(NamedTuple):
    """How a workflow ended, and the error if it failed."""

    outcome: WorkflowStatus
    error: str = ""


def current_layer(job: JobRecord) -> list[WorkflowRecord]:
    """The workflows that are not over in the lowest layer that has any."""
    left = [workflow for workflow in job.workflows if not workflow.over]
    lowest = min((workflow.layer for workflow in left), default=0)
    return [workflow for workflow in left if workflow.layer == lowest]


def skipped(job: JobRecord) -> list[tuple[str, str]]:
    """The pending workflows that will never run, with the reason."""
    found: list[tuple[str, str]] = []
    layer = {workflow.name for workflow in current_layer(job)}
    manifest = job.submission.manifest
    for workflow in job.workflows:
        if workflow.over or workflow.state is not WorkflowState.PENDING:
            continue
        always = is_always(job, workflow.name)
        if job.stop and (not always or job.stop_now or job.stop == "failed"):
            found.append((workflow.name, "the run was stopped"))
        elif workflow.name in layer and not always:
            for name in manifest.workflow(workflow.name).depends:
                other = job.workflow(name)
                if other is not None and other.outcome != "completed":
                    found.append((workflow.name, f"{name} {_did(other.outcome)}"))
                    break
    return found


def next_phase(job: JobRecord) -> list[WorkflowManifest]:
    """The workflows to place together now; empty while others run or none is left."""
    if job.over or skipped(job):
        return []
    layer = current_layer(job)
    if any(workflow.state is not WorkflowState.PENDING or workflow.stop for workflow in layer):
        return []
    plans = [job.submission.manifest.workflow(workflow.name) for workflow in layer]
    together = [plan for plan in plans if not is_exclusive(plan)]
    return together or plans[:1]


def is_exclusive(workflow: WorkflowManifest) -> bool:
    return workflow.is_test and workflow.priority == "exclusive"


def ending(tables: Tables, job: JobRecord, workflow: WorkflowRecord) -> WorkflowEnd:
    """The outcome of a workflow after its last attempt has certainly ended."""
    attempts = _attempts(tables, job, workflow)
    errors = [a.facts.error for a in attempts if a.facts is not None and a.facts.error]
    if errors:
        return WorkflowEnd("failed", errors[0])
    always = is_always(job, workflow.name)
    whole = workflow.started_ms > 0 and _all_whole(tables, job, workflow)
    if workflow.stop and not whole:
        return WorkflowEnd("timeout" if workflow.stop == "timeout" else "failed", workflow.error)
    if not workflow.started_ms:
        return _not_started(job)
    if not any(a.facts is not None and a.facts.complete for a in attempts):
        lost = [a.reason for a in attempts if a.state == "lost"]
        return WorkflowEnd("failed", lost[-1] if lost else "no record of it was received")
    if job.stop and not whole and not always:
        if job.stop == "timeout":
            return WorkflowEnd("timeout")
        if job.stop in ("cancelled", "failed"):
            return WorkflowEnd("interrupted")
    return WorkflowEnd("completed")


def final_status(job: JobRecord) -> JobState:
    """The one terminal state."""
    if job.stop == "cancelled":
        return "cancelled"
    if job.stop == "timeout":
        return "timeout"
    if job.stop == "failed":
        return "failed"
    outcomes = [workflow.outcome for workflow in job.workflows]
    if job.stop == "aborted" or all(outcome == "completed" for outcome in outcomes):
        return "completed"
    return "partial" if "completed" in outcomes else "failed"


def final_reason(job: JobRecord) -> str:
    """What stopped the job; of a job that ran to its end, the first workflow that failed."""
    if job.reason:
        return job.reason
    failed = [each for each in job.workflows if each.outcome in ("failed", "timeout")]
    if not failed:
        return ""
    first = failed[0]
    ended = "timed out" if first.outcome == "timeout" else "failed"
    text = f"{first.name} {ended}" + (f": {first.error}" if first.error else "")
    return text + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else "")


def elapsed_of(tables: Tables, job: JobRecord, workflow: WorkflowRecord) -> float:
    """Seconds from its start to the end of its longest record."""
    known = [a.facts.elapsed_s for a in _attempts(tables, job, workflow) if a.facts is not None]
    return max(known, default=0.0) if workflow.started_ms else 0.0


def records_of(tables: Tables, job: JobRecord, workflow: WorkflowRecord) -> tuple[str, ...]:
    """Digests of its final records, ordered by share and attempt."""
    return tuple(
        a.facts.digest
        for a in _attempts(tables, job, workflow)
        if a.facts is not None and a.facts.complete and a.facts.digest
    )


def _not_started(job: JobRecord) -> WorkflowEnd:
    if job.stop == "timeout":
        return WorkflowEnd("timeout", job.reason)
    if job.stop == "failed":
        return WorkflowEnd("failed", job.reason)
    return WorkflowEnd("interrupted", job.reason)


def _attempts(tables: Tables, job: JobRecord, workflow: WorkflowRecord) -> list[AttemptFacts]:
    return [facts for key, facts in tables.attempts_of(job.job) if key.workflow == workflow.name]


def _all_whole(tables: Tables, job: JobRecord, workflow: WorkflowRecord) -> bool:
    """Every share ended by itself with a complete record."""
    for share in range(workflow.shares):
        last = tables.last(ShareKey(job.job, workflow.name, share))
        if last is None or last.facts is None or not last.facts.complete or last.facts.cut:
            return False
    return True


def _did(outcome: WorkflowStatus | None) -> str:
    words: dict[WorkflowStatus | None, str] = {"failed": "failed", "skipped": "was skipped"}
    return words.get(outcome, "did not complete")
