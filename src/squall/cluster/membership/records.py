"""The rules of records: which of two is newer, how large one is, which ones a member refuses."""

from __future__ import annotations

from squall.cluster.membership.messages import NAME_MAX, SUSPECTORS_MAX, PeerRecord, PeerStatus

INCARNATION_MAX = 2**53
"""A higher one is refused: it could not be outranked by counting."""
_FIXED_BYTES = 1 + 9 + 2 + 1 + 3 + 1
"""Array, incarnation, status and role, array of the address, port, array of the suspectors."""
_TEXT_HEAD_BYTES = 2


def is_newer(record: PeerRecord, than: PeerRecord) -> bool:
    """Whether a record replaces another of the same node (C13).

    Within a boot, the higher incarnation wins, then the higher rank: suspicion and death beat
    ALIVE of the same incarnation. Only the member itself raises its incarnation, so a refutation
    always wins. Boots have no order of their own: a new boot raises its incarnation above what it
    hears about its name, and wins by that."""
    if record.incarnation != than.incarnation:
        return record.incarnation > than.incarnation
    return record.boot == than.boot and record.status.rank > than.status.rank


def size(record: PeerRecord) -> int:
    """An upper bound of its encoded size."""
    names = [record.node, record.boot, record.address[0], *record.suspectors]
    return _FIXED_BYTES + sum(_TEXT_HEAD_BYTES + len(name.encode()) for name in names)


def is_acceptable(record: PeerRecord) -> bool:
    """Checks a record from the network: a refused one must not enter the table."""
    host, port = record.address
    names = (record.node, record.boot, host, *record.suspectors)
    return (
        all(0 < len(name) <= NAME_MAX and len(name.encode()) <= NAME_MAX for name in names)
        and 0 < port <= 0xFFFF
        and 0 <= record.incarnation <= INCARNATION_MAX
        and len(record.suspectors) <= SUSPECTORS_MAX
        and (record.status is PeerStatus.SUSPECT) == bool(record.suspectors)
    )
