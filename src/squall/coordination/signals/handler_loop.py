"""Calls one handler for its signals, one after another.

A signal is acknowledged after the handler returned. A handler that raises, or whose writes are
refused, is called again; after the last try the signal goes to quarantine. Once a handler has
acted on a signal, only its delivery is left: no other consumer may get it. No signal, and nothing
that a handler does, may end the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable

from squall.coordination import events
from squall.coordination.errors import ConfigurationError, NotRunningError
from squall.coordination.member_parts import MemberParts
from squall.coordination.records.schemas import Signal
from squall.coordination.signals.matching import InboxEntry, SignalFilter
from squall.coordination.signals.receiver import Receiver
from squall.coordination.signals.step_retry import log_fields
from squall.coordination.stores.interface import Write, check_own_writes
from squall.runtime.backoff import Backoff, Retries

# 1, 2, 4, 8 s: a handler that depends on something that restarts, as a database, has a quarter of
# a minute before its signal goes to quarantine.
HANDLER_RETRY = Backoff(first_s=1.0, tries=5)
# Delivery is tried once a second. A store that refuses for a minute may refuse because of what the
# handler wants written, and then only the handler can help.
REFUSALS_MAX = 60


class Delivery:
    """What a handler is called with: the signal, and writes that happen together with its
    delivery or not at all."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.writes: list[Write] = []

    def also(self, *writes: Write) -> None:
        """Adds writes to the batch that marks the signal delivered. If the condition of one does
        not hold, none is done, and the handler is called again with a new delivery. On a store
        without transactions (S3), give each write the condition `ABSENT` and a key that names the
        signal: it may be repeated."""
        for write in writes:
            if not isinstance(write, Write):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(
                    f"delivery.also was given {type(write).__name__}: it takes store writes;"
                    " use Put(key, value, expect=ABSENT, ttl_s=3600.0)"
                )
        check_own_writes(writes)
        self.writes += writes


SignalHandler = Callable[[Delivery], Awaitable[None] | None]


class HandlerLoop:
    """Runs one handler from `begin` until `remove`."""

    def __init__(self, parts: MemberParts, receiver: Receiver, handler: SignalHandler) -> None:
        self._parts = parts
        self._receiver = receiver
        self._handler = handler
        self._queue: asyncio.Queue[InboxEntry] = asyncio.Queue()
        self._is_removed = False
        # The handler runs, or its signal is being delivered. `remove` must not cancel that: the
        # handler may have acted, and would act again.
        self._is_acting = False

    def begin(self, type: str) -> None:
        wanted = SignalFilter(types=() if type == "*" else (type,))
        self._number = self._receiver.consumers.add_handler(wanted, self._queue.put_nowait)
        self._token = self._parts.tasks.start(f"signals {type}", self._run())

    def remove(self) -> None:
        """Removes the handler. A call that is running ends normally, and its signal is delivered.
        Signals that still wait for the handler go to other consumers."""
        self._receiver.consumers.remove(self._number)
        self._is_removed = True
        if not self._is_acting:
            self._parts.tasks.cancel(self._token)
        while not self._queue.empty():
            self._receiver.give_back(self._queue.get_nowait())

    async def _run(self) -> None:
        while not self._is_removed:
            entry = await self._queue.get()
            try:
                await self._handle(entry)
            except asyncio.CancelledError:
                if not entry.handled:
                    self._receiver.give_back(entry)
                raise
            except NotRunningError:
                return
            except Exception as error:
                # Quarantine or judging failed for good. The signal stays in the queue: dropping it
                # here would lose it until the next start.
                self._failed("signal_not_handled", entry, error)
                self._queue.put_nowait(entry)
                await self._parts.clock.sleep(HANDLER_RETRY.first_s)

    async def _handle(self, entry: InboxEntry) -> None:
        retries = Retries(HANDLER_RETRY)
        while True:
            if await self._receiver.is_refused(entry):
                return
            self._is_acting = True
            try:
                error = await self._act(entry)
            finally:
                self._is_acting = False
            if error is None:
                return
            self._failed("signal_handler_failed", entry, error)
            self._parts.bus.emit(events.ErrorEvent(error=error), is_logged=True)
            if self._is_removed:
                self._receiver.give_back(entry)
                return
            delay_s = retries.next_delay_s()
            if delay_s is None:
                await self._receiver.quarantine(entry, error)
                return
            await self._parts.clock.sleep(delay_s)

    async def _act(self, entry: InboxEntry) -> Exception | None:
        """Calls the handler and delivers its signal. Returns the error, if any. The store refuses
        the writes of the handler if a record changed since the handler read it; then the handler
        is called again and reads again."""
        delivery = Delivery(entry.signal)
        error = await self._called(delivery)
        if error is not None:
            return error
        entry.handled = True
        effects = tuple(delivery.writes)
        try:
            await self._receiver.deliver(entry, effects, REFUSALS_MAX if effects else math.inf)
        except NotRunningError:
            raise
        except Exception as refused:
            entry.handled = False
            return refused
        return None

    async def _called(self, delivery: Delivery) -> Exception | None:
        try:
            result = self._handler(delivery)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as cancelled:
            me = asyncio.current_task()
            if me is None or me.cancelling():
                raise
            # A task that the handler awaited was cancelled, not this loop.
            return RuntimeError(f"something that the handler awaited was cancelled: {cancelled!r}")
        except Exception as error:
            return error
        return None

    def _failed(self, what: str, entry: InboxEntry, error: Exception) -> None:
        self._parts.log.error(what, error=error, **log_fields(entry.signal))
