"""How members are, by a look at their records: `alive`, `stale` (not heard of for
`heartbeat_ttl`), `left`, `dead` or `unknown`. It changes nothing: nobody is warned about or
declared dead by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.coordination import keys
from squall.coordination.assembly import Assembly
from squall.coordination.records import HeartbeatRecord, MemberRecord
from squall.coordination.stores.interface import Record


async def health_of(parts: Assembly, member_ids: Sequence[str]) -> dict[str, str]:
    names = [*map(keys.member, member_ids), *map(keys.heartbeat, member_ids)]
    found = await parts.urgent.get(*names) if names else ()
    count = len(member_ids)
    records = zip(member_ids, found[:count], found[count:], strict=True)
    return {member_id: _health(parts, member, beat) for member_id, member, beat in records}


def _health(parts: Assembly, member: Record | None, beat: Record | None) -> str:
    if member is None:
        return "unknown"
    known = parts.codec.read(MemberRecord, member.value, key=member.key)
    if known is None:
        return "unknown"
    if known.status != "alive":
        return known.status
    heard_s = member.age_s
    if beat is not None:
        signed = parts.signs_heartbeats
        told = parts.codec.read(HeartbeatRecord, beat.value, signed=signed, key=beat.key)
        if told is not None and told.incarnation == known.incarnation:
            if told.status != "alive":
                return told.status
            heard_s = min(heard_s, beat.age_s)
    return "stale" if heard_s > parts.timing.heartbeat_ttl else "alive"
