"""The consumers of this process: waits, loops over signals and handlers.

Each gets the signals that match it, in the order of arrival. A signal must never be lost between
the matcher and a consumer that is cancelled at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from squall.coordination.errors import CoordinationError
from squall.coordination.signals.matching import InboxEntry, SignalFilter, SignalMatcher
from squall.coordination.signals.step_retry import StepRetry


class Consumers:
    """Connects the matcher of one member with the futures and handlers that want its signals."""

    def __init__(self, matcher: SignalMatcher, retry: StepRetry) -> None:
        # Set while there is a consumer: the receiver reads the inbox only then.
        self.present = asyncio.Event()
        self._matcher = matcher
        self._retry = retry
        # By number of the consumer; each number is in one of the two.
        self._handlers: dict[int, Callable[[InboxEntry], None]] = {}
        self._futures: dict[int, asyncio.Future[InboxEntry]] = {}
        # By id, the signals that a handler or a loop has taken since the last look at them. What a
        # wait takes is delivered at once.
        self.taken: dict[str, InboxEntry] = {}
        self.is_any_taken = asyncio.Event()

    def add_handler(self, wanted: SignalFilter, handler: Callable[[InboxEntry], None]) -> int:
        """Calls `handler` for each signal that matches, until `remove`."""
        self._retry.check_running()
        number = self._matcher.add_consumer(wanted, once=False)
        self._handlers[number] = handler
        self.wake()
        return number

    def remove(self, number: int) -> None:
        self._matcher.remove_consumer(number)
        self._handlers.pop(number, None)
        self._futures.pop(number, None)

    async def take_one(self, wanted: SignalFilter, *, delivers_first: bool = False) -> InboxEntry:
        """Waits for the first signal that matches, also one that arrived before the call. It is
        not delivered yet: a caller without `delivers_first` must ask the receiver whether it is
        refused before acting on it. A cancelled call takes nothing."""
        self._retry.check_running()
        number = self._matcher.add_consumer(wanted, once=True, delivers_first=delivers_first)
        future: asyncio.Future[InboxEntry] = asyncio.get_running_loop().create_future()
        self._futures[number] = future
        self.wake()
        try:
            return await future
        except asyncio.CancelledError:
            self.remove(number)
            # The result and the cancellation came in the same turn of the loop: the caller will
            # never see the signal, so it goes to the next consumer.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._matcher.give_back(future.result())
                self.give()
            raise

    def note_taken(self, entry: InboxEntry) -> None:
        """A handler or a loop has the signal, and may take long with it."""
        self.taken[entry.signal.signal_id] = entry
        self.is_any_taken.set()

    def fail_waits(self, error: CoordinationError) -> None:
        """Ends every wait for one signal with the error. Handlers stay."""
        for number, future in list(self._futures.items()):
            self.remove(number)
            if not future.done():
                future.set_exception(error)

    def wake(self) -> None:
        self.give()
        if self._matcher.has_consumers:
            self.present.set()

    def give(self) -> None:
        """Passes waiting signals to the consumers that match them."""
        for number, entry in self._matcher.match():
            future, handler = self._futures.pop(number, None), self._handlers.get(number)
            if future is not None and not future.done():
                future.set_result(entry)
            elif handler is not None:
                handler(entry)
                self.note_taken(entry)
            else:
                # The consumer was cancelled and has not been removed yet.
                self._matcher.give_back(entry)
