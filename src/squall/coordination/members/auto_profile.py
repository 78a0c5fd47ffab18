"""`profile="auto"`: chooses the profile by the number of live members, the same for all members.

The leader counts members and publishes the pace in its lease (`HeartbeatPace`), which the others
read anyway. A change has two steps. In between, the limits of the slower profile hold while members
beat at the interval of the faster one: limits rise before intervals do, and fall after them, so
that a member that hears of the change late is never declared dead. At most one change begins in ten
minutes, also across changes of the leader.

A lease keeps the length with which its term began. On S3 one profile serves every size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from squall.coordination import events
from squall.coordination.election.term import Term, Work
from squall.coordination.member_parts import MemberParts
from squall.coordination.members.health_rules import CHECKS_PER_INTERVAL
from squall.coordination.members.monitor import MonitorStatistics
from squall.coordination.records import keys
from squall.coordination.records.schemas import HeartbeatPace, LeaseRecord
from squall.coordination.stores.interface import Record
from squall.coordination.timing import PROFILES, Timing

# The profile from so many live members on.
SIZES = (("large", 101), ("normal", 10), ("small", 0))
# At least this long between two changes.
CHANGE_S = 600.0
DECIDE_INTERVAL_S = 10.0


class UsesTiming(Protocol):
    """A part of a member whose timing follows the profile."""

    timing: Timing


def profile_for(live: int) -> str:
    return next(name for name, least in SIZES if live >= least)


def timing_at(pace: HeartbeatPace) -> Timing | None:
    """The timing of a pace; None if it names a profile that this version does not know."""
    limits, beats = PROFILES.get(pace.profile), PROFILES.get(pace.beats)
    if limits is None or beats is None:
        return None
    return msgspec.structs.replace(limits, heartbeat_interval=beats.heartbeat_interval)


def next_pace(known: HeartbeatPace, live: int, now: float) -> HeartbeatPace:
    """The pace to publish at `now`, in store time; `known` itself if nothing changes."""
    if known.target != known.profile or known.target != known.beats:
        slower = PROFILES.get(known.profile)
        settled = slower is None or now - known.since >= slower.heartbeat_ttl
        return steady(known.target, known.since) if settled else known
    wanted = profile_for(live)
    if wanted == known.profile or now - known.since < CHANGE_S:
        return known
    beats, limits = sorted(
        (wanted, known.profile), key=lambda name: PROFILES[name].heartbeat_interval
    )
    return HeartbeatPace(profile=limits, beats=beats, target=wanted, since=now)


def steady(profile: str, since: float) -> HeartbeatPace:
    return HeartbeatPace(profile=profile, beats=profile, target=profile, since=since)


class AutoProfile:
    """Applies the pace of the group to the parts of one member, and chooses it while leading.

    Without `auto` it does nothing.
    """

    def __init__(self, parts: MemberParts, statistics: MonitorStatistics, *, auto: bool) -> None:
        capabilities = parts.patient.capabilities
        is_polled = capabilities.cross_host and not capabilities.blocking_wait
        # The pace in force; the leader publishes it.
        self.pace: HeartbeatPace | None = None
        self._parts = parts
        self._statistics = statistics
        self._scales = auto and not is_polled
        self._timed: Sequence[UsesTiming] = ()
        self._monitor: Work | None = None

    async def begin(self) -> None:
        """Call before the first beat. Takes the pace of the leader, else one by the count."""
        if not self._scales:
            return
        (record,) = await self._parts.patient.get(keys.LEADER)
        lease = (
            None
            if record is None
            else self._parts.codec.read(LeaseRecord, record.value, key=record.key)
        )
        self.heard(record, lease)
        if self.pace is None:
            # This member is not registered yet, so it is not in the list.
            live = len(await self._parts.live_members(pages=1)) + 1
            self._adopt(steady(profile_for(live), self._parts.store_time()))

    def follow(self, monitor: Work, *timed: UsesTiming) -> None:
        """Sets the parts whose timing follows the profile from now on."""
        self._monitor, self._timed = monitor, timed
        self._apply_timing(self._parts.timing)

    def heard(self, record: Record | None, lease: LeaseRecord | None) -> None:
        """A lease was read: its pace counts while another member holds it."""
        if not self._scales or record is None or lease is None or lease.pace is None:
            return
        held = not lease.released and record.age_s <= lease.lease_ttl
        if held and lease.member_id != self._parts.member_id and lease.pace != self.pace:
            self._adopt(lease.pace)

    def works(self) -> list[Work]:
        return (
            [Work("pace", periodic=self._decide, interval=DECIDE_INTERVAL_S)]
            if self._scales
            else []
        )

    async def _decide(self, term: Term) -> None:
        live = self._statistics.coordinators_monitored
        if not live or self.pace is None:
            return
        chosen = next_pace(self.pace, live, self._parts.store_time())
        if chosen != self.pace:
            self._adopt(chosen)

    def _adopt(self, pace: HeartbeatPace) -> None:
        timing = timing_at(pace)
        if timing is None:
            return
        self.pace = pace
        parts = self._parts
        if timing == parts.timing:
            return
        parts.timing = timing
        parts.contention.expected = timing.heartbeat_interval
        self._apply_timing(timing)
        parts.bus.emit(events.ProfileChanged(profile=pace.profile, beats=pace.beats))

    def _apply_timing(self, timing: Timing) -> None:
        if self._monitor is not None:
            self._monitor.interval = timing.monitor_interval * CHECKS_PER_INTERVAL
        for each in self._timed:
            each.timing = timing
