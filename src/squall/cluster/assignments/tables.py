"""The tables of the gates, and the only functions that change them.

Apply reads and writes only through this. Records are immutable and tables are dicts, so a copy of
the dicts is a copy of the whole state. Derived tables are not part of the state, and their order
never decides the result of a command.
"""

from __future__ import annotations

import msgspec

from squall.cluster.assignments.records import (
    DatacenterRecord,
    GateJobRecord,
    PartRecord,
    PartTry,
)
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.job_records import JobEvent, KeyEntry
from squall.cluster.protocol.job_rules import (
    with_event,
)

replace = msgspec.structs.replace


class AssignmentTables:
    """The whole state of the gates."""

    def __init__(self) -> None:
        self.group = ""
        # The groups of which this one is a recovery, oldest first (see `GateFence`).
        self.former: tuple[str, ...] = ()
        # Group time and op of the last applied entry.
        self.group_ms = 0
        self.op = 0
        # The wall time that the newest job was stamped with, for people; it never goes back.
        self.wall_s = 0.0
        self.datacenters: dict[str, DatacenterRecord] = {}
        self.jobs: dict[JobId, GateJobRecord] = {}
        self.keys: dict[tuple[str, str], KeyEntry] = {}
        self.events: dict[JobId, tuple[JobEvent, ...]] = {}
        # The last broken job invariants.
        self.alarms: tuple[str, ...] = ()

        # Derived, see `rebuild`: jobs that are not over; jobs with a try that a datacenter still
        # has to settle or forget, over or not; the job of several parts that reserves in each
        # datacenter.
        self.active: dict[JobId, None] = {}
        self.open: dict[JobId, None] = {}
        self.tickets: dict[str, JobId] = {}

    # Reading.

    def next_handover(self, job: GateJobRecord, part: int, datacenter: str) -> HandoverNumber:
        """The number of the next try of a part in a datacenter: above all numbers of the part, and
        above all numbers that the datacenter has seen of this job."""
        numbers = [
            each.handover
            for other in job.parts
            for each in other.tries
            if other.index == part or each.datacenter == datacenter
        ]
        return HandoverNumber(max(numbers, default=0) + 1)

    def is_copied(self, job: JobId) -> bool:
        """Whether another group created the job, and this group began with a copy of its log."""
        return bool(self.former) and not job.startswith(f"{self.group}-")

    # Writing.

    def put_job(self, job: GateJobRecord) -> None:
        before = self.jobs.get(job.job)
        if before is not None:
            self._unlist(before)
        self.jobs[job.job] = job
        self._list(job)

    def put_part(self, job: JobId, part: PartRecord) -> GateJobRecord:
        before = self.jobs[job]
        parts = tuple(part if each.index == part.index else each for each in before.parts)
        after = replace(before, parts=parts, touched=self.op)
        self.put_job(after)
        return after

    def put_try(self, job: JobId, index: int, tried: PartTry) -> GateJobRecord:
        """Stores a changed try of a part."""
        part = self.jobs[job].parts[index]
        tries = tuple(tried if each.handover == tried.handover else each for each in part.tries)
        return self.put_part(job, replace(part, tries=tries))

    def drop_job(self, job: JobId) -> None:
        before = self.jobs.pop(job, None)
        if before is not None:
            self._unlist(before)
        self.events.pop(job, None)

    def event(self, job: JobId, text: str) -> None:
        self.events[job] = with_event(self.events.get(job, ()), self.group_ms, text)

    def rebuild(self) -> None:
        """Computes the derived tables after the others were loaded."""
        self.active, self.open, self.tickets = {}, {}, {}
        for job in self.jobs.values():
            self._list(job)

    def _list(self, job: GateJobRecord) -> None:
        if not job.over:
            self.active[job.job] = None
        if not job.over or any(not each.forgotten for p in job.parts for each in p.tries):
            self.open[job.job] = None
        for datacenter in reserved_in(job):
            self.tickets[datacenter] = job.job

    def _unlist(self, job: GateJobRecord) -> None:
        self.active.pop(job.job, None)
        self.open.pop(job.job, None)
        for datacenter in reserved_in(job):
            if self.tickets.get(datacenter) == job.job:
                del self.tickets[datacenter]


def reserved_in(job: GateJobRecord) -> list[str]:
    """The datacenters for which a job holds a ticket. A job of several parts waits in all of them
    for its start, and without tickets two such jobs could wait for each other in two datacenters.
    A job of one part waits for its own datacenter alone, so it needs no ticket."""
    if len(job.parts) < 2 or not job.reserves:
        return []
    return [part.current.datacenter for part in job.parts if part.current and part.current.waits]
