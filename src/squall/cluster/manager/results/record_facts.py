"""Reads from a stored record the facts that go into the log."""

from __future__ import annotations

import math

from squall.cluster.datacenter.records import RecordFacts
from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.protocol.messages import Counters
from squall.cluster.results.uncounted_load import finished, lowest_latency_s
from squall.stats.attempt_record import AttemptRecord
from squall.stats.report_sums import failed_executions


def facts_of(key: AttemptKey, record: AttemptRecord, digest: str, size: int) -> RecordFacts:
    end = record.end
    fastest_s = lowest_latency_s(record)
    return RecordFacts(
        key=key,
        digest=digest,
        size=size,
        complete=end is not None,
        error=end.error if end is not None else "",
        cut=end.cut if end is not None else "",
        counters=counters_of(record),
        joined_s=record.joined_s,
        silent_from_s=record.silent_from_s,
        elapsed_s=end.elapsed_s if end is not None else record.silent_from_s,
        fastest_s=fastest_s if math.isfinite(fastest_s) else 0.0,
    )


def counters_of(record: AttemptRecord) -> Counters:
    planned = made = sent = answered = failed = actions = 0
    for report in record.reports:
        planned += report.starts.planned
        made += report.starts.made
        sent += report.requests.sent
        answered += report.requests.answered
        failed += failed_executions(report)
        actions += sum(row.started for row in report.rows)
    return Counters(
        planned=planned,
        made=made,
        finished=finished(record),
        sent=sent,
        answered=answered,
        failed=failed,
        users=record.reports[-1].users if record.reports else 0,
        actions=actions,
    )
