"""The leader's part of a queue: moves enqueued tickets to where workers take them.

All it knows comes from the store, so a successor continues where it stopped. Each publication is
one fenced batch: check that the ticket is not final, append it to `ready`, remove it from `queued`.
On S3, where batches are not atomic, a crash in between leaves the ticket in both streams; the next
leader appends it again under the same id, which changes nothing.

The publisher must never publish outside of its term, and never more than `window` tickets ahead: a
published ticket can no longer be overtaken by one of higher priority.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from squall.coordination.election.term import Term, write_library_records
from squall.coordination.election.while_leading import while_leading
from squall.coordination.errors import VersionConflict
from squall.coordination.member_parts import MemberParts
from squall.coordination.queue.publication_order import PendingTicket, PublicationOrder
from squall.coordination.queue.records import (
    FINAL_TTL_S,
    STREAM_TTL_S,
    Final,
    QueueKeys,
    Ticket,
    TicketFinished,
    TicketRefused,
    TicketsPublished,
    TicketState,
)
from squall.coordination.records.unknown_fields import has_unknown
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Append,
    Appended,
    Check,
    Delete,
    Item,
    Put,
    Remove,
    Write,
)

PAGE = 500
# Tickets in one batch: each has three writes, and a batch blocks the store while it runs.
BATCH = 50
# Tickets per turn on S3, where each costs several requests. Between turns the publisher sees which
# tickets ended, and a ticket that was just enqueued may have a higher priority.
UNATOMIC_BATCH = 8
# The longest wait for a reason to publish, and the interval of checks that nothing announces.
SLICE_S = 5.0
# Between two turns while tickets wait for room or for their predecessor: nothing announces that a
# ticket was taken or ended.
BUSY_S = 0.05
# The same where each poll is a paid request over the network.
BUSY_POLLED_S = 0.5
QUARANTINE_TTL_S = 3600.0
# Between two comparisons of the remembered tickets with the stream. It must be shorter than a final
# record lives: see `_forget_removed`.
COMPARE_S = FINAL_TTL_S / 2.0


def report_refused(parts: MemberParts, queue: str, item_id: str, reason: str) -> None:
    """Reports a ticket that does not verify: its producer may be waiting for it."""
    parts.bus.emit(TicketRefused(queue=queue, item_id=item_id, reason=reason))
    parts.log.warning("ticket_refused", queue=queue, ticket_id=item_id, reason=reason)


class Publisher:
    """Publishes the tickets of one queue during one term."""

    def __init__(self, parts: MemberParts, term: Term, keys: QueueKeys, window: int) -> None:
        self._parts = parts
        self._term = term
        self._keys = keys
        self._window = window
        self._cursor = ""
        self._order = PublicationOrder()
        self._held_back_checked_at = -math.inf
        self._compared_at = parts.clock.now()
        # How many tickets may be published before asking how many are ready. A lower bound:
        # tickets that workers took since then make more room.
        self._room = 0
        self._publish_max = window if parts.patient.capabilities.transactions else UNATOMIC_BATCH
        self._tasks = parts.tasks.group(f"queue {keys.queue}")
        waits = parts.patient.capabilities
        self._busy_s = BUSY_POLLED_S if waits.cross_host and not waits.blocking_wait else BUSY_S

    async def adopt(self) -> None:
        """Reads which tickets former leaders published."""
        async for item in self._items(self._keys.ready):
            ticket = self._parts.codec.read(Ticket, item.value)
            if ticket is not None:
                self._order.adopt(ticket)

    async def turn(self) -> None:
        """Publishes what can be published, and then waits for a reason to publish more."""
        await self._collect()
        now = self._parts.store_time()
        for entry in self._order.expired(now):
            await self._finish(entry, "expired")
        running = self._order.running
        if running:
            self._order.ended(await self._final_ids(running))
        await self._drop_cancelled_heads(now)
        await self._forget_removed()
        published = await self._publish(now)
        if published < min(BATCH, self._publish_max):
            await self._wait()

    async def _drop_cancelled_heads(self, now: float) -> None:
        """Drops cancelled tickets that wait for their time. Nothing announces a cancellation, and
        such a ticket blocks the others of its order key."""
        if self._parts.clock.now() - self._held_back_checked_at < SLICE_S:
            return
        self._held_back_checked_at = self._parts.clock.now()
        heads = {entry.ticket.ticket_id: entry for entry in self._order.blocking_heads(now)}
        for ticket_id in await self._final_ids(list(heads)) if heads else ():
            await self._drop(heads[ticket_id])

    async def _forget_removed(self) -> None:
        """Forgets remembered tickets that are no longer in the stream. A cancelled ticket is not,
        and when its final record expires after a day, nothing else keeps it from being
        published."""
        if self._parts.clock.now() - self._compared_at < COMPARE_S:
            return
        self._compared_at = self._parts.clock.now()
        there = {item.id async for item in self._items(self._keys.queued)}
        for entry in self._order.waiting:
            if entry.ticket.ticket_id not in there:
                self._order.dropped(entry.ticket.ticket_id)

    async def _final_ids(self, ticket_ids: Sequence[str]) -> list[str]:
        finals = await self._parts.patient.get(*map(self._keys.final, ticket_ids))
        return [each for each, final in zip(ticket_ids, finals, strict=True) if final is not None]

    async def _collect(self) -> None:
        async for item in self._items(self._keys.queued, self._cursor):
            self._cursor = item.cursor
            ticket = self._parts.codec.decode(Ticket, item.value)
            if isinstance(ticket, str):
                await self._refuse(item, ticket)
            else:
                more = has_unknown(Ticket, item.value)
                self._order.add(item.cursor, ticket, item.value if more else None)

    async def _items(self, stream: str, after: str = ""):
        while True:
            page = await self._parts.patient.read(stream, after=after, limit=PAGE)
            for item in page:
                yield item
            if len(page) < PAGE:
                return
            after = page[-1].cursor

    async def _publish(self, now: float) -> int:
        if not self._order.next(now, 1):
            return 0
        if self._room <= 0:
            # On S3 this costs a request for each ready ticket, so it is asked rarely.
            depth = await self._parts.patient.depth(self._keys.ready)
            self._room = self._window - (depth.items - depth.held)
        chosen = self._order.next(now, min(self._room, self._publish_max))
        count = 0
        for begin in range(0, len(chosen), BATCH):
            count += await self._publish_batch(chosen[begin : begin + BATCH])
        self._room -= count
        if count:
            self._parts.bus.emit(
                TicketsPublished(queue=self._keys.queue, epoch=self._term.epoch, count=count)
            )
        return count

    async def _publish_batch(self, entries: Sequence[PendingTicket]) -> int:
        """Publishes tickets in one batch. If one became final meanwhile, the batch fails on its
        record; it is dropped, and the others are tried again."""
        left = list(entries)
        while left:
            writes = [write for entry in left for write in self._publication(entry)]
            try:
                await write_library_records(self._term, *writes)
            except VersionConflict as conflict:
                gone = [each for each in left if self._final_key(each) == conflict.key]
                if not gone:
                    raise
                await self._drop(gone[0])
                left = [each for each in left if each is not gone[0]]
                continue
            for entry in left:
                self._order.published(entry.ticket.ticket_id)
            return len(left)
        return 0

    def _publication(self, entry: PendingTicket) -> tuple[Write, ...]:
        ticket = msgspec.structs.replace(entry.ticket, epoch=self._term.epoch)
        return (
            Check(self._final_key(entry), ABSENT),
            Append(
                self._keys.ready,
                ticket.ticket_id,
                self._parts.codec.encode(ticket, over=entry.value),
                ttl_s=STREAM_TTL_S,
                limit=1_000_000,
            ),
            Remove(self._keys.queued, entry.cursor),
        )

    async def _finish(self, entry: PendingTicket, state: TicketState) -> None:
        ticket = entry.ticket
        final = Final(
            ticket_id=ticket.ticket_id,
            state=state,
            finished_by=self._parts.member_id,
            finished_at=self._parts.store_time(),
        )
        writes: list[Write] = [
            Put(
                self._final_key(entry),
                self._parts.codec.encode(final),
                expect=ABSENT,
                ttl_s=FINAL_TTL_S,
            ),
            Remove(self._keys.queued, entry.cursor),
        ]
        if ticket.is_blob:
            writes.append(Delete(self._keys.payload(ticket.ticket_id), ANY))
        try:
            await write_library_records(self._term, *writes)
        except VersionConflict:
            await self._drop(entry)
            return
        self._order.dropped(ticket.ticket_id)
        self._parts.bus.emit(
            TicketFinished(
                queue=self._keys.queue, ticket_id=ticket.ticket_id, state=state, attempt=0
            )
        )

    async def _drop(self, entry: PendingTicket) -> None:
        """Removes a ticket that is final already."""
        await write_library_records(self._term, Remove(self._keys.queued, entry.cursor))
        self._order.dropped(entry.ticket.ticket_id)

    async def _refuse(self, item: Item, reason: str) -> None:
        await write_library_records(
            self._term,
            Put(
                self._keys.quarantine(item.id),
                item.value,
                expect=ANY,
                ttl_s=QUARANTINE_TTL_S,
                silent=True,
            ),
            Remove(self._keys.queued, item.cursor),
        )
        report_refused(self._parts, self._keys.queue, item.id, reason)

    async def _wait(self) -> None:
        now = self._parts.store_time()
        limit_s = SLICE_S
        if self._order.next(now, 1) or self._order.running:
            limit_s = self._busy_s
        next_at = self._order.next_at(now)
        if next_at is not None:
            limit_s = min(limit_s, max(self._busy_s, next_at - now))
        call = self._parts.patient.wait(
            Appended(self._keys.queued, self._cursor), timeout_s=limit_s
        )
        await while_leading(self._tasks, self._term, call)

    def _final_key(self, entry: PendingTicket) -> str:
        return self._keys.final(entry.ticket.ticket_id)
