"""The replicated state machine of the gates (R3, R15).

Apply is total and deterministic: a bad command yields a rejection; a broken job invariant fails
that job and raises an alarm. It plans nothing and reads no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import msgspec

from squall.cluster.assignments import commands, job_rules, part_rules
from squall.cluster.assignments.commands import GateCommand
from squall.cluster.assignments.snapshot import AssignmentsCapture, load_tables
from squall.cluster.assignments.tables import AssignmentTables
from squall.cluster.ledger.interface import Entry
from squall.cluster.protocol import job_commands
from squall.cluster.protocol.command_outcomes import (
    Accepted,
    CommandOutcome,
    Rejected,
    encode_outcome,
)
from squall.cluster.protocol.job_keys import JobId

FORMER_MAX = 64
"""Forced recoveries of one group that managers can tell apart."""

_RULES: dict[type[Any], Callable[[AssignmentTables, Any], CommandOutcome]] = {
    commands.ConfigureGates: job_rules.configure,
    commands.KnowDatacenters: job_rules.know_datacenters,
    commands.CreateGateJob: job_rules.create_job,
    commands.AssignParts: part_rules.assign_parts,
    commands.ReportParts: part_rules.report_parts,
    commands.StartParts: part_rules.start_parts,
    commands.QueueAgain: part_rules.queue_again,
    commands.LosePart: part_rules.lose_part,
    commands.AdjustParts: job_rules.adjust_parts,
    commands.ForgetTries: part_rules.forget_tries,
    job_commands.StopJob: job_rules.stop_job,
    job_commands.FailJob: job_rules.fail_job,
    job_commands.ExtendJob: job_rules.extend_job,
    job_commands.LeadJobs: job_rules.lead_jobs,
    job_commands.FinishJob: job_rules.finish_job,
    job_commands.Purge: job_rules.purge,
}


class Assignments:
    """Applies committed entries to the tables; a `StateMachine` of the ledger."""

    def __init__(self) -> None:
        self.tables = AssignmentTables()
        self._changed: dict[JobId, None] = {}

    @property
    def version(self) -> int:
        return commands.VERSION

    def apply(self, entry: Entry) -> bytes:
        tables = self.tables
        tables.op = int(entry.op)
        tables.group_ms = max(tables.group_ms, int(entry.group_ms))
        if entry.version > self.version:
            return encode_outcome(Rejected(text=f"command version {entry.version}"))
        try:
            command = commands.decode(entry.body)
        except msgspec.MsgspecError as error:
            return encode_outcome(Rejected(text=f"not a command: {error}"))
        return encode_outcome(self._apply(command))

    def _apply(self, command: GateCommand) -> CommandOutcome:
        tables = self.tables
        named = [job for job in jobs_of(command) if job in tables.jobs]
        try:
            outcome = _RULES[type(command)](tables, command)
            if isinstance(outcome, Accepted) and outcome.job and outcome.job not in named:
                named.append(outcome.job)
            for job in named:
                job_rules.settle_state(tables, job)
        except Exception as error:
            for job in named:
                job_rules.broken(tables, job, f"{type(command).__name__}: {error}")
            outcome = Rejected(text=f"internal error: {error}")
        for job in named:
            if job in tables.jobs:
                self._changed[job] = None
            else:
                self._changed.pop(job, None)
        return outcome

    def capture(self) -> AssignmentsCapture:
        return AssignmentsCapture(self.tables)

    def load(self, slices: Iterable[bytes]) -> None:
        self.tables = load_tables(slices)
        self._changed = dict.fromkeys(self.tables.jobs)

    def begin_group(self, group: str, epoch: int) -> None:
        """Names the jobs that are created from now on after a new group, which was made from a
        copy of another group's log. The new group carries the ids of all groups before it, so that
        managers obey it for their jobs and refuse the others for good. Jobs that the copy did not
        start are stopped (`recover_copied_jobs`)."""
        tables = self.tables
        if tables.group and tables.group != group:
            tables.former = (*tables.former, tables.group)[-FORMER_MAX:]
        tables.group = group
        job_rules.recover_copied_jobs(tables)
        self._changed = dict.fromkeys(tables.jobs)

    def digest(self) -> str:
        """The digest of the state, the same on all members that applied the same entries."""
        sums = hashlib.sha256()
        for piece in self.capture().slices():
            sums.update(piece)
        return sums.hexdigest()

    def referenced(self) -> Iterator[str]:
        """The digests of the blobs that the state names; a digest may come twice."""
        for job in self.tables.jobs.values():
            named = [job.result, job.history]
            if not job.over:
                named.append(job.submission.bundle)
            for part in job.parts:
                for tried in part.tries:
                    named += [tried.result, tried.late_result]
            yield from (digest for digest in named if digest)

    def take_changed(self) -> list[JobId]:
        """The jobs that changed since the last call, for the steward."""
        changed, self._changed = list(self._changed), {}
        return changed


def jobs_of(command: GateCommand) -> list[JobId]:
    """Returns the jobs that a command names or changes."""
    match command:
        case commands.ReportParts():
            return list(dict.fromkeys(facts.job for facts in command.reports))
        case commands.ForgetTries():
            return list(dict.fromkeys(job for job, _ in command.forgotten))
        case job_commands.LeadJobs():
            return [job for job, _ in command.leaders]
        case job_commands.Purge():
            return list(command.jobs)
        case _:
            job = cast("JobId | None", getattr(command, "job", None))
            return [job] if job else []
