"""The health of a member: its words, and the rules by which a silent member is warned about and
declared dead. Pure.

`judge` is the only place that decides on a word. Gauges, `squall coord status|members|doctor`,
events and errors all show what it says.

A member is stale when its last beat is older than `heartbeat_ttl` in store time. Each check of a
stale member may add one warning, but never more than its age allows: two monitors count one
interval once, because they share the warning record and change it by conditional writes.
`max_warnings` in a row are a death. A beat in between resets the count.

An outage of the *store* is no silence of members: no warning is given for an interval after it, or
for a whole `heartbeat_ttl` after a long one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from squall.coordination.records.schemas import HeartbeatRecord, MemberRecord, WarningRecord
from squall.coordination.timing import Timing

# Checks come a little faster than the interval, so that each window of that length holds one.
CHECKS_PER_INTERVAL = 0.9
# The part of an interval by which a check may be early, and still count for the next warning.
EARLY = 0.1
# Two warnings are at least this part of an interval apart: a new leader checks at once.
LEAST_PAUSE = 0.5


Health = Literal["healthy", "stale", "warning", "critical", "dead", "left", "unreadable", "unknown"]
HEALTHS: dict[Health, str] = {
    "healthy": "its last heartbeat is at most `heartbeat_ttl` old",
    "stale": "no heartbeat for `heartbeat_ttl`, and no warning yet; it stays so if no member leads",
    "warning": "stale, and the leader warned once",
    "critical": "stale, and the leader warned more than once",
    "dead": "the leader declared this boot dead",
    "left": "it stopped properly",
    "unreadable": "its heartbeat does not decode, or another secret signed it",
    "unknown": "no member with this id is registered",
}
"""The words for the health of a member, and what each means."""


def judge(
    member: MemberRecord | None,
    beat: HeartbeatRecord | None,
    warning: WarningRecord | None,
    heard_s: float,
    heartbeat_ttl: float,
) -> Health:
    """The health of a member by its records. `heard_s` is the age of its last sign of life in
    store time."""
    if member is None and beat is None:
        return "unknown"
    # A later boot may have registered and not sent a heartbeat yet.
    if beat is None or (member is not None and member.boot > beat.boot):
        boot, status = cast("MemberRecord", member).boot, cast("MemberRecord", member).status
    else:
        boot, status = beat.boot, beat.status
        if member is not None and member.boot == boot and member.status != "alive":
            status = member.status
    if status != "alive":
        return "dead" if status == "dead" else "left"
    if heard_s <= heartbeat_ttl:
        return "healthy"
    if warning is None or warning.boot != boot:
        return "stale"
    # The last warning says `dead` before the decision, which a heartbeat may still prevent.
    return "warning" if warning.health == "warning" else "critical"


@dataclass(frozen=True, slots=True)
class StaleMember:
    """A member whose last beat is too old. Without a heartbeat record, the boot comes from its
    registration and the sequence is 0."""

    member_id: str
    boot: int
    sequence: int
    age_s: float
    transient: bool = False


def next_warning(
    known: WarningRecord | None, stale: StaleMember, store_now: float, timing: Timing
) -> WarningRecord | None:
    """The warning record after this check; None if this check adds no warning."""
    if stale.age_s <= timing.heartbeat_ttl:
        return None
    same = known is not None and known.boot == stale.boot and known.last_sequence == stale.sequence
    count, first_at = 1, store_now
    if same and known is not None:
        if store_now - known.last_at < timing.monitor_interval * LEAST_PAUSE:
            return None
        count, first_at = known.consecutive_warnings + 1, known.first_at
    # One warning per full interval past the ttl, whatever member leads and however often it checks.
    over_s = stale.age_s - timing.heartbeat_ttl + timing.monitor_interval * EARLY
    if count > int(over_s / timing.monitor_interval) + 1:
        return None
    return WarningRecord(
        member_id=stale.member_id,
        boot=stale.boot,
        consecutive_warnings=count,
        health=health_after(count, timing),
        first_at=first_at,
        last_at=store_now,
        last_sequence=stale.sequence,
        reason=f"no heartbeat for {stale.age_s:.1f} s",
    )


def health_after(warnings: int, timing: Timing) -> Health:
    """What a warning record says after so many warnings in a row."""
    if warnings >= timing.max_warnings:
        return "dead"
    return "warning" if warnings == 1 else "critical"


class GracePeriod:
    """Knows whether silence is that of the members, or follows an outage of the store."""

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
class SequenceViolation:
    """A heartbeat whose sequence does not follow the one before."""

    expected: int
    received: int
    gap: int
    missed: int


def continuity(before: int | None, received: int) -> SequenceViolation | None:
    """Compares two sequence numbers of one boot: 3 then 6 is a gap of 3, with 2 missed."""
    if before is None or received == before + 1:
        return None
    return SequenceViolation(before + 1, received, received - before, max(0, received - before - 1))
