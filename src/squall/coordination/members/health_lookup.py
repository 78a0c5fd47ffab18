"""Reads the health of members that are not watched, by the rule of `health_rules`. It only reads;
warnings and deaths are the monitor's.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.coordination.member_parts import MemberParts
from squall.coordination.members.health_rules import Health, judge
from squall.coordination.records import keys
from squall.coordination.records.schemas import WarningRecord
from squall.coordination.stores.interface import Record


async def health_of(parts: MemberParts, member_ids: Sequence[str]) -> dict[str, Health]:
    kinds = (keys.member, keys.heartbeat, keys.warning)
    names = [kind(member_id) for kind in kinds for member_id in member_ids]
    found = await parts.urgent.get(*names) if names else ()
    count = len(member_ids)
    return {member_id: _health(parts, *found[at::count]) for at, member_id in enumerate(member_ids)}


def _health(
    parts: MemberParts, member: Record | None, beat: Record | None, warned: Record | None
) -> Health:
    known, last = parts.read_member(member), parts.read_heartbeat(beat)
    # A registration is a sign of life too: the first heartbeat follows it.
    heard_s = min(
        (each.age_s for each, read in ((member, known), (beat, last)) if each is not None and read),
        default=0.0,
    )
    if known is None:
        return "unknown"
    warning = (
        None if warned is None else parts.codec.read(WarningRecord, warned.value, key=warned.key)
    )
    return judge(known, last, warning, heard_s, parts.timing.heartbeat_ttl)
