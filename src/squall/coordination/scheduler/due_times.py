"""Decides which due times of a job are to run now. Pure.

Due times are points of the calendar and not intervals since some start: multiples of `every` since
1970, or the times of a cron expression. So every member computes the same ones, and the record of
each is created once. `decided` only grows: after a clock goes back, nothing is due.
"""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.scheduler.cron import Cron
from squall.coordination.scheduler.records import JobRecord

# Of more missed due times than this, only the last ones are counted.
COUNTED_MAX = 10_000
# Gaps of a cron expression that are compared to find its shortest one.
GAPS_SAMPLED = 20


class DueTimes(msgspec.Struct, frozen=True):
    """What to do about the due times up to `decided`: `run` these in order, give up `missed`."""

    run: tuple[float, ...]
    missed: tuple[float, ...]
    decided: float


class Calendar:
    """The due times of one job."""

    def __init__(self, job: JobRecord) -> None:
        if job.cron and job.every:
            raise ConfigurationError("a job needs either a cron expression or `every`, not both")
        if not job.cron and not (math.isfinite(job.every) and job.every > 0.0):
            raise ConfigurationError(
                f"every is {job.every!r}: it must be above 0; use every=60, or cron=..."
            )
        self._cron = Cron(job.cron, job.zone) if job.cron else None
        self._every = job.every

    @property
    def least_gap_s(self) -> float:
        """The shortest gap between two due times; of a cron expression, among its first ones."""
        if self._cron is None:
            return self._every
        times = [self.after(0.0)]
        for _ in range(GAPS_SAMPLED):
            times.append(self.after(times[-1]))
        return min(later - earlier for earlier, later in pairwise(times))

    def after(self, time_s: float) -> float:
        if self._cron is not None:
            return self._cron.after(time_s)
        due = (math.floor(time_s / self._every) + 1) * self._every
        # If the quotient was rounded down, this is the same due time again.
        return due if due > time_s else due + self._every

    def between(self, after_s: float, until_s: float) -> list[float]:
        """The last `COUNTED_MAX` due times in (after_s, until_s]. Searched from the end: a gap of
        years must not be counted minute by minute."""
        span_s = COUNTED_MAX * (self._every or 60.0)
        while True:
            found = self._between(max(after_s, until_s - span_s), until_s)
            if len(found) >= COUNTED_MAX or until_s - span_s <= after_s:
                return found[-COUNTED_MAX:]
            span_s *= 2.0

    def _between(self, after_s: float, until_s: float) -> list[float]:
        found: list[float] = []
        due = self.after(after_s)
        while due <= until_s:
            found.append(due)
            due = self.after(due)
        return found


def due_now(job: JobRecord, calendar: Calendar, now_s: float) -> DueTimes:
    """Applies the job's misfire policy to the due times since the last decision."""
    if now_s <= job.decided:
        return DueTimes((), (), job.decided)
    due = calendar.between(job.decided, now_s)
    if not due:
        return DueTimes((), (), job.decided)
    if job.misfire == "run_all":
        return DueTimes(tuple(due), (), due[-1])
    last = due[-1]
    if job.misfire == "skip" and now_s - last > job.grace + job.jitter:
        return DueTimes((), tuple(due), last)
    return DueTimes((last,), tuple(due[:-1]), last)
