"""Takes the reports of datacenters about the parts of jobs (R15).

Any gate takes a report, and relays it to the primary. It is answered after it is committed: then
the datacenter marks it as delivered, and its retention starts. A result is on a quorum of the gates
before the command that names it (R9).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from squall.cluster.assignments.commands import GateCommand, PartFacts, ReportParts
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.group.blob_transfers import Transfers
from squall.cluster.group.committer import Committer
from squall.cluster.group.job_leaders.choice import JobLeaders
from squall.cluster.ledger.interface import Ledger
from squall.cluster.protocol.gates.gate_messages import PartReport, PartStored
from squall.cluster.wire.links.dispatch import Handlers, Incoming


class PartReports:
    """Handles `PartReport`."""

    def __init__(
        self,
        *,
        machine: Assignments,
        ledger: Ledger,
        committer: Committer[GateCommand],
        transfers: Transfers,
        leaders: JobLeaders[GateCommand],
    ) -> None:
        self._machine = machine
        self._ledger = ledger
        self._committer = committer
        self._transfers = transfers
        self._leaders = leaders

    def register(self, handlers: Handlers) -> None:
        handlers.on(PartReport, self.report)

    async def report(self, message: PartReport, incoming: Incoming) -> PartStored:
        if message.result:
            await self._transfers.pull_for(
                message.result,
                message.result_size,
                incoming.channel,
                full="the gate cannot store the result",
                answer=self._committer.answer,
            )
        if message.relay and not self._ledger.is_primary:
            return await self._leaders.relay(msgspec.structs.replace(message, relay=False))
        # A gate that lags behind, or was replaced, must not deny a part that it has not heard of:
        # the datacenter would end it.
        await self._committer.read()
        return await stored(self._machine, message, self._committer.commit)


async def stored(
    machine: Assignments, report: PartReport, commit: Callable[[GateCommand], Awaitable[object]]
) -> PartStored:
    """The answer to a report, once the log has what it says. `commit` raises if it failed."""
    command = stored_report(machine, report)
    if command is not None:
        await commit(command)
    return PartStored(known=is_known(machine, report))


def is_known(machine: Assignments, report: PartReport) -> bool:
    job = machine.tables.jobs.get(report.job)
    return job is not None and job.find(report.datacenter, report.handover) is not None


def stored_report(machine: Assignments, report: PartReport) -> ReportParts | None:
    """The command that stores a report; None if the log has it or does not know the part."""
    job = machine.tables.jobs.get(report.job)
    found = job.find(report.datacenter, report.handover) if job is not None else None
    if found is None or found[1].settled or report.revision <= found[1].revision:
        return None
    if report.state == "started":
        # The gates started it. The datacenter asks whether they still know it.
        return None
    facts = PartFacts(
        job=report.job,
        datacenter=report.datacenter,
        handover=report.handover,
        state=report.state,
        revision=report.revision,
        reason=report.reason,
        exit_code=report.exit_code,
        is_final=report.is_final,
        outcome=report.outcome,
        result=report.result,
        result_size=report.result_size,
    )
    return ReportParts(reports=(facts,))
