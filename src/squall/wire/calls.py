"""Requests that wait for their answers, of one link. Pure: the owner has the clock.

Decides which correlation a request gets and which requests are over time. An answer is
joined to its request at most once; whatever comes later is late.
"""

from __future__ import annotations

from math import inf
from typing import Generic, TypeVar

from squall.wire.header import CORRELATION_MAX
from squall.wire.outbox import Entry

W = TypeVar("W")


class Call(Generic[W]):
    """`waiter` is whoever waits; `queued` the entry while the request has not left."""

    __slots__ = ("correlation", "deadline", "queued", "waiter")

    def __init__(self, waiter: W, correlation: int, deadline: float) -> None:
        self.waiter = waiter
        self.correlation = correlation
        self.deadline = deadline
        self.queued: Entry | None = None


class Calls(Generic[W]):
    def __init__(self) -> None:
        self.pending: dict[int, Call[W]] = {}
        self._last = 0
        self.earliest = inf
        """No call is over time before it: a lower bound, cheap to keep."""

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
        """Removes and gives the calls whose time is over."""
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
