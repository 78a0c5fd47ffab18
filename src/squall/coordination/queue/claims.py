"""A ticket in the hands of a worker, and how it ends.

`done` is one batch: create the final record, remove the item by this very claim. Where
batches are atomic nobody but the present holder can finish a ticket. Where they are not (S3)
the claim is proved first and the record is created after that; its creation happens once
whatever is delayed, so there is one `done` on every store.

A claim is a promise for `visibility_timeout`; the queue renews it until its end is written. When
that fails, because the store does not answer, the claim runs out and another attempt begins: it
must not be renewed for nobody. The end may be tried again until then.
It must never report a ticket as done that the store does not have as done.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any

from squall.coordination.errors import (
    ConfigurationError,
    MemberFencedError,
    StaleClaimError,
    VersionConflict,
)
from squall.coordination.keys import member as member_key
from squall.coordination.plain import error_text
from squall.coordination.queue.records import (
    FINAL_TTL_S,
    STREAM_TTL_S,
    Final,
    State,
    Ticket,
    TicketFinished,
    TicketLost,
    TicketRetried,
    TicketTooLargeError,
    encoded_given,
)
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Append,
    Claim,
    Delete,
    Extend,
    Put,
    Remove,
    Write,
)

if TYPE_CHECKING:
    from squall.coordination.queue.plugin import Queue

BACKOFF_S = (1.0, 2.0, 4.0)
JITTER = 0.1


class ClaimedTicket:
    """`async with ticket:` completes it, or fails it when the body raises or the result cannot
    be stored; the body is cancelled when the claim is lost, and `StaleClaimError` comes out."""

    def __init__(self, queue: Queue, ticket: Ticket, claim: Claim, payload: Any) -> None:
        self.ticket = ticket
        self.payload = payload
        self.attempt = claim.attempt
        self.result: Any = None
        """What `async with` completes with."""
        self.is_open = True
        self.is_lost = False
        self._queue = queue
        self._claim = claim
        self._body: asyncio.Task[Any] | None = None

    @property
    def ticket_id(self) -> str:
        return self.ticket.ticket_id

    def __repr__(self) -> str:
        return f"<ticket {self.ticket_id} of {self.ticket.queue}, attempt {self.attempt}>"

    async def complete(self, result: Any = None) -> None:
        """`StaleClaimError` when another attempt took its place: the result is kept aside
        and does not count. A result that cannot be stored is refused, and the ticket is open."""
        await self._finish("done", result=result)

    async def fail(self, error: BaseException | str = "", *, retry: bool = True) -> None:
        """Another attempt after 1, 2, 4 s; a dead letter after the last."""
        text = error_text(error)
        if not retry or self.attempt >= self.ticket.max_attempts:
            await self._finish("dead_letter", error=text)
            return
        delay_s = self._queue.backoff_s(self.attempt)
        await self._let_go(delay_s)
        self._queue.tell(
            TicketRetried(
                queue=self.ticket.queue,
                ticket_id=self.ticket_id,
                attempt=self.attempt,
                delay_s=delay_s,
                error=text,
            )
        )

    async def extend(self, seconds: float | None = None) -> None:
        """Holds it for so long from now. The queue does it by itself while it is open."""
        await self._write(self._extension(seconds or self._queue.visibility_timeout))

    async def release(self) -> None:
        """Gives it back at once; the attempt counts."""
        await self._let_go(0.0)

    async def give_up(self, error: str) -> None:
        """The attempts are used up: a dead letter, without another try."""
        await self._finish("dead_letter", error=error)

    async def expire(self) -> None:
        """Its time to start has passed."""
        await self._finish("expired")

    async def __aenter__(self) -> ClaimedTicket:
        self._body = asyncio.current_task()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        body, self._body = self._body, None
        if self.is_lost:
            if kind is asyncio.CancelledError and body is not None and body.uncancel() == 0:
                raise self._stale() from error
            if kind is None:
                raise self._stale()
            return False
        if not self.is_open:
            return False
        if error is None:
            try:
                await self.complete(self.result)
                return False
            except (ConfigurationError, TicketTooLargeError) as unfit:
                error = unfit
        if not isinstance(error, Exception):
            await self.release()
            return False
        self._queue.coordinator.parts.on_failure("ticket_failed", error)
        await self.fail(error)
        return True

    def lost(self) -> None:
        """Somebody else has it now."""
        if not self.is_open:
            return
        self.is_lost = True
        self._close()
        self._queue.tell(
            TicketLost(queue=self.ticket.queue, ticket_id=self.ticket_id, attempt=self.attempt)
        )
        if self._body is not None:
            self._body.cancel()

    def _extension(self, seconds: float) -> Extend:
        return Extend(self._queue.keys.ready, self._claim.item.cursor, self._claim.claim, seconds)

    async def _let_go(self, seconds: float) -> None:
        """For another attempt, after so long."""
        self._queue.stop_renewing(self)
        await self._write(self._extension(seconds))
        self._close()

    async def _finish(self, state: State, *, result: Any = None, error: str = "") -> None:
        queue, ticket = self._queue, self.ticket
        if not self.is_open:
            raise self._stale()
        if result is not None:
            encoded_given("result", result)
        self._queue.stop_renewing(self)
        final = Final(
            ticket_id=ticket.ticket_id,
            state=state,
            result=result,
            error=error,
            attempt=self.attempt,
            claim=self._claim.claim,
            finished_by=queue.coordinator.member_id,
            finished_at=queue.coordinator.parts.store_time(),
        )
        encoded = queue.coordinator.parts.codec.encode(final)
        writes: list[Write] = [
            Put(queue.keys.final(ticket.ticket_id), encoded, expect=ABSENT, ttl_s=FINAL_TTL_S),
            Remove(queue.keys.ready, self._claim.item.cursor, self._claim.claim),
        ]
        if state == "dead_letter":
            writes.append(
                Append(
                    queue.keys.dead,
                    ticket.ticket_id,
                    self._claim.item.value,
                    ttl_s=STREAM_TTL_S,
                    limit=1_000_000,
                )
            )
        elif ticket.is_blob:
            writes.append(Delete(queue.keys.payload(ticket.ticket_id), ANY))
        try:
            if not queue.coordinator.store.capabilities.transactions:
                await self._write(self._extension(queue.visibility_timeout))
            await self._write(*writes)
        except VersionConflict as conflict:
            if not await self._is_ours(conflict):
                self._close()
                await queue.set_aside(final, self._claim)
                raise self._stale() from conflict
        self._close()
        queue.finished(
            TicketFinished(
                queue=ticket.queue,
                ticket_id=ticket.ticket_id,
                state=state,
                attempt=self.attempt,
                error=error,
            )
        )

    async def _is_ours(self, conflict: VersionConflict) -> bool:
        """A reply was lost, and the repeat found our own record."""
        if isinstance(conflict, StaleClaimError):
            return False
        found = await self._queue.final(self.ticket_id)
        return found is not None and found.claim == self._claim.claim

    async def _write(self, *writes: Write) -> None:
        coordinator = self._queue.coordinator
        alive = coordinator.alive_check
        batch = writes if alive is None else (alive, *writes)
        try:
            await coordinator.store.write(*batch)
        except StaleClaimError:
            raise
        except VersionConflict as conflict:
            if conflict.key == member_key(coordinator.member_id):
                self.lost()
                raise MemberFencedError(
                    coordinator.member_id, coordinator.incarnation
                ) from conflict
            raise

    def _close(self) -> None:
        self.is_open = False
        self._queue.stop_renewing(self)

    def _stale(self) -> StaleClaimError:
        return StaleClaimError(
            self._queue.keys.ready,
            f"ticket {self.ticket_id}: attempt {self.attempt} is not the present one",
        )
