"""Who comes next: jobs by the priority of what they want to run, and by age.

Waiting raises a job: one rank for every `AGING_S`. A job at the head that does not fit
lets smaller ones pass for `PASSING_S`; then nobody passes it, and the cores that become
free are kept for it. So an EXCLUSIVE job starts after the longest run before it, whatever
stream of small jobs follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from squall.nodes.identity import JobId
from squall.stats.manifest import Priority

AGING_S = 30.0
PASSING_S = 10.0
_RANK: dict[Priority, int] = {"low": 0, "auto": 1, "normal": 2, "high": 3, "exclusive": 4}


class Waiting(NamedTuple):
    """A job whose next phase is not placed."""

    job: JobId
    op: int
    """Of its creation."""
    rank: int
    age_s: float
    """Since its creation."""
    waited_s: float
    """Since its creation, or since its last phase ended."""
    least: int
    """Cores without which it does not begin."""
    free: int
    """Free cores that it might have."""


def rank_of(priorities: Iterable[Priority]) -> int:
    return max((_RANK[each] for each in priorities), default=1)


def ordered(waiting: Iterable[Waiting]) -> list[Waiting]:
    return sorted(waiting, key=lambda each: (-(each.rank + each.age_s / AGING_S), each.op))


def admitted(queue: Sequence[Waiting]) -> Waiting | None:
    """The one that may be placed now."""
    for each in queue:
        if 0 < each.least <= each.free:
            return each
        if each.waited_s >= PASSING_S:
            return None
    return None


def passing_ends_s(queue: Sequence[Waiting]) -> float | None:
    """In how many seconds the order may change by age alone."""
    waits = [PASSING_S - each.waited_s for each in queue if each.waited_s < PASSING_S]
    return min(waits) if waits else None
