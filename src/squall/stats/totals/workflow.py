"""One workflow over the whole run, and second by second for a short while.

Totals are the sums of all shares' reports without the warm-up; windows cover all of the time.
The last seconds are also kept singly (`Second`), because live lines and sliding thresholds need
"the last ten seconds" long after windows have become wider.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from squall.stats.histogram import Histogram, Packed
from squall.stats.manifest import ITERATION, WorkflowManifest
from squall.stats.reports import (
    CheckDelta,
    HistogramData,
    HookDelta,
    MetricDelta,
    ProtocolDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
    add_hooks,
    by_protocol,
)
from squall.stats.snapshot import target_rate_per_s
from squall.stats.totals.protocols import ProtocolStats, add_requests, named
from squall.stats.totals.step_rows import CheckStats, MetricStats, Part, RowSlice, RowStats
from squall.stats.totals.windows import LoadWindow, Series

RECENT_S = 15
"""Single seconds kept for live numbers; a sliding threshold asks for more."""
# A second counts as complete this long after its end, even if a share has not reported.
_LATE_S = 2


class Second:
    """One second of a workflow over all shares, in the form of the totals."""

    def __init__(self) -> None:
        self.rows: dict[str, RowSlice] = {}
        self.iteration = RowSlice()
        self.checks: dict[str, CheckStats] = {}
        self.metrics: dict[str, MetricStats] = {}
        self.starts = StartsDelta()
        self.requests = RequestsDelta()
        # Only of reports that list them.
        self.protocols: dict[str, ProtocolDelta] = {}
        self.connect: list[Packed] = []
        self.users: dict[int, int] = {}
        self.busy: dict[int, int] = {}

    def connect_parts(self) -> Sequence[Part]:
        return self.connect


class Users:
    """`now` is the sum over the latest report of each share; `max` the most in any second."""

    __slots__ = ("max", "now")

    def __init__(self) -> None:
        self.now = 0
        self.max = 0


class WorkflowStats:
    """The statistics of a workflow. Rows are in the order of the file, then named calls."""

    def __init__(self, manifest: WorkflowManifest, warmup_s: float = 0.0) -> None:
        self.manifest = manifest
        self.name = manifest.name
        # Set-up and teardown run once; without their first seconds nothing would be left.
        self.warmup_s = math.ceil(warmup_s) if manifest.is_test else 0
        # Before `start_after` nothing happens; that time must not lower the rates. Unlike those of
        # a warm-up, reports of that time count: the last may hold the first start.
        self.skipped_s = max(self.warmup_s, math.floor(manifest.profile.start_after_s))
        self.rows: dict[str, RowStats] = {
            step.name: RowStats(step.name, step.protocol)
            for step in manifest.steps
            if step.protocol
        }
        self.iteration = RowStats(ITERATION, "")
        self.checks = {name: CheckStats(name) for name in manifest.checks}
        self.metrics = {m.name: MetricStats(m.name, m.kind, m.unit) for m in manifest.metrics}
        # Checks, metrics and end actions that were executed.
        self.hooks: dict[str, HookDelta] = {}
        self.starts = StartsDelta()
        self.requests = RequestsDelta()
        self.protocols: dict[str, ProtocolStats] = {}
        # Requests of processes that died, which are in no row.
        self.unmeasured = 0
        self.statuses: Counter[int] = Counter()
        # Users that became ready and that did not, and how long users rested because nothing
        # was answered: over the whole run, because most users start in the warm-up.
        self.opened = 0
        self.unopened = 0
        self.rested_s = 0.0
        self.dns = Histogram()
        self.connect = Histogram()
        self.tls = Histogram()
        self.users = Users()
        self.busy_max = 0
        self.windows: Series[LoadWindow] = Series(LoadWindow)
        # On the clock of the run; set by the engine.
        self.started_at_s = 0.0
        # Length of the workflow, warm-up included; set by the engine when it ended.
        self.elapsed_s = 0.0
        # The rate that an operator set during the run; None: the plan's.
        self.adjusted_per_s: float | None = None
        # An operator paused it.
        self.paused = False
        self.keep_s = RECENT_S
        self.seconds: dict[int, Second] = {}
        self.last_second = -1
        self._share_second: dict[int, int] = {}
        self._share_users: dict[int, int] = {}

    def add(self, report: WindowReport, later_s: int = 0) -> None:
        """`later_s`: the share's clock started so much later than the workflow's, which is the
        clock of another datacenter. Its own clock says what belongs to the warm-up."""
        counted = report.window >= self.warmup_s
        window = report.window + later_s
        second = self._second(window)
        for delta in report.rows:
            made = self._row(delta).add(delta, window, counted=counted)
            second.rows.setdefault(delta.name, RowSlice()).merge(made)
        made = self.iteration.add(report.iteration, window, counted=counted)
        second.iteration.merge(made)
        self._add_users(report, window, second)
        self.windows.at(window).add(report.starts)
        connect = Packed.from_data(report.connect) if report.connect is not None else None
        if connect is not None:
            second.connect.append(connect)
        _add_amounts(second, report)
        for delta in report.protocols:
            _add_protocol(second.protocols, delta)
        self.opened += report.opened
        self.unopened += report.unopened
        self.rested_s += report.rested_s
        if counted:
            _add_amounts(self, report)
            self.unmeasured += report.unmeasured
            add_hooks(self.hooks, report.hooks)
            self.statuses.update(report.statuses)
            if connect is not None:
                connect.pour_into(self.connect)
            _merge_data(self.dns, report.dns)
            _merge_data(self.tls, report.tls)
            for delta in by_protocol(report):
                named(self.protocols, delta.name).add(delta)
        else:
            # What is under way at the end of the warm-up is counted where it ends.
            self.requests.sent += report.in_flight
            for delta in by_protocol(report):
                named(self.protocols, delta.name).requests.sent += delta.in_flight

    def end_share(self, share: int) -> None:
        """The share has no users any more, whatever it reported last."""
        if share in self._share_users:
            self._share_users[share] = 0
            self.users.now = sum(self._share_users.values())

    def connect_parts(self) -> Sequence[Part]:
        return [self.connect]

    @property
    def measured_s(self) -> float:
        """The time that the totals cover."""
        whole_s = self.elapsed_s or float(self.last_second + 1)
        return max(whole_s - self.skipped_s, 0.0)

    @property
    def rated_s(self) -> float:
        """What a count is divided by to be a rate. Five requests within a millisecond are five in
        that second and no rate of thousands, unless the author asked for less than a second."""
        return max(self.measured_s, min(1.0, self.manifest.profile.duration_s))

    @property
    def has_rates(self) -> bool:
        """False for one planned iteration (`--once`), whose length says nothing about a load."""
        profile = self.manifest.profile
        return profile.model != "iterations" or profile.iterations > 1

    def target_per_s(self, at_s: float) -> float | None:
        """Planned starts per second at a time; None if the profile plans users."""
        planned = target_rate_per_s(self.manifest.profile, at_s)
        return planned if planned is None or self.adjusted_per_s is None else self.adjusted_per_s

    @property
    def count(self) -> int:
        """Finished executions over all rows."""
        return sum(row.count for row in self.rows.values())

    @property
    def failed(self) -> int:
        return sum(row.failed for row in self.rows.values())

    @property
    def other_calls(self) -> int:
        """Requests in no row: neither returned by a step nor named. Those that were in flight at
        the end, of an interrupted user or a process that died, belong to their step."""
        requests = self.requests
        shown = sum(
            row.exchanges + row.interrupted + max(row.in_flight, 0) for row in self.rows.values()
        )
        shown += requests.redirects + requests.reconnects + self.unmeasured
        return max(requests.sent - shown, 0)

    @property
    def complete_second(self) -> int:
        """The newest second that every share has reported; -1 before the first.

        A share that stays silent (ended, or dead) is waited for two seconds only.
        """
        if not self._share_second:
            return -1
        return max(min(self._share_second.values()), self.last_second - _LATE_S)

    def latest(self, seconds: int, until: int | None = None) -> list[Second]:
        """The last `seconds` that are kept, up to and including `until`."""
        end = self.complete_second if until is None else until
        span = range(end - seconds + 1, end + 1)
        return [self.seconds[index] for index in span if index in self.seconds]

    def _row(self, delta: RowDelta) -> RowStats:
        row = self.rows.get(delta.name)
        if row is None:
            row = self.rows[delta.name] = RowStats(delta.name, delta.protocol)
        return row

    def _second(self, index: int) -> Second:
        self.last_second = max(self.last_second, index)
        second = self.seconds.get(index)
        if second is None:
            second = self.seconds[index] = Second()
            oldest = self.last_second - self.keep_s
            for gone in [key for key in self.seconds if key <= oldest]:
                del self.seconds[gone]
        return second

    def _add_users(self, report: WindowReport, at: int, second: Second) -> None:
        """Users are a level, not an amount: a later report of a share replaces its earlier one."""
        share = report.share
        if at >= self._share_second.get(share, -1):
            self._share_second[share] = at
            self._share_users[share] = report.users
            self.users.now = sum(self._share_users.values())
        second.users[share] = report.users
        second.busy[share] = max(report.busy, second.busy.get(share, 0))
        users, busy = sum(second.users.values()), sum(second.busy.values())
        self.users.max = max(self.users.max, users)
        self.busy_max = max(self.busy_max, busy)
        window = self.windows.at(at)
        window.users = max(window.users, users)
        window.busy = max(window.busy, busy)


def _add_amounts(total: WorkflowStats | Second, report: WindowReport) -> None:
    _add_starts(total.starts, report.starts)
    add_requests(total.requests, report.requests)
    for check in report.checks:
        _add_check(total.checks, check)
    for metric in report.metrics:
        _add_metric(total.metrics, metric)


def _add_starts(total: StartsDelta, delta: StartsDelta) -> None:
    total.planned += delta.planned
    total.made += delta.made
    total.late += delta.late
    total.late_max_s = max(total.late_max_s, delta.late_max_s)
    total.dropped += delta.dropped
    total.interrupted += delta.interrupted


def _add_protocol(protocols: dict[str, ProtocolDelta], delta: ProtocolDelta) -> None:
    total = protocols.setdefault(delta.name, ProtocolDelta(delta.name, RequestsDelta()))
    add_requests(total.requests, delta.requests)
    total.messages_sent += delta.messages_sent
    total.messages_received += delta.messages_received


def _add_check(checks: dict[str, CheckStats], delta: CheckDelta) -> None:
    check = checks.get(delta.name)
    if check is None:
        check = checks[delta.name] = CheckStats(delta.name)
    check.passed += delta.passed
    check.failed += delta.failed


def _add_metric(metrics: dict[str, MetricStats], delta: MetricDelta) -> None:
    metric = metrics.get(delta.name)
    if metric is None:
        metric = metrics[delta.name] = MetricStats(delta.name, delta.kind, delta.unit)
    metric.add(delta)


def _merge_data(total: Histogram, data: HistogramData | None) -> None:
    if data is not None:
        total.merge_data(data)
