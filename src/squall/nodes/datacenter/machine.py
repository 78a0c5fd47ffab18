"""The replicated state machine of a datacenter: what its log means.

Apply is total and deterministic: a bad command yields a rejection, a broken job invariant
fails that job and raises an alarm, and nothing else happens. It never plans, reads no
clock, and treats every member's log alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import msgspec

from squall.ledger.interface import Entry
from squall.nodes.datacenter import attempt_rules, commands, job_rules, worker_rules
from squall.nodes.datacenter.capture import TablesCapture, load_tables
from squall.nodes.datacenter.commands import Accepted, Command, Outcome, Rejected
from squall.nodes.datacenter.job_rules import broken, settle_state
from squall.nodes.datacenter.tables import Tables
from squall.nodes.identity import JobId

_RULES: dict[type[Any], Callable[[Tables, Any], Outcome]] = {
    commands.Configure: worker_rules.configure,
    commands.AddWorker: worker_rules.add_worker,
    commands.DrainWorker: worker_rules.drain_worker,
    commands.LoseWorkers: worker_rules.lose_workers,
    commands.ForgetWorkers: worker_rules.forget_workers,
    commands.CreateJob: job_rules.create_job,
    commands.StopJob: job_rules.stop_job,
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
}


class Datacenter:
    """A `squall.ledger.interface.StateMachine`."""

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

    def _apply(self, command: Command) -> Outcome:
        tables = self.tables
        named = [job for job in jobs_of(command, tables) if job in tables.jobs]
        try:
            outcome = _RULES[type(command)](tables, command)
            for job in named:
                settle_state(tables, job)
        except Exception as error:
            for job in named:
                broken(tables, job, f"{type(command).__name__}: {error}")
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

    def digest(self) -> str:
        """The same on all members that applied the same entries."""
        sums = hashlib.sha256()
        for piece in self.capture().slices():
            sums.update(piece)
        return sums.hexdigest()

    def referenced(self) -> Iterator[str]:
        """Digests of the blobs that the state names; a digest may come twice."""
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
        """Jobs that changed since this was last asked, for whoever drives them here."""
        changed, self._changed = list(self._changed), {}
        return changed


def jobs_of(command: Command, tables: Tables) -> list[JobId]:
    """The jobs that a command names or touches."""
    match command:
        case commands.EndAttempts():
            return list(dict.fromkeys(facts.key.job for facts in command.ended))
        case commands.LoseAttempts():
            return list(dict.fromkeys(lost.key.job for lost in command.lost))
        case commands.AddWorker():
            return list(dict.fromkeys(key.job for key in tables.live.get(command.node, {})))
        case commands.LeadJobs():
            return [job for job, _ in command.leaders]
        case commands.Purge():
            return list(command.jobs)
        case _:
            job = cast("JobId | None", getattr(command, "job", None))
            return [job] if job else []
