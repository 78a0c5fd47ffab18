"""The order of the queue: by priority of the next workflows, and by age.

Waiting raises a job by one rank for every `AGING_S`. A job at the head that does not fit lets
smaller ones pass for `PASSING_S`; after that no job passes it, and cores that become free are
kept for it. So an EXCLUSIVE job starts after the longest run before it, whatever stream of
small jobs follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from squall.cluster.protocol.job_keys import JobId
from squall.stats.manifest import Priority

AGING_S = 30.0
PASSING_S = 10.0
_RANK: dict[Priority, int] = {"low": 0, "auto": 1, "normal": 2, "high": 3, "exclusive": 4}


class WaitingJob(NamedTuple):
    """A job whose next phase is not placed."""

    job: JobId
    op: int
    """The op of its creation: breaks ties."""
    rank: int
    age_s: float
    """Seconds since its creation."""
    waited_s: float
    """Seconds since its creation, or since its last phase ended."""
    least: int
    """The cores that it needs to begin."""
    free: int
    """The free cores that it may get."""


def rank_of(priorities: Iterable[Priority]) -> int:
    return max((_RANK[each] for each in priorities), default=1)


def ordered(waiting: Iterable[WaitingJob]) -> list[WaitingJob]:
    return sorted(waiting, key=lambda each: (-(each.rank + each.age_s / AGING_S), each.op))


def admitted(queue: Sequence[WaitingJob]) -> WaitingJob | None:
    """The job that may be placed now."""
    for each in queue:
        if 0 < each.least <= each.free:
            return each
        if each.waited_s >= PASSING_S:
            return None
    return None


def passing_ends_s(queue: Sequence[WaitingJob]) -> float | None:
    """The seconds until the next job is no longer passed by others."""
    waits = [PASSING_S - each.waited_s for each in queue if each.waited_s < PASSING_S]
    return min(waits) if waits else None
