"""How the generator itself did: CPU, loop lag, collector pauses and blocked time.

Kept per process, because one process that cannot keep up spoils its share of the
samples however idle the others are. What it means for the run is `verdict.py`'s matter.
"""

from __future__ import annotations

from squall.stats.histogram import Histogram, data_quantile, merged, summed
from squall.stats.reports import Blocked, HealthReport, HistogramData
from squall.stats.settings import VerdictSettings
from squall.stats.windows import HealthWindow, Series

BlockedAt = tuple[str, str, str, str]
"""Workflow, step, location, call."""


_APART_MAX = 64
_APART_OF_ALL_MAX = 4096
"""Lags that wait to be added together, of one process and of all: many at once cost little
more than one."""


class ProcessStats:
    """One core process over the run, warm-up left out."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.cpu_now = 0.0
        self.cpu_max = 0.0
        self._lags: list[HistogramData] = []
        self.gc_max_s = 0.0
        self.rss_max_mb = 0.0
        self.saturated_s = 0.0
        """Time with the CPU full and the loop late, both."""
        self.saturated_cpu_s = 0.0
        self.blocked_s: dict[BlockedAt, float] = {}
        self.last_at_s: float | None = None

    @property
    def cpu(self) -> float:
        """The mean, as a share of one core."""
        return self.cpu_seconds / self.seconds if self.seconds else 0.0

    @property
    def lag(self) -> Histogram:
        """Made anew at each call: a run may have thousands of processes, and a table of all
        buckets for each would be most of its memory."""
        return merged(self._lags)

    @lag.setter
    def lag(self, lag: Histogram) -> None:
        self._lags = [lag.to_data()]

    def span_s(self, report: HealthReport) -> float:
        """The time that the report stands for; the last of a run is often shorter than 1 s."""
        before = max(report.at_s - 1.0, 0.0) if self.last_at_s is None else self.last_at_s
        return max(report.at_s - before, 0.0)

    def add(self, report: HealthReport, span_s: float, *, saturated: bool) -> None:
        self.seconds += span_s
        self.cpu_seconds += report.cpu * span_s
        self.cpu_max = max(self.cpu_max, report.cpu)
        self._lags.append(report.lag)
        if len(self._lags) > _APART_MAX:
            self._lags = [summed(self._lags)]
        self.gc_max_s = max(self.gc_max_s, report.gc_max_s)
        self.rss_max_mb = max(self.rss_max_mb, report.rss_mb)
        if saturated:
            self.saturated_s += span_s
            self.saturated_cpu_s += report.cpu * span_s
        for blocked in report.blocked:
            self._add_blocked(blocked)

    def fold(self) -> None:
        """Nothing more is to come: its lags wait for no others."""
        if len(self._lags) > 1:
            self._lags = [summed(self._lags)]

    def _add_blocked(self, blocked: Blocked) -> None:
        where = (blocked.workflow, blocked.step, blocked.location, blocked.call)
        self.blocked_s[where] = self.blocked_s.get(where, 0.0) + blocked.seconds


class HealthStats:
    """All core processes of a run."""

    def __init__(self, settings: VerdictSettings, warmup_s: float = 0.0) -> None:
        self.settings = settings
        self.warmup_s = warmup_s
        self.processes: dict[int, ProcessStats] = {}
        self.windows: Series[HealthWindow] = Series(HealthWindow)
        self._lag_now: dict[int, float] = {}
        self._lags: list[HistogramData] = []

    def add(self, report: HealthReport) -> None:
        process = self.processes.get(report.process)
        if process is None:
            process = self.processes[report.process] = ProcessStats(report.process)
        span_s = process.span_s(report)
        process.last_at_s = report.at_s
        process.cpu_now = report.cpu
        lag_p99_s = data_quantile(report.lag, 0.99)
        self._lag_now[report.process] = lag_p99_s
        # A report is stamped at the end of its second, a little early or late.
        second = max(round(report.at_s) - 1, 0)
        self.windows.at(second).add(report.cpu, lag_p99_s, report.lag.max_s)
        if second >= self.warmup_s:
            full = report.cpu >= self.settings.saturated_cpu
            late = lag_p99_s >= self.settings.saturated_lag_s
            process.add(report, span_s, saturated=full and late)
            self._lags.append(report.lag)
            if len(self._lags) > _APART_OF_ALL_MAX:
                self._lags = [summed(self._lags)]

    @property
    def lag(self) -> Histogram:
        """Loop lag of all processes; made anew at each call."""
        if not self._lags:
            # Nothing was added here: the processes were read from a document.
            return merged(process.lag for process in self.processes.values())
        self._lags = [summed(self._lags)]
        return Histogram.from_data(self._lags[0])

    @property
    def lag_p99_now_s(self) -> float:
        """Of the process that did worst in what it said last; looked up when it is asked for,
        because thousands of processes report between two looks."""
        return max(self._lag_now.values(), default=0.0)

    @property
    def cpu(self) -> float:
        """Mean over processes and time, as a share of one core."""
        seconds = sum(process.seconds for process in self.processes.values())
        used = sum(process.cpu_seconds for process in self.processes.values())
        return used / seconds if seconds else 0.0

    @property
    def cpu_now(self) -> float:
        """Mean over processes of what each said last."""
        if not self.processes:
            return 0.0
        return sum(p.cpu_now for p in self.processes.values()) / len(self.processes)

    @property
    def gc_max_s(self) -> float:
        return max((process.gc_max_s for process in self.processes.values()), default=0.0)
