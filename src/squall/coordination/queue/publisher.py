"""The coordinator's part of a queue: it turns what was enqueued into tickets to be taken.

Everything it knows comes from the store, so that a successor goes on where it stopped. Each
publication is one fenced batch: check that the ticket is not final, append it to `ready`,
remove it from `queued`. Where batches are not atomic a crash in between leaves it in both;
the next coordinator appends it again under the same id, which changes nothing.

It must never publish outside of its term, nor hold more than `window` tickets ready: what is
published can no longer be overtaken by a higher priority.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from squall.coordination.assembly import Assembly
from squall.coordination.errors import VersionConflict
from squall.coordination.keeping import has_unknown
from squall.coordination.queue.dispatch import Dispatcher, Waiting
from squall.coordination.queue.records import (
    FINAL_TTL_S,
    STREAM_TTL_S,
    Final,
    QueueKeys,
    State,
    Ticket,
    TicketFinished,
    TicketRefused,
    TicketsPublished,
)
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
from squall.coordination.terms import Term
from squall.coordination.waits import while_leading

PAGE = 500
BATCH = 50
FEW = 8
"""Published in one turn where each is several requests: in between, what has ended lets the next
one of its key go, and what came since may have priority."""
SLICE_S = 5.0
BUSY_S = 0.05
"""Between two looks while tickets wait for room or for their predecessor."""
BUSY_POLLING_S = 0.5
QUARANTINE_TTL_S = 3600.0
COMPARED_S = FINAL_TTL_S / 2.0
"""Between two comparisons of what is remembered with what is there."""


def refused(parts: Assembly, queue: str, item_id: str, reason: str) -> None:
    """A ticket that cannot be believed: its producer may wait for it."""
    parts.bus.emit(TicketRefused(queue=queue, item_id=item_id, reason=reason))
    parts.log.warning("ticket_refused", queue=queue, ticket_id=item_id, reason=reason)


class Publisher:
    """Of one queue and one term."""

    def __init__(self, parts: Assembly, term: Term, keys: QueueKeys, window: int) -> None:
        self._parts = parts
        self._term = term
        self._keys = keys
        self._window = window
        self._cursor = ""
        self._known = Dispatcher()
        self._looked_at = -math.inf
        self._compared_at = parts.clock.now()
        self._room = 0
        """For so many there is room at least: what is taken since makes it more."""
        self._most = window if parts.patient.capabilities.transactions else FEW
        self._tasks = parts.tasks.group(f"queue {keys.queue}")
        waits = parts.patient.capabilities
        self._busy_s = BUSY_POLLING_S if waits.cross_host and not waits.blocking_wait else BUSY_S

    async def adopt(self) -> None:
        """Reads what predecessors published."""
        async for item in self._items(self._keys.ready):
            ticket = self._parts.codec.read(Ticket, item.value)
            if ticket is not None:
                self._known.adopt(ticket)

    async def turn(self) -> None:
        """One round, and then a wait for the next cause."""
        await self._collect()
        now = self._parts.store_time()
        for entry in self._known.expired(now):
            await self._finish(entry, "expired")
        running = self._known.running
        if running:
            self._known.ended(await self._final_ones(running))
        await self._look_at_held_back(now)
        await self._forget_removed()
        published = await self._publish(now)
        if published < min(BATCH, self._most):
            await self._wait()

    async def _look_at_held_back(self, now: float) -> None:
        """Nobody tells that a ticket was cancelled which waits for its time."""
        if self._parts.clock.now() - self._looked_at < SLICE_S:
            return
        self._looked_at = self._parts.clock.now()
        heads = {entry.ticket.ticket_id: entry for entry in self._known.holding_back(now)}
        for ticket_id in await self._final_ones(list(heads)) if heads else ():
            await self._drop(heads[ticket_id])

    async def _forget_removed(self) -> None:
        """A ticket that was cancelled is not in the stream any more, and after a day nothing else
        says so: what is remembered here must not be published then."""
        if self._parts.clock.now() - self._compared_at < COMPARED_S:
            return
        self._compared_at = self._parts.clock.now()
        there = {item.id async for item in self._items(self._keys.queued)}
        for entry in self._known.waiting:
            if entry.ticket.ticket_id not in there:
                self._known.dropped(entry.ticket.ticket_id)

    async def _final_ones(self, ticket_ids: Sequence[str]) -> list[str]:
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
                self._known.add(item.cursor, ticket, item.value if more else None)

    async def _items(self, stream: str, after: str = ""):
        while True:
            page = await self._parts.patient.read(stream, after=after, limit=PAGE)
            for item in page:
                yield item
            if len(page) < PAGE:
                return
            after = page[-1].cursor

    async def _publish(self, now: float) -> int:
        if not self._known.next(now, 1):
            return 0
        if self._room <= 0:
            # On S3 that is a request for each ticket that is out.
            depth = await self._parts.patient.depth(self._keys.ready)
            self._room = self._window - (depth.items - depth.held)
        chosen = self._known.next(now, min(self._room, self._most))
        count = 0
        for begin in range(0, len(chosen), BATCH):
            count += await self._publish_batch(chosen[begin : begin + BATCH])
        self._room -= count
        if count:
            self._parts.bus.emit(
                TicketsPublished(queue=self._keys.queue, epoch=self._term.epoch, count=count)
            )
        return count

    async def _publish_batch(self, entries: Sequence[Waiting]) -> int:
        """One that became final meanwhile is dropped, the others go out."""
        left = list(entries)
        while left:
            writes = [write for entry in left for write in self._publication(entry)]
            try:
                await self._term.write(*writes)
            except VersionConflict as conflict:
                gone = [each for each in left if self._final_key(each) == conflict.key]
                if not gone:
                    raise
                await self._drop(gone[0])
                left = [each for each in left if each is not gone[0]]
                continue
            for entry in left:
                self._known.published(entry.ticket.ticket_id)
            return len(left)
        return 0

    def _publication(self, entry: Waiting) -> tuple[Write, ...]:
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

    async def _finish(self, entry: Waiting, state: State) -> None:
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
            await self._term.write(*writes)
        except VersionConflict:
            await self._drop(entry)
            return
        self._known.dropped(ticket.ticket_id)
        self._parts.bus.emit(
            TicketFinished(
                queue=self._keys.queue, ticket_id=ticket.ticket_id, state=state, attempt=0
            )
        )

    async def _drop(self, entry: Waiting) -> None:
        """It is final already."""
        await self._term.write(Remove(self._keys.queued, entry.cursor))
        self._known.dropped(entry.ticket.ticket_id)

    async def _refuse(self, item: Item, reason: str) -> None:
        await self._term.write(
            Put(
                self._keys.quarantine(item.id),
                item.value,
                expect=ANY,
                ttl_s=QUARANTINE_TTL_S,
                silent=True,
            ),
            Remove(self._keys.queued, item.cursor),
        )
        refused(self._parts, self._keys.queue, item.id, reason)

    async def _wait(self) -> None:
        now = self._parts.store_time()
        limit_s = SLICE_S
        if self._known.next(now, 1) or self._known.running:
            limit_s = self._busy_s
        next_at = self._known.next_at(now)
        if next_at is not None:
            limit_s = min(limit_s, max(self._busy_s, next_at - now))
        call = self._parts.patient.wait(
            Appended(self._keys.queued, self._cursor), timeout_s=limit_s
        )
        await while_leading(self._tasks, self._term, call)

    def _final_key(self, entry: Waiting) -> str:
        return self._keys.final(entry.ticket.ticket_id)
