"""Measures the health of a core process: the heartbeat of its event loop, and reports.

The heartbeat is the one timer of a core process; everything periodic runs on it (folds,
timeout sweeps, garbage collection, reports). Its lateness is the loop lag that the verdict
judges, so it must never hide a stall: every beat that was due during a stall counts with its
own lateness, not only the one that finally ran.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from array import array
from collections.abc import Callable
from time import perf_counter, process_time

from squall.stats.histogram import Histogram
from squall.stats.reports import Blocked, HealthReport

BEAT_INTERVAL_S = 0.010
"""100 beats a second show a lag of 10 ms and cost far less than 1 % of a core."""

MOST_MISSED_BEATS = 6_000
"""A stall counts beat by beat up to this many (one minute); a suspended machine would
otherwise wake up to millions of them."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Periodic:
    """A callback and the number of the beat on which it is next due."""

    __slots__ = ("beats", "callback", "due_beat")

    def __init__(self, beats: int, due_beat: int, callback: Callable[[], None]) -> None:
        self.beats = beats
        self.due_beat = due_beat
        self.callback = callback


class LoopHeartbeat:
    """Beats on a fixed grid of the monotonic clock, however late single beats are.

    `on_beat(now, expected)` is called for every point of the grid; callbacks of `every`
    run once when they are due, also if several of their turns were missed.
    """

    __slots__ = (
        "_beats",
        "_due",
        "_handle",
        "_loop",
        "_on_beat",
        "_periodic",
        "interval_s",
        "last_beat",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        interval_s: float = BEAT_INTERVAL_S,
        on_beat: Callable[[float, float], None] | None = None,
    ) -> None:
        self.interval_s = interval_s
        # The watchdog's thread reads it too.
        self.last_beat = perf_counter()
        self._loop = loop
        self._on_beat = on_beat
        self._beats = 0
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._periodic: list[_Periodic] = []

    def start(self) -> None:
        if self._handle is None:
            now = self.last_beat = perf_counter()
            self._due = now + self.interval_s
            self._handle = self._loop.call_later(self.interval_s, self._beat)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def every(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` every `seconds`, rounded to beats; returns a function that stops it."""
        beats = max(1, round(seconds / self.interval_s))
        entry = _Periodic(beats, self._beats + beats, callback)
        self._periodic.append(entry)

        def cancel() -> None:
            if entry in self._periodic:
                self._periodic.remove(entry)

        return cancel

    def _beat(self) -> None:
        now = self.last_beat = perf_counter()
        interval = self.interval_s
        due = self._due
        # A loop with millisecond timers may call a little early. That is this point's beat,
        # on time.
        points = 1 + max(0, int((now - due) / interval))
        if self._on_beat is not None:
            for missed in range(min(points, MOST_MISSED_BEATS)):
                self._on_beat(now, due + missed * interval)
        self._beats += points
        self._due = due = due + points * interval
        # Scheduled before the callbacks run, so that none of them can end the heartbeat,
        # and relative to the clock, because loop.time() is rounded and cached by uvloop.
        self._handle = self._loop.call_later(max(0.0, due - perf_counter()), self._beat)
        for entry in tuple(self._periodic):
            if entry.due_beat <= self._beats:
                entry.due_beat += entry.beats * (1 + (self._beats - entry.due_beat) // entry.beats)
                self._run(entry.callback)

    def _run(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "a periodic callback of the core process raised", "exception": error}
            )


def _nothing_blocked() -> list[Blocked]:
    return []


class HealthMeter:
    """Collects the lag samples of one process and makes a `HealthReport` of each period.

    It calls `gc_max_s` and `blocked` once per report; both begin a new period then
    (`GarbageCollector.take_max_s`, `Watchdog.take`).
    """

    __slots__ = ("_blocked", "_cpu_s", "_gc_max_s", "_lag", "_samples", "_since", "process")

    def __init__(
        self,
        process_index: int,
        *,
        gc_max_s: Callable[[], float] = float,
        blocked: Callable[[], list[Blocked]] = _nothing_blocked,
    ) -> None:
        self.process = process_index
        self._gc_max_s = gc_max_s
        self._blocked = blocked
        self._lag = Histogram()
        self._samples = array("d")
        self._since = perf_counter()
        self._cpu_s = process_time()

    def beat(self, now: float, expected: float) -> None:
        """Records one point of the heartbeat's grid; an early beat is not late."""
        late_s = now - expected
        self._samples.append(late_s if late_s > 0.0 else 0.0)

    def restart(self) -> None:
        """Drops the running period and begins a new one, as at the end of preparation."""
        del self._samples[:]
        self._gc_max_s()
        self._blocked()
        self._since = perf_counter()
        self._cpu_s = process_time()

    def take(self, at_s: float) -> HealthReport:
        """The report of the period since the last call; `at_s` is the run's clock."""
        now, cpu_s = perf_counter(), process_time()
        wall_s = now - self._since
        cpu = (cpu_s - self._cpu_s) / wall_s if wall_s > 0.0 else 0.0
        self._since, self._cpu_s = now, cpu_s
        self._lag.clear()
        self._lag.add_seconds(self._samples)
        # A new array and not a cleared one: the fold may still export its buffer.
        self._samples = array("d")
        return HealthReport(
            process=self.process,
            at_s=at_s,
            # Threads of the author can add up to more than the one core of the loop.
            cpu=min(1.0, cpu),
            lag=self._lag.to_data(),
            gc_max_s=self._gc_max_s(),
            rss_mb=resident_mb(),
            blocked=self._blocked(),
        )


def resident_mb() -> float:
    """Resident memory of this process in units of 1,000,000 bytes."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES / 1e6
    except (OSError, ValueError, IndexError):
        # Without /proc only the peak is known: bytes on macOS, kilobytes elsewhere.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
