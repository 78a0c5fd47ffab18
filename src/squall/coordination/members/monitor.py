"""Checks the heartbeats of all members and declares the dead; runs on the leader only.

A warning is a shared record. A death is one conditional write that replaces the heartbeat that was
found stale: so exactly one monitor decides, a beat in the same moment wins over the decision, and
the dead boot can never beat again. The monitor that wrote the decision announces it; a successor
announces it again only if the tombstone is not marked as announced. Cleanup removes only records
of the dead boot; the inbox and the idempotency records stay.

All writes are fenced by the epoch. Ages come from the store, never from the clock of this machine.
"""

from __future__ import annotations

import contextlib

import msgspec

from squall.coordination import events
from squall.coordination.election.term import Term, Work, write_library_records
from squall.coordination.errors import (
    ConfigurationError,
    DeadCoordinatorError,
    StoreError,
    VersionConflict,
)
from squall.coordination.member_parts import MemberParts
from squall.coordination.members.health_rules import (
    CHECKS_PER_INTERVAL,
    GracePeriod,
    Health,
    StaleMember,
    continuity,
    judge,
    next_warning,
)
from squall.coordination.members.standbys import BEATS_AT_ONCE, agreed_key, find_standbys
from squall.coordination.records import keys
from squall.coordination.records.schemas import (
    HeartbeatRecord,
    MemberRecord,
    Tombstone,
    WarningRecord,
)
from squall.coordination.stores.interface import ABSENT, Check, Delete, Put, Record, Write

# Standbys change rarely; each search lists all members.
CYCLES_PER_STANDBYS = 3
PAGES_MAX = 100
DEAD_NAMED = 100
# Members in the gauge by health. The index has no entry of a member that left.
COUNTED: tuple[Health, ...] = ("healthy", "stale", "warning", "critical", "dead")


class MonitorStatistics(msgspec.Struct, kw_only=True):
    """What the monitor of one member counted in all its terms."""

    total_monitor_cycles: int = 0
    warnings_issued: int = 0
    coordinators_marked_dead: int = 0
    cleanups_performed: int = 0
    continuity_violations: int = 0
    coordinators_monitored: int = 0
    dead_coordinators: list[str] = msgspec.field(default_factory=list[str])
    """The last hundred."""


class Monitor:
    """Watches all members while this one leads: warns, declares dead, announces, cleans up."""

    def __init__(
        self,
        parts: MemberParts,
        grace: GracePeriod,
        *,
        auto_cleanup: bool,
        cleanup_delay: float = 0.0,
    ) -> None:
        self.statistics = MonitorStatistics()
        self.standbys: tuple[str, ...] = ()
        # The newest key, once every live member accepts it.
        self.signing_key = ""
        self.auto_cleanup = auto_cleanup
        # Counted from the death: a member that comes back before it keeps all its records.
        self._cleanup_delay = cleanup_delay
        self._parts = parts
        self._grace = grace
        # The last warning of each member with an open warning. Equal to the warning records in the
        # store, except for a record that another monitor wrote since the term began.
        self._warned: dict[str, WarningRecord] = {}
        # The health of each member that the last cycle found silent.
        self._silent_health: dict[str, Health] = {}
        # Members with a fresh heartbeat, as of the last survey.
        self._live: tuple[str, ...] = ()
        # Dead members whose death is not yet announced or cleaned up: a set that keeps its order.
        self._unfinished: dict[str, None] = {}
        self._cycles = 0

    def work(self) -> Work:
        interval = self._parts.timing.monitor_interval * CHECKS_PER_INTERVAL
        return Work(
            "monitor", become=self._begin, stop=self._end, periodic=self.cycle, interval=interval
        )

    async def _begin(self, term: Term) -> None:
        """Takes over what the last leader left: open warnings and unfinished deaths."""
        self._cycles = 0
        self._warned = await self._known_warnings()
        for member_id in await self._ids("tombstone"):
            tombstone = await self._tombstone(member_id)
            if tombstone is not None and not (tombstone[1].announced and tombstone[1].cleaned):
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
        """The gauges of this member must not go on showing what the next leader now watches."""
        self._warned.clear()
        self._silent_health.clear()
        self._live = ()
        self._count_health()

    async def cycle(self, term: Term) -> None:
        parts, timing = self._parts, self._parts.timing
        idle_ms = int(timing.heartbeat_ttl * 1000.0)
        stale = await self._ids(keys.HEARTBEAT, idle_ms=idle_ms)
        self._grace.reached(parts.clock.boot_time())
        self.statistics.total_monitor_cycles += 1
        self._silent_health = {}
        for member_id in stale:
            if member_id != parts.member_id:
                await self._check(term, member_id)
        for member_id in [each for each in self._warned if each not in stale]:
            await self._recovered(term, member_id)
        for member_id in list(self._unfinished):
            await self._finish(term, member_id)
        if self._cycles % CYCLES_PER_STANDBYS == 0:
            await self._survey()
        self._count_health()
        self._cycles += 1
        parts.trace("monitor_cycle", stale=len(stale), warned=len(self._warned))

    # Warnings.

    async def _check(self, term: Term, member_id: str) -> None:
        codec, timing = self._parts.codec, self._parts.timing
        beat, member, warned = await self._parts.patient.get(
            keys.heartbeat(member_id), keys.member(member_id), keys.warning(member_id)
        )
        found = self._stale(member_id, beat, member)
        self._note_silent(member_id, beat, member, self._read_warning(warned))
        if found is None:
            # The member left, or is dead and its death may be unfinished: `_finish` checks.
            self._unfinished[member_id] = None
            return
        if found.transient:
            self._silent_health.pop(member_id, None)
            await self._forget(term, found, beat, member)
            return
        read_ms = next((each.read_ms for each in (beat, member) if each is not None), None)
        if read_ms is None or not self._grace.may_warn(self._parts.clock.boot_time()):
            return
        known = self._read_warning(warned)
        warning = next_warning(known, found, read_ms / 1000.0, timing)
        if warning is None:
            return
        goes_on = known is not None and known.boot == warning.boot
        over = warned.value if warned is not None and goes_on else None
        put = Put(
            keys.warning(member_id),
            codec.encode(warning, over=over),
            expect=ABSENT if warned is None else warned.version,
            ttl_s=max(keys.WARNING_TTL_S, 3.0 * timing.monitor_interval),
        )
        try:
            await write_library_records(term, put)
        except VersionConflict:
            return
        self._announce_warning(warning, found)
        self._note_silent(member_id, beat, member, warning)
        if warning.consecutive_warnings >= timing.max_warnings:
            await self._declare_dead(term, found, beat, member, warning)

    def _note_silent(
        self,
        member_id: str,
        beat: Record | None,
        member: Record | None,
        warning: WarningRecord | None,
    ) -> None:
        parts = self._parts
        known, last = parts.read_member(member), parts.read_heartbeat(beat)
        if known is not None or last is not None:
            age_s = parts.timing.retention if beat is None else beat.age_s
            self._silent_health[member_id] = judge(
                known, last, warning, age_s, parts.timing.heartbeat_ttl
            )

    def _stale(
        self, member_id: str, beat: Record | None, member: Record | None
    ) -> StaleMember | None:
        """None if the member is not a live one that fell silent."""
        if beat is None:
            # The record expired, so the last beat is at least that old.
            return self._silent(member_id, member, self._parts.timing.retention)
        record = self._parts.read_heartbeat(beat)
        if record is None:
            # A beat that does not verify proves nothing: it counts as silence.
            return self._silent(member_id, member, beat.age_s)
        if record.status != "alive":
            return None
        return StaleMember(member_id, record.boot, record.sequence, beat.age_s, record.transient)

    def _silent(self, member_id: str, member: Record | None, age_s: float) -> StaleMember | None:
        known = self._parts.read_member(member)
        if known is None or known.status != "alive":
            return None
        return StaleMember(member_id, known.boot, 0, age_s, known.transient)

    async def _forget(
        self, term: Term, stale: StaleMember, beat: Record | None, member: Record | None
    ) -> None:
        """Removes a transient client that ended without leaving; no event reports it."""
        parts, beats = self._parts, keys.heartbeat(stale.member_id)
        may = self._grace.may_warn(parts.clock.boot_time())
        if stale.age_s < parts.timing.dead_after or not may:
            return
        version = ABSENT if beat is None else beat.version
        # On stores without transactions the writes happen in order. The heartbeat goes last: while
        # it exists, the next cycle finds the rest.
        writes: list[Write] = [Check(beats, version), Delete(beats, version)]
        if member is not None:
            writes.insert(1, Delete(member.key, member.version))
        with contextlib.suppress(VersionConflict):
            await write_library_records(term, *writes)

    def _announce_warning(self, warning: WarningRecord, stale: StaleMember) -> None:
        self.statistics.warnings_issued += 1
        self._warned[stale.member_id] = warning
        metrics = self._parts.metrics
        metrics.counter(metrics.families.warnings).add()
        self._parts.bus.emit(
            events.HeartbeatWarning(
                member_id=stale.member_id,
                health=warning.health,
                stale_duration=stale.age_s,
                consecutive_warnings=warning.consecutive_warnings,
                reason=warning.reason,
            )
        )

    async def _recovered(self, term: Term, member_id: str) -> None:
        """The member is not stale any more: it beats again, left, or was declared dead. Cleanup
        removes the warnings of the dead; a new boot announces its return itself."""
        warning = self._warned.pop(member_id)
        beat, warned = await self._parts.patient.get(
            keys.heartbeat(member_id), keys.warning(member_id)
        )
        last = self._parts.read_heartbeat(beat)
        if last is not None and last.status != "alive":
            return
        if warned is not None:
            await self._try(term, Delete(keys.warning(member_id), warned.version))
        if last is None or last.boot != warning.boot:
            return
        # The last warning says `dead` already before the decision, which a beat may have prevented.
        health = "critical" if warning.health == "dead" else warning.health
        self._parts.bus.emit(
            events.CoordinatorRecovered(member_id=member_id, previous_health=health, was_dead=False)
        )

    # Death.

    async def _declare_dead(
        self,
        term: Term,
        stale: StaleMember,
        beat: Record | None,
        member: Record | None,
        warning: WarningRecord,
    ) -> None:
        (existing,) = await self._parts.patient.get(keys.tombstone(stale.member_id))
        tombstone = Tombstone(
            member_id=stale.member_id,
            boot=stale.boot,
            death_id=f"{stale.member_id}.{stale.boot}",
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
            self._mark_dead(stale.member_id, stale.boot, member),
            Put(
                keys.tombstone(stale.member_id),
                codec.encode(tombstone),
                expect=ABSENT if existing is None else existing.version,
                ttl_s=keys.TOMBSTONE_TTL_S,
            ),
        ]
        self._unfinished[stale.member_id] = None
        try:
            await write_library_records(term, *writes)
        except VersionConflict as conflict:
            if conflict.applied == 0:
                # The member beat, left or was declared dead in this moment: no decision was made.
                del self._unfinished[stale.member_id]
                return
            # The first write, which decides, was applied; `_finish` completes the rest.
        self._silent_health[stale.member_id] = "dead"
        await self._finish(term, stale.member_id)

    def _dead_beat(self, stale: StaleMember, beat: Record | None) -> bytes:
        last = self._parts.read_heartbeat(beat)
        dead = HeartbeatRecord(
            member_id=stale.member_id,
            boot=stale.boot,
            sequence=stale.sequence,
            timestamp=self._parts.clock.wall(),
            status="dead",
            awaits=() if last is None else last.awaits,
            history=() if last is None else last.history,
        )
        over = None if beat is None or last is None else beat.value
        return self._parts.codec.encode(dead, signed=self._parts.signs_heartbeats, over=over)

    def _read_warning(self, record: Record | None) -> WarningRecord | None:
        if record is None:
            return None
        return self._parts.codec.read(WarningRecord, record.value, key=record.key)

    def _mark_dead(self, member_id: str, boot: int, member: Record | None) -> Put:
        known = self._parts.read_member(member)
        dead = MemberRecord(member_id=member_id, boot=boot, status="dead")
        over = None if member is None or known is None else member.value
        return Put(
            keys.member(member_id),
            self._parts.codec.encode(dead, over=over),
            expect=ABSENT if member is None else member.version,
            ttl_s=keys.MEMBER_TTL_S,
        )

    async def _finish(self, term: Term, member_id: str) -> None:
        """Announces the death and cleans up. Safe to repeat: the tombstone marks each step."""
        found = await self._complete(term, member_id) or await self._tombstone(member_id)
        if found is None:
            self._unfinished.pop(member_id, None)
            return
        record, tombstone = found
        if not tombstone.announced:
            self._announce(tombstone)
            tombstone = msgspec.structs.replace(tombstone, announced=True)
            marked = await self._mark(term, tombstone, record)
            if marked is None:
                return
            record = marked
        if self.auto_cleanup and not tombstone.cleaned:
            if self._parts.store_time() < tombstone.died_at + self._cleanup_delay:
                self._unfinished[member_id] = None
                return
            if not await self._clean(term, tombstone, record):
                # A record changed meanwhile; the next cycle tries again.
                self._unfinished[member_id] = None
                return
        self._unfinished.pop(member_id, None)

    async def _complete(self, term: Term, member_id: str) -> tuple[Record, Tombstone] | None:
        """On a store without transactions a leader may have crashed after the first write of a
        death, which decides it. Writes the missing records."""
        codec, parts = self._parts.codec, self._parts
        beat, member = await parts.patient.get(keys.heartbeat(member_id), keys.member(member_id))
        existing = await self._tombstone(member_id)
        dead = parts.read_heartbeat(beat)
        if beat is None or dead is None or dead.status != "dead":
            return None
        known = parts.read_member(member)
        # A later boot registered, or the tombstone exists: nothing is missing.
        if known is not None and known.boot > dead.boot:
            return None
        if existing is not None and existing[1].boot >= dead.boot:
            return None
        tombstone = Tombstone(
            member_id=member_id,
            boot=dead.boot,
            death_id=f"{member_id}.{dead.boot}",
            epoch=term.epoch,
            died_at=beat.modified_ms / 1000.0,
            reason="found declared dead",
            consecutive_warnings=parts.timing.max_warnings,
        )
        if known is None or known.status != "dead":
            await self._try(term, self._mark_dead(member_id, dead.boot, member))
        put = Put(
            keys.tombstone(member_id),
            codec.encode(tombstone),
            expect=ABSENT if existing is None else existing[0].version,
            ttl_s=keys.TOMBSTONE_TTL_S,
        )
        await self._try(term, put)
        return await self._tombstone(member_id)

    def _announce(self, tombstone: Tombstone) -> None:
        statistics, metrics = self.statistics, self._parts.metrics
        statistics.coordinators_marked_dead += 1
        statistics.dead_coordinators.append(tombstone.member_id)
        del statistics.dead_coordinators[:-DEAD_NAMED]
        metrics.counter(metrics.families.deaths).add()
        bus = self._parts.bus
        bus.emit(
            events.CoordinatorDead(
                member_id=tombstone.member_id,
                boot=tombstone.boot,
                death_id=tombstone.death_id,
                reason=tombstone.reason,
                consecutive_warnings=tombstone.consecutive_warnings,
            )
        )
        bus.emit(
            events.ErrorEvent(error=DeadCoordinatorError(tombstone.member_id, tombstone.reason))
        )

    async def _mark(self, term: Term, tombstone: Tombstone, before: Record) -> Record | None:
        """Writes the tombstone and returns its new record; None if it was changed meanwhile."""
        value = self._parts.codec.encode(tombstone, over=before.value)
        put = Put(
            keys.tombstone(tombstone.member_id),
            value,
            expect=before.version,
            ttl_s=keys.TOMBSTONE_TTL_S,
        )
        try:
            (version,) = await write_library_records(term, put)
        except VersionConflict:
            return None
        return msgspec.structs.replace(before, version=version, value=value)

    # Cleanup.

    async def clean_up_member(self, term: Term, member_id: str, *, force: bool) -> bool:
        """Removes the records of a dead member; whether there were any. `force` lifts the
        condition that it is dead."""
        found = await self._tombstone(member_id)
        (member,) = await self._parts.patient.get(keys.member(member_id))
        known = self._parts.read_member(member)
        is_dead = found is not None and known is not None and known.status == "dead"
        if not is_dead and not force:
            raise ConfigurationError(
                f"member_id is {member_id!r}: this member is not dead; use force=True to remove"
                " its records anyway"
            )
        if found is not None and is_dead:
            before = self.statistics.cleanups_performed
            await self._clean(term, found[1], found[0])
            return self.statistics.cleanups_performed > before
        if known is None:
            return False
        tombstone = Tombstone(
            member_id=member_id,
            boot=known.boot,
            death_id=f"{member_id}.{known.boot}",
            epoch=term.epoch,
            died_at=self._parts.store_time(),
            reason="by hand",
            consecutive_warnings=0,
        )
        return await self._delete_all(term, tombstone) > 0

    async def _clean(self, term: Term, tombstone: Tombstone, record: Record) -> bool:
        """Whether the cleanup is done."""
        metrics = self._parts.metrics
        try:
            deleted = await self._delete_all(term, tombstone)
        except (VersionConflict, StoreError) as error:
            metrics.counter(metrics.families.cleanups, "failed").add()
            self._parts.bus.emit(
                events.CleanupFailed(member_id=tombstone.member_id, error=str(error))
            )
            return False
        await self._mark(term, msgspec.structs.replace(tombstone, cleaned=True), record)
        if deleted:
            self.statistics.cleanups_performed += 1
            metrics.counter(metrics.families.cleanups, "done").add()
        # No key: another run removed them, or the member came back and keeps everything.
        self._parts.bus.emit(
            events.CleanupComplete(member_id=tombstone.member_id, keys_deleted=deleted)
        )
        return True

    async def _delete_all(self, term: Term, tombstone: Tombstone) -> int:
        """Deletes only records of the dead boot: a member that came back keeps all."""
        parts, member_id = self._parts, tombstone.member_id
        names = (keys.heartbeat(member_id), keys.warning(member_id), keys.state(member_id))
        member, beat, warned, state = await parts.patient.get(keys.member(member_id), *names)
        known = parts.read_member(member)
        if member is None or known is None or known.boot != tombstone.boot:
            return 0
        to_delete = [each for each in (beat, warned, state) if each is not None]
        last = parts.read_heartbeat(beat)
        if last is not None and last.awaits:
            # Only this id can wait for them, and the deletion checks its boot.
            acks = await parts.patient.get(*(keys.ack(member_id, each) for each in last.awaits))
            to_delete += [each for each in acks if each is not None]
        if not to_delete:
            return 0
        await write_library_records(
            term,
            Check(keys.member(member_id), member.version),
            *(Delete(each.key, each.version) for each in to_delete),
        )
        self._warned.pop(member_id, None)
        return len(to_delete)

    # What the lease publishes.

    async def _survey(self) -> None:
        live = await self._parts.live_members(pages=PAGES_MAX)
        self.statistics.coordinators_monitored = len(live)
        self._live = tuple(live)
        self.standbys = await find_standbys(self._parts, live)
        # Once agreed, a key stays: a member that joins without it is refused, not waited for.
        self.signing_key = await agreed_key(self._parts, live) or self.signing_key

    def _count_health(self) -> None:
        metrics, silent = self._parts.metrics, self._silent_health
        healths = list(silent.values())
        healths += ["healthy" for each in self._live if each not in silent]
        for health in COUNTED:
            metrics.gauge(metrics.families.members, health).set(healths.count(health))

    # Helpers.

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
        tombstone = (
            None
            if record is None
            else self._parts.codec.read(Tombstone, record.value, key=record.key)
        )
        return None if record is None or tombstone is None else (record, tombstone)

    async def _try(self, term: Term, write: Write) -> bool:
        try:
            await write_library_records(term, write)
        except VersionConflict:
            return False
        return True

    def note_sequence(self, member_id: str, before: int | None, received: int) -> None:
        """Reports a jump in the sequence of heartbeats that an application drives itself."""
        violation = continuity(before, received)
        if violation is None:
            return
        self.statistics.continuity_violations += 1
        self._parts.log.warning(
            "continuity_violation",
            member_id=member_id,
            expected=violation.expected,
            received=violation.received,
            advice="check the network, restarts, and whether two processes drive this member",
        )
        metrics = self._parts.metrics
        metrics.counter(metrics.families.continuity).add()
        self._parts.bus.emit(
            events.ContinuityViolation(
                member_id=member_id,
                expected_sequence=violation.expected,
                received_sequence=violation.received,
                gap=violation.gap,
                missed=violation.missed,
            )
        )
