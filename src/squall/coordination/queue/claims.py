"""A ticket in the hands of a worker, and how it ends.

`done` is one batch: create the final record, remove the item by this very claim. Where
batches are atomic nobody but the present holder can finish a ticket. Where they are not (S3)
the claim is proved first and the record is created after that; its creation happens once
whatever is delayed, so there is one `done` on every store. The item goes after everything that
its end brings with it: while it is there, somebody takes it and does what was left undone.

A claim is a promise for `visibility_timeout`; the queue renews it until an end is begun, and what
a renewal is answered after that counts for nothing. When the end fails, because the store does not
answer, the claim runs out and another attempt begins: it must not be renewed for nobody. The end
may be tried again until then.

The body of `async with ticket` is cut short when the claim is lost or the member stops; nobody else
hears of that cancellation. It must never report a ticket as done that the store does not have as
done.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any

from squall.coordination.errors import (
    ConfigurationError,
    CoordinationError,
    MemberFencedError,
    NotRunningError,
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
    be stored; the body is cancelled when the claim is lost or the member stops, and
    `StaleClaimError` comes out."""

    def __init__(self, queue: Queue, ticket: Ticket, claim: Claim, taken_at: float) -> None:
        self.ticket = ticket
        self.payload: Any = ticket.payload
        self.attempt = claim.attempt
        self.result: Any = None
        """What `async with` completes with."""
        self.is_open = True
        self.is_lost = False
        self._queue = queue
        self._claim = claim
        self._held_until = taken_at + queue.visibility_timeout
        """By our clock, from before the call that gave it."""
        self._renewing = asyncio.Lock()
        self._body: asyncio.Task[Any] | None = None
        self._is_cut = False
        self._left = asyncio.Event()

    @property
    def ticket_id(self) -> str:
        return self.ticket.ticket_id

    @property
    def held_for_s(self) -> float:
        """For so long nobody else can have it."""
        return self._held_until - self._queue.coordinator.parts.clock.now()

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
        """Holds it for so long from now. The queue does it by itself while it is open, and never
        shortens what was asked for here."""
        try:
            await self._hold(seconds or self._queue.visibility_timeout)
        except MemberFencedError:
            self.lost()
            raise

    async def release(self) -> None:
        """Gives it back at once; the attempt counts."""
        await self._let_go(0.0)

    async def give_up(self, error: str) -> None:
        """No attempt is worth making: a dead letter, without another try."""
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
        try:
            if self._is_cut and body is not None:
                return await self._leave_cut(body, error)
            if self.is_lost:
                if kind is None:
                    raise self._stale()
                return False
            return await self._leave(error) if self.is_open else False
        finally:
            self._left.set()

    async def _leave(self, error: BaseException | None) -> bool:
        """Whether what the body raised ends here."""
        if error is None:
            try:
                await self.complete(self.result)
                return False
            except (ConfigurationError, TicketTooLargeError) as unfit:
                error = unfit
        if not isinstance(error, Exception):
            # What ends the body goes on, whatever becomes of the claim.
            with contextlib.suppress(CoordinationError):
                await self.release()
            return False
        self._queue.coordinator.parts.on_failure("ticket_failed", error)
        # If somebody else has it, there is another attempt already, as was asked for.
        with contextlib.suppress(StaleClaimError):
            await self.fail(error)
        return True

    async def _leave_cut(self, body: asyncio.Task[Any], error: BaseException | None) -> bool:
        """The cancellation was ours, whatever the body made of it."""
        self._is_cut = False
        cancelled_too = body.uncancel() > 0
        if self.is_open:
            with contextlib.suppress(CoordinationError):
                await self.release()
        if cancelled_too and isinstance(error, asyncio.CancelledError):
            return False
        if isinstance(error, Exception):
            # A body that took its time may end after its member did.
            with contextlib.suppress(NotRunningError):
                self._queue.coordinator.parts.on_failure("ticket_failed", error)
        elif error is not None and not isinstance(error, asyncio.CancelledError):
            return False
        raise self._stale() from error

    async def renew(self) -> None:
        """For the queue, from time to time."""
        lasts_s = self._queue.visibility_timeout
        async with self._renewing:
            if not self._queue.is_renewed(self) or self.held_for_s > lasts_s:
                return
            try:
                await self._hold(lasts_s)
            except (StaleClaimError, MemberFencedError):
                if self._queue.is_renewed(self):
                    self.lost()

    def lost(self) -> None:
        """Somebody else has it now."""
        if not self.is_open:
            return
        self.is_lost = True
        self._close()
        self._queue.tell(
            TicketLost(queue=self.ticket.queue, ticket_id=self.ticket_id, attempt=self.attempt)
        )
        self._cut(asyncio.current_task())

    async def withdraw(self, stopper: asyncio.Task[Any] | None) -> None:
        """The member stops: the body ends, and then somebody else may have the ticket. One that
        does not end keeps it for as long as the claim lasts. `stopper` asked for the stop, and
        goes on if it is the body."""
        self._cut(stopper)
        if self._is_cut:
            await self._left.wait()
            return
        self.is_lost = True
        with contextlib.suppress(CoordinationError):
            await self.release()

    async def clear(self, state: State) -> None:
        """It is final, and the item is still there: whoever did that did not come to the end."""
        self._close()
        with contextlib.suppress(VersionConflict):
            await self._queue.coordinator.store.write(*self._rest(state))

    def _cut(self, spared: asyncio.Task[Any] | None) -> None:
        """Ends the body. A task that is told by an exception needs no cancellation, too."""
        if self._body is not None and self._body is not spared and not self._is_cut:
            self._is_cut = True
            self._body.cancel()

    def _extension(self, seconds: float) -> Extend:
        return Extend(self._queue.keys.ready, self._claim.item.cursor, self._claim.claim, seconds)

    async def _hold(self, seconds: float) -> None:
        begun = self._queue.coordinator.parts.clock.now()
        await self._write(self._extension(seconds))
        self._held_until = begun + seconds

    async def _let_go(self, seconds: float) -> None:
        """For another attempt, after so long. A renewal that is on its way must not come later."""
        self._queue.stop_renewing(self)
        try:
            async with self._renewing:
                await self._write(self._extension(seconds))
        except MemberFencedError:
            self.lost()
            raise
        except StaleClaimError:
            self._close()
            raise
        self._close()

    async def _finish(self, state: State, *, result: Any = None, error: str = "") -> None:
        queue, ticket = self._queue, self.ticket
        if not self.is_open:
            raise self._stale()
        if result is not None:
            encoded_given("result", result)
        self._queue.stop_renewing(self)
        final = await self._record(
            Final(
                ticket_id=ticket.ticket_id,
                state=state,
                result=result,
                error=error,
                attempt=self.attempt,
                claim=self._claim.claim,
                finished_by=queue.coordinator.member_id,
                finished_at=queue.coordinator.parts.store_time(),
            )
        )
        self._close()
        queue.finished(
            TicketFinished(
                queue=ticket.queue,
                ticket_id=ticket.ticket_id,
                state=final.state,
                attempt=self.attempt,
                error=final.error,
            )
        )

    async def _record(self, final: Final) -> Final:
        """The end of this attempt as the store has it: a reply was lost if it is an earlier one.
        Without transactions it may stand there although the claim was lost after that."""
        coordinator = self._queue.coordinator
        encoded = coordinator.parts.codec.encode(final)
        key = self._queue.keys.final(self.ticket_id)
        decides = Put(key, encoded, expect=ABSENT, ttl_s=FINAL_TTL_S)
        is_atomic = coordinator.store.capabilities.transactions
        try:
            if not is_atomic:
                await self._write(self._extension(self._queue.visibility_timeout))
            await self._write(decides, *self._rest(final.state))
            return final
        except MemberFencedError:
            self.lost()
            raise
        except VersionConflict as conflict:
            found = await self._queue.final(self.ticket_id)
            if found is None or found.claim != self._claim.claim:
                self._close()
                await self._queue.set_aside(self, final, found)
                raise self._stale() from conflict
        if not is_atomic:
            # If this fails too, whoever takes the item does it.
            with contextlib.suppress(CoordinationError):
                await self.clear(found.state)
        return found

    def _rest(self, state: State) -> list[Write]:
        """What comes after the record of an end. Whoever sees that may repeat it."""
        keys, item = self._queue.keys, self._claim.item
        removal = Remove(keys.ready, item.cursor, self._claim.claim)
        if state == "dead_letter":
            letter = Append(
                keys.dead, self.ticket_id, item.value, ttl_s=STREAM_TTL_S, limit=1_000_000
            )
            return [letter, removal]
        if self.ticket.is_blob:
            return [Delete(keys.payload(self.ticket_id), ANY), removal]
        return [removal]

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
