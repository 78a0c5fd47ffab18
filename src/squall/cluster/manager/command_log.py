"""Logs and counts what happened to jobs and workers: losses, refills, stops, ends.

The primary logs, because it decided; the other members would repeat every line. All of it is
read from the commands that were committed, so that nothing that happened is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from squall.cluster.datacenter import commands
from squall.cluster.datacenter.commands import Accepted
from squall.cluster.protocol.job_keys import AttemptKey
from squall.runtime.log import Log
from squall.runtime.metrics import Counter, Registry

EVENTS = (
    "worker_lost",
    "share_lost",
    "shares_ended_early",
    "share_refilled",
    "workflow_returned",
    "workflow_stopped",
    "job_stopped",
    "job_timeout",
    "job_ended",
    "removed_early",
)
ATTEMPTS_MAX = 20

EventCounts = Mapping[str, Counter]


def event_counts(registry: Registry) -> EventCounts:
    """Call it once per registry. An agent is a manager again in each of its terms, with the same
    counts."""
    family = registry.counters(
        "squall_job_events_total",
        "Losses, refills, stops and ends that this manager committed, by event",
        ["event"],
    )
    return {event: family.with_labels(event) for event in EVENTS}


class CommandLog:
    """Receives every command that this manager applies while it leads."""

    def __init__(self, log: Log, counts: EventCounts) -> None:
        self._log = log
        self._counts = counts

    def applied(self, body: bytes, result: bytes) -> None:
        try:
            command, outcome = commands.decode(body), commands.decode_outcome(result)
        except msgspec.MsgspecError:
            return
        # A repeated or rejected command changed nothing.
        if isinstance(outcome, Accepted) and outcome.changed:
            self._note(command)

    def _note(self, command: commands.Command) -> None:
        match command:
            case commands.LoseWorkers():
                for node, boot in command.workers:
                    self._warn(
                        "worker_lost", worker=node, worker_boot=boot, reason="silent for too long"
                    )
            case commands.LoseAttempts():
                for lost in command.lost:
                    self._warn("share_lost", **_share(lost.key), reason=lost.reason)
            case commands.EndAttempts():
                self._note_ends(command)
            case commands.RefillShares():
                for each in command.assignments:
                    self._info(
                        "share_refilled",
                        job=command.job,
                        workflow=command.workflow,
                        share=each.share,
                        attempt=int(each.attempt),
                        worker=each.node,
                        reason="its former attempt was lost",
                    )
            case commands.ReturnWorkflows():
                names = ", ".join(command.workflows)
                self._info(
                    "workflow_returned", job=command.job, workflow=names, reason=command.reason
                )
            case commands.StopWorkflow():
                self._warn(
                    "workflow_stopped",
                    job=command.job,
                    workflow=command.workflow,
                    reason=command.error or command.kind,
                )
            case commands.StopJob():
                if command.kind == "timeout":
                    self._warn("job_timeout", job=command.job, reason=command.reason)
                else:
                    self._info(
                        "job_stopped", job=command.job, kind=command.kind, reason=command.reason
                    )
            case commands.FinishJob():
                self._info(
                    "job_ended", job=command.job, status=command.status, reason=command.reason
                )
            case commands.Purge() if command.early:
                self._info(
                    "removed_early",
                    jobs=len(command.jobs),
                    keys=len(command.keys),
                    reason="more have ended than are kept",
                )
            case _:
                pass

    def _note_ends(self, command: commands.EndAttempts) -> None:
        """A process died, a lease ended, a worker left, or the job was stopped. One line for all
        shares with one reason: a stop ends thousands of them."""
        early: dict[tuple[str, str, str], list[str]] = {}
        for facts in command.ended:
            key, reason = facts.key, facts.error or facts.cut
            if reason:
                attempts = early.setdefault((key.job, key.workflow, reason), [])
                attempts.append(f"{key.share}#{key.attempt}")
        for (job, workflow, reason), attempts in early.items():
            more = len(attempts) - ATTEMPTS_MAX
            shown = " ".join(attempts[:ATTEMPTS_MAX]) + (f" and {more} more" if more > 0 else "")
            self._warn(
                "shares_ended_early", job=job, workflow=workflow, attempts=shown, reason=reason
            )

    def _info(self, event: str, **fields: object) -> None:
        self._counts[event].add()
        self._log.info(event, **fields)

    def _warn(self, event: str, **fields: object) -> None:
        self._counts[event].add()
        self._log.warning(event, **fields)


def _share(key: AttemptKey) -> dict[str, object]:
    return {
        "job": key.job,
        "workflow": key.workflow,
        "share": key.share,
        "attempt": int(key.attempt),
    }
