"""The stream of a job: recent snapshots, events and lines, stored for followers that reconnect.

An item is numbered by the group time at which it arrived. If another manager, or a restarted one,
starts the stream again, its numbers continue above the old ones. A follower that reconnects with
its last number gets every stored item after it, each of them once (R16).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

import msgspec

from squall.cluster.protocol.messages import StreamItem, StreamSnapshot

SNAPSHOTS_KEPT = 120
"""Two minutes."""
OTHERS_KEPT = 2000
ITEMS_PER_ANSWER = 200
# A quarter of what a link carries. A snapshot of 200 workflows has 250 kB, and two minutes of them
# are stored.
BYTES_PER_ANSWER = 1024 * 1024

_encode = msgspec.msgpack.Encoder().encode


class _Entry(NamedTuple):
    number: int
    item: StreamItem
    size: int


class JobStream:
    """Stores the last items of one job and wakes the followers that wait for more."""

    def __init__(self, first: int) -> None:
        self._last = first
        self._snapshots: deque[_Entry] = deque(maxlen=SNAPSHOTS_KEPT)
        self._others: deque[_Entry] = deque(maxlen=OTHERS_KEPT)
        # The number of the newest event or line that was dropped, and how many were. Dropped
        # snapshots do not count: the next one replaces them.
        self._forgotten = 0
        self._dropped = 0
        self._grown = asyncio.Event()
        self.closed = False
        # A follower asked for them. They are for all followers then: most jobs have one.
        self.shows_histograms = False

    @property
    def last(self) -> int:
        return self._last

    def put(self, item: StreamItem, at_ms: int = 0) -> None:
        """`at_ms` is the group time of the item."""
        self._last = max(self._last + 1, at_ms)
        kept = self._snapshots if isinstance(item, StreamSnapshot) else self._others
        if len(kept) == kept.maxlen and kept is self._others:
            self._forgotten = kept[0].number
            self._dropped += 1
        kept.append(_Entry(self._last, item, len(_encode(item))))
        self._wake()

    def close(self) -> None:
        """Ends the stream: followers that wait are woken."""
        self.closed = True
        self._wake()

    def after(self, sequence: int) -> tuple[int, list[StreamItem], int]:
        """Returns (upto, items, missed). A negative number asks for the latest snapshot only."""
        if sequence < 0:
            latest = [entry.item for entry in list(self._snapshots)[-1:]]
            return self._last, latest, 0
        missed = self._dropped if sequence < self._forgotten else 0
        found = [entry for entry in (*self._snapshots, *self._others) if entry.number > sequence]
        found.sort(key=lambda entry: entry.number)
        chosen: list[_Entry] = []
        size = 0
        for entry in found[:ITEMS_PER_ANSWER]:
            size += entry.size
            # The first one is sent whatever its size, or the follower would never get past it.
            if chosen and size > BYTES_PER_ANSWER:
                break
            chosen.append(entry)
        upto = chosen[-1].number if len(found) > len(chosen) else self._last
        return upto, [entry.item for entry in chosen], missed

    async def grown(self, sequence: int) -> None:
        """Returns when there is an item after `sequence`, or the stream is closed."""
        while self._last <= sequence and not self.closed:
            self._grown.clear()
            await self._grown.wait()

    def _wake(self) -> None:
        self._grown.set()
