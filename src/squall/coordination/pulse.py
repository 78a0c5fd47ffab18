"""The registration of one member and its heartbeats.

Each start is a new incarnation, greater than all earlier ones of the id. A heartbeat
replaces exactly the record that the last one left, so that whoever declares the member dead,
by replacing that record, ends this incarnation with the same write. An id whose heartbeat
still moves is in use and is refused.

The registration is refreshed daily, which changes its version: what was written under the one
before is not refused for that (`alive_still`).

It must never beat for an incarnation that was declared dead, nor take a conflict with its
own lost reply, or with a beat of its own beside, for one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from squall.coordination import keys
from squall.coordination.calls import within
from squall.coordination.errors import (
    DuplicateMemberError,
    MemberFencedError,
    StateLostError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.records import Codec, HeartbeatRecord, MemberRecord
from squall.coordination.stores.guard import GuardedStore
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
from squall.runtime.identity import ProcessIdentity
from squall.runtime.interfaces import Clock

BEATS_WATCHED = 2.5
"""So many intervals without a beat, and an id that was alive is taken over."""
LOOKS_PER_BEAT = 4
REFRESH_REGISTRATION_S = 86_400.0
AWAITS_MAX = 10
FAILING_MAX = 5
TRIES = 3


@dataclass(frozen=True)
class Leading:
    """What the heartbeat of a coordinator adds."""

    epoch: int
    is_coordinator: bool
    failing: tuple[str, ...] = ()
    """Names of the works that failed several times in a row."""


class Pulse:
    """One member in one namespace; `register`, then `beat` once per interval."""

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
        leading: Callable[[], Leading],
        metadata: Callable[[], Mapping[str, Any]],
        make_token: Callable[[], str],
        awaited: Collection[str] = (),
        transient: bool = False,
        keep_heartbeats: int = 0,
    ) -> None:
        self.member_id = member_id
        self.incarnation = 0
        self.sequence = 0
        self.registered_version = ""
        """Of the member record: what writes of this incarnation are bound to."""
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
        self._beat_version: Condition = ABSENT
        self._last_put: Put | None = None
        """Of the last beat, while it is not known whether it arrived."""
        self._refreshed_at = 0.0
        self._is_answered = False
        """That this incarnation was registered; else `registered_version` is of the one before."""
        self._former_versions: set[str] = set()
        """Of the member record, in this incarnation: each refresh adds one."""
        self._one_at_a_time = asyncio.Lock()
        """Whoever asks for a beat, each replaces the one before."""
        self._begun = self._reached = 0
        """Numbers of beats: of the last that was begun, and of the last that reached the store."""
        self._beside = asyncio.Lock()

    @property
    def registered(self) -> bool:
        return self.incarnation > 0

    @property
    def alive(self) -> Check:
        """Holds as long as this incarnation is the present one and is not dead."""
        return Check(keys.member(self.member_id), self.registered_version)

    async def alive_still(self, failed: Check) -> Check | None:
        """What to write under instead, if that check failed only because the registration was
        refreshed meanwhile; None if it failed by right."""
        async with self._one_at_a_time:
            if failed == self.alive:
                # A refresh that is not answered yet may have changed it.
                read = within(self.timing.heartbeat_interval / 2.0, self._read(), "registration")
                member, _ = await read
                if member is None or not self._adopt(member):
                    return None
            return self.alive if failed.expect in self._former_versions else None

    async def register(self) -> None:
        """A new incarnation. `DuplicateMemberError` if the id is in use."""
        while True:
            member, beat = await self._read()
            member, beat = await self._until_still(member, beat)
            if await self._claim(member, beat):
                return

    async def beat(self, *look_at: str, again: bool = False) -> tuple[Record | None, ...]:
        """Also reads the records that are named, after the beat. Raises `MemberFencedError`
        or `StateLostError`; then only `register` helps. With `again` the very same beat is
        sent once more, because it got no answer: one that had arrived changes nothing."""
        async with self._one_at_a_time:
            self._begun = number = self._begun + 1
            found = await self._beat(look_at, again=again)
            self._reached = number
            if self._clock.now() - self._refreshed_at >= REFRESH_REGISTRATION_S:
                await self._refresh()
            return found

    async def beat_beside(self) -> None:
        """For somebody who asks, not for longer than the heart waits: its next beat comes after
        this one. A beat that began after it was asked for serves all who asked by then."""
        asked = self._begun

        async def beat() -> None:
            async with self._beside:
                if self._reached <= asked:
                    await self.beat()

        await within(self.timing.heartbeat_interval / 2.0, beat(), "heartbeat")

    async def _beat(self, look_at: Sequence[str], *, again: bool) -> tuple[Record | None, ...]:
        for _ in range(TRIES):
            put = self._last_put if again else None
            if put is None:
                record = self._record(self.sequence + 1)
                put = self._put(record, self._beat_version, self._make_token())
            self._last_put = put
            try:
                (version,), found = await self._store.write_and_get((put,), look_at)
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
        """Others see at once that this member left. The id of a transient one is forgotten:
        nobody will come back with it."""
        async with self._one_at_a_time:
            for _ in range(TRIES):
                if not self.registered or await self._has_left():
                    return

    async def _has_left(self) -> bool:
        """Or was not alive any more."""
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
            # A beat that was under way, or the end of this incarnation.
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

    async def _until_still(
        self, member: Record | None, beat: Record | None
    ) -> tuple[Record | None, Record | None]:
        """A process that was killed a moment ago and one that lives look the same: only a
        further beat tells them apart."""
        watched_s = 0.0
        pause_s = self.timing.heartbeat_interval / LOOKS_PER_BEAT
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
        before = 0 if known is None else known.incarnation
        # Store time as a floor: also greater than what a store that lost its data forgot.
        self.incarnation = max(before + 1, await self._store.now_ms())
        self.sequence = 0
        self._is_answered = False
        self._former_versions.clear()
        try:
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
            self.incarnation = 0
            return False
        version, self._beat_version = versions
        self._follow(version)
        self.sequence = 1
        self._refreshed_at = self._clock.now()
        return True

    async def _resolve(self) -> None:
        """After a conflict: was it our own lost reply, an expired record, or our death?"""
        member, beat = await self._read()
        if member is None:
            raise StateLostError(f"the store does not know {self.member_id} any more")
        if not self._adopt(member):
            raise MemberFencedError(self.member_id, self.incarnation)
        if beat is None:
            self._beat_version = ABSENT
            return
        record = self._codec.read(HeartbeatRecord, beat.value, signed=self._signed, key=beat.key)
        if record is None or record.incarnation != self.incarnation or record.status != "alive":
            raise MemberFencedError(self.member_id, self.incarnation)
        self._beat_version = beat.version
        self.sequence = max(self.sequence, record.sequence)

    def _adopt(self, member: Record) -> bool:
        """Whether it is the registration of this incarnation, alive: in any version."""
        if member.version == self.registered_version:
            return True
        known = self._codec.read(MemberRecord, member.value, key=member.key)
        if known is None or known.incarnation != self.incarnation or known.status != "alive":
            return False
        self._follow(member.version)
        return True

    def _follow(self, version: str) -> None:
        if self._is_answered and version != self.registered_version:
            self._former_versions.add(self.registered_version)
        self.registered_version = version
        self._is_answered = True

    async def _refresh(self) -> None:
        """A registration outlives the longest run of a process."""
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
            incarnation=self.incarnation,
            status=status,
            hostname=self._identity.hostname,
            pid=self._identity.pid,
            transient=self._transient,
        )

    def _record(self, sequence: int) -> HeartbeatRecord:
        leading = self._leading()
        keyring = self._codec.keyring
        return HeartbeatRecord(
            coordinator_id=self.member_id,
            incarnation=self.incarnation,
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
