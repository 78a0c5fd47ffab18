"""Adds reports: seconds into wider windows, and the shares of a workflow into one.

Counts and buckets are added, nothing is averaged: the totals computed from the sum equal the
totals computed from the parts, in any order. Levels, such as the number of users, are not
amounts: within a share the highest level of a window counts, over shares the levels are added.

Takes and returns plain data; never changes its arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter, lt
from typing import Any

from squall.stats.histogram import summed
from squall.stats.reports import (
    Blocked,
    CheckDelta,
    HealthReport,
    HistogramData,
    HookDelta,
    MetricDelta,
    OutcomeDelta,
    ProtocolDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
    add_hooks,
    by_protocol,
)

_OF_REQUESTS = RequestsDelta.__struct_fields__
_SHARE = attrgetter("share")

APART_MAX = 16
"""Reports of a window that are collected before they are added: from this number on one pass
adds all histograms (`squall.stats.histogram`)."""


def widened(reports: Iterable[WindowReport], width_s: int) -> list[WindowReport]:
    """Makes one report for each share and window of this width, ordered by window, then share.
    A window is named by its first second. Width 1 joins reports of the same second."""
    groups: dict[tuple[str, int, int], list[WindowReport]] = {}
    for report in reports:
        first = report.window - report.window % width_s
        groups.setdefault((report.workflow, first, report.share), []).append(report)
    return [
        group[0]
        if len(group) == 1 and group[0].window == first
        else _added(group, share=share, window=first, levels=max)
        for (_, first, share), group in sorted(groups.items(), key=lambda item: item[0])
    ]


def over_shares(reports: Iterable[WindowReport], width_s: int = 1) -> list[WindowReport]:
    """Makes one report for each workflow and window, as if it had a single share."""
    groups: dict[tuple[str, int], list[WindowReport]] = {}
    for report in reports:
        first = report.window - report.window % width_s
        groups.setdefault((report.workflow, first), []).append(report)
    return [_over_shares(_one_each(groups[key], key[1], width_s)) for key in sorted(groups)]


def _one_each(group: list[WindowReport], first: int, width_s: int) -> list[WindowReport]:
    """Makes one report of each share, in order; mostly there is only one already."""
    group.sort(key=_SHARE)
    if all(map(lt, map(_SHARE, group), map(_SHARE, group[1:]))) and all(
        report.window == first for report in group
    ):
        return group
    return widened(group, width_s)


class ShareSums:
    """Computes `over_shares` one share at a time, in memory as large as the sum, however many
    shares there are. Shares are added in order, so that every node gets the same sum: the
    sum of floats depends on their order."""

    def __init__(self, width_s: int = 1) -> None:
        self._width_s = width_s
        self._apart: dict[tuple[str, int], list[WindowReport]] = {}

    def add(self, share: Iterable[WindowReport]) -> None:
        """Adds all reports of one share, from all its attempts."""
        for report in widened(share, self._width_s):
            apart = self._apart.setdefault((report.workflow, report.window), [])
            apart.append(report)
            # The limit differs from window to window, so that not all are added at the same
            # share.
            if len(apart) > APART_MAX + report.window // self._width_s % APART_MAX:
                apart[:] = [_over_shares(apart)]

    def settle(self) -> Iterator[None]:
        """Adds what is not added yet, a few windows at each step."""
        for number, apart in enumerate(self._apart.values()):
            apart[:] = [_over_shares(apart)]
            if number % APART_MAX == 0:
                yield

    def reports(self) -> list[WindowReport]:
        return [_over_shares(self._apart[key]) for key in sorted(self._apart)]


def _over_shares(reports: Sequence[WindowReport]) -> WindowReport:
    return _added(reports, share=0, window=reports[0].window, levels=sum)


def joined(one: WindowReport, two: WindowReport) -> WindowReport:
    """Joins two reports of a share into the earlier window; the second is the later one."""
    window = min(one.window, two.window)
    return _added((one, two), share=one.share, window=window, levels=max)


def summed_up(reports: Sequence[WindowReport]) -> WindowReport:
    """Joins all reports of a share into the earliest window; they are in order of time."""
    window = min(report.window for report in reports)
    return _added(reports, share=reports[0].share, window=window, levels=max)


def joined_health(one: HealthReport, one_s: float, two: HealthReport, two_s: float) -> HealthReport:
    """Joins two health reports of one process; each is weighted with the seconds it covers."""
    return summed_health((one, two), (one_s, two_s))


def summed_health(reports: Sequence[HealthReport], spans_s: Sequence[float]) -> HealthReport:
    """Joins any number of health reports of one process."""
    whole_s = sum(spans_s)
    weighed = sum(each.cpu * span_s for each, span_s in zip(reports, spans_s, strict=True))
    blocked: dict[tuple[str, str, str, str], float] = {}
    for report in reports:
        for each in report.blocked:
            where = (each.workflow, each.step, each.location, each.call)
            blocked[where] = blocked.get(where, 0.0) + each.seconds
    return HealthReport(
        process=reports[0].process,
        at_s=max(each.at_s for each in reports),
        cpu=weighed / whole_s if whole_s else max(each.cpu for each in reports),
        lag=summed(each.lag for each in reports),
        gc_max_s=max(each.gc_max_s for each in reports),
        rss_mb=max(each.rss_mb for each in reports),
        blocked=[Blocked(*where, seconds) for where, seconds in blocked.items()],
    )


def failed_executions(report: WindowReport) -> int:
    """What live lines and the step table show as failed."""
    return sum(each.count for row in report.rows for each in row.outcomes if not each.ok)


def _added(
    group: Sequence[WindowReport],
    *,
    share: int,
    window: int,
    levels: Callable[[Iterable[int]], int],
) -> WindowReport:
    rows: dict[str, list[RowDelta]] = {}
    checks: dict[str, CheckDelta] = {}
    metrics: dict[str, list[MetricDelta]] = {}
    for report in group:
        for row in report.rows:
            rows.setdefault(row.name, []).append(row)
        for check in report.checks:
            known = checks.setdefault(check.name, CheckDelta(check.name, 0, 0))
            known.passed += check.passed
            known.failed += check.failed
        for metric in report.metrics:
            metrics.setdefault(metric.name, []).append(metric)
    hooks: dict[str, HookDelta] = {}
    for report in group:
        add_hooks(hooks, report.hooks)
    return WindowReport(
        workflow=group[0].workflow,
        share=share,
        window=window,
        rows=[_row(parts) for parts in rows.values()],
        iteration=_row([report.iteration for report in group]),
        checks=list(checks.values()),
        metrics=[_metric(parts) for parts in metrics.values()],
        starts=_starts([report.starts for report in group]),
        requests=_requests([report.requests for report in group]),
        dns=_optional([report.dns for report in group]),
        connect=_optional([report.connect for report in group]),
        tls=_optional([report.tls for report in group]),
        users=levels(report.users for report in group),
        busy=levels(report.busy for report in group),
        unmeasured=_total(group, "unmeasured"),
        statuses=_statuses(group),
        opened=_total(group, "opened"),
        unopened=_total(group, "unopened"),
        rested_s=_total(group, "rested_s"),
        hooks=list(hooks.values()),
        in_flight=_total(group, "in_flight"),
        protocols=_protocols(group),
    )


def _protocols(group: Sequence[WindowReport]) -> list[ProtocolDelta]:
    if not any(report.protocols for report in group):
        return []
    found: dict[str, list[ProtocolDelta]] = {}
    for report in group:
        for each in by_protocol(report):
            found.setdefault(each.name, []).append(each)
    return [
        ProtocolDelta(
            name=name,
            requests=_requests([part.requests for part in parts]),
            messages_sent=_total(parts, "messages_sent"),
            messages_received=_total(parts, "messages_received"),
            connect=_optional([part.connect for part in parts]),
            tls=_optional([part.tls for part in parts]),
            in_flight=_total(parts, "in_flight"),
        )
        for name, parts in found.items()
    ]


def _requests(parts: Sequence[RequestsDelta]) -> RequestsDelta:
    return RequestsDelta(*(_total(parts, name) for name in _OF_REQUESTS))


def _statuses(parts: Sequence[WindowReport] | Sequence[OutcomeDelta]) -> dict[int, int]:
    found: Counter[int] = Counter()
    for part in parts:
        if part.statuses:
            found.update(part.statuses)
    return dict(found)


def _total(parts: Sequence[object], name: str) -> Any:
    """Adds numbers in C: a second of thousands of shares has hundreds of thousands."""
    return sum(map(attrgetter(name), parts))


def _row(parts: Sequence[RowDelta]) -> RowDelta:
    outcomes: dict[tuple[str, bool], list[OutcomeDelta]] = {}
    key, ok, alike = "", False, list[OutcomeDelta]()
    for part in parts:
        for outcome in part.outcomes:
            # Most outcomes have the key of the one before, which saves the lookup.
            if outcome.key != key or outcome.ok != ok or not alike:
                key, ok = outcome.key, outcome.ok
                alike = outcomes.setdefault((key, ok), [])
            alike.append(outcome)
    return RowDelta(
        name=parts[0].name,
        protocol=parts[0].protocol or parts[-1].protocol,
        started=_total(parts, "started"),
        interrupted=_total(parts, "interrupted"),
        outcomes=[
            OutcomeDelta(
                key,
                ok,
                _total(same, "count"),
                _total(same, "exchanges"),
                _sum([outcome.service for outcome in same]),
                all(outcome.raised for outcome in same),
                _statuses(same),
            )
            for (key, ok), same in outcomes.items()
        ],
        response=_optional([part.response for part in parts]),
        first_byte=_optional([part.first_byte for part in parts]),
    )


def _starts(parts: Sequence[StartsDelta]) -> StartsDelta:
    return StartsDelta(
        planned=_total(parts, "planned"),
        made=_total(parts, "made"),
        late=_total(parts, "late"),
        late_max_s=max(part.late_max_s for part in parts),
        dropped=_total(parts, "dropped"),
        interrupted=_total(parts, "interrupted"),
    )


def _metric(parts: Sequence[MetricDelta]) -> MetricDelta:
    nonempty = [part for part in parts if part.count]
    if not nonempty:
        return parts[0]
    return MetricDelta(
        name=parts[0].name,
        kind=parts[0].kind,
        unit=parts[0].unit,
        count=_total(nonempty, "count"),
        sum=_total(nonempty, "sum"),
        last=nonempty[-1].last,
        minimum=min(part.minimum for part in nonempty),
        maximum=max(part.maximum for part in nonempty),
        hits=_total(nonempty, "hits"),
        values=_optional([part.values for part in nonempty]),
    )


def _optional(parts: Sequence[HistogramData | None]) -> HistogramData | None:
    """None only if no part has one: an empty histogram still says that a row has it."""
    given = [part for part in parts if part is not None]
    return _sum(given) if given else None


def _sum(parts: Sequence[HistogramData]) -> HistogramData:
    return parts[0] if len(parts) == 1 else summed(parts)
