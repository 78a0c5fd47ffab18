"""Records what the users of one share do, and folds it into window reports.

The hot path only appends floats: a row keeps one sample array per outcome (status code or
reason), and counts, statuses and histograms all come from the same appends. Every 100 ms
the arrays are folded into histograms; every second the histograms leave as one
`WindowReport` of deltas. Each sample is in exactly one report; memory does not grow with
the length of a run.

Invariants: a row's count is the sum of its outcomes; every execution that began is in an
outcome, interrupted, or still running.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import count
from time import perf_counter
from typing import Any

from squall.api.metrics import Metric
from squall.clients.http import HTTPShared
from squall.engine.measure.exchange_counts import (
    ExchangeCounts,
    drained,
    listed,
    requests_of,
    samples_of,
    times_of,
)
from squall.stats.attempt_record import SurvivingCounters
from squall.stats.histogram import Histogram
from squall.stats.manifest import CALL_PROTOCOLS, HTTP_PROTOCOLS
from squall.stats.reports import (
    CheckDelta,
    ErrorSample,
    HistogramData,
    HookDelta,
    MetricDelta,
    OutcomeDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
)

# Distinct failure reasons per row; the rest is counted as "other failures". Each has a
# histogram of 16 KB.
REASONS_MAX = 200
OTHER_REASON = "other failures"
# Distinct names of calls, and of checks. A name with an id in it would otherwise make a row
# of every call; the rest is counted under these two names.
NAMES_MAX = 200
OTHER_CALLS = "other names"
OTHER_CHECKS = "other checks"
# A custom sample of 1.0 is histogrammed as 1 ms. The buckets from 1 us to 71 minutes then hold
# values from 0.001 to 4.3e6.
METRIC_SCALE_S = 0.001


class OutcomeSamples:
    """The samples of a row's executions that ended the same way, until the next report."""

    __slots__ = (
        "append",
        "count",
        "exchanges",
        "histogram",
        "is_ok",
        "raised",
        "samples",
        "spread",
        "spread_histogram",
        "statuses",
    )

    def __init__(self, is_ok: bool, *, raised: bool = False) -> None:
        self.is_ok = is_ok
        # The author's code failed, and not a call.
        self.raised = raised
        # To append to a list takes fewer instructions, but its thousands of floats fill the cache:
        # with it, a GET took 4 % more CPU time.
        self.samples = array("d")
        self.append = self.samples.append
        self.histogram = Histogram()
        # Responses that arrived in several reads. They stay apart until the report, because
        # their first byte has its own time; few rows have any, so the table is made on demand.
        self.spread = array("d")
        self.spread_histogram: Histogram | None = None
        # Executions without a sample; those with one are counted by the histogram.
        self.count = 0
        self.exchanges = 0
        # Of failures that are no status: the answers before them.
        self.statuses: dict[int, int] = {}

    def fold(self) -> None:
        if self.samples:
            self.histogram.add_seconds(drained(self.samples))
        if self.spread:
            if self.spread_histogram is None:
                self.spread_histogram = Histogram()
            self.spread_histogram.add_seconds(drained(self.spread))

    @property
    def folded(self) -> int:
        """The executions since the last report, up to the last fold."""
        spread = self.spread_histogram
        return self.histogram.count + self.count + (spread.count if spread is not None else 0)

    def take(self, key: str, of_client: bool) -> OutcomeDelta | None:
        """The folded executions since the last call, None if there were none."""
        if self.spread_histogram is not None:
            self.histogram.merge(self.spread_histogram)
            self.spread_histogram.clear()
        sampled = self.histogram.count
        total = sampled + self.count
        if not total:
            return None
        delta = OutcomeDelta(
            key=key,
            ok=self.is_ok,
            count=total,
            exchanges=self.exchanges + (sampled if of_client else 0),
            service=self.histogram.to_data(),
            raised=self.raised,
            statuses=self.statuses,
        )
        self.histogram.clear()
        self.count = self.exchanges = 0
        self.statuses = {}
        return delta


class Statuses(dict[int, Callable[[float], None]]):
    """Maps a status to the `append` of its sample array; a new status makes its own entry.

    The generated loop indexes it and calls the result: one lookup per response.
    """

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        super().__init__()
        self.ranges = ranges
        self.outcomes: dict[int, OutcomeSamples] = {}

    def __missing__(self, status: int) -> Callable[[float], None]:
        is_ok = any(low <= status <= high for low, high in self.ranges)
        outcome = self.outcomes[status] = OutcomeSamples(is_ok)
        self[status] = outcome.append
        return outcome.append


class Row:
    """Collects the executions of one row of the step table."""

    def __init__(
        self, name: str, protocol: str, ranges: list[tuple[int, int]], *, planned: bool = False
    ) -> None:
        self.name = name
        self.protocol = protocol
        # Whether each sample is an exchange, as in HTTP.
        self.counts_samples = protocol in CALL_PROTOCOLS
        self.statuses = Statuses(ranges)
        self.reasons: dict[str, OutcomeSamples] = {}
        # A C counter: `begin()` costs less than `+= 1` on an attribute.
        self.began = count()
        self.begin = self.began.__next__
        self.began_reported = 0
        self.interrupted = 0
        self.ok = OutcomeSamples(True)
        self.response = array("d") if planned else None
        self.response_histogram = Histogram()
        self.first_byte = Histogram()
        self.first_spread = array("d")

    @property
    def started(self) -> int:
        """Executions that began, since the start. Reading a C counter must not advance it."""
        return int(self.began.__reduce__()[1][0])

    def loop_names(self) -> dict[str, Any]:
        """What the generated loop calls to record an execution of this step."""
        name = self.name
        names: dict[str, Any] = {
            f"ROW_{name}": self,
            f"BEGIN_{name}": self.begin,
            f"STATUS_{name}": self.statuses,
            f"SPREAD_{name}": self.spread,
            f"PASS_{name}": self.ok.append,
            f"SAMPLED_{name}": set[int](),
        }
        if self.response is not None:
            names[f"RESPONSE_{name}"] = self.response.append
        return names

    def spread(self, status: int, first_byte_s: float, whole_s: float) -> None:
        """Records a response that arrived in several reads."""
        self.statuses[status]  # makes the entry
        self.statuses.outcomes[status].spread.append(whole_s)
        self.first_spread.append(first_byte_s)

    def fail(
        self,
        reason: str,
        seconds: float | None,
        exchanged: bool,
        *,
        raised: bool = False,
        status: int = 0,
    ) -> bool:
        """Counts a failure; true if it is the first with its reason. `raised`: the author's code
        failed, and not a call. `status` is that of the answer before it, if there was one."""
        first = reason not in self.reasons
        if first and len(self.reasons) >= REASONS_MAX:
            reason, first = OTHER_REASON, False
        outcome = self.reasons.get(reason)
        if outcome is None:
            outcome = self.reasons[reason] = OutcomeSamples(False, raised=raised)
        outcome.raised = outcome.raised and raised
        if exchanged:
            outcome.exchanges += 1
        if status:
            outcome.statuses[status] = outcome.statuses.get(status, 0) + 1
        if seconds is None:
            outcome.count += 1
        else:
            outcome.append(seconds)
        return first

    def fold(self) -> None:
        for outcome in self.statuses.outcomes.values():
            outcome.fold()
        if self.first_spread:
            self.first_byte.add_seconds(drained(self.first_spread))
        for outcome in self.reasons.values():
            outcome.fold()
        self.ok.fold()
        if self.response:
            self.response_histogram.add_seconds(drained(self.response))

    def take(self) -> RowDelta:
        """What happened since the last call."""
        self.fold()
        # Before the outcomes are taken, which empties them.
        first_byte = self._take_first_byte()
        outcomes = [outcome.take(str(key), True) for key, outcome in self.statuses.outcomes.items()]
        outcomes += [outcome.take(key, False) for key, outcome in self.reasons.items()]
        outcomes.append(self.ok.take("ok", self.counts_samples))
        started = self.started
        delta = RowDelta(
            name=self.name,
            protocol=self.protocol,
            started=started - self.began_reported,
            interrupted=self.interrupted,
            outcomes=[outcome for outcome in outcomes if outcome is not None],
            response=self._take_response(),
            first_byte=first_byte,
        )
        self.began_reported = started
        self.interrupted = 0
        return delta

    def _take_response(self) -> HistogramData | None:
        if self.response is None:
            return None
        data = self.response_histogram.to_data()
        self.response_histogram.clear()
        return data

    def _take_first_byte(self) -> HistogramData | None:
        if self.protocol not in HTTP_PROTOCOLS:
            return None
        # A response read at once has its first byte when it has its last: its sample is in the
        # histogram of its outcome and is not folded a second time.
        for outcome in self.statuses.outcomes.values():
            self.first_byte.merge(outcome.histogram)
        data = self.first_byte.to_data()
        self.first_byte.clear()
        return data


class Recorder:
    """Holds all rows, checks and metrics of one share, and makes its window reports."""

    def __init__(
        self,
        workflow: str,
        share: int,
        *,
        is_open: bool,
        http: HTTPShared,
        on_error: Callable[[ErrorSample], None],
    ) -> None:
        self.workflow = workflow
        self.share = share
        self.is_open = is_open
        self.http = http
        self.on_error = on_error
        self.rows: dict[str, Row] = {}
        self.named: dict[str, Row] = {}
        self.iteration = Row("iteration", "iteration", [], planned=is_open)
        self.checks: dict[str, list[int]] = {}
        self.metrics: dict[str, Metric] = {}
        self.hooks: dict[str, HookDelta] = {}
        self.starts = StartsDelta()
        self.users = 0
        self.users_most = 0
        self.busy = 0
        self.busy_max = 0
        # Users that became ready, and those that did not, since the last report.
        self.opened = 0
        self.unopened = 0
        self.epoch = perf_counter()
        self._exchanges = ExchangeCounts(http)
        # Of all reports so far: iterations that ended, and the starts of open models.
        self._finished = 0
        self._planned = 0
        self._made = 0
        self._dropped = 0

    def add_row(
        self, name: str, protocol: str, ranges: list[tuple[int, int]], *, planned: bool
    ) -> Row:
        row = self.rows[name] = Row(name, protocol, ranges, planned=planned and self.is_open)
        return row

    def loop_names(self) -> dict[str, Any]:
        """What the generated loop calls to record an iteration."""
        iteration = self.iteration
        # Makes the outcome now, so that the loop can append to it without a lookup.
        iteration.fail("failed", None, False)
        failed = iteration.reasons["failed"]
        failed.count = 0
        names: dict[str, Any] = {
            "ITERATION": iteration,
            "BEGIN": iteration.begin,
            "PASSED": iteration.ok.append,
            "FAILED": failed.append,
        }
        if iteration.response is not None:
            names["RESPONSE"] = iteration.response.append
        return names

    def check(self, name: str, passed: bool) -> None:
        tally = self.checks.get(name)
        if tally is None:
            if len(self.checks) >= NAMES_MAX:
                name = OTHER_CHECKS
            tally = self.checks.setdefault(str(name), [0, 0])
        tally[0 if passed else 1] += 1

    def hook_ended(self, name: str, *, raised: bool = False) -> None:
        """Counts an execution of a check, metric, end action or provider of a value."""
        hook = self.hooks.get(name)
        if hook is None:
            hook = self.hooks[name] = HookDelta(name)
        hook.executions += 1
        hook.raised += raised

    def record_named(self, name: str, call: Any) -> None:
        """Records a call with `name=` in its own row. `call` is the response or the error."""
        row = self.named.get(name)
        if row is None:
            known = name if len(self.named) < NAMES_MAX else OTHER_CALLS
            row = self._named_row(known, call.protocol)
        row.begin()
        status = getattr(call, "status_code", None)
        seconds = call.ended - call.started
        if status is not None:
            row.statuses[status](seconds)
        elif row.fail(call.reason, seconds, call.ended > 0.0):
            self.error(name, call.reason, request=call.request)

    def _named_row(self, name: str, protocol: str) -> Row:
        row = self.named.get(name)
        if row is None:
            row = self.named[name] = Row(name, protocol, [(200, 399)])
        return row

    def error(self, row: str, reason: str, **details: Any) -> None:
        at_s = perf_counter() - self.epoch
        self.on_error(
            ErrorSample(
                workflow=self.workflow,
                share=self.share,
                row=row,
                reason=reason,
                at_s=at_s,
                **details,
            )
        )

    @property
    def has_news(self) -> bool:
        """Whether requests were made or hooks called since the last report."""
        return self._exchanges.has_news or bool(self.hooks)

    def fold(self) -> None:
        for row in self.rows.values():
            row.fold()
        for row in self.named.values():
            row.fold()
        self.iteration.fold()

    def counters(self, at_s: float) -> SurvivingCounters:
        """Everything since the start, for the file that survives this process. Call it right
        after `fold`."""
        iteration, starts, http = self.iteration, self.starts, self.http
        finished = self._finished + iteration.interrupted + iteration.ok.folded
        finished += sum(outcome.folded for outcome in iteration.reasons.values())
        planned, made = self._planned + starts.planned, self._made + starts.made
        if not self.is_open:
            planned = made = iteration.started
        return SurvivingCounters(
            planned=planned,
            made=made,
            dropped=self._dropped + starts.dropped,
            finished=finished,
            sent=http.total("sent"),
            answered=http.total("answered"),
            failed=http.total("failed"),
            users=self.users,
            busy=self.busy,
            at_s=at_s,
        )

    def take(self, window: int) -> WindowReport:
        """The deltas since the last call, as the report of `window`."""
        protocols = self._exchanges.take()
        report = WindowReport(
            workflow=self.workflow,
            share=self.share,
            window=window,
            rows=self._rows(),
            iteration=self.iteration.take(),
            checks=[CheckDelta(name, *tally) for name, tally in self.checks.items()],
            metrics=[delta for metric in self.metrics.values() if (delta := _metric(metric))],
            starts=self.starts,
            requests=requests_of(protocols),
            dns=samples_of(self.http.dns_samples),
            connect=times_of(protocols, "connect"),
            tls=times_of(protocols, "tls"),
            users=self.users_most,
            busy=self.busy_max,
            statuses=self._exchanges.take_statuses(),
            opened=self.opened,
            unopened=self.unopened,
            hooks=list(self.hooks.values()),
            in_flight=sum(each.in_flight for each in protocols),
            protocols=listed(protocols),
        )
        ended = report.iteration
        self._finished += ended.interrupted + sum(each.count for each in ended.outcomes)
        self._planned += self.starts.planned
        self._made += self.starts.made
        self._dropped += self.starts.dropped
        self.starts = StartsDelta()
        self.busy_max = self.busy
        self.users_most = self.users
        self.opened = self.unopened = 0
        self.hooks = {}
        for tally in self.checks.values():
            tally[0] = tally[1] = 0
        return report

    def _rows(self) -> list[RowDelta]:
        deltas = [row.take() for row in (*self.rows.values(), *self.named.values())]
        # A step that is not measured has a row only when something went wrong in it.
        return [delta for delta in deltas if delta.protocol or delta.outcomes]


def _metric(metric: Metric) -> MetricDelta | None:
    if not metric.count:
        return None
    values = None
    if metric.values:
        histogram = Histogram()
        histogram.add_seconds(array("d", (v * METRIC_SCALE_S for v in metric.values)))
        values = histogram.to_data()
    delta = MetricDelta(
        name=metric.name,
        kind=metric.kind,
        unit=metric.unit,
        count=metric.count,
        sum=metric.sum,
        last=metric.last,
        minimum=metric.minimum,
        maximum=metric.maximum,
        hits=metric.hits,
        values=values,
    )
    metric.clear()
    return delta
