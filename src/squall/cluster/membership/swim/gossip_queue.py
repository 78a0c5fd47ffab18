"""The records that this member still passes on, each a bounded number of times.

The queue sends the records first that it sent least often (C14); among those, refutations and
suspicions before ends. A newer record of a node replaces the older one, so the queue holds one
record per member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from squall.cluster.membership import records
from squall.cluster.membership.messages import PeerRecord, PeerStatus
from squall.runtime.interfaces import NodeId

_SMALLEST_BYTES = 24
_ORDER = {PeerStatus.SUSPECT: 0, PeerStatus.ALIVE: 0, PeerStatus.DEAD: 1, PeerStatus.LEFT: 1}


@dataclass(slots=True)
class _Queued:
    record: PeerRecord
    size: int
    number: int
    sent: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        return self.sent, _ORDER[self.record.status], -self.number


class GossipQueue:
    def __init__(self, transmissions: Callable[[], int]) -> None:
        """`transmissions`: how often a record is sent, at the present size of the group."""
        self._transmissions = transmissions
        self._queued: dict[NodeId, _Queued] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, record: PeerRecord) -> None:
        """Queues a record in place of what is queued about the same node."""
        self._number += 1
        self._queued[record.node] = _Queued(record, records.size(record), self._number)

    def drop(self, node: NodeId) -> None:
        self._queued.pop(node, None)

    def take(self, room: int, first: PeerRecord | None = None) -> tuple[PeerRecord, ...]:
        """The records for a message with `room` bytes left. `first` is what this member holds
        about the receiver; it goes in before all others and counts as no transmission."""
        if not self._queued:
            if first is None or records.size(first) > room:
                return ()
            return (first,)
        taken: list[PeerRecord] = []
        if first is not None and (needed := records.size(first)) <= room:
            taken.append(first)
            room -= needed
        limit = self._transmissions()
        waiting = self._queued.values()
        for queued in sorted(waiting, key=_by_order) if len(waiting) > 1 else list(waiting):
            if room < _SMALLEST_BYTES:
                break
            if queued.size > room or (first is not None and first.node == queued.record.node):
                continue
            room -= queued.size
            taken.append(queued.record)
            queued.sent += 1
            if queued.sent >= limit:
                del self._queued[queued.record.node]
        return tuple(taken)


def _by_order(queued: _Queued) -> tuple[int, int, int]:
    return queued.order
