"""Reads the health of members: `alive`, `stale` (no beat for `heartbeat_ttl`), `left`, `dead` or
`unknown`. It only reads; warnings and deaths are the monitor's.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.coordination.member_parts import MemberParts
from squall.coordination.records import keys
from squall.coordination.stores.interface import Record


async def health_of(parts: MemberParts, member_ids: Sequence[str]) -> dict[str, str]:
    names = [*map(keys.member, member_ids), *map(keys.heartbeat, member_ids)]
    found = await parts.urgent.get(*names) if names else ()
    count = len(member_ids)
    records = zip(member_ids, found[:count], found[count:], strict=True)
    return {member_id: _health(parts, member, beat) for member_id, member, beat in records}


def _health(parts: MemberParts, member: Record | None, beat: Record | None) -> str:
    known = parts.read_member(member)
    if member is None or known is None:
        return "unknown"
    if known.status != "alive":
        return known.status
    heard_s = member.age_s
    last = parts.read_heartbeat(beat)
    if beat is not None and last is not None and last.boot == known.boot:
        if last.status != "alive":
            return last.status
        heard_s = min(heard_s, beat.age_s)
    return "stale" if heard_s > parts.timing.heartbeat_ttl else "alive"
