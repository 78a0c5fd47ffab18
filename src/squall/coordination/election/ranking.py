"""Finds the rank of a member among the live eligible ones: the smallest id has rank 0.

Used only where no lease names the order of succession. The rank is a preference and no safety
depends on it, so the search stops where a higher rank would not delay the candidate any longer.
"""

from __future__ import annotations

import math

from squall.coordination.member_parts import MemberParts
from squall.coordination.records import keys

PAGES = 2
AT_ONCE = 20
READS_MAX = 100


async def rank_of(parts: MemberParts, last: str) -> int:
    """The member's rank, not counting `last`: the last holder died, or lets others go first."""
    ids = await parts.live_members(pages=PAGES)
    before = sorted(each for each in ids if each < parts.member_id and each != last)
    timing = parts.timing
    enough = math.ceil(timing.rank_delay_cap / timing.rank_delay) if timing.rank_delay else 1
    rank = 0
    for start in range(0, min(len(before), READS_MAX), AT_ONCE):
        beats = await parts.patient.get(*map(keys.heartbeat, before[start : start + AT_ONCE]))
        for beat in beats:
            record = parts.read_heartbeat(beat)
            rank += record is not None and record.eligible and record.status == "alive"
        if rank >= enough:
            break
    return rank
