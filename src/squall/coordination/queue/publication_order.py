"""Decides which tickets are published next. Pure: time and room are arguments.

Higher priority goes first, then the order of enqueuing. Of the tickets with one `order_key`, at
most one is published at a time, and always the first that is left. A ticket must never be offered
while an earlier one of its key is not final.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from squall.coordination.queue.records import Ticket


class PendingTicket(msgspec.Struct, frozen=True):
    """An enqueued ticket that is not published yet."""

    number: int
    """Its place in the order of enqueuing."""
    cursor: str
    ticket: Ticket
    value: bytes | None = None
    """The bytes as enqueued, if they have fields that this version does not know: publishing must
    keep them."""


class PublicationOrder:
    """The pending tickets of one queue, as one leader knows them during its term."""

    def __init__(self) -> None:
        self._waiting: dict[str, PendingTicket] = {}
        # By order key, the published ticket that blocks the others of that key until it is final.
        self._running: dict[str, str] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> Sequence[PendingTicket]:
        return tuple(self._waiting.values())

    @property
    def running(self) -> Sequence[str]:
        """Published tickets that block others of their order key."""
        return tuple(self._running.values())

    def blocking_heads(self, now: float) -> list[PendingTicket]:
        """Tickets that wait for their time and block others of their key meanwhile."""
        first: dict[str, PendingTicket] = {}
        found: dict[str, PendingTicket] = {}
        for entry in self._waiting.values():
            key = entry.ticket.order_key
            if key and first.setdefault(key, entry) is not entry:
                found[key] = first[key]
        return [entry for entry in found.values() if entry.ticket.not_before > now]

    def add(self, cursor: str, ticket: Ticket, value: bytes | None = None) -> None:
        self._numbers += 1
        self._waiting[ticket.ticket_id] = PendingTicket(self._numbers, cursor, ticket, value)

    def adopt(self, ticket: Ticket) -> None:
        """A former leader published it."""
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

    def expired(self, now: float) -> list[PendingTicket]:
        return [entry for entry in self._waiting.values() if 0.0 < entry.ticket.start_before <= now]

    def next(self, now: float, room: int) -> list[PendingTicket]:
        """Up to `room` tickets, in the order of publication."""
        if room <= 0:
            return []
        free: list[PendingTicket] = []
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
        """When the next pending ticket becomes due or expires."""
        times = [
            at
            for entry in self._waiting.values()
            for at in (entry.ticket.not_before, entry.ticket.start_before)
            if at > now
        ]
        return min(times, default=None)
