"""Decides which of two reports of a datacenter is the later one.

Reports of one group are ordered by (epoch, committed op): both only rise, also over a change of the
primary. At the same place the leading manager's report wins, because only the leader knows which
workers it hears. Reports of two groups have no order: the datacenter was set up again, or its log
was recovered. Then the gate keeps the report it has until that is stale.
"""

from __future__ import annotations

from squall.cluster.protocol.gates.federation_messages import DatacenterState


def replaces(
    new: DatacenterState, known: DatacenterState | None, age_s: float, stale_s: float
) -> bool:
    """Whether `new` replaces `known`, which is `age_s` old."""
    if known is None or not known.group:
        # A manager whose group is not formed yet knows nothing that could be older.
        return True
    if new.group != known.group:
        return age_s > stale_s
    if known.leads and not new.leads and new.epoch == known.epoch:
        # What a follower does not know would hide what the leader said a moment ago.
        return age_s > stale_s and new.committed >= known.committed
    return _place(new) >= _place(known)


def _place(state: DatacenterState) -> tuple[int, int, bool]:
    return (state.epoch, state.committed, state.leads)
