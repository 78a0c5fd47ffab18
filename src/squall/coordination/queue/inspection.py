"""The part of a queue for operators: statistics, results, cancel, purge, dead letters.

These calls read whole streams, so none of them is part of a ticket's way from its producer to its
worker. They work on any member, and must never change a ticket that is final.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence, Set

import msgspec

from squall.coordination.errors import BlockingTimeoutError, StateLostError, VersionConflict
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.queue.records import (
    FINAL_TTL_S,
    STREAM_TTL_S,
    Final,
    QueueKeys,
    QueueStats,
    Ticket,
    TicketState,
    TicketStateError,
)
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Append,
    Changed,
    Delete,
    Item,
    Put,
    Remove,
    Write,
)

PAGE = 500
MAX_PENDING = 100_000
# How late a caller of `result` learns that the store lost its data: nothing ends its wait then.
RESULT_SLICE_S = 5.0
FoundItem = tuple[str, Item]
"""An item and the stream that holds it."""


class QueueInspection(CoordinatorPlugin):
    """The calls of `Queue` for operators, and for producers that wait for a result."""

    def __init__(self, queue: str, *, max_pending: int = MAX_PENDING) -> None:
        super().__init__()
        self.keys = QueueKeys(queue)
        self._max_pending = max_pending

    async def stats(self) -> QueueStats:
        store = self.coordinator.parts.patient
        queued = await store.depth(self.keys.queued)
        ready = await store.depth(self.keys.ready)
        dead = await store.depth(self.keys.dead)
        found = QueueStats(
            pending=queued.items,
            published=ready.items - ready.held,
            claimed=ready.held,
            dead_letters=dead.items,
            oldest_s=max(queued.oldest_ms, ready.oldest_ms) / 1000.0,
        )
        if self.coordinator.is_coordinator:
            self._set_gauges(found)
        return found

    def clear_gauges(self) -> None:
        """Sets the gauges to zero: only the leader knows how full the queue is."""
        self._set_gauges(
            QueueStats(pending=0, published=0, claimed=0, dead_letters=0, oldest_s=0.0)
        )

    def _set_gauges(self, found: QueueStats) -> None:
        metrics, queue = self.coordinator.parts.metrics, self.keys.queue
        depth, age = metrics.families.queue_depth, metrics.families.queue_age_s
        metrics.gauge(depth, queue, "pending").set(found.pending)
        metrics.gauge(depth, queue, "published").set(found.published)
        metrics.gauge(depth, queue, "claimed").set(found.claimed)
        metrics.gauge(depth, queue, "dead_letter").set(found.dead_letters)
        metrics.gauge(age, queue).set(found.oldest_s)

    async def peek(self, limit: int = 100) -> list[Ticket]:
        """Open tickets: first the published and claimed ones, then the pending ones."""
        found: list[Ticket] = []
        for stream in (self.keys.ready, self.keys.queued):
            async for item in self._items(stream):
                if len(found) == limit:
                    return found
                ticket = self._ticket(item)
                if ticket is not None:
                    found.append(ticket)
        return found

    async def final(self, ticket_id: str) -> Final | None:
        """How the ticket ended; None while it is open, and again a day after its end."""
        final, _ = await self._final(ticket_id)
        return final

    async def _final(self, ticket_id: str) -> tuple[Final | None, str]:
        """With the version of the record, also of one that does not verify."""
        (found,) = await self.coordinator.parts.patient.get(self.keys.final(ticket_id))
        if found is None:
            return None, ""
        return self.coordinator.parts.codec.read(Final, found.value), found.version

    async def result(self, ticket_id: str, *, timeout_s: float = 600.0) -> Final:
        """Waits until the ticket is final. Raises `BlockingTimeoutError` after `timeout_s`, and
        `StateLostError` if the store lost its data, and with it the ticket."""
        parts, key = self.coordinator.parts, self.keys.final(ticket_id)
        clock, losses = parts.clock, parts.state_losses
        begun = clock.now()
        while True:
            final, seen = await self._final(ticket_id)
            if final is not None:
                return final
            left_s = begun + timeout_s - clock.now()
            if left_s <= 0.0:
                raise BlockingTimeoutError(
                    self.coordinator.member_id, ticket_id, clock.now() - begun, {}
                )
            if parts.state_losses != losses:
                losses = parts.state_losses
                # It is there if it was enqueued after the loss, before this member noticed that.
                if not await self._places({ticket_id}):
                    final, _ = await self._final(ticket_id)
                    if final is not None:
                        return final
                    raise StateLostError(f"the store lost data, and with it ticket {ticket_id}")
            await parts.patient.wait(Changed(key, seen), timeout_s=min(left_s, RESULT_SLICE_S))

    async def cancel(self, ticket_id: str) -> bool:
        """Cancels a ticket. Returns False if it is final already. A worker that holds it can no
        longer complete it."""
        places = (await self._places({ticket_id})).get(ticket_id, [])
        if not places and await self.final(ticket_id) is None:
            raise TicketStateError(f"queue {self.keys.queue} has no ticket {ticket_id}")
        ended = await self._end(ticket_id, "cancelled", places)
        if ended:
            await self._remove_moved({ticket_id})
        return ended

    async def purge(self) -> int:
        """Cancels every open ticket. Returns how many."""
        ended = {
            ticket_id
            for ticket_id, places in (await self._places()).items()
            if self._ticket(places[0][1]) is not None
            and await self._end(ticket_id, "cancelled", places)
        }
        if ended:
            await self._remove_moved(ended)
        return len(ended)

    async def dead_letters(self) -> AsyncIterator[tuple[Ticket, Final | None]]:
        """Tickets that failed too often, oldest first, with the end of their last attempt."""
        async for item in self._items(self.keys.dead):
            ticket = self._ticket(item)
            if ticket is not None:
                yield ticket, await self.final(ticket.ticket_id)

    async def redrive(self, ticket_id: str) -> str:
        """Enqueues a dead letter again. Its new id follows from the old one, so that a repeat
        enqueues it once."""
        async for item in self._items(self.keys.dead):
            ticket = self._ticket(item)
            if ticket is None or ticket.ticket_id != ticket_id:
                continue
            again = msgspec.structs.replace(
                ticket, ticket_id=f"{ticket_id}.r", not_before=0.0, start_before=0.0, epoch=0
            )
            writes: list[Write] = []
            if ticket.is_blob:
                (body,) = await self.coordinator.parts.patient.get(self.keys.payload(ticket_id))
                if body is not None:
                    key = self.keys.payload(again.ticket_id)
                    copy = Put(key, body.value, expect=ANY, ttl_s=STREAM_TTL_S, silent=True)
                    writes.append(copy)
            value = self.coordinator.parts.codec.encode(again, over=item.value)
            writes += [
                self.append_queued(again.ticket_id, value),
                Remove(self.keys.dead, item.cursor),
            ]
            if ticket.is_blob:
                writes.append(Delete(self.keys.payload(ticket_id), ANY))
            await self.coordinator.parts.patient.write(*writes)
            return again.ticket_id
        raise TicketStateError(f"queue {self.keys.queue} has no dead letter {ticket_id}")

    def append_queued(self, ticket_id: str, value: bytes) -> Append:
        """Enqueues an encoded ticket. A repeat changes nothing."""
        queued, limit = self.keys.queued, self._max_pending
        return Append(queued, ticket_id, value, ttl_s=STREAM_TTL_S, limit=limit)

    async def _end(self, ticket_id: str, state: TicketState, places: Sequence[FoundItem]) -> bool:
        """Ends a ticket. Returns False if it is final already. The leader may remember a ticket
        that waits for its time, so the final record outlives that time: else the leader would
        publish a cancelled ticket whose end is forgotten."""
        parts = self.coordinator.parts
        now = parts.store_time()
        final = Final(
            ticket_id=ticket_id,
            state=state,
            finished_by=self.coordinator.member_id,
            finished_at=now,
        )
        tickets = [ticket for _, item in places if (ticket := self._ticket(item)) is not None]
        waits_s = max((ticket.not_before - now for ticket in tickets), default=0.0)
        writes: list[Write] = [
            Put(
                self.keys.final(ticket_id),
                parts.codec.encode(final),
                expect=ABSENT,
                ttl_s=FINAL_TTL_S + max(0.0, waits_s),
            )
        ]
        if any(ticket.is_blob for ticket in tickets):
            writes.append(Delete(self.keys.payload(ticket_id), ANY))
        writes += [Remove(stream, item.cursor) for stream, item in places]
        try:
            await self.coordinator.parts.patient.write(*writes)
        except VersionConflict:
            return False
        return True

    async def _remove_moved(self, ended: Set[str]) -> None:
        """Removes what was published between the reading and the decision."""
        moved = await self._places(ended)
        for places in moved.values():
            await self.coordinator.parts.patient.write(
                *(Remove(stream, item.cursor) for stream, item in places)
            )

    async def _places(self, wanted: Set[str] | None = None) -> dict[str, list[FoundItem]]:
        """The items of these tickets, or of all open ones, by ticket id."""
        found: dict[str, list[FoundItem]] = {}
        for stream in (self.keys.queued, self.keys.ready):
            async for item in self._items(stream):
                if wanted is None or item.id in wanted:
                    found.setdefault(item.id, []).append((stream, item))
        return found

    async def _items(self, stream: str) -> AsyncIterator[Item]:
        after = ""
        while True:
            page = await self.coordinator.parts.patient.read(stream, after=after, limit=PAGE)
            for item in page:
                yield item
            if len(page) < PAGE:
                return
            after = page[-1].cursor

    def _ticket(self, item: Item) -> Ticket | None:
        return self.coordinator.parts.codec.read(Ticket, item.value)
