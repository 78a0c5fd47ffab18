"""Registers one member and writes its heartbeats.

Each registration is a new boot, numbered above all earlier boots of the id. A heartbeat replaces
exactly the record that the last one left. So a monitor that declares the member dead, by replacing
that record, ends this boot with the same write. An id whose heartbeat still moves is in use and is
refused.

The registration is refreshed daily, which changes its version. A write that was bound to the
version before is not refused for that (`renewed_check`).

Invariants: no beat of a boot that was declared dead, and a conflict with our own lost reply, or
with our own concurrent beat, is never taken for a death.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from squall.coordination.errors import (
    DuplicateMemberError,
    MemberFencedError,
    StateLostError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, HeartbeatRecord, MemberRecord
from squall.coordination.stores.call_timeout import within
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import (
    ABSENT,
    Check,
    Condition,
    Delete,
    Put,
    Record,
    Write,
)
from squall.coordination.timing import Timing
from squall.runtime.interfaces import Clock
from squall.runtime.process_identity import ProcessIdentity

# An id whose last beat is fresh is taken over after so many intervals without another one.
BEATS_WATCHED = 2.5
POLLS_PER_BEAT = 4
# Member records live for days (`MEMBER_TTL_S`); a daily refresh keeps a long-running one alive.
REFRESH_REGISTRATION_S = 86_400.0
# Bounds on what one heartbeat carries.
AWAITS_MAX = 10
FAILING_MAX = 5
# Conflicts in a row that one beat resolves. More are no lost replies: another process writes.
TRIES = 3


@dataclass(frozen=True)
class LeaderFields:
    """What the heartbeat says about leadership."""

    epoch: int
    is_coordinator: bool
    failing: tuple[str, ...] = ()
    """Works of the leader that failed several times in a row."""


class Registration:
    """Holds the registration of one member: `register` begins a boot, `beat` keeps it alive,
    `leave` ends it."""

    def __init__(
        self,
        store: GuardedStore,
        codec: Codec,
        member_id: str,
        timing: Timing,
        clock: Clock,
        identity: ProcessIdentity,
        *,
        eligible: bool,
        sign_heartbeats: bool,
        leading: Callable[[], LeaderFields],
        metadata: Callable[[], Mapping[str, Any]],
        make_token: Callable[[], str],
        awaited: Collection[str] = (),
        transient: bool = False,
        keep_heartbeats: int = 0,
    ) -> None:
        self.member_id = member_id
        # 0 while not registered; else the number of the present boot.
        self.boot = 0
        # Of the last beat that is known to be in the store; starts at 1 in each boot.
        self.sequence = 0
        # Version of the member record. Writes of this boot are bound to it (`alive`).
        self.registered_version = ""
        self._store = store
        self._codec = codec
        self.timing = timing
        self._clock = clock
        self._identity = identity
        self._eligible = eligible
        self._signed = sign_heartbeats
        self._leading = leading
        self._metadata = metadata
        self._make_token = make_token
        self._awaited = awaited
        self._transient = transient
        self._history: deque[tuple[int, float]] = deque(maxlen=keep_heartbeats)
        # Version of the heartbeat record that the next beat replaces.
        self._beat_version: Condition = ABSENT
        # The last beat, while it is unknown whether it arrived. Sent again unchanged, its token
        # lets the store recognise it.
        self._last_put: Put | None = None
        self._refreshed_at = 0.0
        # Whether the store confirmed this boot. Until then `registered_version` is of the boot
        # before and must not enter `_former_versions`.
        self._is_answered = False
        # Versions of the member record in this boot before the present one; a refresh adds one.
        self._former_versions: set[str] = set()
        # Each beat replaces the one before, so beats of all callers go one at a time.
        self._one_at_a_time = asyncio.Lock()
        # Numbers of the last beat that began and of the last that reached the store.
        self._begun = self._reached = 0
        # Callers of `extra_beat` queue here, so that one beat can serve several.
        self._extra_beats = asyncio.Lock()

    @property
    def registered(self) -> bool:
        return self.boot > 0

    @property
    def alive(self) -> Check:
        """Holds while this boot is the present one of the id and is not dead."""
        return Check(keys.member(self.member_id), self.registered_version)

    async def renewed_check(self, failed: Check) -> Check | None:
        """The check to use instead, if this one failed only because the registration was refreshed
        meanwhile; None if the boot has ended."""
        async with self._one_at_a_time:
            if failed == self.alive:
                # The present version failed: a refresh may have arrived without an answer.
                read = within(self.timing.heartbeat_interval / 2.0, self._read(), "registration")
                member, _ = await read
                if member is None or not self._adopt(member):
                    return None
            return self.alive if failed.expect in self._former_versions else None

    async def register(self) -> None:
        """Begins a new boot. Raises `DuplicateMemberError` if the id is in use."""
        while True:
            member, beat = await self._read()
            member, beat = await self._wait_until_still(member, beat)
            # False: another process registered the id between the read and the write.
            if await self._claim(member, beat):
                return

    async def beat(self, *also_read: str, again: bool = False) -> tuple[Record | None, ...]:
        """Writes one heartbeat and then reads the records `also_read`, in one round trip. With
        `again` it sends the very same beat once more, because that got no answer: if it had
        arrived, the store recognises its token. After `MemberFencedError` or `StateLostError` only
        `register` helps."""
        async with self._one_at_a_time:
            self._begun = number = self._begun + 1
            found = await self._beat(also_read, again=again)
            self._reached = number
            if self._clock.now() - self._refreshed_at >= REFRESH_REGISTRATION_S:
                await self._refresh()
            return found

    async def extra_beat(self) -> None:
        """One more beat, on request of a caller. It gives up after half an interval, because the
        next regular beat waits for it. A beat that began after the call serves the caller too."""
        asked = self._begun

        async def beat() -> None:
            async with self._extra_beats:
                if self._reached <= asked:
                    await self.beat()

        await within(self.timing.heartbeat_interval / 2.0, beat(), "heartbeat")

    async def _beat(self, also_read: Sequence[str], *, again: bool) -> tuple[Record | None, ...]:
        for _ in range(TRIES):
            put = self._last_put if again else None
            if put is None:
                record = self._record(self.sequence + 1)
                put = self._put(record, self._beat_version, self._make_token())
            # Kept before the call: a caller that times out cancels it here, and may send the same
            # beat again.
            self._last_put = put
            try:
                (version,), found = await self._store.write_and_get((put,), also_read)
            except VersionConflict:
                again = False
                await self._resolve()
                continue
            self._last_put = None
            self.sequence += 1
            self._history.append((self.sequence, round(self._clock.wall(), 3)))
            self._beat_version = version
            return found
        raise StoreUnavailableError(f"the heartbeat of {self.member_id} changes with every try")

    async def leave(self) -> None:
        """Marks the member as left. The registration of a transient one is deleted: its id does
        not come back."""
        async with self._one_at_a_time:
            for _ in range(TRIES):
                if not self.registered or await self._has_left():
                    return

    async def _has_left(self) -> bool:
        """True also if this boot had ended already."""
        left: Write = Put(
            keys.member(self.member_id),
            self._codec.encode(self._member("left")),
            expect=self.registered_version,
            ttl_s=keys.MEMBER_TTL_S,
        )
        if self._transient:
            left = Delete(keys.member(self.member_id), self.registered_version)
        beat = Delete(keys.heartbeat(self.member_id), self._beat_version)
        try:
            await self._store.write(left, beat)
        except VersionConflict:
            # A beat of ours arrived without an answer, or this boot was declared dead.
            try:
                await self._resolve()
            except (MemberFencedError, StateLostError):
                return True
            return False
        return True

    async def _read(self) -> tuple[Record | None, Record | None]:
        member, beat = await self._store.get(
            keys.member(self.member_id), keys.heartbeat(self.member_id)
        )
        return member, beat

    async def _wait_until_still(
        self, member: Record | None, beat: Record | None
    ) -> tuple[Record | None, Record | None]:
        """Waits until the heartbeat of the id stands still. A process that was killed a moment ago
        and one that lives left the same record: only a further beat shows which."""
        watched_s = 0.0
        pause_s = self.timing.heartbeat_interval / POLLS_PER_BEAT
        first = beat
        while first is not None and self._is_alive(first):
            if beat is None or not self._is_alive(beat):
                break
            if beat.version != first.version:
                holder = self._codec.read(
                    HeartbeatRecord, beat.value, signed=self._signed, key=beat.key
                )
                raise DuplicateMemberError(
                    self.member_id, holder.hostname if holder else "?", holder.pid if holder else 0
                )
            if watched_s >= self.timing.heartbeat_interval * BEATS_WATCHED:
                break
            await self._clock.sleep(pause_s)
            watched_s += pause_s
            member, beat = await self._read()
        return member, beat

    def _is_alive(self, beat: Record) -> bool:
        record = self._codec.read(HeartbeatRecord, beat.value, signed=self._signed, key=beat.key)
        fresh = beat.age_s <= self.timing.heartbeat_ttl
        return record is not None and record.status == "alive" and fresh

    async def _claim(self, member: Record | None, beat: Record | None) -> bool:
        known = (
            None if member is None else self._codec.read(MemberRecord, member.value, key=member.key)
        )
        before = 0 if known is None else known.boot
        # Store time is the floor, so that the number also exceeds boots that the store forgot when
        # it lost its data.
        self.boot = max(before + 1, await self._store.now_ms())
        self.sequence = 0
        self._is_answered = False
        self._former_versions.clear()
        try:
            # The registration comes first, for stores without transactions: it fences the boot
            # before, whose heartbeat the second write replaces.
            versions = await self._store.write(
                Put(
                    keys.member(self.member_id),
                    self._codec.encode(self._member("alive")),
                    expect=ABSENT if member is None else member.version,
                    ttl_s=keys.MEMBER_TTL_S,
                ),
                self._put(self._record(1), ABSENT if beat is None else beat.version),
            )
        except VersionConflict:
            self.boot = 0
            return False
        version, self._beat_version = versions
        self._follow(version)
        self.sequence = 1
        self._refreshed_at = self._clock.now()
        return True

    async def _resolve(self) -> None:
        """After a conflict: adopts the versions in the store if a reply of ours was lost, raises if
        the store lost the registration or this boot was declared dead."""
        member, beat = await self._read()
        if member is None:
            raise StateLostError(f"the store does not know {self.member_id} any more")
        if not self._adopt(member):
            raise MemberFencedError(self.member_id, self.boot)
        if beat is None:
            # Cleaned up after a long silence, but not declared dead: begin a new heartbeat record.
            self._beat_version = ABSENT
            return
        record = self._codec.read(HeartbeatRecord, beat.value, signed=self._signed, key=beat.key)
        if record is None or record.boot != self.boot or record.status != "alive":
            raise MemberFencedError(self.member_id, self.boot)
        self._beat_version = beat.version
        self.sequence = max(self.sequence, record.sequence)

    def _adopt(self, member: Record) -> bool:
        """Whether this is the live registration of this boot; follows its version if it is."""
        if member.version == self.registered_version:
            return True
        known = self._codec.read(MemberRecord, member.value, key=member.key)
        if known is None or known.boot != self.boot or known.status != "alive":
            return False
        self._follow(member.version)
        return True

    def _follow(self, version: str) -> None:
        if self._is_answered and version != self.registered_version:
            self._former_versions.add(self.registered_version)
        self.registered_version = version
        self._is_answered = True

    async def _refresh(self) -> None:
        """Writes the member record again, before it expires."""
        put = Put(
            keys.member(self.member_id),
            self._codec.encode(self._member("alive")),
            expect=self.registered_version,
            ttl_s=keys.MEMBER_TTL_S,
        )
        try:
            (version,) = await within(
                self.timing.heartbeat_interval, self._store.write(put), "registration"
            )
            self._follow(version)
        except VersionConflict:
            await self._resolve()
        self._refreshed_at = self._clock.now()

    def _member(self, status: str) -> MemberRecord:
        return MemberRecord(
            member_id=self.member_id,
            boot=self.boot,
            status=status,
            hostname=self._identity.hostname,
            pid=self._identity.pid,
            transient=self._transient,
        )

    def _record(self, sequence: int) -> HeartbeatRecord:
        leading = self._leading()
        keyring = self._codec.keyring
        return HeartbeatRecord(
            member_id=self.member_id,
            boot=self.boot,
            sequence=sequence,
            timestamp=self._clock.wall(),
            pid=self._identity.pid,
            hostname=self._identity.hostname,
            metadata=dict(self._metadata()),
            eligible=self._eligible,
            is_coordinator=leading.is_coordinator,
            epoch=leading.epoch,
            key_ids=() if keyring is None else keyring.key_ids,
            transient=self._transient,
            awaits=tuple(islice(self._awaited, AWAITS_MAX)) if self._awaited else (),
            history=tuple(self._history) if self._history else (),
            failing=leading.failing[:FAILING_MAX],
            heartbeat_ttl=self.timing.heartbeat_ttl,
        )

    def _put(self, record: HeartbeatRecord, expect: Condition, token: str = "") -> Put:
        return Put(
            keys.heartbeat(self.member_id),
            self._codec.encode(record, signed=self._signed),
            expect=expect,
            ttl_s=self.timing.retention,
            silent=True,
            token=token,
        )
