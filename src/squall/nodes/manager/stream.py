"""What a job's followers are shown, kept for a while so that they may come back.

Items are numbered by the group time at which they came: a stream that another manager, or
a restarted one, begins anew continues above the old numbers. So a follower who returns
with an old number gets everything that is kept and that it has not seen, and nothing twice.
"""

from __future__ import annotations

import asyncio
from collections import deque

from squall.nodes.messages import StreamItem, StreamSnapshot

SNAPSHOTS_KEPT = 120
OTHERS_KEPT = 2000
ITEMS_PER_ANSWER = 200


class JobStream:
    """One job's items: the last snapshots, events and lines."""

    def __init__(self, first: int) -> None:
        self._last = first
        self._snapshots: deque[tuple[int, StreamItem]] = deque(maxlen=SNAPSHOTS_KEPT)
        self._others: deque[tuple[int, StreamItem]] = deque(maxlen=OTHERS_KEPT)
        self._forgotten = 0
        """The newest event or line that is no longer kept; snapshots are not missed."""
        self._dropped = 0
        self._grown = asyncio.Event()
        self.closed = False

    @property
    def last(self) -> int:
        return self._last

    def put(self, item: StreamItem, at_ms: int = 0) -> None:
        """`at_ms`: the group time of what it tells."""
        self._last = max(self._last + 1, at_ms)
        kept = self._snapshots if isinstance(item, StreamSnapshot) else self._others
        if len(kept) == kept.maxlen and kept is self._others:
            self._forgotten = kept[0][0]
            self._dropped += 1
        kept.append((self._last, item))
        self._wake()

    def close(self) -> None:
        """Nothing more will come: nobody waits any longer."""
        self.closed = True
        self._wake()

    def after(self, sequence: int) -> tuple[int, list[StreamItem], int]:
        """(upto, items, missed). A negative number asks for the present: one snapshot."""
        if sequence < 0:
            latest = [item for _, item in list(self._snapshots)[-1:]]
            return self._last, latest, 0
        missed = self._dropped if sequence < self._forgotten else 0
        found = [entry for entry in (*self._snapshots, *self._others) if entry[0] > sequence]
        found.sort(key=lambda entry: entry[0])
        chosen = found[:ITEMS_PER_ANSWER]
        upto = chosen[-1][0] if len(found) > len(chosen) else self._last
        return upto, [item for _, item in chosen], missed

    async def grown(self, sequence: int) -> None:
        """Returns when there is something after `sequence`, or the stream is closed."""
        while self._last <= sequence and not self.closed:
            self._grown.clear()
            await self._grown.wait()

    def _wake(self) -> None:
        self._grown.set()
