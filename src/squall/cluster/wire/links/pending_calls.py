"""The requests of one channel that wait for their answers. Pure: the owner has the clock.

It gives each request its correlation and finds the requests whose deadline has passed. An
answer is joined to its request at most once; a second one is late.
"""

from __future__ import annotations

from math import inf
from typing import Generic, TypeVar

from squall.cluster.wire.header import CORRELATION_MAX
from squall.cluster.wire.links.outbox import QueuedMessage

W = TypeVar("W")


class Call(Generic[W]):
    """One request: `waiter` gets the answer, `queued` is set until the request has left."""

    __slots__ = ("correlation", "deadline", "queued", "waiter")

    def __init__(self, waiter: W, correlation: int, deadline: float) -> None:
        self.waiter = waiter
        self.correlation = correlation
        self.deadline = deadline
        self.queued: QueuedMessage | None = None


class Calls(Generic[W]):
    def __init__(self) -> None:
        self.pending: dict[int, Call[W]] = {}
        self._last = 0
        # A lower bound of all deadlines: cheap to maintain, and enough to set the timer.
        self.earliest = inf

    def open(self, waiter: W, deadline: float) -> Call[W]:
        pending = self.pending
        correlation = self._last % CORRELATION_MAX + 1
        while correlation in pending:
            correlation = correlation % CORRELATION_MAX + 1
        self._last = correlation
        call = pending[correlation] = Call(waiter, correlation, deadline)
        if deadline < self.earliest:
            self.earliest = deadline
        return call

    def expired(self, now: float) -> list[Call[W]]:
        """Removes and returns the calls whose deadline has passed."""
        over = [call for call in self.pending.values() if call.deadline <= now]
        for call in over:
            del self.pending[call.correlation]
        self.earliest = min((call.deadline for call in self.pending.values()), default=inf)
        return over

    def clear(self) -> list[Call[W]]:
        left = list(self.pending.values())
        self.pending.clear()
        self.earliest = inf
        return left
