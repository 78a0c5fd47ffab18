"""A ticket in the hands of a worker, and how it ends.

**One end.** A ticket ends by one batch: create its final record if absent, remove the item by this
very claim. Where batches are atomic, only the present holder can finish a ticket. On S3, where they
are not, the worker first proves its claim by extending it and then creates the record. Creating it
succeeds once, whatever is delayed, so every store has one end per ticket. The item is removed
last: as long as it is there, another worker takes it and completes what was left undone.

**The claim** lasts `visibility_timeout` and is renewed by the queue until an end begins; answers
to renewals after that are ignored. If the end fails because the store does not answer, renewing
stays off: the claim runs out and another attempt begins, or the worker tries to end it again before
that. A claim that were renewed without a worker would hold the ticket for ever.

**The body** of `async with ticket` is cancelled when the claim is lost or the member stops. That
cancellation does not leave the `async with`; the caller sees `StaleClaimError`. A ticket must never
be reported as done that the store does not have as done.
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
from squall.coordination.queue.records import (
    FINAL_TTL_S,
    STREAM_TTL_S,
    Final,
    Ticket,
    TicketFinished,
    TicketLost,
    TicketRetried,
    TicketState,
    TicketTooLargeError,
    encoded_given,
)
from squall.coordination.records.keys import member as member_key
from squall.coordination.records.plain_json import error_text
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


class ClaimedTicket:
    """A ticket that this worker holds.

    `async with ticket:` completes it, or fails it if the body raises or the result cannot be
    stored. If the claim is lost or the member stops, the body is cancelled and `StaleClaimError`
    is raised."""

    def __init__(self, queue: Queue, ticket: Ticket, claim: Claim, taken_at: float) -> None:
        self.ticket = ticket
        self.payload: Any = ticket.payload
        self.attempt = claim.attempt
        # The result with which `async with` completes the ticket.
        self.result: Any = None
        # Until it ended, was given back or was lost. Never becomes true again.
        self.is_open = True
        # The claim is another worker's, or may be. Implies that it is not open, except between
        # `withdraw` and the answer to giving it back.
        self.is_lost = False
        self._queue = queue
        self._claim = claim
        # By our own clock, counted from before the call that took or extended it: the store counts
        # from a later moment, so the claim lasts at least this long.
        self._held_until = taken_at + queue.visibility_timeout
        # Held by a renewal in flight. `_give_back` waits for it: a renewal that arrived later would
        # replace the short pause before the next attempt by a whole timeout.
        self._renewing = asyncio.Lock()
        # The task inside `async with`, and whether we cancelled it.
        self._body: asyncio.Task[Any] | None = None
        self._is_body_cancelled = False
        self._has_left = asyncio.Event()

    @property
    def ticket_id(self) -> str:
        return self.ticket.ticket_id

    @property
    def held_for_s(self) -> float:
        """How long no other worker can get it."""
        return self._held_until - self._queue.coordinator.parts.clock.now()

    def __repr__(self) -> str:
        return f"<ticket {self.ticket_id} of {self.ticket.queue}, attempt {self.attempt}>"

    async def complete(self, result: Any = None) -> None:
        """Ends the ticket as done. Raises `StaleClaimError` if another attempt took its place; the
        result is then stored as a late one and does not count. A result that cannot be stored is
        refused, and the ticket stays open."""
        await self._finish("done", result=result)

    async def fail(self, error: BaseException | str = "", *, retry: bool = True) -> None:
        """Lets another attempt begin after a pause, or makes it a dead letter after the last."""
        text = error_text(error)
        if not retry or self.attempt >= self.ticket.max_attempts:
            await self._finish("dead_letter", error=text)
            return
        delay_s = self._queue.backoff_s(self.attempt)
        await self._give_back(delay_s)
        self._queue.emit(
            TicketRetried(
                queue=self.ticket.queue,
                ticket_id=self.ticket_id,
                attempt=self.attempt,
                delay_s=delay_s,
                error=text,
            )
        )

    async def extend(self, seconds: float | None = None) -> None:
        """Holds the ticket for so long from now. The queue extends open tickets by itself, and
        never shortens what was asked for here."""
        try:
            await self._extend_claim(seconds or self._queue.visibility_timeout)
        except MemberFencedError:
            self.lost()
            raise

    async def release(self) -> None:
        """Gives the ticket back at once. The attempt counts."""
        await self._give_back(0.0)

    async def give_up(self, error: str) -> None:
        """Makes it a dead letter without another attempt."""
        await self._finish("dead_letter", error=error)

    async def expire(self) -> None:
        """Ends it as expired: its time to start has passed."""
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
            if self._is_body_cancelled and body is not None:
                return await self._leave_cancelled(body, error)
            if self.is_lost:
                if kind is None:
                    raise self._stale()
                return False
            return await self._leave(error) if self.is_open else False
        finally:
            self._has_left.set()

    async def _leave(self, error: BaseException | None) -> bool:
        """The body ended by itself. Returns whether its exception is handled here."""
        if error is None:
            try:
                await self.complete(self.result)
                return False
            except (ConfigurationError, TicketTooLargeError) as unfit:
                error = unfit
        if not isinstance(error, Exception):
            # A cancellation or an exit goes on, whatever becomes of the claim.
            with contextlib.suppress(CoordinationError):
                await self.release()
            return False
        self._log_failure(error)
        # If the claim is stale, the other attempt that `fail` asks for has already begun.
        with contextlib.suppress(StaleClaimError):
            await self.fail(error)
        return True

    async def _leave_cancelled(self, body: asyncio.Task[Any], error: BaseException | None) -> bool:
        """We cancelled the body, whatever exception it turned that into."""
        self._is_body_cancelled = False
        # What is left after taking our own cancellation back came from the caller, and wins.
        cancelled_too = body.uncancel() > 0
        if self.is_open:
            with contextlib.suppress(CoordinationError):
                await self.release()
        if cancelled_too and isinstance(error, asyncio.CancelledError):
            return False
        if isinstance(error, Exception):
            # A body that was slow to end may end after its member did.
            with contextlib.suppress(NotRunningError):
                self._log_failure(error)
        elif error is not None and not isinstance(error, asyncio.CancelledError):
            return False
        raise self._stale() from error

    def _log_failure(self, error: Exception) -> None:
        self._queue.coordinator.parts.log.error(
            "ticket_failed",
            error=error,
            queue=self.ticket.queue,
            ticket_id=self.ticket_id,
            attempt=self.attempt,
        )

    async def renew(self) -> None:
        """Extends the claim. The queue calls it at a third of the timeout."""
        lasts_s = self._queue.visibility_timeout
        async with self._renewing:
            # The end may have begun while this waited for its turn, or the body asked for more
            # time than a renewal would give.
            if not self._queue.is_renewed(self) or self.held_for_s > lasts_s:
                return
            try:
                await self._extend_claim(lasts_s)
            except (StaleClaimError, MemberFencedError):
                # If an end began meanwhile, it made the claim stale itself.
                if self._queue.is_renewed(self):
                    self.lost()

    def lost(self) -> None:
        """The claim is gone: another worker may have the ticket. Ends the body."""
        if not self.is_open:
            return
        self.is_lost = True
        self._close()
        self._queue.emit(
            TicketLost(queue=self.ticket.queue, ticket_id=self.ticket_id, attempt=self.attempt)
        )
        self._cancel_body(asyncio.current_task())

    async def withdraw(self, stopper: asyncio.Task[Any] | None) -> None:
        """The member stops: cancels the body, and gives the ticket back when the body has ended. A
        body that does not end keeps the ticket until the claim runs out. `stopper` is the task
        that stops the member; if it is the body itself, it is not cancelled."""
        self._cancel_body(stopper)
        if self._is_body_cancelled:
            await self._has_left.wait()
            return
        self.is_lost = True
        with contextlib.suppress(CoordinationError):
            await self.release()

    async def remove_item(self, state: TicketState) -> None:
        """Removes the item of a ticket that is already final: the worker that ended it stopped
        before this last step."""
        self._close()
        with contextlib.suppress(VersionConflict):
            await self._queue.coordinator.parts.patient.write(*self._closing_writes(state))

    def _cancel_body(self, spared: asyncio.Task[Any] | None) -> None:
        """Cancels the body, unless it is the `spared` task: that one sees an exception instead."""
        if self._body is not None and self._body is not spared and not self._is_body_cancelled:
            self._is_body_cancelled = True
            self._body.cancel()

    def _extension(self, seconds: float) -> Extend:
        return Extend(self._queue.keys.ready, self._claim.item.cursor, self._claim.claim, seconds)

    async def _extend_claim(self, seconds: float) -> None:
        begun = self._queue.coordinator.parts.clock.now()
        await self._write(self._extension(seconds))
        self._held_until = begun + seconds

    async def _give_back(self, seconds: float) -> None:
        """Frees the ticket for another attempt after so long."""
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

    async def _finish(self, state: TicketState, *, result: Any = None, error: str = "") -> None:
        queue, ticket = self._queue, self.ticket
        if not self.is_open:
            raise self._stale()
        if result is not None:
            encoded_given("result", result)
        self._queue.stop_renewing(self)
        final = await self._write_final(
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

    async def _write_final(self, final: Final) -> Final:
        """Writes the final record, and returns the one that the store has. That may be an earlier
        one of this very attempt, whose reply was lost. Without transactions it may have been
        written although the claim was lost right after."""
        coordinator = self._queue.coordinator
        encoded = coordinator.parts.codec.encode(final)
        key = self._queue.keys.final(self.ticket_id)
        decides = Put(key, encoded, expect=ABSENT, ttl_s=FINAL_TTL_S)
        is_atomic = coordinator.parts.patient.capabilities.transactions
        try:
            if not is_atomic:
                # Proves the claim. With a full timeout ahead, no other attempt can begin before
                # the record is there, unless this process stands still for that long.
                await self._write(self._extension(self._queue.visibility_timeout))
            await self._write(decides, *self._closing_writes(final.state))
            return final
        except MemberFencedError:
            self.lost()
            raise
        except VersionConflict as conflict:
            found = await self._queue.final(self.ticket_id)
            if found is None or found.claim != self._claim.claim:
                self._close()
                await self._queue.record_late_result(self, final, found)
                raise self._stale() from conflict
        if not is_atomic:
            # If this fails too, the next worker that takes the item does it.
            with contextlib.suppress(CoordinationError):
                await self.remove_item(found.state)
        return found

    def _closing_writes(self, state: TicketState) -> list[Write]:
        """The writes after the final record. Each may be repeated by any worker that sees the
        record; the removal is last, because the item is what makes a worker read it."""
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
            await coordinator.parts.patient.write(*batch)
        except StaleClaimError:
            raise
        except VersionConflict as conflict:
            if conflict.key == member_key(coordinator.member_id):
                raise MemberFencedError(coordinator.member_id, coordinator.boot) from conflict
            raise

    def _close(self) -> None:
        self.is_open = False
        self._queue.stop_renewing(self)

    def _stale(self) -> StaleClaimError:
        return StaleClaimError(
            self._queue.keys.ready,
            f"ticket {self.ticket_id}: attempt {self.attempt} no longer holds it",
        )
