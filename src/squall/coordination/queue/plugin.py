"""A queue for an application: producers enqueue tickets, workers take them, each ends once.

    queue = Queue("mail")
    async with Coordinator(url, queue, secret=secret):
        ticket_id = await queue.enqueue({"to": "ada"})
        async for ticket in queue.claim():
            async with ticket:
                ticket.result = await send(ticket.payload)

This module is what applications call. The order is in `publication_order`, publishing in
`publisher`, the end of a ticket in `claims`. Enqueuing needs no leader; without a leader no ticket
is published.

A worker renews the tickets it took, also those that it has not handed out yet, as long as a loop
asks for tickets. It must never hand out a ticket that it may have lost. It must not take tickets
while its secret differs from the leader's: it could verify none of them, and each take counts as an
attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections import deque
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
from squall.coordination.members.housekeeping import differing_secret
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.queue.claims import ClaimedTicket
from squall.coordination.queue.inspection import MAX_PENDING, QueueInspection
from squall.coordination.queue.publisher import QUARANTINE_TTL_S, Publisher, report_refused
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
from squall.coordination.records.keys import LEADER
from squall.coordination.shutdown import STOPPER
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Claim,
    Extend,
    Put,
    Remove,
    Takeable,
    Write,
)
from squall.coordination.value_rules import async_function, check, or_none, seconds, whole
from squall.runtime.backoff import Backoff

VISIBILITY_S = 30.0
IDLE_S = 5.0
# Between two updates of the metrics that say how full the queue is; the second one for stores where
# that costs paid requests.
COUNT_S = 15.0
COUNT_POLLED_S = 60.0
ID_BYTES = 8
# A hundred open tickets at 0.1 s each are renewed within a second.
RENEWALS_AT_ONCE = 16
UNKNOWN_KEY = "unknown_key"


class Queue(QueueInspection, CoordinatorPlugin):
    """One queue. Pass it to the `Coordinator` of every member that uses it.

    `visibility_timeout`: how long a claim lasts without renewal. It must not exceed `dead_after`,
    so that the claims of a member have run out when it is declared dead. `window`: how many tickets
    are published ahead; only tickets that are not published yet can be overtaken by priority."""

    def __init__(
        self,
        queue: str = "default",
        *,
        visibility_timeout: float | None = None,
        max_attempts: int = 3,
        max_pending: int = MAX_PENDING,
        window: int = 200,
        retry_base: float = 1.0,
    ) -> None:
        super().__init__(queue, max_pending=max_pending)
        self.name = f"queue {queue}"
        self.work_interval = 0.001
        check("visibility_timeout", visibility_timeout, or_none(seconds(above=0.0, example=30.0)))
        check("max_attempts", max_attempts, whole(1, example=3))
        check("max_pending", max_pending, whole(1, example=MAX_PENDING))
        check("window", window, whole(1, example=200))
        check("retry_base", retry_base, seconds(above=0.0, example=1.0))
        self._given_visibility = visibility_timeout
        self.visibility_timeout = visibility_timeout or VISIBILITY_S
        self.max_attempts = max_attempts
        self._window = window
        # 1, 2, 4, 4, ... s with the default base: a ticket that fails at once must not use up its
        # attempts within a moment. The spread keeps tickets apart that failed together.
        self._ticket_retry = Backoff.around(retry_base, 0.1, cap_s=4.0 * retry_base)
        self._renewed: dict[ClaimedTicket, None] = {}
        self._renewals = asyncio.Semaphore(RENEWALS_AT_ONCE)
        self._under_renewal: set[ClaimedTicket] = set()
        # Tickets that were taken in a batch and not handed out yet.
        self._waiting: deque[ClaimedTicket] = deque()
        self._open_loops = 0
        self._is_secret_unverified = True
        self._publisher: Publisher | None = None
        self._loops_begun = 0
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
        """Stores a ticket and returns its id. With a `dedup_id` that was used within 24 h it
        returns the id of that first ticket. `delay` and `start_within` count seconds from now; a
        ticket that no worker took by then expires."""
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
        await self.coordinator.parts.patient.write(*self.enqueue_writes(ticket))
        return ticket.ticket_id

    def enqueue_writes(self, ticket: Ticket) -> list[Write]:
        """The writes of an enqueue, for the batch of a caller. A repeat changes nothing."""
        writes: list[Write] = []
        body = encoded_given("payload", ticket.payload)
        if len(body) > INLINE_MAX_BYTES:
            key = self.keys.payload(ticket.ticket_id)
            writes.append(Put(key, body, expect=ANY, ttl_s=STREAM_TTL_S, silent=True))
            ticket = msgspec.structs.replace(ticket, payload=None, is_blob=True)
        value = self.coordinator.parts.codec.encode(ticket)
        return [*writes, self.append_queued(ticket.ticket_id, value)]

    async def _enqueue_once(self, ticket: Ticket, dedup_id: str) -> str:
        """Creates the record that names the ticket of this `dedup_id`. The record expires before
        the end of that ticket is forgotten, so the next ticket needs a new id."""
        store, key = self.coordinator.parts.patient, self.keys.dedup(dedup_id)
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
            # The record expired between the two calls: this ticket is the first again.
        named = found.value.decode()
        if not store.capabilities.transactions and await self.final(named) is None:
            # The first producer may have died between its writes. If not, a repeat changes
            # nothing.
            again = msgspec.structs.replace(ticket, ticket_id=named)
            await store.write(*self.enqueue_writes(again))
        return named

    # Workers.

    async def claim(self, *, batch: int = 1) -> AsyncGenerator[ClaimedTicket]:
        """Yields tickets without end. `batch` tickets are taken at a time and held from then on.
        Tickets that were not handed out when the loop is left go to the next loop over this
        queue; if none begins, their claims run out."""
        self._loops_begun += 1
        number = self._loops_begun
        self._open_loops += 1
        self._renewed.update({each: None for each in self._waiting if each.is_open})
        try:
            while not self._stopping:
                if not self._waiting:
                    owner = f"{self.coordinator.member_id}.{self.coordinator.boot}.{number}"
                    await self._take(owner, batch)
                ticket = self._waiting.popleft() if self._waiting else None
                if ticket is not None and await self._is_opened(ticket):
                    yield ticket
        finally:
            self._open_loops -= 1
            for left in list(self._waiting) if not self._open_loops else ():
                self.stop_renewing(left)
                if self._stopping and left.is_open:
                    # It was taken while the member stopped: `before_stop` did not see it.
                    with contextlib.suppress(CoordinationError):
                        await left.release()

    async def consume(
        self, handler: Callable[[Any], Awaitable[Any]], *, concurrency: int = 1
    ) -> None:
        """Calls `handler(payload)` for each ticket, until it is cancelled or the member stops. The
        handler's return value is the ticket's result; an exception fails the ticket. A handler that
        is not `async def` is refused: it would block the heartbeats of the member. Run such code in
        a thread: `await asyncio.to_thread(work, payload)`."""
        check("handler", handler, async_function("f, and asyncio.to_thread for blocking code"))
        check("concurrency", concurrency, whole(1, example=1))
        tasks = self.coordinator.parts.tasks
        started = [
            tasks.start(f"worker of {self.keys.queue}", self._work(handler))
            for _ in range(concurrency)
        ]
        running = [token.task for token in started if token.task is not None]
        try:
            await asyncio.gather(*running)
        except asyncio.CancelledError:
            _end_if_cancelled()
            if not self._stopping:
                raise
        finally:
            for task in running:
                task.cancel()

    async def _work(self, handler: Callable[[Any], Awaitable[Any]]) -> None:
        while not self._stopping:
            try:
                async with contextlib.aclosing(self.claim()) as tickets:
                    async for ticket in tickets:
                        async with ticket:
                            ticket.result = await self._handled(handler, ticket)
                        _end_if_cancelled()
            except StoreUnavailableError:
                _end_if_cancelled()
                await self.coordinator.parts.clock.sleep(self.coordinator.timing.work_interval)
            except (StaleClaimError, MemberFencedError):
                _end_if_cancelled()

    async def _handled(
        self, handler: Callable[[Any], Awaitable[Any]], ticket: ClaimedTicket
    ) -> Any:
        """Awaits the handler. If what it returned cannot be awaited, its code has run already and
        another attempt would run it again: the ticket is a dead letter, and `consume` ends."""
        running: Any = handler(ticket.payload)
        if not inspect.isawaitable(running):
            kind = type(running).__name__
            refusal = ConfigurationError(
                f"handler returned {kind}, which cannot be awaited: it must be an `async def`"
                " function; use handler=f, and asyncio.to_thread for blocking code"
            )
            await ticket.fail(refusal, retry=False)
            raise refusal
        return await running

    async def _take(self, owner: str, batch: int) -> None:
        """Takes a batch, or waits for a ticket. A boot that was declared dead gets nothing: the
        take fails on `provided` until the member is registered again."""
        coordinator, ready, clock = self.coordinator, self.keys.ready, self.coordinator.parts.clock
        store, lease_s, alive = (
            coordinator.parts.patient,
            self.visibility_timeout,
            coordinator.alive_check,
        )
        claims: Sequence[Claim] | None = None
        begun = clock.now()
        if not coordinator.isolated and await self._has_signing_secret():
            begun = clock.now()
            with contextlib.suppress(VersionConflict):
                claims = await store.take(
                    ready, owner, lease_s=lease_s, limit=batch, provided=alive
                )
        if claims is None:
            await clock.sleep(coordinator.timing.heartbeat_interval)
            return
        if not claims:
            await store.wait(Takeable(ready), timeout_s=IDLE_S)
            _end_if_cancelled()
            return
        unreadable: list[tuple[Claim, str]] = []
        for claim in claims:
            ticket = coordinator.parts.codec.decode(Ticket, claim.item.value)
            if isinstance(ticket, str):
                unreadable.append((claim, ticket))
            else:
                held = ClaimedTicket(self, ticket, claim, begun)
                self._renewed[held] = None
                self._waiting.append(held)
        for claim, reason in unreadable:
            await self._refuse(claim, reason)

    async def _has_signing_secret(self) -> bool:
        """Whether the leader signs with a secret that this member has. Asked before the first
        ticket, and after one that could not be verified."""
        if self._is_secret_unverified:
            parts = self.coordinator.parts
            (lease,) = await self.coordinator.parts.patient.get(LEADER)
            self._is_secret_unverified = differing_secret(parts, lease) != ""
        return not self._is_secret_unverified

    async def _is_opened(self, claimed: ClaimedTicket) -> bool:
        """Whether the ticket can be handed out. If not, it has been dealt with."""
        try:
            return await self._is_fit(claimed)
        except BaseException:
            # No loop has seen it: it goes to the next one that asks.
            self._waiting.appendleft(claimed)
            raise

    async def _is_fit(self, claimed: ClaimedTicket) -> bool:
        ticket, parts, store = (
            claimed.ticket,
            self.coordinator.parts,
            self.coordinator.parts.patient,
        )
        if not await self._is_held(claimed):
            return False
        if not store.capabilities.transactions:
            # Without transactions an ended ticket may still have its item: see `claims`.
            final = await self.final(ticket.ticket_id)
            if final is not None:
                await claimed.remove_item(final.state)
                return False
        if claimed.attempt > ticket.max_attempts:
            # The last attempt has no end: its worker died, or was too slow.
            await self._dead_letter(claimed, "the claim of the last attempt ran out")
            return False
        if claimed.attempt == 1 and 0.0 < ticket.start_before < parts.store_time():
            with contextlib.suppress(CoordinationError):
                await claimed.expire()
            return False
        if ticket.is_blob:
            (found,) = await store.get(self.keys.payload(ticket.ticket_id))
            if found is None:
                await self._dead_letter(
                    claimed,
                    f"its payload is gone: a big one is kept for {STREAM_TTL_S / 86_400.0:g} days",
                )
                return False
            claimed.payload = msgspec.json.decode(found.value)
        if not claimed.is_open:
            return False
        self._renewed[claimed] = None
        metrics = parts.metrics
        metrics.counter(metrics.families.claims, self.keys.queue).add()
        self.emit(
            TicketClaimed(
                queue=self.keys.queue, ticket_id=ticket.ticket_id, attempt=claimed.attempt
            )
        )
        return True

    async def _is_held(self, claimed: ClaimedTicket) -> bool:
        """Whether this worker still holds the ticket. One that waited long is extended first, so
        that the handler begins with at least half a timeout."""
        if claimed.is_open and claimed.held_for_s < self.visibility_timeout / 2.0:
            try:
                await claimed.extend()
            except (StaleClaimError, MemberFencedError):
                claimed.lost()
        return claimed.is_open

    async def _dead_letter(self, claimed: ClaimedTicket, why: str) -> None:
        with contextlib.suppress(CoordinationError):
            await claimed.give_up(why)

    async def _refuse(self, claim: Claim, reason: str) -> None:
        """Deals with a ticket that does not verify. If only the signing key is unknown here, other
        members may know it and get it first. After the last attempt it goes to quarantine and
        becomes final, so that neither its producer nor its order key waits for it."""
        parts, store, item = self.coordinator.parts, self.coordinator.parts.patient, claim.item
        report_refused(parts, self.keys.queue, item.id, reason)
        if reason == UNKNOWN_KEY:
            self._is_secret_unverified = True
            wrong_here = not await self._has_signing_secret()
            if wrong_here or claim.attempt < self.max_attempts:
                delay_s = 0.0 if wrong_here else self.backoff_s(claim.attempt)
                give_back = Extend(self.keys.ready, item.cursor, claim.claim, delay_s)
                with contextlib.suppress(StaleClaimError):
                    await store.write(give_back)
                return
        final = Final(
            ticket_id=item.id,
            state="dead_letter",
            error=f"the ticket could not be verified ({reason}); it is in quarantine",
            attempt=claim.attempt,
            claim=claim.claim,
            finished_by=self.coordinator.member_id,
            finished_at=parts.store_time(),
        )
        quarantined = Put(
            self.keys.quarantine(item.id),
            item.value,
            expect=ANY,
            ttl_s=QUARANTINE_TTL_S,
            silent=True,
        )
        final_put = Put(
            self.keys.final(item.id), parts.codec.encode(final), expect=ABSENT, ttl_s=FINAL_TTL_S
        )
        removal = Remove(self.keys.ready, item.cursor, claim.claim)
        with contextlib.suppress(StaleClaimError):
            try:
                await store.write(quarantined, final_put, removal)
            except StaleClaimError:
                raise
            except VersionConflict:
                # It is final already, as after a cancellation.
                await store.write(quarantined, removal)

    # What claims call.

    def backoff_s(self, attempt: int) -> float:
        return self._ticket_retry.delay_s(attempt, self.coordinator.parts.random.uniform)

    def emit(self, event: Event) -> None:
        self.coordinator.parts.bus.emit(event)

    def finished(self, event: TicketFinished) -> None:
        metrics = self.coordinator.parts.metrics
        metrics.counter(metrics.families.finished, self.keys.queue, event.state).add()
        self.emit(event)

    def is_renewed(self, ticket: ClaimedTicket) -> bool:
        return ticket in self._renewed

    def stop_renewing(self, ticket: ClaimedTicket) -> None:
        self._renewed.pop(ticket, None)

    async def record_late_result(
        self, ticket: ClaimedTicket, late: Final, found: Final | None
    ) -> None:
        """Stores the result of an attempt that came too late, for operators. If the ticket is
        final while this claim still holds it, an operator ended it, and its item is removed."""
        key = self.keys.late(late.ticket_id, late.attempt)
        value = self.coordinator.parts.codec.encode(late)
        with contextlib.suppress(CoordinationError):
            await self.coordinator.parts.patient.write(
                Put(key, value, expect=ANY, ttl_s=FINAL_TTL_S, silent=True)
            )
            if found is not None:
                await ticket.remove_item(found.state)

    # The life of the plugin.

    async def on_start(self) -> None:
        timing = self.coordinator.timing
        if self._given_visibility is None:
            self.visibility_timeout = min(VISIBILITY_S, timing.dead_after)
        elif not 0.0 < self._given_visibility <= timing.dead_after:
            raise ConfigurationError(
                f"visibility_timeout is {self._given_visibility!r}: it must be above 0 and not"
                f" above dead_after ({timing.dead_after:g}), claims are renewed while work lasts;"
                f" use visibility_timeout={min(VISIBILITY_S, timing.dead_after):g}"
            )
        self.coordinator.parts.tasks.every(
            f"claims of {self.keys.queue}", self.visibility_timeout / 3.0, self._renew
        )

    async def _renew(self) -> None:
        """Renews each ticket in a task of its own: one that gets no answer delays no other."""

        async def renew(ticket: ClaimedTicket) -> None:
            try:
                async with self._renewals:
                    await ticket.renew()
            finally:
                self._under_renewal.discard(ticket)

        for ticket in self._renewed:
            if ticket not in self._under_renewal:
                self._under_renewal.add(ticket)
                self.coordinator.parts.tasks.start(f"claim of {ticket.ticket_id}", renew(ticket))

    async def before_stop(self) -> None:
        """Cancels the bodies and gives the held tickets back. Those attempts count."""
        self._stopping = True
        held = {*self._renewed, *self._waiting}
        await asyncio.gather(*(ticket.withdraw(STOPPER.get()) for ticket in held))

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
        self.clear_gauges()

    async def _count(self) -> None:
        """Updates the gauges that say how full the queue is."""
        waits = self.coordinator.parts.patient.capabilities
        is_polled = waits.cross_host and not waits.blocking_wait
        now = self.coordinator.parts.clock.now()
        if now - self._counted_at >= (COUNT_POLLED_S if is_polled else COUNT_S):
            self._counted_at = now
            await self.stats()


def _end_if_cancelled() -> None:
    """Raises a cancellation that was swallowed: by a client that was answered in the same turn of
    the loop, or by a handler."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _check_kinds(*given: tuple[str, object, type | tuple[type, ...]]) -> None:
    """Refuses wrong types here, at the producer. A ticket that does not decode would only be
    refused by a worker."""
    for name, value, kinds in given:
        if not isinstance(value, kinds):
            known = (kinds,) if isinstance(kinds, type) else kinds
            named = " or ".join("None" if each is type(None) else each.__name__ for each in known)
            raise ConfigurationError(f"{name} is {value!r}: it must be {named}")
