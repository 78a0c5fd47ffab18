"""Series of windows: a run over time in a bounded number of windows.

Windows are one second wide until there are 3,600 of them; then neighbours are merged
and every window is twice as wide, so a run of six hours keeps at most as many as a run
of one. Merging adds counts and buckets; it never averages a percentile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, Self, TypeVar

from squall.stats.histogram import Packed
from squall.stats.reports import StartsDelta

MAX_WINDOWS = 3_600


class Window(Protocol):
    def absorb(self, other: Self) -> None:
        """Adds the later neighbour `other`, so that the window covers both times."""
        ...


W = TypeVar("W", bound=Window)


class Series(Generic[W]):
    """Windows in order of time; the first one begins at second 0 of its clock."""

    __slots__ = ("_make", "limit", "width_s", "windows")

    def __init__(self, make: Callable[[], W], *, limit: int = MAX_WINDOWS) -> None:
        self._make = make
        self.limit = limit
        self.width_s = 1
        self.windows: list[W] = []

    def at(self, second: int) -> W:
        """The window that holds this second; creates empty windows before it if needed."""
        position = second // self.width_s
        while position >= self.limit:
            self.halve()
            position = second // self.width_s
        while position >= len(self.windows):
            self.windows.append(self._make())
        return self.windows[position]

    def __len__(self) -> int:
        return len(self.windows)

    def __iter__(self) -> Iterator[W]:
        return iter(self.windows)

    def halve(self) -> None:
        """Merges neighbours: half as many windows, each twice as wide."""
        for first, second in zip(self.windows[::2], self.windows[1::2], strict=False):
            first.absorb(second)
        self.windows = self.windows[::2]
        self.width_s *= 2


class RowWindow:
    """One row in one window: how many executions ended, and their latencies."""

    __slots__ = ("count", "failed", "latency")

    def __init__(self) -> None:
        self.count = 0
        self.failed = 0
        self.latency = Packed()

    def absorb(self, other: RowWindow) -> None:
        self.count += other.count
        self.failed += other.failed
        self.latency.merge(other.latency)


class LoadWindow:
    """One workflow in one window. `users` and `busy` are the maximum of its seconds."""

    __slots__ = ("busy", "dropped", "late", "made", "planned", "users")

    def __init__(self) -> None:
        self.users = 0
        self.busy = 0
        self.planned = 0
        self.made = 0
        self.late = 0
        self.dropped = 0

    def add(self, starts: StartsDelta) -> None:
        self.planned += starts.planned
        self.made += starts.made
        self.late += starts.late
        self.dropped += starts.dropped

    def absorb(self, other: LoadWindow) -> None:
        self.users = max(self.users, other.users)
        self.busy = max(self.busy, other.busy)
        self.planned += other.planned
        self.made += other.made
        self.late += other.late
        self.dropped += other.dropped


class HealthWindow:
    """All processes in one window: CPU as shares of a core, and how late the loops were."""

    __slots__ = ("cpu_max", "cpu_sum", "lag_max_s", "lag_p99_s", "reports")

    def __init__(self) -> None:
        self.reports = 0
        self.cpu_sum = 0.0
        self.cpu_max = 0.0
        # The highest value of any process and second.
        self.lag_p99_s = 0.0
        self.lag_max_s = 0.0

    @property
    def cpu(self) -> float:
        """The mean over processes."""
        return self.cpu_sum / self.reports if self.reports else 0.0

    def add(self, cpu: float, lag_p99_s: float, lag_max_s: float) -> None:
        self.reports += 1
        self.cpu_sum += cpu
        self.cpu_max = max(self.cpu_max, cpu)
        self.lag_p99_s = max(self.lag_p99_s, lag_p99_s)
        self.lag_max_s = max(self.lag_max_s, lag_max_s)

    def absorb(self, other: HealthWindow) -> None:
        self.reports += other.reports
        self.cpu_sum += other.cpu_sum
        self.cpu_max = max(self.cpu_max, other.cpu_max)
        self.lag_p99_s = max(self.lag_p99_s, other.lag_p99_s)
        self.lag_max_s = max(self.lag_max_s, other.lag_max_s)
