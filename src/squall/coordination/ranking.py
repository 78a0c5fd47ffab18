"""Which place a member has among those that may lead: the smallest id tries first.

Only asked where no lease names who stands next. It is a preference and nothing rests on it, so
it looks no further than it makes a difference. Members that never stand do not count.
"""

from __future__ import annotations

import math

from squall.coordination import keys
from squall.coordination.assembly import Assembly
from squall.coordination.records import HeartbeatRecord

PAGES = 2
AT_ONCE = 20
READS_MAX = 100


async def rank_of(parts: Assembly, last: str) -> int:
    """0 for the first. `last` held the lease before: it died, or lets the others go first."""
    ids = await parts.live_members(pages=PAGES)
    before = sorted(each for each in ids if each < parts.member_id and each != last)
    timing = parts.timing
    enough = math.ceil(timing.rank_delay_cap / timing.rank_delay) if timing.rank_delay else 1
    rank = 0
    for start in range(0, min(len(before), READS_MAX), AT_ONCE):
        beats = await parts.patient.get(*map(keys.heartbeat, before[start : start + AT_ONCE]))
        for beat in beats:
            record = (
                None
                if beat is None
                else parts.codec.read(
                    HeartbeatRecord, beat.value, signed=parts.signs_heartbeats, key=beat.key
                )
            )
            rank += record is not None and record.eligible and record.status == "alive"
        if rank >= enough:
            break
    return rank
