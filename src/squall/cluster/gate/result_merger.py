"""Makes the result of a job from the results of its datacenters, which the gates hold as blobs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from squall.api.errors import SquallError
from squall.cluster.assignments.records import GateJobRecord, PartRecord
from squall.cluster.ledger.interface import Blobs, Digest
from squall.cluster.protocol.messages import JobState
from squall.cluster.results.assemble import assemble
from squall.cluster.results.job_result import JobResult, decode_result
from squall.cluster.results.merge_datacenters import EndedPart, merge_results
from squall.cluster.results.parts import JobParts
from squall.engine.outcome import WorkflowOutcome, WorkflowStatus
from squall.stats.thresholds.judge import ThresholdResult

_NOT_RUN: dict[JobState, WorkflowStatus] = {"failed": "failed", "timeout": "timeout"}


class ResultMerger:
    """Reads the results of a job's parts and merges them."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def merged(
        self,
        job: GateJobRecord,
        status: JobState,
        reason: str,
        judged: Sequence[ThresholdResult],
    ) -> JobResult:
        """`judged` are the thresholds as the job's leader judged them while the job ran. Raises
        SquallError if a result cannot be read now."""
        parts = [each for part in job.parts if (each := await self._ended(part)) is not None]
        if not parts:
            return not_run(job, status, reason)
        result = merge_results(
            job.job,
            job.submission.manifest,
            job.submission.options,
            parts,
            aborted_by=reason if job.stop == "aborted" else "",
            judged=judged,
        )
        result.state, result.reason = status, reason
        return result

    async def _ended(self, part: PartRecord) -> EndedPart | None:
        """None: the part left no result, because it never ran."""
        tried = part.current
        if tried is None or not tried.result:
            return None
        try:
            data = await self._blobs.get(Digest(tried.result))
        except KeyError:
            text = f"no gate that can be reached has the result of {tried.datacenter}"
            raise SquallError(text) from None
        return EndedPart(
            name=tried.datacenter,
            part=part.weight,
            result=decode_result(data),
            tries=int(tried.handover),
        )


def not_run(job: GateJobRecord, status: JobState, reason: str) -> JobResult:
    """The result of a job that never ran."""
    outcome: WorkflowStatus = _NOT_RUN.get(status, "interrupted")
    is_refused = status == "failed" and bool(job.exit_code)
    parts = JobParts(
        job=job.job,
        state=status,
        reason=reason,
        started_at=job.created_at,
        elapsed_s=0.0,
        workflows=[
            WorkflowOutcome(name=each.name, status=outcome, error=reason)
            for each in job.submission.manifest.workflows
        ],
        refusal=reason if is_refused else "",
        refusal_code=job.exit_code if is_refused else 0,
    )
    # There is nothing to judge, and a threshold may name a datacenter.
    options = msgspec.structs.replace(job.submission.options, thresholds=())
    return assemble(job.submission.manifest, options, parts)
