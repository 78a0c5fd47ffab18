"""Logs and counts what happened to the jobs of the gates: moves, losses, stops, ends.

The primary logs, because it decided; the other members would repeat every line. All of it is read
from the commands that were committed, so that nothing that happened is left out.
"""

from __future__ import annotations

import msgspec

from squall.cluster.assignments import commands
from squall.cluster.assignments.commands import GateCommand
from squall.cluster.protocol import job_commands
from squall.cluster.protocol.command_outcomes import Accepted, decode_outcome
from squall.runtime.log import Log
from squall.runtime.metrics import Registry

EVENTS = (
    "part_assigned",
    "part_refused",
    "part_ended",
    "part_lost",
    "job_queued_again",
    "job_started",
    "job_stopped",
    "job_timeout",
    "job_ended",
)


class GateCommandLog:
    """Receives every command that this gate applies while it leads."""

    def __init__(self, log: Log, registry: Registry) -> None:
        self._log = log
        family = registry.counters(
            "squall_job_events_total",
            "Moves, losses, stops and ends that this gate committed, by event",
            ["event"],
        )
        self._counts = {event: family.with_labels(event) for event in EVENTS}

    def applied(self, body: bytes, result: bytes) -> None:
        try:
            command, outcome = commands.decode(body), decode_outcome(result)
        except msgspec.MsgspecError:
            return
        # A repeated or rejected command changed nothing.
        if isinstance(outcome, Accepted) and outcome.changed:
            self._note(command)

    def _note(self, command: GateCommand) -> None:
        match command:
            case commands.AssignParts():
                for each in command.choices:
                    self._info(
                        "part_assigned",
                        job=command.job,
                        part=each.part,
                        datacenter=each.datacenter,
                        handover=int(each.handover),
                    )
            case commands.ReportParts():
                for facts in command.reports:
                    self._note_report(facts)
            case commands.StartParts():
                self._info("job_started", job=command.job)
            case commands.QueueAgain():
                self._warn("job_queued_again", job=command.job, reason=command.reason)
            case commands.LosePart():
                self._warn("part_lost", job=command.job, part=command.part, reason=command.reason)
            case job_commands.StopJob():
                if command.kind == "timeout":
                    self._warn("job_timeout", job=command.job, reason=command.reason)
                else:
                    self._info(
                        "job_stopped", job=command.job, kind=command.kind, reason=command.reason
                    )
            case job_commands.FinishJob():
                self._info(
                    "job_ended", job=command.job, status=command.status, reason=command.reason
                )
            case _:
                pass

    def _note_report(self, facts: commands.PartFacts) -> None:
        where: dict[str, object] = {
            "job": facts.job,
            "datacenter": facts.datacenter,
            "handover": int(facts.handover),
        }
        if facts.state == "refused":
            self._warn("part_refused", **where, reason=facts.reason)
        elif facts.state == "ended":
            self._info("part_ended", **where, status=facts.outcome, reason=facts.reason)

    def _info(self, event: str, **fields: object) -> None:
        self._counts[event].add()
        self._log.info(event, **fields)

    def _warn(self, event: str, **fields: object) -> None:
        self._counts[event].add()
        self._log.warning(event, **fields)
