"""When a silent member is warned about, and when it is dead. Pure.

A member is stale when its last beat is older than `heartbeat_ttl` in store time. Each check
of a stale member may add one warning, never more than the age allows, so that two monitors
count an interval once; the record of the count is shared and changed by conditional writes.
`max_warnings` in a row are a death. Any beat in between starts from zero.

It must never warn about anybody because the *store* was away: for an interval after such a
gap, or for a whole `heartbeat_ttl` after a long one, nobody is warned about.
"""

from __future__ import annotations

from dataclasses import dataclass

from squall.coordination.records import WarningRecord
from squall.coordination.timing import Timing

CHECKS_PER_INTERVAL = 0.9
"""A little faster than the interval, so that each window of it holds a check."""
EARLY = 0.1
"""Part of an interval by which a check may be early."""
LEAST_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Stale:
    """A member whose last beat is too old. Without a record its incarnation is that of its
    registration and its sequence 0."""

    member_id: str
    incarnation: int
    sequence: int
    age_s: float
    transient: bool = False


def next_warning(
    known: WarningRecord | None, stale: Stale, store_now: float, timing: Timing
) -> WarningRecord | None:
    """The record after this check; None when this check adds nothing."""
    if stale.age_s <= timing.heartbeat_ttl:
        return None
    same = (
        known is not None
        and known.incarnation == stale.incarnation
        and known.last_sequence == stale.sequence
    )
    count, first_at = 1, store_now
    if same and known is not None:
        if store_now - known.last_at < timing.monitor_interval * LEAST_PAUSE:
            return None
        count, first_at = known.consecutive_warnings + 1, known.first_at
    over_s = stale.age_s - timing.heartbeat_ttl + timing.monitor_interval * EARLY
    if count > int(over_s / timing.monitor_interval) + 1:
        return None
    return WarningRecord(
        coordinator_id=stale.member_id,
        incarnation=stale.incarnation,
        consecutive_warnings=count,
        health=health_of(count, timing),
        first_at=first_at,
        last_at=store_now,
        last_sequence=stale.sequence,
        reason=f"no heartbeat for {stale.age_s:.1f} s",
    )


def health_of(warnings: int, timing: Timing) -> str:
    if warnings <= 0:
        return "healthy"
    if warnings >= timing.max_warnings:
        return "dead"
    return "warning" if warnings == 1 else "critical"


class Grace:
    """Whether silence says something about members, or only about the store."""

    def __init__(self, timing: Timing, now: float) -> None:
        self.timing = timing
        self._reached_at = now
        self._quiet_until = now + timing.monitor_interval

    def reached(self, now: float) -> None:
        """The store answered."""
        timing = self.timing
        gap_s = now - self._reached_at
        self._reached_at = now
        if gap_s > timing.heartbeat_ttl:
            self._quiet_until = max(self._quiet_until, now + timing.heartbeat_ttl)
        elif gap_s > 2.0 * max(timing.monitor_interval, timing.heartbeat_interval):
            self._quiet_until = max(self._quiet_until, now + timing.monitor_interval)

    def may_warn(self, now: float) -> bool:
        return now >= self._quiet_until


@dataclass(frozen=True, slots=True)
class Violation:
    expected: int
    received: int
    gap: int
    missed: int


def continuity(before: int | None, received: int) -> Violation | None:
    """Of the sequence of one incarnation: 3 then 6 is a gap of 3 with 2 missed."""
    if before is None or received == before + 1:
        return None
    return Violation(before + 1, received, received - before, max(0, received - before - 1))
