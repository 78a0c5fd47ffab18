"""Sums all records of a job, one at a time.

A record has up to 600 windows of every step, which are megabytes in memory, and a job may have
thousands of records. So each is read, added to the sums and dropped; the sums are as large as the
result. The account of losses needs only a few figures of a record: its `gist`.

Pure: the caller reads the records, and decides when other tasks get a turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from squall.cluster.results.uncounted_load import peak_of
from squall.stats.attempt_record import AttemptRecord
from squall.stats.manifest import FileManifest
from squall.stats.report_sums import ShareSums
from squall.stats.reports import (
    ErrorSample,
    HealthReport,
    HistogramData,
    OutcomeDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
)
from squall.stats.totals.generator_health_summary import HealthSummary, summary_of
from squall.stats.totals.run import RunStats


class RecordSums:
    """The sums of a job's records. They must come ordered by workflow, share and attempt, so that
    every manager sums in the same order. `width_s` is the widest window of any of them."""

    def __init__(self, manifest: FileManifest, warmup_s: float, width_s: int) -> None:
        self.width_s = width_s
        self._stats = RunStats(manifest, warmup_s)
        self._shares = ShareSums(width_s)
        self._share: tuple[str, int] | None = None
        self._reports: list[WindowReport] = []

    def add(self, record: AttemptRecord) -> None:
        """Adds the reports and errors of a record."""
        share = (record.workflow, record.share)
        if share != self._share:
            self._end_share()
            self._share = share
        self._reports += record.reports
        for error in record.errors:
            self._stats.add(error)

    def add_health(self, records: Iterable[Sequence[HealthReport]]) -> None:
        """Adds the health reports of one process from all its records. Shares of the same process
        repeat each other: a moment counts once."""
        moments: dict[tuple[float, int], HealthReport] = {}
        for reports in records:
            for report in reports:
                moments.setdefault((report.at_s, report.process), report)
        for key in sorted(moments):
            self._stats.add(moments[key])
        for process in {process for _, process in moments}:
            self._stats.health.processes[process].fold()

    def settle(self) -> Iterator[None]:
        """Does the rest of the work after the last record, in steps."""
        self._end_share()
        return self._shares.settle()

    def reports(self) -> list[WindowReport]:
        """One report for each workflow and window: the sum of all shares."""
        self._end_share()
        return self._shares.reports()

    @property
    def health(self) -> HealthSummary:
        return summary_of(self._stats.health)

    @property
    def errors(self) -> list[ErrorSample]:
        """The first error of each kind, as many as a report shows."""
        return list(self._stats.errors.values())

    def _end_share(self) -> None:
        if self._reports:
            self._shares.add(self._reports)
            self._reports = []


def gist(record: AttemptRecord) -> AttemptRecord:
    """The record reduced to one window with its sums: counts of requests, starts and iterations,
    the lowest latency, the busiest second, the users of its last report. It has no histograms and
    no values for other workflows."""
    end = record.end
    return msgspec.structs.replace(
        record,
        reports=[_sums(record.reports)] if record.reports else [],
        health=[],
        errors=[],
        peak=peak_of(record),
        end=None if end is None else msgspec.structs.replace(end, values={}, provided={}),
    )


def _sums(reports: Sequence[WindowReport]) -> WindowReport:
    requests, starts = RequestsDelta(), StartsDelta()
    iteration = RowDelta("iteration")
    ended = 0
    lowest_s = math.inf
    for report in reports:
        requests.sent += report.requests.sent
        requests.answered += report.requests.answered
        requests.failed += report.requests.failed
        starts.planned += report.starts.planned
        starts.made += report.starts.made
        starts.dropped += report.starts.dropped
        iteration.started += report.iteration.started
        iteration.interrupted += report.iteration.interrupted
        ended += sum(outcome.count for outcome in report.iteration.outcomes)
        for row in report.rows:
            for outcome in row.outcomes:
                if outcome.service.count:
                    lowest_s = min(lowest_s, outcome.service.min_s)
    if ended:
        iteration.outcomes = [OutcomeDelta("", True, ended, 0, HistogramData())]
    last = reports[-1]
    return WindowReport(
        workflow=last.workflow,
        share=last.share,
        window=last.window,
        rows=[_fastest(lowest_s)] if math.isfinite(lowest_s) else [],
        iteration=iteration,
        starts=starts,
        requests=requests,
        users=last.users,
        busy=last.busy,
        opened=sum(report.opened for report in reports),
    )


def _fastest(lowest_s: float) -> RowDelta:
    service = HistogramData(1, lowest_s, lowest_s, lowest_s)
    return RowDelta("fastest", outcomes=[OutcomeDelta("", True, 1, 1, service)])
