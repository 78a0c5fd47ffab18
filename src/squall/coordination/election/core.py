"""Decides which member leads: a pure state machine over one lease record and conditional writes.

A member may take the lease when the record is absent, released, or has kept one version for
a full `lease_ttl` on the member's own clock. It takes it by replacing exactly that version
with an epoch above every epoch it ever saw (`leases.next_epoch`). The holder counts its lease
from the moment before it *sent* the last renewal that succeeded, and stops acting at four fifths
of it, whatever the store answers later. So the old holder has stopped before the next one can
win, however requests and replies are delayed, lost or repeated, as long as the rates of two
clocks differ by less than 5 %.

Roles:

    OBSERVING --window over or a lease seen--> FOLLOWING --lease free, rank delay--> STANDING
    STANDING --won--> PREPARING (cold start only) --delay--> LEADING
    STANDING --lost--> FOLLOWING
    PREPARING, LEADING --limit passed, refused, fenced--> DRAINING --work ended--> FOLLOWING
    LEADING --stop, hand-over, unfit at the end of the term--> CLOSING (still renews)
    CLOSING --work ended--> releases, FOLLOWING

The order of ids only decides which member tries first. `now` is always the clock that counts
suspended time. Invariants: silence of the store is never consent, and a reply that arrives after
the local limit never revives a lease.
"""

from __future__ import annotations

from collections.abc import Callable

from squall.coordination.election import leases
from squall.coordination.election.cold_start import ColdStart
from squall.coordination.election.messages import (
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
    Promote,
    Purpose,
    RankKnown,
    ReadLease,
    Regressed,
    Resign,
    Retire,
    Role,
    SeenLease,
    TermRenewed,
    WorkEnded,
    WriteLease,
)
from squall.coordination.election.vacancy import VacancyTracker
from squall.coordination.records.schemas import HeartbeatPace, LeaseRecord
from squall.coordination.timing import BEATS_PER_LEASE, Timing
from squall.runtime.invariants import invariant

# After a read or a candidacy without an answer, the next read comes this early.
REREAD_S = 1.0


class Election:
    """The part of one boot of a member in the election: takes events, returns effects.

    `uniform(low, high)` draws the jitter between candidates; `wall()` is the wall clock.
    """

    def __init__(
        self,
        member_id: str,
        boot: int,
        timing: Timing,
        now: float,
        *,
        uniform: Callable[[float, float], float],
        wall: Callable[[], float],
        eligible: bool = True,
        highest_epoch: int = 0,
        skip_cold_start: bool = False,
        read_interval_s: float | None = None,
    ) -> None:
        self.member_id = member_id
        self.boot = boot
        self.timing = timing
        self.eligible = eligible
        self.highest_epoch = highest_epoch
        self.role = Role.OBSERVING
        self.seen: SeenLease | None = None
        # The driver sets these four before each tick; the next renewal carries them to the group.
        self.standbys: tuple[str, ...] = ()
        self.live = 0
        self.signing_key = ""
        self.pace: HeartbeatPace | None = None
        # Store time minus our clock. Only the times in the record that people read need it: no
        # decision compares clocks of two machines.
        self.store_offset = 0.0
        # The answer of the member's own health check. An unhealthy member does not stand, and
        # leads to the end of its term at most.
        self.healthy = True
        self._uniform = uniform
        self._wall = wall
        self._read_interval_s = read_interval_s or timing.heartbeat_interval * 0.8
        self._cold = not skip_cold_start
        self._begun = now
        self.cold_start = ColdStart(now)
        # Since when the record has had the version of `seen`, on our clock.
        self._unchanged_since = now
        self._vacancy = VacancyTracker()
        self._next_read_at = now
        # At most one read and one write are in flight.
        self._reading = False
        self._writing: WriteLease | None = None
        # A write of ours was answered after the read in flight had begun: its result may show
        # the record before that write and is discarded.
        self._read_is_old = False
        self._stand_at: float | None = None
        # A member that gave the lease up lets the others go first.
        self._abstains_until = now
        # Numbers our candidacies: a record with another token is not ours.
        self._tokens = 0
        # Our lease, while we hold it or may hold it.
        self._lease: LeaseRecord | None = None
        # When each write that may be in the record was sent, by its renewal number.
        self._sent: dict[int, float] = {}
        # We act only before this; it rises with each renewal that is known to have succeeded.
        self._limit = 0.0
        self._renew_at = self._ready_at = self._term_ends = 0.0
        self._successor = ""
        # We resigned while our candidacy was in flight.
        self._withdraws = False
        self._work_has_ended = False
        if skip_cold_start or timing.cold_start_observation_window <= 0.0:
            self.role = Role.FOLLOWING

    # Queries of the driver.

    def leads(self, now: float) -> bool:
        """Whether work may be done under the lease at this moment."""
        return self.role is Role.LEADING and now < self._limit

    def holds(self, now: float) -> bool:
        return self.role in HOLDING and now < self._limit

    @property
    def seen_lease(self) -> LeaseRecord | None:
        """The lease as last read; None also for a record whose signature or epoch is wrong."""
        return self.seen.lease if self.seen is not None else None

    def is_led(self, now: float) -> bool:
        """Whether some member leads, as far as this one saw."""
        lease = self.seen_lease
        others = lease is not None and bool(lease.member_id) and self._free_at(now) > now
        return self.holds(now) if self.role in HOLDING else others

    @property
    def epoch(self) -> int:
        """The epoch of our own term; 0 without one."""
        return self._lease.epoch if self._lease is not None and self.role in HOLDING else 0

    @property
    def limit(self) -> float:
        return self._limit

    @property
    def lease_ttl(self) -> float:
        """Our term keeps the length that it began with, even if the timing changes; without a
        term, the length of the next one."""
        return self._lease.lease_ttl if self._lease is not None else self.timing.lease_ttl

    def deadline(self) -> float:
        """When `tick` has something to do next."""
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
                due.append(self._next_read_at)
            if self._stand_at is not None and self._writing is None:
                due.append(self._stand_at)
            if self.role is Role.OBSERVING:
                due.append(self._begun + self.timing.cold_start_observation_window)
        return min(due, default=self._begun + 1e12)

    # Events.

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
        """Checks the limit first: a reply that arrives after it changes nothing."""
        effects = self.tick(now)
        if self.role is Role.RETIRED:
            return effects
        match event:
            case LeaseRead(seen):
                self._reading = False
                if self._read_is_old:
                    self._read_is_old = False
                    self._next_read_at = now
                else:
                    self._examine(seen, now, effects)
            case LeaseWritten(request, version):
                self._writing = None
                self._written(request, version, now, effects)
            case LeaseRefused():
                # Another member won, or an earlier write of ours arrived and its reply was lost:
                # only the record shows which.
                self._writing = None
                if not self._reading:
                    self._read(now, effects)
            case LeaseUnanswered(request):
                self._writing = None
                self._not_answered(request, now)
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

    # Follower.

    def _tick_follower(self, now: float, effects: list[Effect]) -> None:
        window = self.timing.cold_start_observation_window
        if self.role is Role.OBSERVING and now >= self._begun + window:
            self.role = Role.FOLLOWING
            self._next_read_at = now
        if self._stand_at is not None and now >= self._stand_at and self._writing is None:
            self._stand_at = None
            self._stand(now, effects)
        if not self._reading and now >= self._next_read_at:
            self._read(now, effects)

    def _read(self, now: float, effects: list[Effect]) -> None:
        self._reading = True
        self._next_read_at = now + self._read_interval_s
        effects.append(ReadLease())

    def begin_lease_read(self, now: float) -> bool:
        """Whether the driver shall read the lease now, together with a heartbeat. It then counts
        as the read in flight."""
        if self.role in HOLDING or self.role is Role.RETIRED or self._reading:
            return False
        self._reading = True
        self._next_read_at = now + self._read_interval_s
        return True

    def reading_failed(self, now: float) -> None:
        """The read in flight got no answer."""
        self._reading = False
        self._read_is_old = False
        self._next_read_at = min(self._next_read_at, now + min(REREAD_S, self._read_interval_s))

    def read_soon(self, now: float) -> None:
        """A watch reported that the record changed, or may have."""
        self._next_read_at = min(self._next_read_at, now)

    def _examine(self, seen: SeenLease | None, now: float, effects: list[Effect]) -> None:
        before = self.seen
        self.seen = seen
        if (before.version if before else None) != (seen.version if seen else None):
            self._unchanged_since = now
            self._stand_at = None
            effects += self._vacancy.changed(before, seen, now)
        if self.role in HOLDING or self.role is Role.STANDING:
            if seen is not None:
                self.highest_epoch = max(self.highest_epoch, seen.epoch)
            self._recognise(seen, now, effects)
            return
        if seen is not None and seen.epoch < self.highest_epoch:
            # The store lost data, or a read was overtaken by a newer one. Only a second read of
            # the same version proves the loss.
            if before is not None and before.version == seen.version:
                self._depose(seen, now, effects)
            else:
                self._next_read_at = now
            return
        if seen is not None:
            self.highest_epoch = max(self.highest_epoch, seen.epoch)
        if self.role is Role.OBSERVING:
            if seen is None or (seen.lease is not None and seen.lease.released):
                self._vacancy.vacant(now)
                return
            self.role = Role.FOLLOWING
        if self.role is Role.FOLLOWING:
            self._consider(now, effects)

    def _consider(self, now: float, effects: list[Effect]) -> None:
        """Plans a candidacy if the lease is free, or a read for the moment when it will be."""
        free_at = self._free_at(now)
        if free_at > now:
            effects += self.cold_start.enter("ready", now)
            self._next_read_at = min(self._next_read_at, free_at)
            return
        self._vacancy.vacant(free_at)
        if not self.eligible or not self.healthy or self._stand_at is not None:
            return
        if now < self._abstains_until:
            self._next_read_at = min(self._next_read_at, self._abstains_until)
            return
        if self.cold_start.phase == "observing":
            effects += self.cold_start.enter("election", now)
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
        """When the lease has certainly run out; a time up to `now` means that it may be taken."""
        lease = self.seen_lease
        if lease is None:
            # There never was a record: no member leads. A record that vanished or does not
            # verify says nothing about its holder, which may still act for a full lease.
            never_led = self.seen is None and self.highest_epoch == 0
            return now if never_led else self._unchanged_since + self.timing.lease_ttl
        # Our own lease, which we do not act on any more, may be retaken at once.
        is_ours = lease.member_id == self.member_id and lease.boot == self.boot
        if lease.released or is_ours:
            return now
        return self._unchanged_since + max(lease.lease_ttl, self.timing.lease_ttl)

    def _plan_to_stand(self, rank: int, now: float) -> None:
        if self.role is not Role.FOLLOWING or not self.eligible or self._free_at(now) > now:
            return
        delay_s = leases.candidacy_delay_s(rank, self.seen_lease, self.member_id, self.timing)
        if rank > 0:
            # The jitter separates candidates that computed the same rank. Rank 0 does not wait.
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
        self._lease = leases.candidate_lease(
            seen.lease if seen is not None else None,
            epoch=leases.next_epoch(seen, self.highest_epoch, self._wall()),
            member_id=self.member_id,
            boot=self.boot,
            number=self._tokens,
            elected_at=now + self.store_offset,
            term_ends_at=self._term_ends + self.store_offset,
            lease_ttl=self.timing.lease_ttl,
            pace=self.pace,
            min_term=self.timing.min_epoch_duration,
        )
        self._write(Purpose.STAND, seen.version if seen else None, self._lease, now, effects)

    def _depose(self, seen: SeenLease, now: float, effects: list[Effect]) -> None:
        """The store was set back and shows an epoch that had ended. Replaces it by a lease without
        a holder, under the highest epoch: its holder is fenced, and no member leads for a
        `lease_ttl`, in which the lease of a holder that the store forgot expires as well."""
        effects.append(Regressed(self.highest_epoch, seen.epoch))
        if not self.eligible or self._writing is not None:
            return
        vacant = leases.vacant_lease(
            self.member_id,
            self.boot,
            epoch=self.highest_epoch,
            at=now + self.store_offset,
            lease_ttl=self.timing.lease_ttl,
        )
        self._write(Purpose.DEPOSE, seen.version, vacant, now, effects)

    # Holder.

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
        lease, seen = self._held()
        term_s = self.timing.max_epoch_duration
        if self._term_ends - now <= term_s * 0.2 and self.healthy:
            self._term_ends = now + term_s
            effects.append(TermRenewed(lease.epoch, self._term_ends + self.store_offset))
        number = max(self._sent, default=lease.renewals) + 1
        self._sent[number] = now
        renewed = leases.renewed_lease(
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

    def _held(self) -> tuple[LeaseRecord, SeenLease]:
        lease, seen = self._lease, self.seen
        invariant(lease is not None and seen is not None, "a holder knows its lease")
        assert lease is not None
        assert seen is not None
        return lease, seen

    def _hold_since(self, sent_at: float) -> None:
        """The store holds a write of ours. The lease counts from when it was sent, because other
        members may have seen it any time after that."""
        part = self.lease_ttl / self.timing.lease_ttl
        self._limit = max(self._limit, sent_at + self.timing.local_limit * part)

    @property
    def _renews_every_s(self) -> float:
        return min(self.timing.heartbeat_interval, self.lease_ttl / BEATS_PER_LEASE)

    def _won(self, now: float, effects: list[Effect]) -> None:
        lease, _ = self._held()
        self.highest_epoch = max(self.highest_epoch, lease.epoch)
        self._renew_at = now + self._renews_every_s
        delay_s = self.timing.cold_start_preparation_delay
        if self._withdraws:
            self._close_unused()
        elif self._cold and not self.cold_start.is_over and delay_s > 0.0:
            self.role = Role.PREPARING
            self._ready_at = now + delay_s
            effects += self.cold_start.enter("preparation", now)
        else:
            self._lead(now, effects)

    def _lead(self, now: float, effects: list[Effect]) -> None:
        lease, _ = self._held()
        self.role = Role.LEADING
        effects += self.cold_start.enter("ready", now)
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
        self._next_read_at = 0.0

    def _resign(self, reason: str, successor: str, effects: list[Effect]) -> None:
        invariant(reason in PLANNED, f"{reason} is no reason to resign")
        self._successor = successor
        if self.role is Role.LEADING:
            effects.append(Demote(self.epoch, reason))
            self.role = Role.CLOSING
        elif self.role is Role.PREPARING:
            self._close_unused()
        else:
            # A candidacy in flight may still win. It is then released at once, so that the group
            # need not wait for the lease to run out.
            self._withdraws = self.role is Role.STANDING

    def _close_unused(self) -> None:
        """Releases a lease under which no work began."""
        self.role = Role.CLOSING
        self._work_has_ended = True
        self._renew_at = 0.0

    def _end_work(self, now: float) -> None:
        if self.role is Role.CLOSING:
            self._work_has_ended = True
            self._renew_at = now
        elif self.role is Role.DRAINING:
            self.role = Role.FOLLOWING
            self._next_read_at = now

    def _release(self, now: float, effects: list[Effect]) -> None:
        """Only after the work has ended. Repeated until an answer confirms it."""
        lease, seen = self._held()
        number = max(self._sent, default=lease.renewals) + 1
        self._sent[number] = now
        released = leases.released_lease(
            lease, number=number, successor=self._successor, standbys=self.standbys
        )
        self._renew_at = now + self.timing.retry.delay_s(1)
        self._write(Purpose.RELEASE, seen.version, released, now, effects)

    def _released(self, now: float) -> None:
        """The store holds the release."""
        self.role = Role.FOLLOWING
        self._lease = None
        self._work_has_ended = False
        self._abstains_until = now + 2.0 * self.timing.heartbeat_interval
        self._next_read_at = now + self.timing.heartbeat_interval

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
        self.seen = SeenLease(version, request.lease.epoch, request.lease)
        self._unchanged_since = now
        self._read_is_old = self._reading
        if request.purpose is Purpose.STAND:
            effects += self._vacancy.changed(before, self.seen, now)
        if request.purpose in (Purpose.STAND, Purpose.RENEW):
            self._recognise(self.seen, now, effects)
        elif request.purpose is Purpose.RELEASE and self.role is Role.CLOSING:
            self._released(now)

    def _not_answered(self, request: WriteLease, now: float) -> None:
        if request.purpose is Purpose.RENEW and self.role in HOLDING:
            self._renew_at = min(self._renew_at, now + self.timing.retry.delay_s(1))
        elif self.role is Role.STANDING:
            self._next_read_at = min(
                self._next_read_at, now + min(REREAD_S, self._read_interval_s / 4.0)
            )

    def _recognise(self, seen: SeenLease | None, now: float, effects: list[Effect]) -> None:
        """Compares the record with the lease that we hold or asked for."""
        lease = None if seen is None else seen.lease
        ours = self._lease
        if lease is None or ours is None or lease.token != ours.token:
            self._not_ours(now, effects)
            return
        sent_at = self._sent.get(lease.renewals)
        if sent_at is None:
            # A renewal older than one that we saw confirmed: the store was set back.
            self._not_ours(now, effects)
            return
        if lease.released:
            if self.role is Role.CLOSING:
                self._released(now)
            return
        self._lease = lease
        self._sent = {n: at for n, at in self._sent.items() if n >= lease.renewals}
        self._hold_since(sent_at)
        if self.role is Role.STANDING:
            if now < self._limit:
                self._won(now, effects)
            elif self._writing is None:
                # We won, but the answer came after the limit: a renewal starts a new one.
                self._renew(now, effects)

    def _not_ours(self, now: float, effects: list[Effect]) -> None:
        if self.role in HOLDING:
            self._lose("superseded", effects)
        elif self.role is Role.STANDING:
            if self._writing is not None:
                return
            self.role = Role.FOLLOWING
            self._lease = None
            self._next_read_at = now
