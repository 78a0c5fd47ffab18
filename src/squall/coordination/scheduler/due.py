"""Which due times of a job are to be run now. Pure.

Due times are points of the calendar, not intervals since some start: multiples of `every`
since 1970, or the times of a cron expression. So every member computes the same ones, and the
record of each is created once. `decided` only grows: a clock that goes back finds nothing due.
"""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.scheduler.cron import Cron
from squall.coordination.scheduler.records import JobRecord

MANY = 10_000
"""More missed due times than these are not counted one by one."""

SOME = 20


class Due(msgspec.Struct, frozen=True):
    """`run` in order; up to `decided` all is said. `missed` are given up."""

    run: tuple[float, ...]
    missed: tuple[float, ...]
    decided: float


class Calendar:
    """The due times of one job."""

    def __init__(self, job: JobRecord) -> None:
        if bool(job.cron) == bool(job.every):
            raise ConfigurationError("a job has either a cron expression or `every` seconds")
        if not job.cron and not (math.isfinite(job.every) and job.every > 0.0):
            raise ConfigurationError(
                f"every is {job.every!r}: it must be above 0; every=60 is right"
            )
        self._cron = Cron(job.cron, job.zone) if job.cron else None
        self._every = job.every

    @property
    def least_gap_s(self) -> float:
        """Between two due times; of a cron expression, between its first ones."""
        if self._cron is None:
            return self._every
        times = [self.after(0.0)]
        for _ in range(SOME):
            times.append(self.after(times[-1]))
        return min(later - earlier for earlier, later in pairwise(times))

    def after(self, time_s: float) -> float:
        if self._cron is not None:
            return self._cron.after(time_s)
        due = (math.floor(time_s / self._every) + 1) * self._every
        # A quotient that rounds down would give the same due time again.
        return due if due > time_s else due + self._every

    def between(self, after_s: float, until_s: float) -> list[float]:
        """Later than the first, not later than the second; the last `MANY`. A gap of years must
        not be counted minute by minute: it is looked at from its end."""
        span_s = MANY * (self._every or 60.0)
        while True:
            found = self._between(max(after_s, until_s - span_s), until_s)
            if len(found) >= MANY or until_s - span_s <= after_s:
                return found[-MANY:]
            span_s *= 2.0

    def _between(self, after_s: float, until_s: float) -> list[float]:
        found: list[float] = []
        due = self.after(after_s)
        while due <= until_s:
            found.append(due)
            due = self.after(due)
        return found


def due_now(job: JobRecord, calendar: Calendar, now_s: float) -> Due:
    """What the policy makes of the due times since the last decision."""
    if now_s <= job.decided:
        return Due((), (), job.decided)
    due = calendar.between(job.decided, now_s)
    if not due:
        return Due((), (), job.decided)
    if job.misfire == "run_all":
        return Due(tuple(due), (), due[-1])
    last = due[-1]
    if job.misfire == "skip" and now_s - last > job.grace + job.jitter:
        return Due((), tuple(due), last)
    return Due((last,), tuple(due[:-1]), last)
