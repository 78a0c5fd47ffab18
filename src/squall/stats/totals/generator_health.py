"""Adds up the health of the generator: CPU, loop lag, collector pauses, blocked time.

Kept per process, because a process that cannot keep up spoils its share of the samples
however idle the others are. `verdict.py` decides what that means for the run.
"""

from __future__ import annotations

from squall.stats.histogram import Histogram, data_quantile, merged, summed
from squall.stats.reports import Blocked, HealthReport, HistogramData
from squall.stats.totals.windows import HealthWindow, Series
from squall.stats.verdict_settings import VerdictSettings

BlockedAt = tuple[str, str, str, str]
"""Workflow, step, location, call."""

# Lag histograms to collect before adding them up, for one process and for all processes: adding
# many at once costs little more than adding one.
_APART_MAX = 64
_APART_OF_ALL_MAX = 4096


class ProcessStats:
    """One core process over the run, without the warm-up."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.cpu_now = 0.0
        self.cpu_max = 0.0
        self._lags: list[HistogramData] = []
        self.gc_max_s = 0.0
        self.rss_max_mb = 0.0
        # Time in which the CPU was full and the event loop late.
        self.saturated_s = 0.0
        self.saturated_cpu_s = 0.0
        self.blocked_s: dict[BlockedAt, float] = {}
        self.last_at_s: float | None = None

    @property
    def cpu(self) -> float:
        """The mean, as a share of one core."""
        return self.cpu_seconds / self.seconds if self.seconds else 0.0

    @property
    def lag(self) -> Histogram:
        """Built at each call: a run may have thousands of processes, and a full table for each
        would take most of its memory."""
        return merged(self._lags)

    @lag.setter
    def lag(self, lag: Histogram) -> None:
        self._lags = [lag.to_data()]

    def span_s(self, report: HealthReport) -> float:
        """The time that the report covers; the last of a run is often shorter than 1 s."""
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
        """Adds the lags that were collected; no more reports follow."""
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
        """Loop lag of all processes; built at each call."""
        if not self._lags:
            # Nothing was added here: the processes were read from a document.
            return merged(process.lag for process in self.processes.values())
        self._lags = [summed(self._lags)]
        return Histogram.from_data(self._lags[0])

    @property
    def lag_p99_now_s(self) -> float:
        """Lag of the worst process in its latest report. Computed on access, because thousands of
        processes report between two accesses."""
        return max(self._lag_now.values(), default=0.0)

    @property
    def cpu(self) -> float:
        """Mean over processes and time, as a share of one core."""
        seconds = sum(process.seconds for process in self.processes.values())
        used = sum(process.cpu_seconds for process in self.processes.values())
        return used / seconds if seconds else 0.0

    @property
    def cpu_now(self) -> float:
        """Mean over the latest reports of all processes."""
        if not self.processes:
            return 0.0
        return sum(p.cpu_now for p in self.processes.values()) / len(self.processes)

    @property
    def gc_max_s(self) -> float:
        return max((process.gc_max_s for process in self.processes.values()), default=0.0)
