"""Which tickets are published next. Pure: time and room are arguments.

It holds the tickets that were enqueued and not published yet, in their order. Priority goes
first, then the order of the queue. Of the tickets with one `order_key` at most one is
published at a time, and always the first of those that are left. It must never offer a ticket
whose predecessor of the same key is not final.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from squall.coordination.queue.records import Ticket


class Waiting(msgspec.Struct, frozen=True):
    """A ticket and its place in the stream of the producers."""

    number: int
    cursor: str
    ticket: Ticket
    value: bytes | None = None
    """As it was enqueued, if it says more than this version knows."""


class Dispatcher:
    """Of one queue and one term."""

    def __init__(self) -> None:
        self._waiting: dict[str, Waiting] = {}
        self._running: dict[str, str] = {}
        """Order key to the ticket that was published for it."""
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> Sequence[Waiting]:
        return tuple(self._waiting.values())

    @property
    def running(self) -> Sequence[str]:
        """Published tickets whose end lets another one go."""
        return tuple(self._running.values())

    def holding_back(self, now: float) -> list[Waiting]:
        """Tickets that wait for their time while others of their key wait for them."""
        first: dict[str, Waiting] = {}
        found: dict[str, Waiting] = {}
        for entry in self._waiting.values():
            key = entry.ticket.order_key
            if key and first.setdefault(key, entry) is not entry:
                found[key] = first[key]
        return [entry for entry in found.values() if entry.ticket.not_before > now]

    def add(self, cursor: str, ticket: Ticket, value: bytes | None = None) -> None:
        self._numbers += 1
        self._waiting[ticket.ticket_id] = Waiting(self._numbers, cursor, ticket, value)

    def adopt(self, ticket: Ticket) -> None:
        """It was published by a coordinator before."""
        if ticket.order_key:
            self._running[ticket.order_key] = ticket.ticket_id

    def published(self, ticket_id: str) -> None:
        entry = self._waiting.pop(ticket_id, None)
        if entry is not None and entry.ticket.order_key:
            self._running[entry.ticket.order_key] = ticket_id

    def dropped(self, ticket_id: str) -> None:
        self._waiting.pop(ticket_id, None)

    def ended(self, ticket_ids: Iterable[str]) -> None:
        ended = set(ticket_ids)
        self._running = {key: each for key, each in self._running.items() if each not in ended}

    def expired(self, now: float) -> list[Waiting]:
        return [entry for entry in self._waiting.values() if 0.0 < entry.ticket.start_before <= now]

    def next(self, now: float, room: int) -> list[Waiting]:
        """Up to `room` tickets, in the order in which they are to be published."""
        if room <= 0:
            return []
        free: list[Waiting] = []
        keys = set(self._running)
        for entry in self._waiting.values():
            key = entry.ticket.order_key
            if key:
                if key in keys:
                    continue
                keys.add(key)
            if entry.ticket.not_before <= now:
                free.append(entry)
        free.sort(key=lambda entry: (-entry.ticket.priority, entry.number))
        return free[:room]

    def next_at(self, now: float) -> float | None:
        """When a ticket that waits for its time becomes due, or expires."""
        times = [
            at
            for entry in self._waiting.values()
            for at in (entry.ticket.not_before, entry.ticket.start_before)
            if at > now
        ]
        return min(times, default=None)
