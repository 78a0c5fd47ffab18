"""What runs next in a job, and how its workflows and the job itself end.

The same rules as on one machine: layers one after the other; a workflow whose dependency
did not complete is skipped; a stopped job runs only `when="always"`; EXCLUSIVE runs by
itself, after the others of its layer. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from squall.engine.outcome import WorkflowStatus
from squall.nodes.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.nodes.datacenter.states import WorkflowState
from squall.nodes.datacenter.tables import Tables
from squall.nodes.identity import ShareKey
from squall.nodes.manager.session_stops import is_always
from squall.nodes.messages import JobState
from squall.stats.manifest import WorkflowManifest


class End(NamedTuple):
    outcome: WorkflowStatus
    error: str = ""


def current_layer(job: JobRecord) -> list[WorkflowRecord]:
    """The workflows that are not over, of the lowest layer that has one."""
    left = [workflow for workflow in job.workflows if not workflow.over]
    lowest = min((workflow.layer for workflow in left), default=0)
    return [workflow for workflow in left if workflow.layer == lowest]


def skipped(job: JobRecord) -> list[tuple[str, str]]:
    """Pending workflows that will never run, with the reason."""
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
    """The workflows to be placed together now; empty while others run or nothing is left."""
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


def ending(tables: Tables, job: JobRecord, workflow: WorkflowRecord) -> End:
    """The outcome of a workflow none of whose attempts may run any more."""
    attempts = _attempts(tables, job, workflow)
    errors = [a.facts.error for a in attempts if a.facts is not None and a.facts.error]
    if errors:
        return End("failed", errors[0])
    always = is_always(job, workflow.name)
    whole = workflow.started_ms > 0 and _all_whole(tables, job, workflow)
    if workflow.stop and not whole:
        return End("timeout" if workflow.stop == "timeout" else "failed", workflow.error)
    if not workflow.started_ms:
        return _not_started(job)
    if not any(a.facts is not None and a.facts.complete for a in attempts):
        lost = [a.reason for a in attempts if a.state == "lost"]
        return End("failed", lost[-1] if lost else "nothing of it was recorded")
    if job.stop and not whole and not always:
        if job.stop == "timeout":
            return End("timeout")
        if job.stop in ("cancelled", "failed"):
            return End("interrupted")
    return End("completed")


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


def elapsed_of(tables: Tables, job: JobRecord, workflow: WorkflowRecord) -> float:
    """From its start to the last thing that is known of it."""
    known = [a.facts.elapsed_s for a in _attempts(tables, job, workflow) if a.facts is not None]
    return max(known, default=0.0) if workflow.started_ms else 0.0


def records_of(tables: Tables, job: JobRecord, workflow: WorkflowRecord) -> tuple[str, ...]:
    """Digests of its final records, by share and attempt."""
    return tuple(
        a.facts.digest
        for a in _attempts(tables, job, workflow)
        if a.facts is not None and a.facts.complete and a.facts.digest
    )


def _not_started(job: JobRecord) -> End:
    if job.stop == "timeout":
        return End("timeout", job.reason)
    if job.stop == "failed":
        return End("failed", job.reason)
    return End("interrupted", job.reason)


def _attempts(tables: Tables, job: JobRecord, workflow: WorkflowRecord) -> list[AttemptFacts]:
    return [facts for key, facts in tables.attempts_of(job.job) if key.workflow == workflow.name]


def _all_whole(tables: Tables, job: JobRecord, workflow: WorkflowRecord) -> bool:
    """Every share came to its end by itself."""
    for share in range(workflow.shares):
        last = tables.last(ShareKey(job.job, workflow.name, share))
        if last is None or last.facts is None or not last.facts.complete or last.facts.cut:
            return False
    return True


def _did(outcome: WorkflowStatus | None) -> str:
    words: dict[WorkflowStatus | None, str] = {"failed": "failed", "skipped": "was skipped"}
    return words.get(outcome, "did not complete")
