"""What a client sees of a job: snapshots, changes of state, results of workflows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import get_args

import msgspec

from squall.api.errors import SquallError
from squall.cluster.client.cluster_client import TERMINAL, ClusterClient, outcome_from
from squall.cluster.client.errors import Unreachable
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
    Followed,
    JobView,
    StreamEvent,
    StreamSnapshot,
    WorkflowView,
)
from squall.engine.outcome import DatacenterOutcome, WorkflowStatus
from squall.reporting.run_result import Result, WorkflowResult
from squall.stats.snapshot import DatacenterSnapshot, Snapshot, ThresholdState
from squall.stats.thresholds.judge import ThresholdResult

WORKFLOW_ENDS = get_args(WorkflowStatus)


@dataclass(frozen=True)
class JobUpdate:
    """What is new since the update before."""

    snapshots: list[Snapshot]
    view: JobView | None = None
    """If the state of the job or of a workflow has changed."""
    results: list[WorkflowResult] = field(default_factory=list[WorkflowResult])
    """Of the workflows that have ended."""


async def job_updates(client: ClusterClient, job: JobId) -> AsyncIterator[JobUpdate]:
    """Yields all updates of a job from its beginning; the last one has its terminal state."""
    shown: tuple[object, ...] = ()
    told: set[str] = set()
    async for answer in client.follow(job):
        snapshots = [item.snapshot for item in answer.items if isinstance(item, StreamSnapshot)]
        if not _may_have_changed(answer, shown):
            yield JobUpdate(snapshots)
            continue
        view = await client.counted_status(job)
        ended = [each for each in view.workflows if each.state in WORKFLOW_ENDS]
        new = [each for each in ended if each.name not in told]
        told.update(each.name for each in ended)
        states = (answer.state, view.state, *(each.state for each in view.workflows))
        changed = states[1:] != shown[1:]
        shown = states
        yield JobUpdate(snapshots, view if changed else None)
        for each in new:
            result = await _result_of(client, job, each)
            if result is not None:
                yield JobUpdate([], results=[result])


def _may_have_changed(answer: Followed, shown: tuple[object, ...]) -> bool:
    """Every change of a workflow is an event of the job."""
    events = any(isinstance(item, StreamEvent) for item in answer.items)
    return events or not shown or answer.state != shown[0] or answer.state in TERMINAL


async def _result_of(
    client: ClusterClient, job: JobId, ended: WorkflowView
) -> WorkflowResult | None:
    """None if it left no result: the job was refused, or an internal error ended it."""
    try:
        outcome = outcome_from(await client.workflow_result(job, ended.name))
    except Unreachable:
        raise
    except SquallError:
        return None
    stats = outcome.stats.workflows[ended.name]
    return WorkflowResult(stats, ended.state, ended.error)


def final_snapshot(result: Result) -> Snapshot:
    """The last item of a job's stream: the totals of its result."""
    outcome = result.outcome
    snapshot = outcome.stats.snapshot(
        outcome.elapsed_s,
        verdict=outcome.verdict.state,
        reasons=outcome.verdict.reasons,
        headline=outcome.verdict.headline,
        thresholds=[_state_of(each) for each in outcome.thresholds],
    )
    return msgspec.structs.replace(
        snapshot, final=True, datacenters=tuple(map(_ended_part, outcome.datacenters))
    )


def _ended_part(part: DatacenterOutcome) -> DatacenterSnapshot:
    """The totals of one datacenter; nothing happens there at this moment."""
    workflows = part.stats.workflows.values()
    return DatacenterSnapshot(
        name=part.name,
        part=part.part,
        tries=part.tries,
        state=part.state,
        executions=sum(workflow.count for workflow in workflows),
        failed=sum(workflow.failed for workflow in workflows),
        verdict=part.verdict.state,
        note=part.reason,
    )


def _state_of(threshold: ThresholdResult) -> ThresholdState:
    return ThresholdState(
        expression=threshold.expression,
        condition="passing" if threshold.passed else "failing",
        value=threshold.value,
        unit=threshold.unit,
        workflow=threshold.workflow,
        row=threshold.row,
        builtin=threshold.builtin,
    )
