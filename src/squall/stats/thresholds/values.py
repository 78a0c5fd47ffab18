"""Reads the value of a bound threshold from the numbers of any length of time.

The totals of a run and single seconds of it have the same shape, so one function reads
both: "since the start" is one set of numbers, "the last ten seconds" is ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from squall.stats.histogram import Histogram, merged
from squall.stats.manifest import HTTP_PROTOCOLS
from squall.stats.thresholds.binding import BoundThreshold
from squall.stats.totals.step_rows import MetricStats, RowSlice, RowStats
from squall.stats.totals.workflow import Second, WorkflowStats

Numbers: TypeAlias = WorkflowStats | Second
AnyRow: TypeAlias = RowStats | RowSlice


class ReadingSource(NamedTuple):
    """The numbers of one workflow; `workflow` has the protocols of its rows."""

    workflow: WorkflowStats
    numbers: Numbers


class Reading(NamedTuple):
    """The value of a threshold in base units; None if there is nothing to judge."""

    value: float | None
    samples: int


def read(bound: BoundThreshold, sources: Sequence[ReadingSource], seconds: float) -> Reading:
    """`seconds` is the length of time that the numbers cover together."""
    if bound.target == "metric":
        return _metric(bound, sources, seconds)
    if bound.base == "time":
        return _time(bound, _latencies(bound, sources))
    if bound.target == "checks":
        checks = [check for source in sources for check in source.numbers.checks.values()]
        passed = sum(check.passed for check in checks)
        return _share(passed, passed + sum(check.failed for check in checks))
    if bound.target in ("dropped", "late"):
        return _starts(bound, sources, seconds)
    if bound.target == "requests":
        sent = sum(source.numbers.requests.sent for source in sources)
        return _amount(bound, sent, sources, seconds)
    rows = list(_rows(bound, sources))
    count = sum(row.count for row in rows)
    failed = sum(row.failed for row in rows)
    if bound.base == "share":
        return _share(failed, count)
    if bound.target == "row" and not count and bound.limit:
        # A step that never ran has no count to be below a limit; `== 0` asks for just that.
        return Reading(None, 0)
    return _amount(bound, failed if bound.failures_only else count, sources, seconds)


def is_response_time(bound: BoundThreshold, workflows: Iterable[WorkflowStats]) -> bool:
    """Whether any of its rows is timed from the planned start."""
    if bound.field != "latency" or bound.target == "connect":
        return False
    rows = _rows(bound, [ReadingSource(workflow, workflow) for workflow in workflows])
    return any(isinstance(row, RowStats) and row.has_response for row in rows)


def _rows(bound: BoundThreshold, sources: Sequence[ReadingSource]) -> Iterable[AnyRow]:
    for workflow, numbers in sources:
        if bound.target == "iteration":
            yield numbers.iteration
        elif bound.target == "row":
            row = numbers.rows.get(bound.name)
            if row is not None:
                yield row
        elif bound.target == "rows" and not any(row.protocol for row in workflow.rows.values()):
            # All steps are actions, which have a row only for their failures, so only the
            # iterations of such a workflow can be judged.
            yield numbers.iteration
        else:
            for name, row in numbers.rows.items():
                if bound.target == "rows" or workflow.rows[name].protocol in HTTP_PROTOCOLS:
                    yield row


def _latencies(bound: BoundThreshold, sources: Sequence[ReadingSource]) -> Histogram:
    if bound.target == "connect":
        return merged(part for source in sources for part in source.numbers.connect_parts())
    return merged(part for row in _rows(bound, sources) for part in row.parts(bound.field))


def _time(bound: BoundThreshold, histogram: Histogram) -> Reading:
    if histogram.count == 0:
        return Reading(None, 0)
    if bound.stat == "avg":
        value = histogram.mean
    elif bound.stat == "min":
        value = histogram.min_s
    elif bound.stat == "max":
        value = histogram.max_s
    else:
        value = histogram.quantile(bound.q)
    return Reading(value, histogram.count)


def _starts(bound: BoundThreshold, sources: Sequence[ReadingSource], seconds: float) -> Reading:
    starts = [source.numbers.starts for source in sources]
    planned = sum(each.planned for each in starts)
    if bound.target == "dropped":
        amount = sum(each.dropped for each in starts)
    else:
        amount = sum(each.late for each in starts)
    if bound.base == "share":
        return _share(amount, planned)
    return _amount(bound, amount, sources, seconds)


def _share(part: int, whole: int) -> Reading:
    return Reading(part / whole if whole else None, whole)


def _amount(
    bound: BoundThreshold, amount: float, sources: Sequence[ReadingSource], seconds: float
) -> Reading:
    """A count of zero is a measurement, unless nothing ran that could have counted."""
    ran = sum(source.numbers.iteration.count for source in sources)
    if not amount and not ran:
        return Reading(None, 0)
    if bound.base == "rate":
        return Reading(amount / seconds if seconds > 0 else None, int(amount))
    return Reading(amount, int(amount))


def _metric(bound: BoundThreshold, sources: Sequence[ReadingSource], seconds: float) -> Reading:
    whole: MetricStats | None = None
    for source in sources:
        part = source.numbers.metrics.get(bound.name)
        if part is None:
            continue
        if whole is None:
            whole = MetricStats(part.name, part.kind, part.unit)
        whole.merge(part)
    if whole is None:
        return _amount(bound, 0, sources, seconds) if bound.base != "own" else Reading(None, 0)
    if bound.base == "share":
        return _share(whole.hits, whole.count)
    if bound.base in ("count", "rate"):
        amount = whole.sum if whole.kind == "counter" else whole.count
        return _amount(bound, amount, sources, seconds)
    if whole.count == 0:
        return Reading(None, 0)
    return Reading(_own_value(bound, whole), whole.count)


def _own_value(bound: BoundThreshold, metric: MetricStats) -> float:
    if bound.stat == "min":
        return metric.minimum
    if bound.stat == "max":
        return metric.maximum
    if bound.stat == "last":
        return metric.last
    if bound.stat == "avg":
        return metric.mean
    return metric.sample_quantile(bound.q)
