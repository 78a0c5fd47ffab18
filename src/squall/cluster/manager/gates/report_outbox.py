"""What the primary manager has to report to the gates, derived from the committed state (R15).

Nothing is queued: a new primary finds the same reports in the table of gated jobs and sends them
again; the gates know the revisions that they have. The end of a part is reported until the gates
have committed it and `MarkDelivered` is in the log; what comes before the end until a gate answers.
Pure: the driver sends, and reports each answer or failure.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from squall.cluster.control.redelivery import Redelivery
from squall.cluster.datacenter.commands import Command, DisownHeld, MarkDelivered
from squall.cluster.datacenter.gated_records import GatedTry, KnownGates
from squall.cluster.datacenter.gated_rules import gates_of
from squall.cluster.datacenter.tables import Tables
from squall.cluster.protocol.gates.gate_messages import PartReport, PartStored
from squall.cluster.protocol.job_keys import JobId
from squall.runtime.backoff import Backoff

RETRY = Backoff(0.25, cap_s=4.0)
COMMIT_AGAIN_S = 1.0
"""When the command that follows an answer is asked for again, should it not have been committed."""


class ReportOrder(msgspec.Struct, frozen=True):
    """A report for any gate; the driver sends it once."""

    tag: str
    gates: KnownGates
    """Those that lead the job."""
    report: PartReport


class ReportOutbox:
    """The reports of one term of a primary manager."""

    def __init__(self, tables: Callable[[], Tables], datacenter: str) -> None:
        self._tables = tables
        self._datacenter = datacenter
        self._sending = Redelivery(RETRY)
        self._asked_again: set[tuple[JobId, int]] = set()

    def due(self, now: float) -> list[ReportOrder]:
        """The reports to send now; each is under way until its answer or failure is reported."""
        orders: list[ReportOrder] = []
        named: list[str] = []
        tables = self._tables()
        for record in tables.gated.values():
            gates = gates_of(tables, record)
            if gates is None:
                continue
            for tried in record.tries:
                if not self._is_needed(record.job, tried):
                    continue
                # Gates that were recovered have not seen what the former ones have answered.
                tag = f"report {gates.group} {record.job} {tried.handover} {tried.revision}"
                named.append(tag)
                if self._sending.is_due(tag, now):
                    self._sending.sent(tag)
                    report = self._report(record.job, tried)
                    orders.append(ReportOrder(tag, gates, report))
        self._sending.retain(named)
        return orders

    def answered(self, order: ReportOrder, answer: PartStored, now: float) -> Command | None:
        """Returns the command that follows from the answer."""
        report, group = order.report, order.gates.group
        self._asked_again.discard((report.job, report.handover))
        record = self._tables().gated.get(report.job)
        tried = record.find(report.handover) if record is not None else None
        if tried is None:
            return None
        if not answer.known:
            self._sending.answered(order.tag, now, COMMIT_AGAIN_S)
            reason = "the gates do not know this part"
            return DisownHeld(
                gate_job=report.job, handover=report.handover, group=group, reason=reason
            )
        if not tried.over:
            self._sending.answered(order.tag, now)
            return None
        self._sending.answered(order.tag, now, COMMIT_AGAIN_S)
        return MarkDelivered(
            gate_job=report.job,
            handover=report.handover,
            revision=report.revision,
            group=group,
        )

    def failed(self, order: ReportOrder, now: float) -> None:
        self._sending.failed(order.tag, now)

    def next_due(self) -> float:
        return self._sending.next_due()

    def asked_again(self, job: JobId, handover: int) -> None:
        """The gates order something about a part whose end they were told: gates that were
        recovered from an older copy do not know it any more, so it is reported again."""
        self._asked_again.add((job, handover))

    def _is_needed(self, job: JobId, tried: GatedTry) -> bool:
        if tried.disowned:
            return False
        return not tried.is_delivered or (job, int(tried.handover)) in self._asked_again

    def _report(self, job: JobId, tried: GatedTry) -> PartReport:
        return PartReport(
            job=job,
            datacenter=self._datacenter,
            handover=tried.handover,
            state=tried.state,
            revision=tried.revision,
            reason=tried.reason,
            exit_code=tried.exit_code,
            is_final=tried.is_final,
            outcome=tried.outcome,
            result=tried.result,
            result_size=tried.result_size,
        )
