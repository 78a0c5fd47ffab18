"""Calls one handler for its signals, one after another.

A signal is acknowledged after the handler returned. A handler that raises, or whose effect is
refused, is called again; after the last time the signal goes to quarantine. What a handler has
done is only delivered: it must never be given to another taker. No signal, and nothing that a
handler does, may end the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable

from squall.coordination import events
from squall.coordination.assembly import Assembly
from squall.coordination.errors import ConfigurationError, NotRunningError
from squall.coordination.inbox import Entry, Wanted
from squall.coordination.mailbox import Mailbox
from squall.coordination.patience import names_of
from squall.coordination.records import Signal
from squall.coordination.stores.interface import Write

HANDLER_TRIES = 5
HANDLER_BACKOFF_S = (1.0, 2.0, 4.0, 8.0)
REFUSALS_MAX = 60
"""A store that refuses for so many seconds may do so for what the handler gave it."""


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
        for write in writes:
            if not isinstance(write, Write):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(
                    f"delivery.also was given {type(write).__name__}: it takes writes of a store;"
                    " Put(key, value, expect=ABSENT, ttl_s=3600.0) is right"
                )
        self.writes += writes


Handler = Callable[[Delivery], Awaitable[None] | None]


class Handling:
    """Of one handler, from `begin` until `remove`."""

    def __init__(self, parts: Assembly, mailbox: Mailbox, handler: Handler) -> None:
        self._parts = parts
        self._mailbox = mailbox
        self._handler = handler
        self._queue: asyncio.Queue[Entry] = asyncio.Queue()
        self._is_removed = False
        self._is_acting = False
        """The handler runs, or what it did is being delivered."""

    def begin(self, type: str) -> None:
        wanted = Wanted(types=() if type == "*" else (type,))
        self._number = self._mailbox.takers.take(wanted, self._queue.put_nowait)
        self._token = self._parts.tasks.start(f"signals {type}", self._run())

    def remove(self) -> None:
        """A call that is under way ends, and its signal is delivered; what waits for one is left
        to other takers."""
        self._mailbox.takers.forget(self._number)
        self._is_removed = True
        if not self._is_acting:
            self._parts.tasks.cancel(self._token)
        while not self._queue.empty():
            self._mailbox.give_back(self._queue.get_nowait())

    async def _run(self) -> None:
        while not self._is_removed:
            entry = await self._queue.get()
            try:
                await self._handle(entry)
            except asyncio.CancelledError:
                if not entry.handled:
                    self._mailbox.give_back(entry)
                raise
            except NotRunningError:
                return
            except Exception as error:
                self._failed("signal_not_handled", entry, error)
                self._queue.put_nowait(entry)
                await self._parts.clock.sleep(HANDLER_BACKOFF_S[0])

    async def _handle(self, entry: Entry) -> None:
        for attempt in range(HANDLER_TRIES):
            if await self._mailbox.is_refused(entry):
                return
            self._is_acting = True
            try:
                error = await self._act(entry)
            finally:
                self._is_acting = False
            if error is None:
                return
            self._failed("signal_handler_failed", entry, error)
            self._parts.bus.emit(events.ErrorEvent(error=error))
            if self._is_removed:
                self._mailbox.give_back(entry)
                return
            pause_s = HANDLER_BACKOFF_S[min(attempt, len(HANDLER_BACKOFF_S) - 1)]
            await self._parts.clock.sleep(pause_s)
        await self._mailbox.quarantine(entry)

    async def _act(self, entry: Entry) -> Exception | None:
        """Calls the handler and has the signal delivered; what went wrong. What the handler wants
        to be written with that may be refused, as when something has changed since it looked: then
        it has to look again."""
        delivery = Delivery(entry.signal)
        error = await self._called(delivery)
        if error is not None:
            return error
        entry.handled = True
        effects = tuple(delivery.writes)
        try:
            await self._mailbox.deliver(entry, effects, REFUSALS_MAX if effects else math.inf)
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
            # Something that it waited for was cancelled, not the loop.
            return RuntimeError(f"the handler was cancelled by itself: {cancelled!r}")
        except Exception as error:
            return error
        return None

    def _failed(self, what: str, entry: Entry, error: Exception) -> None:
        self._parts.log.error(what, error=error, **names_of(entry.signal))
