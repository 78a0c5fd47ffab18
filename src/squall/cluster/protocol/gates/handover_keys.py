"""The keys of jobs that gates hand over to datacenters, and the fence of the gates (R15).

A gate group is known by its id. A group that was made from a copy of another's log by a forced
recovery carries the ids of all groups before it: `former`. So a manager can tell a later group of
the same lineage, whose word counts from then on, from an earlier one, which it refuses for good,
and from a group that has nothing to do with the job. Pure.
"""

from __future__ import annotations

from typing import NewType

import msgspec

from squall.cluster.protocol.job_keys import JobId

HandoverNumber = NewType("HandoverNumber", int)
"""The number `e` of R15, from 1: the how manieth datacenter, or the how manieth time, a part of a
job is given away. It only rises, for a part and for a job in a datacenter."""


class GateFence(msgspec.Struct, frozen=True, array_like=True):
    """Identifies one term of one primary gate, for the managers of a datacenter."""

    group: str
    epoch: int = 0
    view: int = 0
    former: tuple[str, ...] = ()
    """The gate groups of which this one is a recovery, oldest first."""

    @property
    def term(self) -> tuple[int, int]:
        return self.epoch, self.view


def gate_group_of(job: JobId) -> str:
    """The gate group that created a job."""
    return job.rpartition("-")[0]


def part_job_id(job: JobId, datacenter: str, handover: HandoverNumber) -> JobId:
    """The id of a part in its datacenter: unique for each handover, so that no attempt, tombstone
    or record of one handover is taken for that of another."""
    return JobId(f"{job}.{datacenter}{handover}")


def fence_fault(job: JobId, kept: GateFence | None, given: GateFence) -> str:
    """Returns why a command of `given` about a job must be refused, or "". `kept` is the highest
    fence that the job has seen in this datacenter; None: the job is not known here."""
    if kept is None:
        if gate_group_of(job) in (given.group, *given.former):
            return ""
        return f"job {job} does not belong to the gates {given.group}"
    if given.group == kept.group:
        if given.term >= kept.term:
            return ""
        return f"a newer primary of the gates {kept.group} leads job {job}"
    if kept.group in given.former:
        return ""
    return f"job {job} is led by the gates {kept.group}, not by {given.group}"
