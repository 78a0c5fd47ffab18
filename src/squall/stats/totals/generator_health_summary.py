"""The health of all processes of a run as data to store: sums instead of reports.

Its size is bounded by the number of processes and of windows. The reports themselves, one per
process and second, would be most of the result of a run with thousands of workers.
"""

from __future__ import annotations

import msgspec

from squall.stats.histogram import Histogram
from squall.stats.reports import Blocked, HistogramData
from squall.stats.totals.generator_health import HealthStats, ProcessStats
from squall.stats.totals.windows import HealthWindow


class ProcessHealth(msgspec.Struct, array_like=True):
    """The fields of `ProcessStats`."""

    index: int
    seconds: float
    cpu_seconds: float
    cpu_now: float
    cpu_max: float
    lag: HistogramData
    gc_max_s: float
    rss_max_mb: float
    saturated_s: float
    saturated_cpu_s: float
    last_at_s: float | None
    blocked: list[Blocked]


class HealthPoint(msgspec.Struct, array_like=True):
    """The fields of `HealthWindow`."""

    reports: int
    cpu_sum: float
    cpu_max: float
    lag_p99_s: float
    lag_max_s: float


class HealthSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    processes: list[ProcessHealth] = []
    width_s: int = 1
    points: list[HealthPoint] = []


def summary_of(health: HealthStats) -> HealthSummary:
    return HealthSummary(
        processes=[_packed(each) for _, each in sorted(health.processes.items())],
        width_s=health.windows.width_s,
        points=[
            HealthPoint(each.reports, each.cpu_sum, each.cpu_max, each.lag_p99_s, each.lag_max_s)
            for each in health.windows
        ],
    )


def fill_health(health: HealthStats, summary: HealthSummary) -> None:
    """Fills empty statistics from a summary."""
    for each in summary.processes:
        health.processes[each.index] = _unpacked(each)
    health.windows.width_s = summary.width_s
    for point in summary.points:
        window = HealthWindow()
        window.reports = point.reports
        window.cpu_sum = point.cpu_sum
        window.cpu_max = point.cpu_max
        window.lag_p99_s = point.lag_p99_s
        window.lag_max_s = point.lag_max_s
        health.windows.windows.append(window)


def _packed(process: ProcessStats) -> ProcessHealth:
    return ProcessHealth(
        index=process.index,
        seconds=process.seconds,
        cpu_seconds=process.cpu_seconds,
        cpu_now=process.cpu_now,
        cpu_max=process.cpu_max,
        lag=process.lag.to_data(),
        gc_max_s=process.gc_max_s,
        rss_max_mb=process.rss_max_mb,
        saturated_s=process.saturated_s,
        saturated_cpu_s=process.saturated_cpu_s,
        last_at_s=process.last_at_s,
        blocked=[Blocked(*where, seconds) for where, seconds in process.blocked_s.items()],
    )


def _unpacked(data: ProcessHealth) -> ProcessStats:
    process = ProcessStats(data.index)
    process.seconds = data.seconds
    process.cpu_seconds = data.cpu_seconds
    process.cpu_now = data.cpu_now
    process.cpu_max = data.cpu_max
    process.lag = Histogram.from_data(data.lag)
    process.gc_max_s = data.gc_max_s
    process.rss_max_mb = data.rss_max_mb
    process.saturated_s = data.saturated_s
    process.saturated_cpu_s = data.saturated_cpu_s
    process.last_at_s = data.last_at_s
    process.blocked_s = {
        (each.workflow, each.step, each.location, each.call): each.seconds for each in data.blocked
    }
    return process
