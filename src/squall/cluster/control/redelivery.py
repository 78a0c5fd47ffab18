"""When the messages of an outbox are due. An outbox is derived from committed state, so it names
the same messages again and again until the state says that they are no longer needed; this
remembers which of them are under way, which were answered, and which have failed how often. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from squall.runtime.backoff import Backoff


@dataclass
class _Sending:
    due: float = 0.0
    """When it is sent next; infinity while it is under way or needs no repetition."""
    failures: int = 0


class Redelivery:
    """The sending state of every message of an outbox, by its tag."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._sending: dict[str, _Sending] = {}

    def is_due(self, tag: str, now: float) -> bool:
        known = self._sending.get(tag)
        return known is None or now >= known.due

    def sent(self, tag: str) -> None:
        """It is under way: `answered` or `failed` follows."""
        self._sending.setdefault(tag, _Sending()).due = math.inf

    def answered(self, tag: str, now: float, again_s: float = math.inf) -> None:
        """It was received; it is sent again after `again_s` if it is still needed then."""
        self._sending[tag] = _Sending(due=now + again_s)

    def failed(self, tag: str, now: float) -> None:
        known = self._sending.setdefault(tag, _Sending())
        known.failures += 1
        known.due = now + self._backoff.delay_s(known.failures)

    def retain(self, tags: Iterable[str]) -> None:
        """Forgets the messages that are no longer needed."""
        wanted = set(tags)
        for tag in [tag for tag in self._sending if tag not in wanted]:
            del self._sending[tag]

    def next_due(self) -> float:
        """When the next of the messages that were named before is due; infinity: none is."""
        return min((each.due for each in self._sending.values()), default=math.inf)
