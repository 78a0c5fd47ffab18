"""Sums over the workflows of a run, shared by the summary and the results document.

Sums only: percentiles are read from merged histograms, never combined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from squall.stats.histogram import Histogram, merged
from squall.stats.manifest import CLIENT_PROTOCOLS
from squall.stats.reports import HTTP1, RequestsDelta
from squall.stats.totals.protocols import ProtocolStats, are_shown, named
from squall.stats.totals.run import RunStats
from squall.stats.totals.step_rows import RowStats, is_status
from squall.stats.totals.workflow import WorkflowStats


@dataclass
class ProtocolTotals:
    """The measured steps of one protocol, and what its clients sent and received."""

    name: str
    count: int
    failed: int
    latency: Histogram
    traffic: ProtocolStats | None
    """None for protocols of the author's own."""


@dataclass
class Totals:
    """All exchanges of some workflows and the time they took."""

    requests: RequestsDelta
    other_calls: int
    connect: Histogram
    first_byte: Histogram
    statuses: dict[str, int]
    unknown_statuses: int
    """Answers to a process that died: only its counters are known."""
    no_answer: dict[str, int]
    """Exchanges that ended without an answer, by reason, as far as steps returned them."""
    span_s: float
    protocols: list[ProtocolTotals]
    """In the order of the steps, then those that only other calls used. Empty if there was
    nothing but HTTP/1."""

    @property
    def answered_per_s(self) -> float:
        return self.requests.answered / self.span_s if self.span_s else 0.0

    @property
    def received_per_s(self) -> float:
        return self.requests.bytes_received / self.span_s if self.span_s else 0.0


def totals_of(stats: RunStats, workflows: Sequence[WorkflowStats]) -> Totals:
    requests = RequestsDelta()
    statuses: Counter[str] = Counter()
    no_answer: Counter[str] = Counter()
    unknown = 0
    for workflow in workflows:
        for name in RequestsDelta.__struct_fields__:
            setattr(requests, name, getattr(requests, name) + getattr(workflow.requests, name))
        if workflow.statuses:
            statuses.update({str(status): count for status, count in workflow.statuses.items()})
            known = workflow.statuses.total() + workflow.requests.replies
            unknown += max(workflow.requests.answered - known, 0)
        for row in workflow.rows.values():
            if not workflow.statuses:
                # A document of an early version has only those of its steps.
                statuses.update(row.statuses)
            no_answer.update(_transport_reasons(stats, workflow.name, row))
    return Totals(
        requests=requests,
        other_calls=sum(workflow.other_calls for workflow in workflows),
        connect=merged(workflow.connect for workflow in workflows),
        first_byte=merged(
            row.first_byte
            for workflow in workflows
            for row in workflow.rows.values()
            if row.first_byte is not None
        ),
        statuses=dict(sorted(statuses.items())),
        unknown_statuses=unknown,
        no_answer=dict(no_answer.most_common()),
        span_s=span_s(workflows),
        protocols=_protocols(workflows),
    )


def _protocols(workflows: Sequence[WorkflowStats]) -> list[ProtocolTotals]:
    rows: dict[str, list[RowStats]] = {}
    for workflow in workflows:
        steps = {step.name for step in workflow.manifest.steps}
        for row in workflow.rows.values():
            # Calls with `name=` are counted by their steps.
            if row.protocol and row.name in steps and row.count:
                rows.setdefault(row.protocol, []).append(row)
    traffic = traffic_of(workflows)
    if set(rows) <= {HTTP1} and not are_shown(traffic):
        return []
    return [
        ProtocolTotals(
            name,
            sum(row.count for row in rows.get(name, ())),
            sum(row.failed for row in rows.get(name, ())),
            merged(row.latency for row in rows.get(name, ())),
            traffic.get(name),
        )
        for name in dict.fromkeys((*rows, *traffic))
        if name in rows or traffic[name].requests.connections or traffic[name].requests.sent
    ]


def traffic_of(workflows: Sequence[WorkflowStats]) -> dict[str, ProtocolStats]:
    """What the clients of some workflows did in each protocol."""
    found: dict[str, ProtocolStats] = {}
    for workflow in workflows:
        for each in workflow.protocols.values():
            named(found, each.name).merge(each)
    return found


def loaded_workflows(stats: RunStats) -> list[WorkflowStats]:
    """The test workflows that ran; without any, all workflows that ran."""
    ran = [workflow for workflow in stats.workflows.values() if workflow.last_second >= 0]
    return [workflow for workflow in ran if workflow.manifest.is_test] or ran


def span_s(workflows: Sequence[WorkflowStats]) -> float:
    """The time from the first measured second to the last end: what rates divide by."""
    if not workflows:
        return 0.0
    begin = min(workflow.started_at_s + workflow.skipped_s for workflow in workflows)
    end = max(w.started_at_s + w.skipped_s + w.rated_s for w in workflows)
    return max(end - begin, 0.0)


def _transport_reasons(stats: RunStats, workflow: str, row: RowStats) -> dict[str, int]:
    """An exception in the author's code leaves a traceback, a lost exchange does not."""
    if row.protocol not in CLIENT_PROTOCOLS:
        return {}
    raised = {s.reason for s in stats.error_samples(workflow, row.name) if s.traceback or s.status}
    return {
        key: outcome.count
        for key, outcome in row.outcomes.items()
        if not outcome.ok and outcome.exchanges and not is_status(key) and key not in raised
    }
