"""The tombstones of senders, as this process last read them.

A signal is judged by the tombstone of its sender in this cache. The version that was used stays
with the signal: the delivered batch checks it, and fails if the sender was declared dead since.
"""

from __future__ import annotations

from squall.coordination.records.schemas import Codec, Tombstone
from squall.coordination.stores.interface import ABSENT, Condition, Record

# Senders. Beyond it the cache is emptied, and the store is asked again.
KEPT_MAX = 10_000


class TombstoneCache:
    """Maps a sender to the version and the content of its tombstone."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._known: dict[str, tuple[Condition, Tombstone | None]] = {}

    def __contains__(self, sender_id: str) -> bool:
        return sender_id in self._known

    def version(self, sender_id: str) -> Condition:
        return self._known[sender_id][0]

    def tombstone(self, sender_id: str) -> Tombstone | None:
        return self._known[sender_id][1]

    def note(self, sender_id: str, found: Record | None) -> None:
        """Stores what was just read; None if the sender has no tombstone."""
        self._known[sender_id] = (
            (ABSENT, None)
            if found is None
            else (found.version, self._codec.read(Tombstone, found.value))
        )

    def agrees_with(self, sender_id: str, version: str) -> bool:
        """Whether a version that the store pushed, "" for no tombstone, is the cached one. Of a
        sender that is not cached, "" is all there is to know, and is cached."""
        if not version:
            self._known.setdefault(sender_id, (ABSENT, None))
        return sender_id in self._known and self.version(sender_id) == (version or ABSENT)

    def trim(self) -> None:
        """Empties a cache that is too large. Only between two readings: the signals of one reading
        rely on what was cached for them."""
        if len(self._known) > KEPT_MAX:
            self._known.clear()
