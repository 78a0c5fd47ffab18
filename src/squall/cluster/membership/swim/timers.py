"""The timers of one member: a heap of calls, all of which move when the process stood still."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import count


class TimerHeap:
    """Calls in the order of their times, equal times in the order of their making."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def at(self, when: float, call: Callable[[], object]) -> None:
        heapq.heappush(self._heap, (when, next(self._numbers), call))

    @property
    def first(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> Iterator[Callable[[], object]]:
        """The calls up to `now`; those that they make are due with the next tick at the
        earliest, so a call that repeats itself cannot hold up the process."""
        last = next(self._numbers)
        while self._heap and self._heap[0][0] <= now and self._heap[0][1] < last:
            yield heapq.heappop(self._heap)[2]

    def move(self, by_s: float) -> None:
        """Adding one number to all keeps the heap in order."""
        self._heap = [(when + by_s, number, call) for when, number, call in self._heap]
