"""The authoritative look at all members; runs on the coordinator only.

Warnings are shared records, a death is one conditional write: it replaces the heartbeat that
was found stale, so that exactly one monitor decides and the dead incarnation can never beat
again. Whoever wrote the decision tells it; a successor tells it again only if it was not
marked as told. Cleanup removes what belongs to the dead incarnation and nothing else: the
inbox and the idempotency records stay.

All writes are fenced by the epoch. It must never decide from its own clock.
"""

from __future__ import annotations

import contextlib

import msgspec

from squall.coordination import events, keys
from squall.coordination.assembly import Assembly
from squall.coordination.errors import (
    ConfigurationError,
    DeadCoordinatorError,
    StoreError,
    VersionConflict,
)
from squall.coordination.health import (
    CHECKS_PER_INTERVAL,
    Grace,
    Stale,
    continuity,
    health_of,
    next_warning,
)
from squall.coordination.leadership import CLOSE_WATCHERS
from squall.coordination.records import (
    HeartbeatRecord,
    MemberRecord,
    Tombstone,
    WarningRecord,
)
from squall.coordination.stores.interface import ABSENT, Check, Delete, Put, Record, Write
from squall.coordination.terms import Term, Work

STANDBY_READS = 20
CYCLES_PER_STANDBYS = 3
PAGES_MAX = 100
BEATS_AT_ONCE = 100
DEAD_NAMED = 100


class Statistics(msgspec.Struct, kw_only=True):
    total_monitor_cycles: int = 0
    warnings_issued: int = 0
    coordinators_marked_dead: int = 0
    cleanups_performed: int = 0
    continuity_violations: int = 0
    coordinators_monitored: int = 0
    dead_coordinators: list[str] = msgspec.field(default_factory=list[str])
    """The last hundred."""


class Monitor:
    """Of one member; works only in its terms."""

    def __init__(
        self, parts: Assembly, grace: Grace, *, auto_cleanup: bool, cleanup_delay: float = 0.0
    ) -> None:
        self.statistics = Statistics()
        self.standbys: tuple[str, ...] = ()
        self.signing_key = ""
        """The newest key, once every live member accepts it."""
        self.auto_cleanup = auto_cleanup
        self._cleanup_delay = cleanup_delay
        """From the death on; who came back by then keeps everything."""
        self._parts = parts
        self._grace = grace
        self._warned: dict[str, WarningRecord] = {}
        """The last warning of each that was warned about."""
        self._unfinished: dict[str, None] = {}
        """Dead members whose death is not told or not cleaned up yet."""
        self._cycles = 0

    def work(self) -> Work:
        interval = self._parts.timing.monitor_interval * CHECKS_PER_INTERVAL
        return Work(
            "monitor", become=self._begin, stop=self._end, periodic=self.cycle, interval=interval
        )

    async def _begin(self, term: Term) -> None:
        """What a predecessor left: warnings that run, deaths that were not finished."""
        self._cycles = 0
        self._warned = await self._known_warnings()
        for member_id in await self._ids("tombstone"):
            tomb = await self._tombstone(member_id)
            if tomb is not None and not (tomb[1].announced and tomb[1].cleaned):
                self._unfinished[member_id] = None

    async def _known_warnings(self) -> dict[str, WarningRecord]:
        found: dict[str, WarningRecord] = {}
        ids = await self._ids("warning")
        for start in range(0, len(ids), BEATS_AT_ONCE):
            some = ids[start : start + BEATS_AT_ONCE]
            records = await self._parts.patient.get(*map(keys.warning, some))
            for member_id, record in zip(some, records, strict=True):
                warning = self._read_warning(record)
                if warning is not None:
                    found[member_id] = warning
        return found

    async def _end(self, term: Term) -> None:
        """What this member saw is not told any longer: another one looks now."""
        self._warned.clear()
        self._count_health(0)

    async def cycle(self, term: Term) -> None:
        parts, timing = self._parts, self._parts.timing
        idle_ms = int(timing.heartbeat_ttl * 1000.0)
        stale = await self._ids(keys.HEARTBEAT, idle_ms=idle_ms)
        self._grace.reached(parts.clock.boot_time())
        self.statistics.total_monitor_cycles += 1
        for member_id in stale:
            if member_id != parts.member_id:
                await self._check(term, member_id)
        for member_id in [each for each in self._warned if each not in stale]:
            await self._recovered(term, member_id)
        for member_id in list(self._unfinished):
            await self._finish(term, member_id)
        if self._cycles % CYCLES_PER_STANDBYS == 0:
            await self._find_standbys()
            await self._agree_on_key()
        self._cycles += 1
        parts.trace("monitor_cycle", stale=len(stale), warned=len(self._warned))

    # Warnings.

    async def _check(self, term: Term, member_id: str) -> None:
        codec, timing = self._parts.codec, self._parts.timing
        beat, member, warned = await self._parts.patient.get(
            keys.heartbeat(member_id), keys.member(member_id), keys.warning(member_id)
        )
        found = self._stale(member_id, beat, member)
        if found is None:
            self._unfinished[member_id] = None
            return
        if found.transient:
            await self._forget(term, found, beat, member)
            return
        read_ms = next((each.read_ms for each in (beat, member) if each is not None), None)
        if read_ms is None or not self._grace.may_warn(self._parts.clock.boot_time()):
            return
        known = self._read_warning(warned)
        warning = next_warning(known, found, read_ms / 1000.0, timing)
        if warning is None:
            return
        goes_on = known is not None and known.incarnation == warning.incarnation
        over = warned.value if warned is not None and goes_on else None
        put = Put(
            keys.warning(member_id),
            codec.encode(warning, over=over),
            expect=ABSENT if warned is None else warned.version,
            ttl_s=max(keys.WARNING_TTL_S, 3.0 * timing.monitor_interval),
        )
        try:
            await term.write(put)
        except VersionConflict:
            return
        self._tell_warning(warning, found)
        if warning.consecutive_warnings >= timing.max_warnings:
            await self._declare_dead(term, found, beat, member, warning)

    def _stale(self, member_id: str, beat: Record | None, member: Record | None) -> Stale | None:
        """None when the member is not a live one that fell silent."""
        parts = self._parts
        if beat is not None:
            record = self._read_beat(beat)
            if record is None:
                # Nobody can say whose beat it is: it counts as silence of the registration.
                return self._silent(member_id, member, beat.age_s)
            if record.status != "alive":
                return None
            return Stale(
                member_id, record.incarnation, record.sequence, beat.age_s, record.transient
            )
        return self._silent(member_id, member, parts.timing.retention)

    def _silent(self, member_id: str, member: Record | None, age_s: float) -> Stale | None:
        known = (
            None
            if member is None
            else self._parts.codec.read(MemberRecord, member.value, key=member.key)
        )
        if known is None or known.status != "alive":
            return None
        return Stale(member_id, known.incarnation, 0, age_s, known.transient)

    async def _forget(
        self, term: Term, stale: Stale, beat: Record | None, member: Record | None
    ) -> None:
        """A client for a moment that could not take its leave: nobody is told of it."""
        parts, beats = self._parts, keys.heartbeat(stale.member_id)
        may = self._grace.may_warn(parts.clock.boot_time())
        if stale.age_s < parts.timing.dead_after or not may:
            return
        version = ABSENT if beat is None else beat.version
        # The heartbeat goes last: as long as it is there, the rest is found again.
        writes: list[Write] = [Check(beats, version), Delete(beats, version)]
        if member is not None:
            writes.insert(1, Delete(member.key, member.version))
        with contextlib.suppress(VersionConflict):
            await term.write(*writes)

    def _tell_warning(self, warning: WarningRecord, stale: Stale) -> None:
        self.statistics.warnings_issued += 1
        self._warned[stale.member_id] = warning
        metrics = self._parts.metrics
        metrics.counter(metrics.families.warnings).add()
        self._parts.bus.emit(
            events.HeartbeatWarning(
                coordinator_id=stale.member_id,
                health=warning.health,
                stale_duration=stale.age_s,
                consecutive_warnings=warning.consecutive_warnings,
                reason=warning.reason,
            )
        )

    async def _recovered(self, term: Term, member_id: str) -> None:
        """Not stale any more: it beats again, it left, or it was declared dead. Of the dead the
        cleanup removes what there is; a new incarnation tells by itself that it came back."""
        warning = self._warned.pop(member_id)
        beat, warned = await self._parts.patient.get(
            keys.heartbeat(member_id), keys.warning(member_id)
        )
        last = None if beat is None else self._read_beat(beat)
        if last is not None and last.status != "alive":
            return
        if warned is not None:
            await self._try(term, Delete(keys.warning(member_id), warned.version))
        if last is None or last.incarnation != warning.incarnation:
            return
        # The last warning says `dead` a moment before the decision, which may not have come.
        health = "critical" if warning.health == "dead" else warning.health
        self._parts.bus.emit(
            events.CoordinatorRecovered(
                coordinator_id=member_id, previous_health=health, was_dead=False
            )
        )

    # Death.

    async def _declare_dead(
        self,
        term: Term,
        stale: Stale,
        beat: Record | None,
        member: Record | None,
        warning: WarningRecord,
    ) -> None:
        (buried,) = await self._parts.patient.get(keys.tombstone(stale.member_id))
        tomb = Tombstone(
            member_id=stale.member_id,
            incarnation=stale.incarnation,
            death_id=f"{stale.member_id}.{stale.incarnation}",
            epoch=term.epoch,
            died_at=warning.last_at,
            reason=warning.reason,
            consecutive_warnings=warning.consecutive_warnings,
        )
        dead = self._dead_beat(stale, beat)
        codec = self._parts.codec
        writes: list[Write] = [
            Put(
                keys.heartbeat(stale.member_id),
                dead,
                expect=ABSENT if beat is None else beat.version,
                ttl_s=self._parts.timing.retention,
            ),
            self._bury(stale.member_id, stale.incarnation, member),
            Put(
                keys.tombstone(stale.member_id),
                codec.encode(tomb),
                expect=ABSENT if buried is None else buried.version,
                ttl_s=keys.TOMBSTONE_TTL_S,
            ),
        ]
        self._unfinished[stale.member_id] = None
        try:
            await term.write(*writes)
        except VersionConflict as conflict:
            if conflict.applied == 0:
                # It beat, left or was declared dead in this very moment.
                del self._unfinished[stale.member_id]
                return
        await self._finish(term, stale.member_id)

    def _dead_beat(self, stale: Stale, beat: Record | None) -> bytes:
        last = None if beat is None else self._read_beat(beat)
        dead = HeartbeatRecord(
            coordinator_id=stale.member_id,
            incarnation=stale.incarnation,
            sequence=stale.sequence,
            timestamp=self._parts.clock.wall(),
            status="dead",
            awaits=() if last is None else last.awaits,
            history=() if last is None else last.history,
        )
        over = None if beat is None or last is None else beat.value
        return self._parts.codec.encode(dead, signed=self._parts.signs_heartbeats, over=over)

    def _read_beat(self, beat: Record) -> HeartbeatRecord | None:
        return self._parts.codec.read(
            HeartbeatRecord, beat.value, signed=self._parts.signs_heartbeats, key=beat.key
        )

    def _read_warning(self, record: Record | None) -> WarningRecord | None:
        if record is None:
            return None
        return self._parts.codec.read(WarningRecord, record.value, key=record.key)

    def _bury(self, member_id: str, incarnation: int, member: Record | None) -> Put:
        codec = self._parts.codec
        known = None if member is None else codec.read(MemberRecord, member.value, key=member.key)
        dead = MemberRecord(member_id=member_id, incarnation=incarnation, status="dead")
        over = None if member is None or known is None else member.value
        return Put(
            keys.member(member_id),
            codec.encode(dead, over=over),
            expect=ABSENT if member is None else member.version,
            ttl_s=keys.MEMBER_TTL_S,
        )

    async def _finish(self, term: Term, member_id: str) -> None:
        """Tells the death and cleans up; may be called again and again."""
        found = await self._complete(term, member_id) or await self._tombstone(member_id)
        if found is None:
            self._unfinished.pop(member_id, None)
            return
        record, tomb = found
        if not tomb.announced:
            self._announce(tomb)
            tomb = msgspec.structs.replace(tomb, announced=True)
            marked = await self._mark(term, tomb, record)
            if marked is None:
                return
            record = marked
        if self.auto_cleanup and not tomb.cleaned:
            if self._parts.store_time() < tomb.died_at + self._cleanup_delay:
                self._unfinished[member_id] = None
                return
            if not await self._clean(term, tomb, record):
                # Something changed meanwhile; the next cycle looks again.
                self._unfinished[member_id] = None
                return
        self._unfinished.pop(member_id, None)

    async def _complete(self, term: Term, member_id: str) -> tuple[Record, Tombstone] | None:
        """Without transactions a death may stop after its first write, which decided it."""
        codec, parts = self._parts.codec, self._parts
        beat, member = await parts.patient.get(keys.heartbeat(member_id), keys.member(member_id))
        buried = await self._tombstone(member_id)
        dead = None if beat is None else self._read_beat(beat)
        if beat is None or dead is None or dead.status != "dead":
            return None
        known = None if member is None else codec.read(MemberRecord, member.value, key=member.key)
        if known is not None and known.incarnation > dead.incarnation:
            return None
        if buried is not None and buried[1].incarnation >= dead.incarnation:
            return None
        tomb = Tombstone(
            member_id=member_id,
            incarnation=dead.incarnation,
            death_id=f"{member_id}.{dead.incarnation}",
            epoch=term.epoch,
            died_at=beat.modified_ms / 1000.0,
            reason="found declared dead",
            consecutive_warnings=parts.timing.max_warnings,
        )
        if known is None or known.status != "dead":
            await self._try(term, self._bury(member_id, dead.incarnation, member))
        put = Put(
            keys.tombstone(member_id),
            codec.encode(tomb),
            expect=ABSENT if buried is None else buried[0].version,
            ttl_s=keys.TOMBSTONE_TTL_S,
        )
        await self._try(term, put)
        return await self._tombstone(member_id)

    def _announce(self, tomb: Tombstone) -> None:
        statistics, metrics = self.statistics, self._parts.metrics
        statistics.coordinators_marked_dead += 1
        statistics.dead_coordinators.append(tomb.member_id)
        del statistics.dead_coordinators[:-DEAD_NAMED]
        metrics.counter(metrics.families.deaths).add()
        bus = self._parts.bus
        bus.emit(
            events.CoordinatorDead(
                coordinator_id=tomb.member_id,
                incarnation=tomb.incarnation,
                death_id=tomb.death_id,
                reason=tomb.reason,
                consecutive_warnings=tomb.consecutive_warnings,
            )
        )
        bus.emit(events.ErrorEvent(error=DeadCoordinatorError(tomb.member_id, tomb.reason)))

    async def _mark(self, term: Term, tomb: Tombstone, before: Record) -> Record | None:
        """The record as it is then; None if somebody else changed it."""
        value = self._parts.codec.encode(tomb, over=before.value)
        put = Put(
            keys.tombstone(tomb.member_id),
            value,
            expect=before.version,
            ttl_s=keys.TOMBSTONE_TTL_S,
        )
        try:
            (version,) = await term.write(put)
        except VersionConflict:
            return None
        return msgspec.structs.replace(before, version=version, value=value)

    # Cleanup.

    async def clean_by_hand(self, term: Term, member_id: str, *, force: bool) -> bool:
        """Whether anything was left to remove. Refused for a member that is not dead."""
        found = await self._tombstone(member_id)
        (member,) = await self._parts.patient.get(keys.member(member_id))
        known = (
            None
            if member is None
            else self._parts.codec.read(MemberRecord, member.value, key=member.key)
        )
        is_dead = found is not None and known is not None and known.status == "dead"
        if not is_dead and not force:
            raise ConfigurationError(
                f"member_id is {member_id!r}: it is not dead; force=True cleans up all the same"
            )
        if found is not None and is_dead:
            before = self.statistics.cleanups_performed
            await self._clean(term, found[1], found[0])
            return self.statistics.cleanups_performed > before
        if known is None:
            return False
        tomb = Tombstone(
            member_id=member_id,
            incarnation=known.incarnation,
            death_id=f"{member_id}.{known.incarnation}",
            epoch=term.epoch,
            died_at=self._parts.store_time(),
            reason="by hand",
            consecutive_warnings=0,
        )
        return await self._delete_all(term, tomb) > 0

    async def _clean(self, term: Term, tomb: Tombstone, record: Record) -> bool:
        """Whether it is done."""
        metrics = self._parts.metrics
        try:
            deleted = await self._delete_all(term, tomb)
        except (VersionConflict, StoreError) as error:
            metrics.counter(metrics.families.cleanups, "failed").add()
            self._parts.bus.emit(
                events.CleanupFailed(coordinator_id=tomb.member_id, error=str(error))
            )
            return False
        await self._mark(term, msgspec.structs.replace(tomb, cleaned=True), record)
        if deleted:
            self.statistics.cleanups_performed += 1
            metrics.counter(metrics.families.cleanups, "done").add()
        # Nothing: it was clean already, or it came back and keeps everything.
        self._parts.bus.emit(
            events.CleanupComplete(coordinator_id=tomb.member_id, keys_deleted=deleted)
        )
        return True

    async def _delete_all(self, term: Term, tomb: Tombstone) -> int:
        """Only what is of the dead incarnation: a member that came back keeps all."""
        parts, member_id = self._parts, tomb.member_id
        names = (keys.heartbeat(member_id), keys.warning(member_id), keys.state(member_id))
        member, beat, warned, state = await parts.patient.get(keys.member(member_id), *names)
        known = (
            None if member is None else parts.codec.read(MemberRecord, member.value, key=member.key)
        )
        if member is None or known is None or known.incarnation != tomb.incarnation:
            return 0
        doomed = [each for each in (beat, warned, state) if each is not None]
        last = None if beat is None else self._read_beat(beat)
        if last is not None and last.awaits:
            # Only this id can wait for them, and its incarnation is checked with the deletion.
            acks = await parts.patient.get(*(keys.ack(member_id, each) for each in last.awaits))
            doomed += [each for each in acks if each is not None]
        if not doomed:
            return 0
        await term.write(
            Check(keys.member(member_id), member.version),
            *(Delete(each.key, each.version) for each in doomed),
        )
        self._warned.pop(member_id, None)
        return len(doomed)

    # Who may follow.

    async def _find_standbys(self) -> None:
        parts = self._parts
        ids = sorted(await parts.live_members(pages=PAGES_MAX))
        self.statistics.coordinators_monitored = len(ids)
        self._count_health(len(ids))
        others = [each for each in ids if each != parts.member_id][:STANDBY_READS]
        found: list[str] = []
        beats = await parts.patient.get(*map(keys.heartbeat, others)) if others else ()
        for member_id, beat in zip(others, beats, strict=True):
            record = None if beat is None else self._read_beat(beat)
            if record is not None and record.eligible and record.status == "alive":
                found.append(member_id)
        self.standbys = tuple(found[:CLOSE_WATCHERS])

    def _count_health(self, live: int) -> None:
        metrics, timing = self._parts.metrics, self._parts.timing
        for number in range(1, timing.max_warnings + 1):
            health = health_of(number, timing)
            count = sum(1 for each in self._warned.values() if each.health == health)
            metrics.gauge(metrics.families.members, health).set(count)
        metrics.gauge(metrics.families.members, "healthy").set(live - len(self._warned))

    async def _agree_on_key(self) -> None:
        """While a secret is changed: sign with the new one when nobody would refuse it."""
        keyring = self._parts.codec.keyring
        if keyring is None or len(keyring.key_ids) < 2:
            return
        newest = keyring.key_ids[-1]
        ids = await self._parts.live_members(pages=PAGES_MAX)
        for start in range(0, len(ids), BEATS_AT_ONCE):
            names = map(keys.heartbeat, ids[start : start + BEATS_AT_ONCE])
            for beat in await self._parts.patient.get(*names):
                record = None if beat is None else self._read_beat(beat)
                if record is not None and newest not in record.key_ids:
                    return
        self.signing_key = newest

    # Small things.

    async def _ids(self, kind: str, *, idle_ms: int = 0) -> list[str]:
        found: list[str] = []
        after = ""
        for _ in range(PAGES_MAX):
            page = await self._parts.patient.list(kind, idle_ms=idle_ms, after=after, limit=1000)
            found += [keys.member_id_of(entry.key) for entry in page.entries]
            after = page.after
            if not after:
                break
        return found

    async def _tombstone(self, member_id: str) -> tuple[Record, Tombstone] | None:
        (record,) = await self._parts.patient.get(keys.tombstone(member_id))
        tomb = (
            None
            if record is None
            else self._parts.codec.read(Tombstone, record.value, key=record.key)
        )
        return None if record is None or tomb is None else (record, tomb)

    async def _try(self, term: Term, write: Write) -> bool:
        try:
            await term.write(write)
        except VersionConflict:
            return False
        return True

    def note_sequence(self, member_id: str, before: int | None, received: int) -> None:
        """For heartbeats that an application drives itself."""
        violation = continuity(before, received)
        if violation is None:
            return
        self.statistics.continuity_violations += 1
        self._parts.log.warning(
            "continuity_violation",
            member_id=member_id,
            expected=violation.expected,
            received=violation.received,
            advice="look at the network, at restarts and at who else drives this member",
        )
        metrics = self._parts.metrics
        metrics.counter(metrics.families.continuity).add()
        self._parts.bus.emit(
            events.ContinuityViolation(
                coordinator_id=member_id,
                expected_sequence=violation.expected,
                received_sequence=violation.received,
                gap=violation.gap,
                missed=violation.missed,
            )
        )
