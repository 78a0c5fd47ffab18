"""Finds what the leader publishes in its lease: its possible successors and the signing key."""

from __future__ import annotations

from collections.abc import Sequence

from squall.coordination.election.leadership import CLOSE_WATCHERS
from squall.coordination.member_parts import MemberParts
from squall.coordination.records import keys

# Reads this many heartbeats to find enough eligible members; beyond that the list stays shorter.
STANDBY_READS = 20
BEATS_AT_ONCE = 100


async def find_standbys(parts: MemberParts, live: Sequence[str]) -> tuple[str, ...]:
    """The first live eligible members except this one, in the order in which they would stand."""
    others = [each for each in sorted(live) if each != parts.member_id][:STANDBY_READS]
    beats = await parts.patient.get(*map(keys.heartbeat, others)) if others else ()
    found: list[str] = []
    for member_id, beat in zip(others, beats, strict=True):
        record = parts.read_heartbeat(beat)
        if record is not None and record.eligible and record.status == "alive":
            found.append(member_id)
    return tuple(found[:CLOSE_WATCHERS])


async def agreed_key(parts: MemberParts, live: Sequence[str]) -> str:
    """The newest signing key if every live member accepts it, "" otherwise. During a rotation the
    group must not sign with a key before the last member has it."""
    keyring = parts.codec.keyring
    if keyring is None or len(keyring.key_ids) < 2:
        return ""
    newest = keyring.key_ids[-1]
    for start in range(0, len(live), BEATS_AT_ONCE):
        names = map(keys.heartbeat, live[start : start + BEATS_AT_ONCE])
        for beat in await parts.patient.get(*names):
            record = parts.read_heartbeat(beat)
            if record is not None and newest not in record.key_ids:
                return ""
    return newest
