"""What is known here of the tombstones of senders.

A signal is judged by the tombstone of its sender as it was last read, and which version that was
is kept with it: the delivered step fails if there is another one by then.
"""

from __future__ import annotations

from squall.coordination.records import Codec, Tombstone
from squall.coordination.stores.interface import ABSENT, Condition, Record

KEPT_MAX = 10_000


class Graves:
    """By sender, the version of its tombstone and what it said when it was last read."""

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
        """As it was just read."""
        self._known[sender_id] = (
            (ABSENT, None)
            if found is None
            else (found.version, self._codec.read(Tombstone, found.value))
        )

    def is_as_told(self, sender_id: str, version: str) -> bool:
        """Whether a version that somebody told, "" for none, is the one that is known."""
        if not version:
            self._known.setdefault(sender_id, (ABSENT, None))
        return sender_id in self._known and self.version(sender_id) == (version or ABSENT)

    def trim(self) -> None:
        """Only between two readings: what is judged relies on what is in it."""
        if len(self._known) > KEPT_MAX:
            self._known.clear()
