"""Signals of one member: send, acknowledge, wait, handle.

    await coordinator.send_signal_with_retry("worker-2", "wake", payload={"job": 7})
    signal = await coordinator.block_until_signal(correlation_id="job-7", timeout=600)

    async for signal in coordinator.signals.iterate(types=["progress"]):
        ...

The parts are `sending`, `mailbox` and `waiting`; this file is what people call, and the
loop of handlers.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any

from squall.api.errors import ConfigError
from squall.coordination import events, keys
from squall.coordination.assembly import Assembly
from squall.coordination.errors import (
    BlockingTimeoutError,
    ConfigurationError,
    CoordinationError,
    StoreUnavailableError,
    StreamFullError,
    VersionConflict,
)
from squall.coordination.inbox import Entry, Wanted
from squall.coordination.mailbox import Context, Mailbox
from squall.coordination.options import RETRIES_RANGE, Options
from squall.coordination.records import MemberRecord, Signal, SignalAck, WaitState
from squall.coordination.sending import Sender
from squall.coordination.stores.interface import ANY, Put, Remove, Write
from squall.coordination.timing import wrong
from squall.coordination.waiting import Waited, Waiter

HANDLER_TRIES = 5
HANDLER_BACKOFF_S = (1.0, 2.0, 4.0, 8.0)
EFFECT_REFUSED = (VersionConflict, StreamFullError, ConfigError)
"""A condition that does not hold, a stream that is full, a key that is none."""


class Delivery:
    """What a handler gets: the signal, and a place for writes that happen with it or not at
    all."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.writes: list[Write] = []

    def also(self, *writes: Write) -> None:
        """Done in the same step that marks the signal delivered. If the condition of one does
        not hold, none is done and the handler is called again, with a new delivery. Without
        transactions (S3) give each the condition `ABSENT` and a key that names the signal."""
        self.writes += writes


Handler = Callable[[Delivery], Awaitable[None] | None]


class Signals:
    """Of one member; made and run by `Coordinator`."""

    def __init__(self, parts: Assembly, context: Context, options: Options) -> None:
        self._parts = parts
        self._options = options
        self._context = context
        self.mailbox = Mailbox(parts, context)
        self._sender = Sender(parts, context, options)
        self._waiter = Waiter(parts, self.mailbox, options)

    def start(self) -> None:
        self._parts.tasks.start("inbox", self.mailbox.run(), essential=True)
        self._parts.tasks.start("wait states", self._waiter.keep())

    async def send_signal(
        self,
        receiver_id: str,
        type: str,
        *,
        iteration: int = 0,
        payload: Any = None,
        correlation_id: str | None = None,
        epoch: int = 0,
        allow_unknown: bool = False,
    ) -> Signal:
        """Appends to the receiver's inbox and returns; durable as the store is. A coordinator
        passes `epoch=term.epoch` with its orders."""
        return await self._sender.send(
            receiver_id,
            type,
            iteration=iteration,
            payload=payload,
            correlation_id=correlation_id,
            epoch=epoch,
            allow_unknown=allow_unknown,
        )

    async def send_signal_with_retry(
        self,
        receiver_id: str,
        type: str,
        *,
        iteration: int = 0,
        payload: Any = None,
        correlation_id: str | None = None,
        epoch: int = 0,
        allow_unknown: bool = False,
        max_retries: int | None = None,
    ) -> SignalAck:
        """Returns when the receiver acknowledged; `max_retries` counts all attempts.
        `SignalDeliveryError` after the last one."""
        tries = self._options.max_retries if max_retries is None else max_retries
        low, high = RETRIES_RANGE
        if not low <= tries <= high:
            wrong("max_retries", tries, f"it must be within {low} .. {high}", "3")
        return await self._sender.send_with_retry(
            receiver_id,
            type,
            iteration=iteration,
            payload=payload,
            correlation_id=correlation_id,
            epoch=epoch,
            allow_unknown=allow_unknown,
            max_retries=tries,
        )

    async def block_until_signal(
        self,
        *,
        correlation_id: str | None = None,
        types: Collection[str] = (),
        from_: str | Sequence[str] = (),
        timeout: float | None = None,  # noqa: ASYNC109  the name that callers expect
        expected_duration: float | None = None,
        planned_duration: float | None = None,
        task_type: str = "",
    ) -> Signal:
        """The first verified signal that matches all filters, also one that came before.
        `BlockingTimeoutError`, `DeadCoordinatorError` or `StateLostError` otherwise."""
        senders = (from_,) if isinstance(from_, str) else tuple(from_)
        limit_s = await self._waiter.limit_of(
            timeout, expected_duration, planned_duration, task_type
        )
        return await self._waiter.wait(correlation_id, tuple(types), senders, limit_s, task_type)

    async def wait_all(
        self, correlation_ids: Sequence[str], timeout_s: float | None = None
    ) -> dict[str, Signal]:
        """One signal for each; what came in time is in `partial` of the timeout error.
        `StateLostError` if the store lost what one of them waits for."""
        wanted = tuple(dict.fromkeys(correlation_ids))
        return await self._gather(wanted, timeout_s, len(wanted))

    async def wait_any(
        self, correlation_ids: Sequence[str], timeout_s: float | None = None
    ) -> dict[str, Signal]:
        """At least one of them."""
        wanted = tuple(dict.fromkeys(correlation_ids))
        return await self._gather(wanted, timeout_s, min(1, len(wanted)))

    def on_signal(self, type: str, handler: Handler) -> Callable[[], None]:
        """Calls `handler(delivery)` for each signal of the type, "*" for all, one after
        another; acknowledged after it returned. The result takes the handler away."""
        queue: asyncio.Queue[Entry] = asyncio.Queue()
        wanted = Wanted(types=() if type == "*" else (type,))
        number = self.mailbox.take(wanted, queue.put_nowait)
        token = self._parts.tasks.start(f"signals {type}", self._handle_all(queue, handler))

        def remove() -> None:
            self.mailbox.forget(number)
            self._parts.tasks.cancel(token)
            while not queue.empty():
                self.mailbox.give_back(queue.get_nowait())

        return remove

    async def iterate(
        self, types: Collection[str] = (), from_: Collection[str] = ()
    ) -> AsyncIterator[Signal]:
        """Signals as they come. One is acknowledged when the next one is asked for; a body
        that raises or leaves the loop gives its signal back."""
        wanted = Wanted(types=tuple(types), senders=tuple(from_))
        while True:
            entry = await self.mailbox.take_one(wanted)
            done = False
            try:
                if not await self.mailbox.refused_late(entry):
                    yield entry.signal
                    await self._deliver(entry)
                done = True
            finally:
                if not done:
                    self.mailbox.give_back(entry)

    async def open_waits(self) -> tuple[WaitState, ...]:
        """What this id waited for before it was restarted: call `block_until_signal` again
        with the same correlation id."""
        return await self._waiter.written_down()

    async def adopt_inbox(self, dead_id: str) -> None:
        """Reads also the inbox of a member that is dead or has left."""
        (found,) = await self._parts.patient.get(keys.member(dead_id))
        known = None if found is None else self._parts.codec.read(MemberRecord, found.value)
        if known is None or known.status == "alive":
            raise ConfigurationError(
                f"dead_id is {dead_id!r}: only the inbox of a member that is dead or has left"
                " is adopted"
            )
        self.mailbox.adopt(dead_id)

    @property
    def blocked(self) -> int:
        """Callers that wait now."""
        return self._waiter.open_count

    # Inside.

    async def _gather(
        self, wanted: Sequence[str], timeout_s: float | None, enough: int
    ) -> dict[str, Signal]:
        found: dict[str, Signal] = {}
        failed: list[CoordinationError] = []
        came = asyncio.Event()

        async def one(correlation_id: str) -> None:
            try:
                found[correlation_id] = await self._waiter.wait(
                    correlation_id, (), (), limit_s, "", is_part=True
                )
            except BlockingTimeoutError:
                return  # All of them have the same limit: it is told below, once.
            except CoordinationError as error:
                failed.append(error)
            came.set()

        limit_s = await self._waiter.limit_of(timeout_s, None, None, "")
        waited = Waited("", self._parts.clock.now())
        tokens = [self._parts.tasks.start("wait", one(each)) for each in wanted]
        try:
            async with asyncio.timeout(limit_s):
                while len(found) < enough and not failed:
                    came.clear()
                    await came.wait()
        except TimeoutError:
            names = ", ".join(wanted)
            took_s = self._waiter.count_timeout(waited, names)
            raise BlockingTimeoutError(self._parts.member_id, names, took_s, {}, found) from None
        finally:
            for token in tokens:
                self._parts.tasks.cancel(token)
        if len(found) < enough:
            raise failed[0]
        return found

    async def _handle_all(self, queue: asyncio.Queue[Entry], handler: Handler) -> None:
        while True:
            entry = await queue.get()
            try:
                await self._handle(entry, handler)
            except asyncio.CancelledError:
                self.mailbox.give_back(entry)
                raise
            except CoordinationError as error:
                # Fenced: it is delivered again to the next incarnation.
                self._failed("signal_not_delivered", entry, error)
                await self._parts.clock.sleep(HANDLER_BACKOFF_S[0])
                queue.put_nowait(entry)

    async def _handle(self, entry: Entry, handler: Handler) -> None:
        if not entry.handled and await self.mailbox.refused_late(entry):
            return
        for attempt in range(HANDLER_TRIES):
            error = await self._handled(entry, handler)
            if error is None:
                error = await self._effective(entry)
            if error is None:
                return
            self._failed("signal_handler_failed", entry, error)
            self._parts.bus.emit(events.ErrorEvent(error=error))
            pause_s = HANDLER_BACKOFF_S[min(attempt, len(HANDLER_BACKOFF_S) - 1)]
            await self._parts.clock.sleep(pause_s)
        await self._quarantine(entry)

    def _failed(self, what: str, entry: Entry, error: Exception) -> None:
        """Says of which signal, for who looks for the whole of a conversation."""
        signal = entry.signal
        self._parts.log.error(
            what,
            error=error,
            signal_id=signal.signal_id,
            correlation_id=signal.correlation_id,
            sender_id=signal.sender_id,
        )

    async def _handled(self, entry: Entry, handler: Handler) -> Exception | None:
        """Calls the handler unless it has run already; what it raised."""
        if entry.handled:
            return None
        delivery = Delivery(entry.signal)
        try:
            result = handler(delivery)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            return error
        entry.handled, entry.effects = True, tuple(delivery.writes)
        return None

    async def _effective(self, entry: Entry) -> Exception | None:
        """Delivers it. What the handler wants to be written with that may be refused, as when
        something has changed since it looked: then it has to look again."""
        try:
            await self._deliver(entry)
        except EFFECT_REFUSED as error:
            entry.handled, entry.effects = False, ()
            return error
        return None

    async def _deliver(self, entry: Entry) -> None:
        """Again and again while the store does not answer; the handler ran already."""
        while True:
            try:
                await self.mailbox.delivered(entry, entry.effects)
                return
            except StoreUnavailableError:
                await self._parts.clock.sleep(HANDLER_BACKOFF_S[0])

    async def _quarantine(self, entry: Entry) -> None:
        """No handler could take it; its sender hears nothing."""
        await self._parts.patient.write(
            Put(
                keys.quarantine(entry.receiver_id, entry.signal.signal_id),
                self._parts.codec.encode(entry.signal),
                expect=ANY,
                ttl_s=keys.QUARANTINE_TTL_S,
            ),
            Remove(entry.stream, entry.cursor),
        )
        self.mailbox.inbox.done(entry)
