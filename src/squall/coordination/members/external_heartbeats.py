"""Heartbeats that the application sends for members that do not run this library: a device, a
child process, a job on another machine.

    await coordinator.register_heartbeat("sensor-7", 1)
    await coordinator.register_heartbeat("sensor-7", 2, {"phase": "warm"})

The leader watches such a member like any other. Sequence 1 begins a new boot. A jump in the
sequence is reported as `continuity:violation` and is no warning. Such a member never stands for
election.

Invariants: no beat for an id that a process of this library holds, and none for a boot that was
declared dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from squall.coordination.errors import (
    ConfigurationError,
    DuplicateMemberError,
    MemberFencedError,
    VersionConflict,
)
from squall.coordination.member_parts import MemberParts
from squall.coordination.members import registration
from squall.coordination.records import keys
from squall.coordination.records.plain_json import plain_json
from squall.coordination.records.schemas import HeartbeatRecord, MemberRecord
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Condition,
    Delete,
    Put,
    Record,
    Write,
)

# Lost races with other processes that drive the same id, before the call gives up.
TRIES = 5


@dataclass
class ExternalMember:
    """What this process knows of one id: the versions that its next beat replaces."""

    boot: int
    sequence: int | None
    beat_version: Condition
    member_version: str
    registered_at: float
    """By the clock of this process."""


class ExternalHeartbeats:
    """Sends the heartbeats of any number of external members."""

    def __init__(
        self,
        parts: MemberParts,
        known_epoch: Callable[[], int],
        note_sequence: Callable[[str, int | None, int], None],
    ) -> None:
        self._parts = parts
        self._known_epoch = known_epoch
        self._note_sequence = note_sequence
        self._members: dict[str, ExternalMember] = {}

    async def register(
        self, member_id: str, sequence: int, metadata: Mapping[str, Any] | None
    ) -> int:
        """Sends one beat and returns the boot of the member."""
        self._check(member_id, sequence)
        if metadata:
            plain_json("metadata", metadata)
        for _ in range(TRIES):
            known = self._members.get(member_id)
            if sequence == 1 or known is None:
                known = await self._find_or_begin(member_id, new_boot=sequence == 1)
            if known is None:
                continue
            try:
                await self._beat(member_id, known, sequence, metadata)
            except VersionConflict:
                # Declared dead, driven by another process, or cleaned up: read it again.
                del self._members[member_id]
                continue
            self._note_sequence(member_id, known.sequence, sequence)
            known.sequence = sequence
            return known.boot
        raise MemberFencedError(member_id, 0)

    async def leave(self, member_id: str) -> None:
        """Marks the member as left, so that the monitor does not declare it dead."""
        external = self._members.pop(member_id, None)
        member, beat = await self._read(member_id)
        known = self._parts.read_member(member)
        if external is None:
            self._refuse_foreign(member_id, beat)
        writes: list[Write] = []
        if member is not None and known is not None and known.status == "alive":
            left = MemberRecord(member_id=member_id, boot=known.boot, status="left")
            encoded = self._parts.codec.encode(left, over=member.value)
            put = Put(member.key, encoded, expect=member.version, ttl_s=keys.MEMBER_TTL_S)
            writes = [put, Delete(keys.heartbeat(member_id), ANY)]
        elif beat is not None and self._is_driven(beat):
            # The registration is gone. The beat alone would look like a member that fell silent.
            writes = [Delete(beat.key, beat.version)]
        if writes:
            await self._parts.patient.write(*writes)

    def _is_driven(self, beat: Record) -> bool:
        record = self._parts.read_heartbeat(beat)
        return record is not None and bool(record.driven_by) and record.status == "alive"

    def _check(self, member_id: str, sequence: int) -> None:
        keys.heartbeat(member_id)
        if member_id == self._parts.member_id:
            raise ConfigurationError(
                f"member_id is {member_id!r}: this member sends its own heartbeats; use another id"
            )
        if sequence < 1:
            raise ConfigurationError(
                f"sequence is {sequence!r}: it starts at 1 and grows by 1; use sequence=1"
            )

    async def _find_or_begin(self, member_id: str, *, new_boot: bool) -> ExternalMember | None:
        """Continues the boot that another process drove, or begins a new one. None if another
        process registered the id meanwhile."""
        parts = self._parts
        member, beat = await self._read(member_id)
        known = self._parts.read_member(member)
        record = self._parts.read_heartbeat(beat)
        self._refuse_foreign(member_id, beat)
        alive = None if known is None or known.status != "alive" else known.boot
        if not new_boot and record is not None and record.boot == alive:
            assert member is not None
            assert beat is not None
            written_at = parts.clock.now() - member.age_s
            found = ExternalMember(
                record.boot, record.sequence, beat.version, member.version, written_at
            )
            self._members[member_id] = found
            return found
        before = 0 if known is None else known.boot
        if known is not None and known.status == "dead" and not new_boot:
            raise MemberFencedError(member_id, before)
        boot = max(before + 1, await parts.patient.now_ms())
        expect = ABSENT if member is None else member.version
        begun = parts.clock.now()
        try:
            (version,) = await parts.patient.write(self._registration(member_id, boot, expect))
        except VersionConflict:
            return None
        beat_version = ABSENT if beat is None else beat.version
        found = ExternalMember(boot, None, beat_version, version, begun)
        self._members[member_id] = found
        return found

    def _registration(self, member_id: str, boot: int, expect: Condition) -> Put:
        registered = MemberRecord(member_id=member_id, boot=boot)
        return Put(
            keys.member(member_id),
            self._parts.codec.encode(registered),
            expect=expect,
            ttl_s=keys.MEMBER_TTL_S,
        )

    def _refuse_foreign(self, member_id: str, beat: Record | None) -> None:
        record = self._parts.read_heartbeat(beat)
        if beat is None or record is None or record.driven_by or record.status != "alive":
            return
        if beat.age_s <= self._parts.timing.heartbeat_ttl:
            raise DuplicateMemberError(member_id, record.hostname, record.pid)

    async def _beat(
        self,
        member_id: str,
        known: ExternalMember,
        sequence: int,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        parts = self._parts
        keyring = parts.codec.keyring
        record = HeartbeatRecord(
            member_id=member_id,
            boot=known.boot,
            sequence=sequence,
            timestamp=parts.clock.wall(),
            pid=parts.identity.pid,
            hostname=parts.identity.hostname,
            metadata=dict(metadata or {}),
            eligible=False,
            epoch=self._known_epoch(),
            key_ids=() if keyring is None else keyring.key_ids,
            driven_by=parts.member_id,
            heartbeat_ttl=parts.timing.heartbeat_ttl,
        )
        put = Put(
            keys.heartbeat(member_id),
            parts.codec.encode(record, signed=parts.signs_heartbeats),
            expect=known.beat_version,
            ttl_s=parts.timing.retention,
            silent=True,
        )
        begun = parts.clock.now()
        if begun - known.registered_at < registration.REFRESH_REGISTRATION_S:
            (known.beat_version,) = await parts.patient.write(put)
            return
        refreshed = self._registration(member_id, known.boot, known.member_version)
        known.member_version, known.beat_version = await parts.patient.write(refreshed, put)
        known.registered_at = begun

    async def _read(self, member_id: str) -> tuple[Record | None, Record | None]:
        member, beat = await self._parts.patient.get(
            keys.member(member_id), keys.heartbeat(member_id)
        )
        return member, beat
