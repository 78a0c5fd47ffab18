"""What the primary gate has to say to datacenters, derived from the committed state (R15).

Nothing is queued: a new primary finds the same orders in the tables and sends them again, which is
harmless, because each names a handover and the datacenter has committed its answer. An order is
repeated until the state no longer needs it: Accept until the datacenter answered, Start until it
started, Cancel until it reported the end, Forget until it has forgotten. Start is only derived from
a Started(e) that is committed. Pure: the driver sends, and reports each answer or failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from squall.cluster.assignments.commands import ForgetTries, GateCommand, PartFacts, ReportParts
from squall.cluster.assignments.records import GateJobRecord, PartRecord, PartTry
from squall.cluster.assignments.tables import AssignmentTables
from squall.cluster.control.redelivery import Redelivery
from squall.cluster.protocol.gates.gate_messages import (
    OVER,
    AcceptPart,
    AdjustPart,
    AnnounceGates,
    CancelPart,
    ForgetPart,
    GatesKnown,
    PartAnswer,
    StartPart,
    WorkflowAdjustment,
)
from squall.cluster.protocol.gates.handover_keys import GateFence
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import Submission
from squall.runtime.backoff import Backoff

PART_MARGIN_S = 300.0
"""Added to what remains of the job's time for the limit of a part in its datacenter: while a gate
lives, the gates end the job; the datacenter ends its part by itself if none ever comes back."""
REMIND_S = 2.0
"""How often a cancellation is repeated whose end was not reported yet."""
RETRY = Backoff(0.25, cap_s=4.0)

GatesOrder = AcceptPart | StartPart | CancelPart | AdjustPart | ForgetPart | AnnounceGates
PartOf = Callable[[GateJobRecord, PartRecord], Submission]
"""Returns the submission of one part of a job, without thresholds."""


class PartOrder(msgspec.Struct, frozen=True):
    """A message for any manager of a datacenter; the driver sends it once."""

    tag: str
    datacenter: str
    message: GatesOrder


class GateOutbox:
    """The orders of one term of a primary gate."""

    def __init__(
        self,
        tables: Callable[[], AssignmentTables],
        fence: Callable[[], GateFence],
        part_of: PartOf,
        gates: Callable[[], list[str]],
        on_broken: Callable[[JobId, Exception], None] = lambda job, error: None,
    ) -> None:
        """`gates` returns host:port of all gates. `on_broken` is called with a job whose orders
        cannot be made."""
        self._on_broken = on_broken
        self._tables = tables
        self._fence = fence
        self._part_of = part_of
        self._gates = gates
        self._sending = Redelivery(RETRY)

    def due(self, now: float, group_ms: int) -> list[PartOrder]:
        """The orders to send now; each is under way until its answer or failure is reported."""
        tables, fence, gates = self._tables(), self._fence(), self._gates()
        orders: list[PartOrder] = []
        named: list[str] = []
        for datacenter, record in tables.datacenters.items():
            if not record.managers:
                continue
            tag = f"gates {datacenter} {' '.join(gates)}"
            named.append(tag)
            if gates and tables.group and self._sending.is_due(tag, now):
                self._sending.sent(tag)
                announcement = AnnounceGates(datacenter=datacenter, fence=fence, gates=gates)
                orders.append(PartOrder(tag, datacenter, announcement))
        for name in sorted(tables.open):
            try:
                for tag, datacenter, build in self._orders(tables.jobs[name], fence, group_ms):
                    named.append(tag)
                    if self._sending.is_due(tag, now):
                        order = PartOrder(tag, datacenter, build())
                        self._sending.sent(tag)
                        orders.append(order)
            except Exception as error:
                # What raises for one job must not keep the orders of the others back (R3).
                self._on_broken(name, error)
        self._sending.retain(named)
        return orders

    def answered(
        self, order: PartOrder, answer: PartAnswer | GatesKnown, now: float
    ) -> GateCommand | None:
        """Returns what the answer means for the log, if the datacenter does not report it."""
        message = order.message
        if isinstance(message, AnnounceGates) or isinstance(answer, GatesKnown):
            self._sending.answered(order.tag, now)
            return None
        # The end of a cancelled part comes as a report. Cancel is repeated until then, because a
        # datacenter that lost its state after this answer would otherwise report nothing.
        again_s = REMIND_S if isinstance(message, CancelPart) else float("inf")
        self._sending.answered(order.tag, now, again_s)
        if isinstance(message, ForgetPart):
            if answer.closed:
                return ForgetTries(forgotten=((message.job, order.datacenter),))
            # Something of the job still runs there, so the datacenter has not closed it yet.
            self._sending.answered(order.tag, now, REMIND_S)
            return None
        gone = answer.closed or answer.state == "unknown"
        if gone and not isinstance(message, AdjustPart):
            # The datacenter has no such handover and reports nothing of it: it has forgotten the
            # job, or lost its state.
            return self._gone(message)
        if isinstance(message, StartPart) and answer.state not in ("started", *OVER):
            self._sending.failed(order.tag, now)
        return None

    def failed(self, order: PartOrder, now: float) -> None:
        """Notes that no answer came. The order may have arrived all the same, so it is repeated."""
        self._sending.failed(order.tag, now)

    def next_due(self) -> float:
        return self._sending.next_due()

    def _gone(self, message: AcceptPart | StartPart | CancelPart) -> GateCommand | None:
        job = self._tables().jobs.get(message.job)
        found = job.find(message.datacenter, message.handover) if job is not None else None
        if found is None:
            return None
        facts = PartFacts(
            job=message.job,
            datacenter=message.datacenter,
            handover=message.handover,
            state="cancelled",
            revision=found[1].revision + 1,
            reason=f"{message.datacenter} does not know the part any more",
        )
        return ReportParts(reports=(facts,))

    def _orders(
        self, job: GateJobRecord, fence: GateFence, group_ms: int
    ) -> Iterator[tuple[str, str, Callable[[], GatesOrder]]]:
        """(tag, datacenter, how to build the message) of all orders that a job needs now."""
        for part in job.parts:
            for tried in part.tries:
                yield from self._try_orders(job, part, tried, fence, group_ms)
        if job.over:
            for datacenter in sorted({t.datacenter for p in job.parts for t in p.tries}):
                here = [t for p in job.parts for t in p.tries if t.datacenter == datacenter]
                if all(t.settled for t in here) and not all(t.forgotten for t in here):
                    highest = max(t.handover for t in here)
                    forget = ForgetPart(
                        job=job.job, datacenter=datacenter, handover=highest, fence=fence
                    )
                    yield f"forget {job.job} {datacenter}", datacenter, lambda m=forget: m

    def _try_orders(
        self,
        job: GateJobRecord,
        part: PartRecord,
        tried: PartTry,
        fence: GateFence,
        group_ms: int,
    ) -> Iterator[tuple[str, str, Callable[[], GatesOrder]]]:
        if tried.settled:
            return
        name = f"{job.job} {tried.datacenter} {tried.handover}"
        where = tried.datacenter
        # Cancel replaces Accept and Start: a cancelled try needs neither, and the datacenter leaves
        # a tombstone for an Accept that is still under way.
        if tried.cancel:
            yield (
                f"cancel {name} {tried.cancel_now}",
                where,
                lambda: CancelPart(
                    job=job.job,
                    datacenter=where,
                    handover=tried.handover,
                    fence=fence,
                    kind=tried.cancel,
                    reason=tried.cancel_reason,
                    now=tried.cancel_now,
                    exit_code=job.exit_code,
                ),
            )
        elif tried.state == "assigned":
            yield f"accept {name}", where, lambda: self._accept(job, part, tried, fence, group_ms)
        elif tried.state == "started":
            yield (
                f"start {name}",
                where,
                lambda: StartPart(
                    job=job.job,
                    datacenter=where,
                    handover=tried.handover,
                    fence=fence,
                    timeout_s=_limit_s(job, group_ms),
                ),
            )
            if job.adjust_seq or job.extension_ms:
                yield (
                    f"adjust {name} {job.adjust_seq} {job.extension_ms}",
                    where,
                    lambda: _adjustment(job, part, tried, fence),
                )

    def _accept(
        self,
        job: GateJobRecord,
        part: PartRecord,
        tried: PartTry,
        fence: GateFence,
        group_ms: int,
    ) -> AcceptPart:
        return AcceptPart(
            job=job.job,
            datacenter=tried.datacenter,
            handover=tried.handover,
            fence=fence,
            principal=job.principal,
            key=job.key,
            submission=self._part_of(job, part),
            sealed=job.sealed,
            created_at=job.created_at,
            timeout_s=_limit_s(job, group_ms),
        )


def _limit_s(job: GateJobRecord, group_ms: int) -> float:
    """The limit of a part in its datacenter, from now on; 0: none is known yet."""
    if not job.deadline_ms:
        return 0.0
    left_ms = job.deadline_ms + job.extension_ms - group_ms
    return max(left_ms, 0) / 1000.0 + PART_MARGIN_S


def _adjustment(
    job: GateJobRecord, part: PartRecord, tried: PartTry, fence: GateFence
) -> AdjustPart:
    return AdjustPart(
        job=job.job,
        datacenter=tried.datacenter,
        handover=tried.handover,
        fence=fence,
        adjust_seq=job.adjust_seq,
        workflows=[
            WorkflowAdjustment(
                workflow=name, paused=each.paused, rate_per_s=each.rate_per_s, vus=each.vus
            )
            for name, each in part.adjustments
        ],
        by=job.adjustments[-1].by if job.adjustments else "",
        extension_s=job.extension_ms / 1000.0,
    )
