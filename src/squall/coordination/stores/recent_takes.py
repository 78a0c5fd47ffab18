"""The last take of each owner, as long as it may be repeated. Pure: time is an argument.

Each loop that takes work is an owner of its own, and most owners never return. What they took must
not be kept longer than `TAKE_REMEMBERED_S`, or the memory would grow with every loop.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from squall.coordination.stores.interface import TAKE_REMEMBERED_S

T = TypeVar("T")
TAKE_REMEMBERED_MS = round(TAKE_REMEMBERED_S * 1000)


class RecentTakes(Generic[T]):
    """The recent takes of one stream, oldest first, so that expired ones are found at the front."""

    def __init__(self) -> None:
        self._takes: OrderedDict[str, tuple[int, str, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._takes)

    def find(self, owner: str, request: str, now_ms: int) -> T | None:
        """What was noted, if this was the owner's last request."""
        self._forget(now_ms)
        _, known, taken = self._takes.get(owner, (0, "", None))
        return taken if request and known == request else None

    def note(self, owner: str, request: str, taken: T, now_ms: int) -> None:
        self._takes[owner] = (now_ms, request, taken)
        self._takes.move_to_end(owner)

    def _forget(self, now_ms: int) -> None:
        while self._takes:
            owner, (taken_ms, _, _) = next(iter(self._takes.items()))
            if now_ms - taken_ms < TAKE_REMEMBERED_MS:
                return
            del self._takes[owner]
