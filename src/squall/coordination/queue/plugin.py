"""A queue for an application: producers enqueue, workers take, each ticket ends once.

    queue = Queue("mail")
    async with Coordinator(url, queue, secret=secret):
        ticket_id = await queue.enqueue({"to": "ada"})
        async for ticket in queue.claim():
            async with ticket:
                ticket.result = await send(ticket.payload)

This file is what people call. Order is in `dispatch`, publishing in `publisher`, the end of
a ticket in `claims`. Enqueuing needs no coordinator; with none, nothing is handed out.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from squall.coordination.errors import (
    ConfigurationError,
    CoordinationError,
    MemberFencedError,
    StaleClaimError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.events import Event
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.queue.claims import BACKOFF_S, JITTER, ClaimedTicket
from squall.coordination.queue.publisher import Publisher, refused
from squall.coordination.queue.reading import QueueReading
from squall.coordination.queue.records import (
    DEDUP_TTL_S,
    FINAL_TTL_S,
    INLINE_MAX_BYTES,
    STREAM_TTL_S,
    Final,
    Ticket,
    TicketClaimed,
    TicketFinished,
    encoded_given,
)
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Append,
    Claim,
    Put,
    Remove,
    Takeable,
    Write,
)

VISIBILITY_S = 30.0
IDLE_S = 5.0
COUNT_S = 15.0
COUNT_AFAR_S = 60.0
"""Between two looks at how full the queue is, for the metrics."""
ID_BYTES = 8


class Queue(QueueReading, CoordinatorPlugin):
    """One queue; give it to the `Coordinator` of every member that uses it.

    `visibility_timeout`: how long a claim lasts that nobody renews; not above `dead_after`, so
    that the claims of a dead member have run out by its death. `window`: how many tickets
    stand ready to be taken; only what is not published yet can be overtaken by priority."""

    def __init__(
        self,
        queue: str = "default",
        *,
        visibility_timeout: float | None = None,
        max_attempts: int = 3,
        max_pending: int = 100_000,
        window: int = 200,
        retry_base: float = 1.0,
    ) -> None:
        super().__init__(queue)
        self.name = f"queue {queue}"
        self.work_interval = 0.001
        if max_attempts < 1 or window < 1 or max_pending < 1:
            raise ConfigurationError(
                "max_attempts, window and max_pending of a queue must be at least 1"
            )
        self._given_visibility = visibility_timeout
        self.visibility_timeout = visibility_timeout or VISIBILITY_S
        self.max_attempts = max_attempts
        self._max_pending = max_pending
        self._window = window
        self._retry_base = retry_base
        self._renewed: dict[ClaimedTicket, None] = {}
        self._publisher: Publisher | None = None
        self._owners = 0
        self._stopping = False
        self._counted_at = -math.inf

    # Producers.

    async def enqueue(
        self,
        payload: Any = None,
        *,
        priority: int = 0,
        order_key: str = "",
        delay: float = 0.0,
        start_within: float | None = None,
        dedup_id: str = "",
        max_attempts: int | None = None,
    ) -> str:
        """The id of the ticket, which is in the store when this returns. With a `dedup_id`
        that was used within 24 h, the id of the first one. `delay` and `start_within` count
        seconds from now; a ticket that nobody took by then expires."""
        _check_kinds(
            ("priority", priority, int),
            ("order_key", order_key, str),
            ("delay", delay, (int, float)),
            ("start_within", start_within, (int, float, type(None))),
            ("dedup_id", dedup_id, str),
            ("max_attempts", max_attempts, (int, type(None))),
        )
        parts = self.coordinator.parts
        now = parts.store_time()
        ticket = Ticket(
            ticket_id=f"t-{parts.runtime.entropy(ID_BYTES).hex()}",
            queue=self.keys.queue,
            payload=payload,
            priority=priority,
            order_key=order_key,
            not_before=now + delay if delay > 0.0 else 0.0,
            start_before=now + start_within if start_within is not None else 0.0,
            max_attempts=self.max_attempts if max_attempts is None else max_attempts,
            created_at=now,
        )
        if ticket.max_attempts < 1:
            raise ConfigurationError(f"max_attempts is {max_attempts}: it must be at least 1")
        if dedup_id:
            return await self._enqueue_once(ticket, dedup_id)
        await self.coordinator.store.write(*self.enqueue_writes(ticket))
        return ticket.ticket_id

    def enqueue_writes(self, ticket: Ticket) -> list[Write]:
        """The writes of an enqueue, for a batch of somebody else. A repeat changes nothing."""
        writes: list[Write] = []
        body = encoded_given("payload", ticket.payload)
        if len(body) > INLINE_MAX_BYTES:
            key = self.keys.payload(ticket.ticket_id)
            writes.append(Put(key, body, expect=ANY, ttl_s=STREAM_TTL_S, silent=True))
            ticket = msgspec.structs.replace(ticket, payload=None, is_blob=True)
        value = self.coordinator.parts.codec.encode(ticket)
        writes.append(
            Append(
                self.keys.queued,
                ticket.ticket_id,
                value,
                ttl_s=STREAM_TTL_S,
                limit=self._max_pending,
            )
        )
        return writes

    async def _enqueue_once(self, ticket: Ticket, dedup_id: str) -> str:
        """The record of the id says which ticket was made for it. It ends before the end of
        that ticket is forgotten, so the next ticket must not have the same id."""
        store, key = self.coordinator.store, self.keys.dedup(dedup_id)
        first = Put(key, ticket.ticket_id.encode(), expect=ABSENT, ttl_s=DEDUP_TTL_S)
        writes = self.enqueue_writes(ticket)
        while True:
            try:
                await store.write(first, *writes)
                return ticket.ticket_id
            except VersionConflict:
                (found,) = await store.get(key)
            if found is not None:
                break
            # Its time ended between the two calls: this one is the first again.
        named = found.value.decode()
        if not store.capabilities.transactions and await self.final(named) is None:
            # The first one may have died between its writes; if not, a repeat changes nothing.
            again = msgspec.structs.replace(ticket, ticket_id=named)
            await store.write(*self.enqueue_writes(again))
        return named

    # Workers.

    async def claim(self, *, batch: int = 1) -> AsyncGenerator[ClaimedTicket]:
        """Tickets for this member, for ever; `batch` are asked for at a time and held from
        then on. Those that were not handed out go back when the loop is left."""
        self._owners += 1
        number, got = self._owners, list[Claim]()
        try:
            while not self._stopping:
                owner = f"{self.coordinator.member_id}.{self.coordinator.incarnation}.{number}"
                got += await self._take(owner, batch)
                while got:
                    ticket = await self._opened(got.pop(0))
                    if ticket is not None:
                        yield ticket
        finally:
            for left in got:
                await self._give_back(left)

    async def consume(
        self, handler: Callable[[Any], Awaitable[Any]], *, concurrency: int = 1
    ) -> None:
        """Calls `handler(payload)` for each ticket, until cancelled. What it returns is the
        result; what it raises fails the ticket."""

        tasks = self.coordinator.parts.tasks
        started = [
            tasks.start(f"worker of {self.keys.queue}", self._work(handler))
            for _ in range(concurrency)
        ]
        running = [token.task for token in started if token.task is not None]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()

    async def _work(self, handler: Callable[[Any], Awaitable[Any]]) -> None:
        while not self._stopping:
            try:
                async with contextlib.aclosing(self.claim()) as tickets:
                    async for ticket in tickets:
                        async with ticket:
                            ticket.result = await handler(ticket.payload)
            except StoreUnavailableError:
                await self.coordinator.parts.clock.sleep(self.coordinator.timing.work_interval)
            except (StaleClaimError, MemberFencedError):
                continue

    async def _take(self, owner: str, batch: int) -> list[Claim]:
        """The dead are given nothing: they wait until they are registered anew."""
        coordinator, ready = self.coordinator, self.keys.ready
        store, lease_s, alive = coordinator.store, self.visibility_timeout, coordinator.alive_check
        claims: Sequence[Claim] | None = None
        if not coordinator.isolated:
            with contextlib.suppress(VersionConflict):
                claims = await store.take(
                    ready, owner, lease_s=lease_s, limit=batch, provided=alive
                )
        if claims is None:
            await coordinator.parts.clock.sleep(coordinator.timing.heartbeat_interval)
            return []
        if not claims:
            await store.wait(Takeable(ready), timeout_s=IDLE_S)
        task = asyncio.current_task()
        if not claims and task is not None and task.cancelling():
            # A client that was answered in the very moment of a cancellation may swallow it.
            raise asyncio.CancelledError
        return list(claims)

    async def _opened(self, claim: Claim) -> ClaimedTicket | None:
        """None if it is not to be worked on; then it is out of the way."""
        parts = self.coordinator.parts
        ticket = parts.codec.decode(Ticket, claim.item.value)
        if isinstance(ticket, str):
            await self._remove(claim)
            refused(parts, self.keys.queue, claim.item.id, ticket)
            return None
        checks = not self.coordinator.store.capabilities.transactions
        if checks and await self.final(ticket.ticket_id) is not None:
            await self._remove(claim)
            return None
        payload = ticket.payload
        if ticket.is_blob:
            (found,) = await self.coordinator.store.get(self.keys.payload(ticket.ticket_id))
            payload = None if found is None else msgspec.json.decode(found.value)
        claimed = ClaimedTicket(self, ticket, claim, payload)
        self._renewed[claimed] = None
        if claim.attempt > ticket.max_attempts:
            return await self._given_up(claimed)
        if claim.attempt == 1 and 0.0 < ticket.start_before < parts.store_time():
            return await self._expire(claimed)
        metrics = parts.metrics
        metrics.counter(metrics.families.claims, self.keys.queue).add()
        self.tell(
            TicketClaimed(queue=self.keys.queue, ticket_id=ticket.ticket_id, attempt=claim.attempt)
        )
        return claimed

    async def _given_up(self, claimed: ClaimedTicket) -> None:
        """Its last attempt ended without a word: the worker died, or was too slow."""
        with contextlib.suppress(CoordinationError):
            await claimed.give_up("the claim of the last attempt ran out")

    async def _expire(self, claimed: ClaimedTicket) -> None:
        with contextlib.suppress(CoordinationError):
            await claimed.expire()

    async def _remove(self, claim: Claim) -> None:
        with contextlib.suppress(StaleClaimError):
            cursor = claim.item.cursor
            await self.coordinator.store.write(Remove(self.keys.ready, cursor, claim.claim))

    async def _give_back(self, claim: Claim) -> None:
        ticket = self.coordinator.parts.codec.read(Ticket, claim.item.value)
        if ticket is not None:
            with contextlib.suppress(CoordinationError):
                await ClaimedTicket(self, ticket, claim, None).release()

    # What claims tell the queue.

    def backoff_s(self, attempt: int) -> float:
        base = BACKOFF_S[min(attempt, len(BACKOFF_S)) - 1] * self._retry_base
        return base * self.coordinator.parts.random.uniform(1.0 - JITTER, 1.0 + JITTER)

    def tell(self, event: Event) -> None:
        self.coordinator.parts.bus.emit(event)

    def finished(self, event: TicketFinished) -> None:
        metrics = self.coordinator.parts.metrics
        metrics.counter(metrics.families.finished, self.keys.queue, event.state).add()
        self.tell(event)

    def stop_renewing(self, ticket: ClaimedTicket) -> None:
        self._renewed.pop(ticket, None)

    async def set_aside(self, final: Final, claim: Claim) -> None:
        """The result of an attempt that came too late, for people. If this claim still holds
        the ticket, it was ended by another hand and leaves the stream."""
        key = self.keys.late(final.ticket_id, final.attempt)
        value = self.coordinator.parts.codec.encode(final)
        with contextlib.suppress(CoordinationError):
            await self.coordinator.store.write(
                Put(key, value, expect=ANY, ttl_s=FINAL_TTL_S, silent=True)
            )
            if await self.final(final.ticket_id) is not None:
                await self._remove(claim)

    # The life of the plugin.

    async def on_start(self) -> None:
        timing = self.coordinator.timing
        if self._given_visibility is None:
            self.visibility_timeout = min(VISIBILITY_S, timing.dead_after)
        elif not 0.0 < self._given_visibility <= timing.dead_after:
            raise ConfigurationError(
                f"visibility_timeout is {self._given_visibility!r}: it must be above 0 and not"
                f" above dead_after ({timing.dead_after:g}), claims are renewed while work lasts;"
                f" visibility_timeout={min(VISIBILITY_S, timing.dead_after):g} is right"
            )
        self.coordinator.parts.tasks.every(
            f"claims of {self.keys.queue}", self.visibility_timeout / 3.0, self._renew
        )

    async def _renew(self) -> None:
        for ticket in list(self._renewed):
            if ticket not in self._renewed:
                continue
            try:
                await ticket.extend()
            except StaleClaimError:
                ticket.lost()

    async def on_stop(self) -> None:
        self._stopping = True
        for ticket in list(self._renewed):
            with contextlib.suppress(CoordinationError):
                await ticket.release()

    async def on_become_coordinator(self) -> None:
        self._counted_at = -math.inf
        self._publisher = Publisher(self.coordinator.parts, self.term, self.keys, self._window)
        await self._publisher.adopt()

    async def coordinator_work(self) -> None:
        if self._publisher is not None:
            await self._count()
            await self._publisher.turn()

    async def on_stop_being_coordinator(self) -> None:
        self._publisher = None
        self.forget_figures()

    async def _count(self) -> None:
        """On the coordinator only: the gauges say how full the queue is."""
        waits = self.coordinator.store.capabilities
        is_afar = waits.cross_host and not waits.blocking_wait
        now = self.coordinator.parts.clock.now()
        if now - self._counted_at >= (COUNT_AFAR_S if is_afar else COUNT_S):
            self._counted_at = now
            await self.stats()


def _check_kinds(*given: tuple[str, object, type | tuple[type, ...]]) -> None:
    """A ticket that does not decode would be refused where nobody waits for it."""
    for name, value, kinds in given:
        if not isinstance(value, kinds):
            known = (kinds,) if isinstance(kinds, type) else kinds
            named = " or ".join("None" if each is type(None) else each.__name__ for each in known)
            raise ConfigurationError(f"{name} is {value!r}: it must be {named}")
