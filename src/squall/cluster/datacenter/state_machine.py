"""The replicated state machine of a datacenter (R3).

Apply is total and deterministic: a bad command yields a rejection; a broken job invariant fails
that job and raises an alarm. It plans nothing and reads no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import msgspec

from squall.cluster.datacenter import (
    attempt_rules,
    commands,
    gated_rules,
    job_rules,
    worker_rules,
)
from squall.cluster.datacenter.commands import Accepted, Command, CommandOutcome, Rejected
from squall.cluster.datacenter.job_rules import broken, settle_state
from squall.cluster.datacenter.snapshot import TablesCapture, load_tables
from squall.cluster.datacenter.tables import Tables
from squall.cluster.ledger.interface import Entry
from squall.cluster.protocol.job_keys import JobId

_RULES: dict[type[Any], Callable[[Tables, Any], CommandOutcome]] = {
    commands.Configure: worker_rules.configure,
    commands.AddWorker: worker_rules.add_worker,
    commands.DrainWorker: worker_rules.drain_worker,
    commands.LoseWorkers: worker_rules.lose_workers,
    commands.ForgetWorkers: worker_rules.forget_workers,
    commands.CreateJob: job_rules.create_job,
    commands.StopJob: job_rules.stop_job,
    commands.FailJob: job_rules.fail_job,
    commands.AdjustLoad: job_rules.adjust_load,
    commands.ExtendJob: job_rules.extend_job,
    commands.LeadJobs: job_rules.lead_jobs,
    commands.FinishJob: job_rules.finish_job,
    commands.Purge: job_rules.purge,
    commands.PlaceWorkflows: attempt_rules.place_workflows,
    commands.ReturnWorkflows: attempt_rules.return_workflows,
    commands.StartWorkflows: attempt_rules.start_workflows,
    commands.EndAttempts: attempt_rules.end_attempts,
    commands.LoseAttempts: attempt_rules.lose_attempts,
    commands.RefillShares: attempt_rules.refill_shares,
    commands.StopWorkflow: attempt_rules.stop_workflow,
    commands.ConcludeWorkflows: attempt_rules.conclude_workflows,
    commands.AcceptJob: gated_rules.accept_job,
    commands.StartHeld: gated_rules.start_held,
    commands.ReadyHeld: gated_rules.ready_held,
    commands.CancelHeld: gated_rules.cancel_held,
    commands.AdjustHeld: gated_rules.adjust_held,
    commands.MarkDelivered: gated_rules.mark_delivered,
    commands.DisownHeld: gated_rules.disown_held,
    commands.ForgetGated: gated_rules.forget_gated,
    commands.KnowGates: gated_rules.know_gates,
    commands.PurgeGated: gated_rules.purge_gated,
}


class Datacenter:
    """Applies committed entries to the tables; a `StateMachine` of the ledger."""

    def __init__(self) -> None:
        self.tables = Tables()
        self._changed: dict[JobId, None] = {}

    @property
    def version(self) -> int:
        return commands.VERSION

    def apply(self, entry: Entry) -> bytes:
        tables = self.tables
        tables.op = int(entry.op)
        tables.group_ms = max(tables.group_ms, int(entry.group_ms))
        if entry.version > self.version:
            return commands.encode_outcome(Rejected(text=f"command version {entry.version}"))
        try:
            command = commands.decode(entry.body)
        except msgspec.MsgspecError as error:
            return commands.encode_outcome(Rejected(text=f"not a command: {error}"))
        return commands.encode_outcome(self._apply(command))

    def _apply(self, command: Command) -> CommandOutcome:
        tables = self.tables
        named = [job for job in jobs_of(command, tables) if job in tables.jobs]
        try:
            outcome = _RULES[type(command)](tables, command)
            for job in named:
                settle_state(tables, job)
                gated_rules.settle_gated(tables, job)
        except Exception as error:
            for job in named:
                broken(tables, job, f"{type(command).__name__}: {error}")
                gated_rules.settle_gated(tables, job)
            outcome = Rejected(text=f"internal error: {error}")
        if isinstance(outcome, Accepted) and outcome.job:
            named.append(outcome.job)
        for job in named:
            if job in tables.jobs:
                self._changed[job] = None
            else:
                self._changed.pop(job, None)
        return outcome

    def capture(self) -> TablesCapture:
        return TablesCapture(self.tables)

    def load(self, slices: Iterable[bytes]) -> None:
        self.tables = load_tables(slices)
        self._changed = dict.fromkeys(self.tables.jobs)

    def begin_group(self, group: str, epoch: int) -> None:
        """Names the jobs that are created from now on after a new group, which was made from a
        copy of another group's log. Jobs in the copy keep their ids; their new attempts are
        numbered above `epoch`, so that none is an attempt which the other group made later."""
        self.tables.group = group
        self.tables.attempt_floor = epoch

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
            for workflow in job.workflows:
                named += [workflow.context_blob, workflow.values_blob]
            yield from (digest for digest in named if digest)
        for attempts in self.tables.attempts.values():
            for attempt in attempts:
                if attempt.facts is not None and attempt.facts.digest:
                    yield attempt.facts.digest

    def take_changed(self) -> list[JobId]:
        """The jobs that changed since the last call, for the director."""
        changed, self._changed = list(self._changed), {}
        return changed


def jobs_of(command: Command, tables: Tables) -> list[JobId]:
    """The jobs that a command names or changes."""
    match command:
        case commands.EndAttempts():
            return list(dict.fromkeys(facts.key.job for facts in command.ended))
        case commands.LoseAttempts():
            return list(dict.fromkeys(lost.key.job for lost in command.lost))
        case commands.AddWorker() | commands.DrainWorker():
            return list(dict.fromkeys(key.job for key in tables.live.get(command.node, {})))
        case commands.LeadJobs():
            return [job for job, _ in command.leaders]
        case commands.Purge():
            return list(command.jobs)
        case commands.PurgeGated():
            return []
        case _:
            gated = tables.gated.get(getattr(command, "gate_job", JobId("")))
            if gated is not None:
                return [each.job for each in gated.tries if each.job]
            job = cast("JobId | None", getattr(command, "job", None))
            return [job] if job else []
