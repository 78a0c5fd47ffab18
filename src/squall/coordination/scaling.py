"""`profile="auto"`: the profile that suits the number of live members, the same for all.

The coordinator counts members and publishes in its lease how all are to beat (`Pace`); the
others read the lease anyway. A change has two steps. In between, the limits of the slower
profile hold while members beat as in the faster one: limits rise before intervals do, and fall
after them, so that a member that hears of it late is never taken for dead. At most one change
begins in ten minutes, also over changes of the coordinator.

The lease itself keeps the length with which its term began. On S3 there is one profile, at any
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from squall.coordination import events, keys
from squall.coordination.assembly import Assembly
from squall.coordination.health import CHECKS_PER_INTERVAL
from squall.coordination.monitor import Statistics
from squall.coordination.records import LeaseRecord, Pace
from squall.coordination.stores.interface import Record
from squall.coordination.terms import Term, Work
from squall.coordination.timing import PROFILES, Timing

SIZES = (("large", 101), ("normal", 10), ("small", 0))
"""From so many live members on."""
CHANGE_S = 600.0
LOOK_S = 10.0


class Timed(Protocol):
    """A part of a member that goes by the timing in force."""

    timing: Timing


def profile_for(live: int) -> str:
    return next(name for name, least in SIZES if live >= least)


def timing_at(pace: Pace) -> Timing | None:
    """None for a profile that this version does not know."""
    limits, beats = PROFILES.get(pace.profile), PROFILES.get(pace.beats)
    if limits is None or beats is None:
        return None
    return msgspec.structs.replace(limits, heartbeat_interval=beats.heartbeat_interval)


def next_pace(known: Pace, live: int, now: float) -> Pace:
    """What to publish now, in store time; `known` if nothing is to change."""
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
    return Pace(profile=limits, beats=beats, target=wanted, since=now)


def steady(profile: str, since: float) -> Pace:
    return Pace(profile=profile, beats=profile, target=profile, since=since)


class Pacer:
    """Of one member. Without `auto` it does nothing."""

    def __init__(self, parts: Assembly, statistics: Statistics, *, auto: bool) -> None:
        capabilities = parts.patient.capabilities
        polls_afar = capabilities.cross_host and not capabilities.blocking_wait
        self.pace: Pace | None = None
        """In force here; the one that this member publishes when it leads."""
        self._parts = parts
        self._statistics = statistics
        self._scales = auto and not polls_afar
        self._timed: Sequence[Timed] = ()
        self._monitor: Work | None = None

    async def begin(self) -> None:
        """Before anything beats: what the coordinator says, or else by the count."""
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
            # This one is not registered yet.
            live = len(await self._parts.live_members(pages=1)) + 1
            self._adopt(steady(profile_for(live), self._parts.store_time()))

    def follow(self, monitor: Work, *timed: Timed) -> None:
        """Who is to go by it from now on."""
        self._monitor, self._timed = monitor, timed
        self._pass_on(self._parts.timing)

    def heard(self, record: Record | None, lease: LeaseRecord | None) -> None:
        """Somebody's lease was read: it counts while it is held."""
        if not self._scales or record is None or lease is None or lease.pace is None:
            return
        held = not lease.released and record.age_s <= lease.lease_ttl
        if held and lease.worker_id != self._parts.member_id and lease.pace != self.pace:
            self._adopt(lease.pace)

    def works(self) -> list[Work]:
        return [Work("pace", periodic=self._decide, interval=LOOK_S)] if self._scales else []

    async def _decide(self, term: Term) -> None:
        live = self._statistics.coordinators_monitored
        if not live or self.pace is None:
            return
        chosen = next_pace(self.pace, live, self._parts.store_time())
        if chosen != self.pace:
            self._adopt(chosen)

    def _adopt(self, pace: Pace) -> None:
        timing = timing_at(pace)
        if timing is None:
            return
        self.pace = pace
        parts = self._parts
        if timing == parts.timing:
            return
        parts.timing = timing
        parts.contention.expected = timing.heartbeat_interval
        self._pass_on(timing)
        parts.bus.emit(events.ProfileChanged(profile=pace.profile, beats=pace.beats))

    def _pass_on(self, timing: Timing) -> None:
        if self._monitor is not None:
            self._monitor.interval = timing.monitor_interval * CHECKS_PER_INTERVAL
        for each in self._timed:
            each.timing = timing
