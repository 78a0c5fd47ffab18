"""Heartbeats that an application drives itself, for members that are no process of this
library: a device, a child process, a job on another machine.

    await coordinator.register_heartbeat("sensor-7", 1)
    await coordinator.register_heartbeat("sensor-7", 2, {"phase": "warm"})

Whoever calls says that the member lives; the coordinator watches it like every other one.
Sequence 1 begins a new incarnation. A jump is told as `continuity:violation` and warns about
nobody. Such a member never stands for election.

It must never beat for an id that a process of this library has, nor for an incarnation that
was declared dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from squall.coordination import keys, pulse
from squall.coordination.assembly import Assembly
from squall.coordination.errors import (
    ConfigurationError,
    DuplicateMemberError,
    MemberFencedError,
    VersionConflict,
)
from squall.coordination.plain import plain_json
from squall.coordination.records import HeartbeatRecord, MemberRecord
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Condition,
    Delete,
    Put,
    Record,
    Write,
)

TRIES = 5


@dataclass
class Driven:
    """One id, as this process knows it."""

    incarnation: int
    sequence: int | None
    beat_version: Condition
    member_version: str
    registered_at: float
    """When the registration was last written, by our clock."""


class DrivenHeartbeats:
    """Of one member, for any number of others."""

    def __init__(
        self,
        parts: Assembly,
        known_epoch: Callable[[], int],
        note_sequence: Callable[[str, int | None, int], None],
    ) -> None:
        self._parts = parts
        self._known_epoch = known_epoch
        self._note_sequence = note_sequence
        self._driven: dict[str, Driven] = {}

    async def register(
        self, member_id: str, sequence: int, metadata: Mapping[str, Any] | None
    ) -> int:
        """The incarnation that lives."""
        self._check(member_id, sequence)
        if metadata:
            plain_json("metadata", metadata)
        for _ in range(TRIES):
            known = self._driven.get(member_id)
            if sequence == 1 or known is None:
                known = await self._meet(member_id, anew=sequence == 1)
            if known is None:
                continue
            try:
                await self._beat(member_id, known, sequence, metadata)
            except VersionConflict:
                # Dead, driven by another process, or cleaned up: looked at anew.
                del self._driven[member_id]
                continue
            self._note_sequence(member_id, known.sequence, sequence)
            known.sequence = sequence
            return known.incarnation
        raise MemberFencedError(member_id, 0)

    async def leave(self, member_id: str) -> None:
        """It has ended: others see at once that it left, and nobody declares it dead."""
        driven = self._driven.pop(member_id, None)
        member, beat = await self._read(member_id)
        known = self._record_of(MemberRecord, member)
        if driven is None:
            self._refuse_foreign(member_id, beat)
        writes: list[Write] = []
        if member is not None and known is not None and known.status == "alive":
            left = MemberRecord(member_id=member_id, incarnation=known.incarnation, status="left")
            encoded = self._parts.codec.encode(left, over=member.value)
            put = Put(member.key, encoded, expect=member.version, ttl_s=keys.MEMBER_TTL_S)
            writes = [put, Delete(keys.heartbeat(member_id), ANY)]
        elif beat is not None and self._is_driven(beat):
            # Its registration is gone: the beat alone would be taken for one that fell silent.
            writes = [Delete(beat.key, beat.version)]
        if writes:
            await self._parts.patient.write(*writes)

    def _is_driven(self, beat: Record) -> bool:
        record = self._record_of(HeartbeatRecord, beat)
        return record is not None and bool(record.driven_by) and record.status == "alive"

    def _check(self, member_id: str, sequence: int) -> None:
        keys.heartbeat(member_id)
        if member_id == self._parts.member_id:
            raise ConfigurationError(
                f"coordinator_id is {member_id!r}: this member beats by itself; another id is right"
            )
        if sequence < 1:
            raise ConfigurationError(
                f"sequence is {sequence!r}: it starts at 1 and grows by 1; sequence=1 is right"
            )

    async def _meet(self, member_id: str, *, anew: bool) -> Driven | None:
        """Goes on where another process of the application was, or begins an incarnation.
        None if somebody else was quicker."""
        parts = self._parts
        member, beat = await self._read(member_id)
        known = self._record_of(MemberRecord, member)
        record = self._record_of(HeartbeatRecord, beat)
        self._refuse_foreign(member_id, beat)
        alive = None if known is None or known.status != "alive" else known.incarnation
        if not anew and record is not None and record.incarnation == alive:
            assert member is not None
            assert beat is not None
            written_at = parts.clock.now() - member.age_s
            found = Driven(
                record.incarnation, record.sequence, beat.version, member.version, written_at
            )
            self._driven[member_id] = found
            return found
        before = 0 if known is None else known.incarnation
        if known is not None and known.status == "dead" and not anew:
            raise MemberFencedError(member_id, before)
        incarnation = max(before + 1, await parts.patient.now_ms())
        expect = ABSENT if member is None else member.version
        begun = parts.clock.now()
        try:
            (version,) = await parts.patient.write(
                self._registration(member_id, incarnation, expect)
            )
        except VersionConflict:
            return None
        beat_version = ABSENT if beat is None else beat.version
        found = Driven(incarnation, None, beat_version, version, begun)
        self._driven[member_id] = found
        return found

    def _registration(self, member_id: str, incarnation: int, expect: Condition) -> Put:
        registered = MemberRecord(member_id=member_id, incarnation=incarnation)
        return Put(
            keys.member(member_id),
            self._parts.codec.encode(registered),
            expect=expect,
            ttl_s=keys.MEMBER_TTL_S,
        )

    def _refuse_foreign(self, member_id: str, beat: Record | None) -> None:
        record = self._record_of(HeartbeatRecord, beat)
        if beat is None or record is None or record.driven_by or record.status != "alive":
            return
        if beat.age_s <= self._parts.timing.heartbeat_ttl:
            raise DuplicateMemberError(member_id, record.hostname, record.pid)

    async def _beat(
        self, member_id: str, known: Driven, sequence: int, metadata: Mapping[str, Any] | None
    ) -> None:
        parts = self._parts
        keyring = parts.codec.keyring
        record = HeartbeatRecord(
            coordinator_id=member_id,
            incarnation=known.incarnation,
            sequence=sequence,
            timestamp=parts.clock.wall(),
            pid=parts.identity.pid,
            hostname=parts.identity.hostname,
            metadata=dict(metadata or {}),
            eligible=False,
            epoch=self._known_epoch(),
            key_ids=() if keyring is None else keyring.key_ids,
            driven_by=parts.member_id,
        )
        put = Put(
            keys.heartbeat(member_id),
            parts.codec.encode(record, signed=parts.signs_heartbeats),
            expect=known.beat_version,
            ttl_s=parts.timing.retention,
            silent=True,
        )
        begun = parts.clock.now()
        if begun - known.registered_at < pulse.REFRESH_REGISTRATION_S:
            (known.beat_version,) = await parts.patient.write(put)
            return
        refreshed = self._registration(member_id, known.incarnation, known.member_version)
        known.member_version, known.beat_version = await parts.patient.write(refreshed, put)
        known.registered_at = begun

    async def _read(self, member_id: str) -> tuple[Record | None, Record | None]:
        member, beat = await self._parts.patient.get(
            keys.member(member_id), keys.heartbeat(member_id)
        )
        return member, beat

    def _record_of(self, kind: type[Any], record: Record | None) -> Any:
        signed = kind is not HeartbeatRecord or self._parts.signs_heartbeats
        return (
            None
            if record is None
            else self._parts.codec.read(kind, record.value, signed=signed, key=record.key)
        )
