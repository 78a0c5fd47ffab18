"""The parts of a gates' job: which datacenter has which share, and the submission of each."""

from __future__ import annotations

from squall.cluster.assignments.records import GateJobRecord, PartRecord
from squall.cluster.protocol.gates.job_split import part_of
from squall.cluster.protocol.submission import Submission


def part_weights(job: GateJobRecord) -> list[tuple[str, float]]:
    """The datacenters of a job's parts in their order, each with its part of the load. A part
    without a datacenter has the name that the job gave it."""
    targets = job.submission.targets
    named = targets.weights if targets else ()
    return [
        (
            part.current.datacenter
            if part.current is not None
            else named[part.index][0]
            if named
            else f"part {part.index}",
            part.weight,
        )
        for part in job.parts
    ]


def part_submission(job: GateJobRecord, part: PartRecord) -> Submission:
    """What one datacenter runs of a job, without thresholds: they are judged once, by the gates."""
    return part_of(job.submission, part.index, part_weights(job))
