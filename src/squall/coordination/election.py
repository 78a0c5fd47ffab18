"""Who leads: one lease record, changed only by conditional writes. A pure core.

A member may take the lease when the record is absent, released, or has had one version for
a full `lease_ttl` on the member's own clock. It takes it by replacing exactly that version
with an epoch above every epoch it ever saw. The holder counts its lease from the moment
before it *sent* the last renewal that succeeded, and stops acting at four fifths of it,
whatever the store says later. So the old holder has stopped before the next one can win,
however requests and replies are delayed, lost or repeated, as long as the rates of two
clocks differ by less than 5 %.

Roles:

    OBSERVING --window over or a lease seen--> FOLLOWING --lease free, rank delay--> STANDING
    STANDING --won--> PREPARING (cold start only) --delay--> LEADING
    STANDING --lost--> FOLLOWING
    PREPARING, LEADING --limit passed, refused, fenced--> DRAINING --work ended--> FOLLOWING
    LEADING --stop, hand-over, unfit at the end of the term--> CLOSING (still renews)
    CLOSING --work ended--> releases, FOLLOWING

The order of ids only decides who tries first. Time is the clock that counts suspended time.
It must never treat a silence of the store as consent, nor let a late reply revive a lease.
"""

from __future__ import annotations

from collections.abc import Callable

from squall.coordination import leases
from squall.coordination.election_messages import (
    HOLDING,
    PLANNED,
    Demote,
    Effect,
    Event,
    Fenced,
    FindRank,
    LeaseRead,
    LeaseRefused,
    LeaseUnanswered,
    LeaseWritten,
    PhaseChanged,
    Promote,
    Purpose,
    RankKnown,
    ReadLease,
    Regressed,
    Resign,
    Retire,
    Role,
    Seen,
    TermRenewed,
    WorkEnded,
    WriteLease,
)
from squall.coordination.holders import Holders
from squall.coordination.records import LeaseRecord, Pace
from squall.coordination.timing import BEATS_PER_LEASE, Timing
from squall.runtime.invariants import invariant

RENEW_RETRY_S = 1.0


class Election:
    """One incarnation of one member. `uniform(low, high)` draws the jitter."""

    def __init__(
        self,
        member_id: str,
        incarnation: int,
        timing: Timing,
        now: float,
        *,
        uniform: Callable[[float, float], float],
        eligible: bool = True,
        highest_epoch: int = 0,
        skip_cold_start: bool = False,
        looks_every_s: float | None = None,
    ) -> None:
        self.member_id = member_id
        self.incarnation = incarnation
        self.timing = timing
        self.eligible = eligible
        self.highest_epoch = highest_epoch
        self.role = Role.OBSERVING
        self.seen: Seen | None = None
        self.standbys: tuple[str, ...] = ()
        """What the next renewal tells the followers; set by the monitor of the holder."""
        self.live = 0
        self.signing_key = ""
        self.pace: Pace | None = None
        """How all are to beat, with `profile="auto"`; told with the next write, too."""
        self.store_offset = 0.0
        """Store time minus our clock, for the times in the record that people read."""
        self.healthy = True
        """What the member says of itself. One that is not healthy does not stand, and leads to the
        end of its term at most."""
        self._uniform = uniform
        self._looks_every_s = looks_every_s or timing.heartbeat_interval * 0.8
        self._cold = not skip_cold_start
        self._begun = now
        self._phase_since = now
        self._phase = "observing"
        self._unchanged_since = now
        self._holders = Holders()
        self._look_at = now
        self._reading = False
        self._read_is_old = False
        """A write of ours was answered after the read in flight had begun."""
        self._stand_at: float | None = None
        self._abstains_until = now
        """Who gave the lease up lets the others go first."""
        self._writing: WriteLease | None = None
        self._tokens = 0
        self._lease: LeaseRecord | None = None
        """Ours, while we hold it or may hold it."""
        self._sent: dict[int, float] = {}
        """When each renewal that may have happened was sent, by its number."""
        self._limit = 0.0
        self._renew_at = 0.0
        self._ready_at = 0.0
        self._term_ends = 0.0
        self._successor = ""
        self._withdraws = False
        self._work_has_ended = False
        if skip_cold_start or timing.cold_start_observation_window <= 0.0:
            self.role = Role.FOLLOWING

    # What the member asks.

    def leads(self, now: float) -> bool:
        """Whether work may be done under the lease at this very moment."""
        return self.role is Role.LEADING and now < self._limit

    def holds(self, now: float) -> bool:
        return self.role in HOLDING and now < self._limit

    @property
    def seen_lease(self) -> LeaseRecord | None:
        """As the record was last seen; None also for one that cannot be believed."""
        return self.seen.lease if self.seen is not None else None

    def is_led(self, now: float) -> bool:
        """As far as this member saw."""
        lease = self.seen_lease
        others = lease is not None and bool(lease.worker_id) and self._free_at(now) > now
        return self.holds(now) if self.role in HOLDING else others

    @property
    def epoch(self) -> int:
        """Of our own term; 0 when we hold none."""
        return self._lease.epoch if self._lease is not None and self.role in HOLDING else 0

    @property
    def limit(self) -> float:
        return self._limit

    @property
    def lease_ttl(self) -> float:
        """Of our own term, which keeps it whatever the timing becomes; else of the next."""
        return self._lease.lease_ttl if self._lease is not None else self.timing.lease_ttl

    @property
    def phase(self) -> str:
        return self._phase

    def deadline(self) -> float:
        """When `tick` has something to do."""
        due: list[float] = []
        if self.role in HOLDING:
            due.append(self._limit)
            if self._writing is None:
                due.append(self._renew_at)
            if self.role is Role.PREPARING:
                due.append(self._ready_at)
            if not self.healthy and self.role is Role.LEADING:
                due.append(self._term_ends)
        elif self.role is not Role.RETIRED:
            if not self._reading:
                due.append(self._look_at)
            if self._stand_at is not None and self._writing is None:
                due.append(self._stand_at)
            if self.role is Role.OBSERVING:
                due.append(self._begun + self.timing.cold_start_observation_window)
        return min(due, default=self._begun + 1e12)

    # What happens.

    def tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.role is Role.RETIRED:
            return effects
        if self.role in HOLDING and now >= self._limit:
            self._lose("lease_lost", effects)
        if self.role in HOLDING:
            self._tick_holder(now, effects)
        else:
            self._tick_follower(now, effects)
        return effects

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The limit is looked at first: a reply that comes after it changes nothing."""
        effects = self.tick(now)
        if self.role is Role.RETIRED:
            return effects
        match event:
            case LeaseRead(seen):
                self._reading = False
                if self._read_is_old:
                    self._read_is_old = False
                    self._look_at = now
                else:
                    self._look(seen, now, effects)
            case LeaseWritten(request, version):
                self._writing = None
                self._written(request, version, now, effects)
            case LeaseRefused(request):
                self._writing = None
                self._not_written(request, now, effects)
            case LeaseUnanswered(request):
                self._writing = None
                self._not_answered(request, now, effects)
            case RankKnown(rank):
                self._plan_to_stand(rank, now)
            case Resign(reason, successor):
                self._resign(reason, successor, effects)
            case Fenced(epoch):
                if self.role in HOLDING and epoch == self.epoch:
                    self._lose("fenced", effects)
            case WorkEnded():
                self._end_work(now)
            case Retire():
                if self.role in HOLDING:
                    self._lose("fenced", effects)
                self.role = Role.RETIRED
        effects += self.tick(now)
        return effects

    # As a follower.

    def _tick_follower(self, now: float, effects: list[Effect]) -> None:
        window = self.timing.cold_start_observation_window
        if self.role is Role.OBSERVING and now >= self._begun + window:
            self.role = Role.FOLLOWING
            self._look_at = now
        if self._stand_at is not None and now >= self._stand_at and self._writing is None:
            self._stand_at = None
            self._stand(now, effects)
        if not self._reading and now >= self._look_at:
            self._read(now, effects)

    def _read(self, now: float, effects: list[Effect]) -> None:
        self._reading = True
        self._look_at = now + self._looks_every_s
        effects.append(ReadLease())

    def begin_look(self, now: float) -> bool:
        """Whether the driver shall read now, in passing; as if it had been asked to."""
        if self.role in HOLDING or self.role is Role.RETIRED or self._reading:
            return False
        self._reading = True
        self._look_at = now + self._looks_every_s
        return True

    def reading_failed(self, now: float) -> None:
        """The driver could not read; the next look comes soon."""
        self._reading = False
        self._read_is_old = False
        self._look_at = min(self._look_at, now + min(RENEW_RETRY_S, self._looks_every_s))

    def look_soon(self, now: float) -> None:
        """The record has changed, or may have."""
        self._look_at = min(self._look_at, now)

    def _look(self, seen: Seen | None, now: float, effects: list[Effect]) -> None:
        before = self.seen
        self.seen = seen
        if (before.version if before else None) != (seen.version if seen else None):
            self._unchanged_since = now
            self._stand_at = None
            effects += self._holders.changed(before, seen, now)
        if self.role in HOLDING or self.role is Role.STANDING:
            if seen is not None:
                self.highest_epoch = max(self.highest_epoch, seen.epoch)
            self._recognise(seen, now, effects)
            return
        if seen is not None and seen.epoch < self.highest_epoch:
            # Believed when two readings show the same: the first may have been on its way.
            if before is not None and before.version == seen.version:
                self._depose(seen, now, effects)
            else:
                self._look_at = now
            return
        if seen is not None:
            self.highest_epoch = max(self.highest_epoch, seen.epoch)
        if self.role is Role.OBSERVING:
            if seen is None or (seen.lease is not None and seen.lease.released):
                self._holders.vacant(now)
                return
            self.role = Role.FOLLOWING
        if self.role is Role.FOLLOWING:
            self._consider(now, effects)

    def _consider(self, now: float, effects: list[Effect]) -> None:
        """Whether the lease may be taken, now or when it has passed."""
        free_at = self._free_at(now)
        if free_at > now:
            if self._phase != "ready":
                self._change_phase("ready", now, effects)
            self._look_at = min(self._look_at, free_at)
            return
        self._holders.vacant(free_at)
        if not self.eligible or not self.healthy or self._stand_at is not None:
            return
        if now < self._abstains_until:
            self._look_at = min(self._look_at, self._abstains_until)
            return
        if self._phase == "observing":
            self._change_phase("election", now, effects)
        lease = self.seen_lease
        if lease is not None and lease.successor == self.member_id:
            self._stand_at = now
        elif lease is not None and self.member_id in lease.standbys:
            self._plan_to_stand(lease.standbys.index(self.member_id), now)
        elif lease is not None and lease.standbys:
            self._plan_to_stand(len(lease.standbys), now)
        else:
            effects.append(FindRank())

    def _free_at(self, now: float) -> float:
        """When the lease has certainly passed; not in the future if it may be taken."""
        lease = self.seen_lease
        if lease is None:
            # No record and none ever seen: nobody leads. A record that vanished or cannot
            # be believed says nothing about its holder.
            never_led = self.seen is None and self.highest_epoch == 0
            return now if never_led else self._unchanged_since + self.timing.lease_ttl
        if lease.released or self._is_ours(lease):
            return now
        return self._unchanged_since + max(lease.lease_ttl, self.timing.lease_ttl)

    def _plan_to_stand(self, rank: int, now: float) -> None:
        if self.role is not Role.FOLLOWING or not self.eligible or self._free_at(now) > now:
            return
        delay_s = leases.stands_after_s(rank, self.seen_lease, self.member_id, self.timing)
        if rank > 0:
            # The first has nobody to get out of step with.
            delay_s += self._uniform(0.0, self.timing.rank_delay)
        self._stand_at = now + delay_s

    def _stand(self, now: float, effects: list[Effect]) -> None:
        if self.role is not Role.FOLLOWING or not self.healthy or self._free_at(now) > now:
            return
        seen = self.seen
        self.role = Role.STANDING
        self._tokens += 1
        self._withdraws = False
        self._sent = {0: now}
        self._limit = 0.0
        self._term_ends = now + self.timing.max_epoch_duration
        self._lease = leases.stood_for(
            seen.lease if seen is not None else None,
            epoch=max(seen.epoch if seen is not None else 0, self.highest_epoch) + 1,
            member_id=self.member_id,
            incarnation=self.incarnation,
            number=self._tokens,
            elected_at=now + self.store_offset,
            term_ends_at=self._term_ends + self.store_offset,
            lease_ttl=self.timing.lease_ttl,
            pace=self.pace,
            min_term=self.timing.min_epoch_duration,
        )
        self._write(Purpose.STAND, seen.version if seen else None, self._lease, now, effects)

    def _depose(self, seen: Seen, now: float, effects: list[Effect]) -> None:
        """A holder of an epoch that was used before must end; nobody leads for a lease."""
        effects.append(Regressed(self.highest_epoch, seen.epoch))
        if not self.eligible or self._writing is not None:
            return
        nobody = leases.held_by_nobody(
            self.member_id,
            self.incarnation,
            epoch=self.highest_epoch,
            at=now + self.store_offset,
            lease_ttl=self.timing.lease_ttl,
        )
        self._write(Purpose.DEPOSE, seen.version, nobody, now, effects)

    # As the holder.

    def _tick_holder(self, now: float, effects: list[Effect]) -> None:
        if self.role is Role.PREPARING and now >= self._ready_at:
            self._lead(now, effects)
        if self.role is Role.LEADING and not self.healthy and now >= self._term_ends:
            self._resign("unhealthy", "", effects)
        if self._writing is None and now >= self._renew_at:
            if self._work_has_ended:
                self._release(now, effects)
            else:
                self._renew(now, effects)

    def _renew(self, now: float, effects: list[Effect]) -> None:
        lease, seen = self._lease, self.seen
        invariant(lease is not None and seen is not None, "a holder knows its lease")
        assert lease is not None
        assert seen is not None
        term_s = self.timing.max_epoch_duration
        if self._term_ends - now <= term_s * 0.2 and self.healthy:
            self._term_ends = now + term_s
            effects.append(TermRenewed(lease.epoch, self._term_ends + self.store_offset))
        number = max(self._sent, default=lease.renewals) + 1
        self._sent[number] = now
        renewed = leases.renewed(
            lease,
            number=number,
            term_ends_at=self._term_ends + self.store_offset,
            standbys=self.standbys,
            live=self.live,
            signing_key=self.signing_key,
            pace=self.pace,
        )
        self._renew_at = now + self._renews_every_s
        self._write(Purpose.RENEW, seen.version, renewed, now, effects)

    def _hold_since(self, sent_at: float) -> None:
        """A write of ours is there that was sent then: the lease counts from that moment."""
        part = self.lease_ttl / self.timing.lease_ttl
        self._limit = max(self._limit, sent_at + self.timing.local_limit * part)

    @property
    def _renews_every_s(self) -> float:
        return min(self.timing.heartbeat_interval, self.lease_ttl / BEATS_PER_LEASE)

    def _won(self, now: float, effects: list[Effect]) -> None:
        lease = self._lease
        assert lease is not None
        self.highest_epoch = max(self.highest_epoch, lease.epoch)
        self._renew_at = now + self._renews_every_s
        delay_s = self.timing.cold_start_preparation_delay
        if self._withdraws:
            self._close_unused()
        elif self._cold and self._phase != "ready" and delay_s > 0.0:
            self.role = Role.PREPARING
            self._ready_at = now + delay_s
            self._change_phase("preparation", now, effects)
        else:
            self._lead(now, effects)

    def _lead(self, now: float, effects: list[Effect]) -> None:
        lease = self._lease
        assert lease is not None
        self.role = Role.LEADING
        if self._phase != "ready":
            self._change_phase("ready", now, effects)
        effects.append(Promote(lease.epoch))

    def _lose(self, reason: str, effects: list[Effect]) -> None:
        if self.role is Role.LEADING:
            effects.append(Demote(self.epoch, reason))
            self.role = Role.DRAINING
        elif self.role is Role.CLOSING and not self._work_has_ended:
            self.role = Role.DRAINING
        else:
            self.role = Role.FOLLOWING
        self._work_has_ended = False
        self._look_at = 0.0

    def _resign(self, reason: str, successor: str, effects: list[Effect]) -> None:
        invariant(reason in PLANNED, f"{reason} is no reason to resign")
        self._successor = successor
        if self.role is Role.LEADING:
            effects.append(Demote(self.epoch, reason))
            self.role = Role.CLOSING
        elif self.role is Role.PREPARING:
            self._close_unused()
        else:
            # What is won after that is given up at once, lest all wait for its end.
            self._withdraws = self.role is Role.STANDING

    def _close_unused(self) -> None:
        """Nothing was done under this lease."""
        self.role = Role.CLOSING
        self._work_has_ended = True
        self._renew_at = 0.0

    def _end_work(self, now: float) -> None:
        if self.role is Role.CLOSING:
            self._work_has_ended = True
            self._renew_at = now
        elif self.role is Role.DRAINING:
            self.role = Role.FOLLOWING
            self._look_at = now

    def _release(self, now: float, effects: list[Effect]) -> None:
        """Only after the work has ended, and again until an answer says that it is done."""
        lease, seen = self._lease, self.seen
        assert lease is not None
        assert seen is not None
        number = max(self._sent, default=lease.renewals) + 1
        self._sent[number] = now
        released = leases.given_up(
            lease, number=number, successor=self._successor, standbys=self.standbys
        )
        self._renew_at = now + min(RENEW_RETRY_S, self.timing.heartbeat_interval / 3.0)
        self._write(Purpose.RELEASE, seen.version, released, now, effects)

    def _given_up(self, now: float) -> None:
        """The release is there."""
        self.role = Role.FOLLOWING
        self._lease = None
        self._work_has_ended = False
        self._abstains_until = now + 2.0 * self.timing.heartbeat_interval
        self._look_at = now + self.timing.heartbeat_interval

    # Answers to writes.

    def _write(
        self,
        purpose: Purpose,
        expect: str | None,
        lease: LeaseRecord,
        now: float,
        effects: list[Effect],
    ) -> None:
        request = WriteLease(purpose, expect, lease, now)
        self._writing = request
        effects.append(request)

    def _written(
        self, request: WriteLease, version: str, now: float, effects: list[Effect]
    ) -> None:
        before = self.seen
        self.seen = Seen(version, request.lease.epoch, request.lease)
        self._unchanged_since = now
        self._read_is_old = self._reading
        if request.purpose is Purpose.STAND:
            effects += self._holders.changed(before, self.seen, now)
        if request.purpose in (Purpose.STAND, Purpose.RENEW):
            self._recognise(self.seen, now, effects)
        elif request.purpose is Purpose.RELEASE and self.role is Role.CLOSING:
            self._given_up(now)

    def _not_written(self, request: WriteLease, now: float, effects: list[Effect]) -> None:
        """Only the record itself says whether somebody else won or a lost reply was ours."""
        if not self._reading:
            self._read(now, effects)

    def _not_answered(self, request: WriteLease, now: float, effects: list[Effect]) -> None:
        if request.purpose is Purpose.RENEW and self.role in HOLDING:
            retry_s = min(RENEW_RETRY_S, self.timing.heartbeat_interval / 3.0)
            self._renew_at = min(self._renew_at, now + retry_s)
        elif self.role is Role.STANDING:
            self._look_at = min(self._look_at, now + min(RENEW_RETRY_S, self._looks_every_s / 4.0))

    def _recognise(self, seen: Seen | None, now: float, effects: list[Effect]) -> None:
        """We hold the lease or asked for it: what does the record say?"""
        lease = None if seen is None else seen.lease
        ours = self._lease
        if lease is None or ours is None or lease.token != ours.token:
            self._not_ours(now, effects)
            return
        sent_at = self._sent.get(lease.renewals)
        if sent_at is None:
            # Older than what was there before: the store was set back.
            self._not_ours(now, effects)
            return
        if lease.released:
            if self.role is Role.CLOSING:
                self._given_up(now)
            return
        self._lease = lease
        self._sent = {n: at for n, at in self._sent.items() if n >= lease.renewals}
        self._hold_since(sent_at)
        if self.role is Role.STANDING:
            if now < self._limit:
                self._won(now, effects)
            elif self._writing is None:
                # Ours, but its time has passed: a renewal would make it good again.
                self._renew(now, effects)

    def _not_ours(self, now: float, effects: list[Effect]) -> None:
        if self.role in HOLDING:
            self._lose("superseded", effects)
        elif self.role is Role.STANDING:
            if self._writing is not None:
                return
            self.role = Role.FOLLOWING
            self._lease = None
            self._look_at = now

    def _is_ours(self, lease: LeaseRecord) -> bool:
        """A lease of this incarnation that we do not act on any more."""
        return lease.worker_id == self.member_id and lease.incarnation == self.incarnation

    # What people are told.

    def _change_phase(self, phase: str, now: float, effects: list[Effect]) -> None:
        effects.append(PhaseChanged(phase, now - self._phase_since))
        self._phase = phase
        self._phase_since = now
