"""Those in this process who want signals: waits, loops over signals, handlers.

It gives each what is for it, in the order of arrival. It must never lose a signal between the
inbox and a taker that is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from squall.coordination.errors import CoordinationError
from squall.coordination.inbox import Entry, Inbox, Wanted
from squall.coordination.patience import Patience


class Takers:
    """Of one member."""

    def __init__(self, inbox: Inbox, patience: Patience) -> None:
        self.are_there = asyncio.Event()
        self._inbox = inbox
        self._patience = patience
        self._handlers: dict[int, Callable[[Entry], None]] = {}
        self._futures: dict[int, asyncio.Future[Entry]] = {}

    def take(self, wanted: Wanted, handler: Callable[[Entry], None]) -> int:
        """Calls `handler` for each signal that matches, until `forget`."""
        self._patience.check_running()
        number = self._inbox.add_taker(wanted, once=False)
        self._handlers[number] = handler
        self.wake()
        return number

    def forget(self, number: int) -> None:
        self._inbox.remove_taker(number)
        self._handlers.pop(number, None)
        self._futures.pop(number, None)

    async def take_one(self, wanted: Wanted, *, delivers_first: bool = False) -> Entry:
        """The first that matches, also one that is here already. Not delivered yet. A cancelled
        call takes nothing. Who does not have it delivered before it acts on it has to ask whether
        it is refused."""
        self._patience.check_running()
        number = self._inbox.add_taker(wanted, once=True, delivers_first=delivers_first)
        future: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self._futures[number] = future
        self.wake()
        try:
            return await future
        except asyncio.CancelledError:
            self.forget(number)
            if future.done() and not future.cancelled() and future.exception() is None:
                self._inbox.give_back(future.result())
                self.give()
            raise

    def fail_waits(self, error: CoordinationError) -> None:
        """Ends all that wait for one signal."""
        for number, future in list(self._futures.items()):
            self.forget(number)
            if not future.done():
                future.set_exception(error)

    def wake(self) -> None:
        self.give()
        if self._inbox.wanted:
            self.are_there.set()

    def give(self) -> None:
        for number, entry in self._inbox.match():
            future, handler = self._futures.pop(number, None), self._handlers.get(number)
            if future is not None and not future.done():
                future.set_result(entry)
            elif handler is not None:
                handler(entry)
            else:
                self._inbox.give_back(entry)
