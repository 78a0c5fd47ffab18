"""Signals of one member: send, acknowledge, wait, handle.

    await coordinator.send_signal_with_retry("worker-2", "wake", payload={"job": 7})
    signal = await coordinator.block_until_signal(correlation_id="job-7", timeout=600)

    async for signal in coordinator.signals.iterate(types=["progress"]):
        ...

The parts are `sending`, `mailbox`, `waiting` and `handling`; this file is what people call. A
signal that was acknowledged is never lost to those who still want it, and nobody waits on when the
member has stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

from squall.coordination import keys
from squall.coordination.assembly import Assembly
from squall.coordination.errors import (
    BlockingTimeoutError,
    ConfigurationError,
    CoordinationError,
)
from squall.coordination.handling import Delivery, Handler, Handling
from squall.coordination.inbox import Entry, Wanted
from squall.coordination.mailbox import Context, Mailbox
from squall.coordination.options import RETRIES_RANGE, Options
from squall.coordination.records import MemberRecord, Signal, SignalAck, WaitState
from squall.coordination.sending import Sender
from squall.coordination.timing import wrong
from squall.coordination.waiting import Waited, Waiter

__all__ = ["Delivery", "Handler", "Signals"]


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
        `BlockingTimeoutError`, `DeadCoordinatorError`, `StateLostError` or, when the member stops,
        `NotRunningError` otherwise."""
        senders = (from_,) if isinstance(from_, str) else tuple(from_)
        limit_s = await self._waiter.limit_of(
            timeout, expected_duration, planned_duration, task_type
        )
        entry = await self._waiter.wait(correlation_id, tuple(types), senders, limit_s, task_type)
        return entry.signal

    async def wait_all(
        self, correlation_ids: Sequence[str], timeout_s: float | None = None
    ) -> dict[str, Signal]:
        """One signal for each; what came in time is in `partial` of the timeout error.
        `StateLostError` if the store lost what one of them waits for. A call that ends without
        its result leaves what came to a later one."""
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
        another; acknowledged after it returned. The result takes the handler away; a call that is
        under way ends."""
        handling = Handling(self._parts, self.mailbox, handler)
        handling.begin(type)
        return handling.remove

    async def iterate(
        self, types: Collection[str] = (), from_: Collection[str] = ()
    ) -> AsyncIterator[Signal]:
        """Signals as they come. One is acknowledged when the next one is asked for; a body
        that raises or leaves the loop gives its signal back."""
        wanted = Wanted(types=tuple(types), senders=tuple(from_))
        while True:
            entry = await self.mailbox.takers.take_one(wanted)
            done = False
            try:
                if not await self.mailbox.is_refused(entry):
                    yield entry.signal
                    entry.handled = True
                    await self.mailbox.deliver(entry)
                done = True
            finally:
                if not done:
                    self._let_go(entry)

    async def open_waits(self) -> tuple[WaitState, ...]:
        """What this id waited for before it was restarted: call `block_until_signal` again
        with the same correlation id."""
        return await self._waiter.written_down()

    async def adopt_inbox(self, dead_id: str) -> None:
        """Reads also the inbox of a member that is dead or has left, until that comes back."""
        (found,) = await self._parts.patient.get(keys.member(dead_id))
        known = None if found is None else self._parts.codec.read(MemberRecord, found.value)
        own = dead_id == self._parts.member_id
        if found is None or known is None or known.status == "alive" or own:
            raise ConfigurationError(
                f"dead_id is {dead_id!r}: only the inbox of another member that is dead or has left"
                " is adopted"
            )
        self.mailbox.adopt(found, known)

    @property
    def blocked(self) -> int:
        """Callers that wait now."""
        return self._waiter.open_count

    # Inside.

    async def _gather(
        self, wanted: Sequence[str], timeout_s: float | None, enough: int
    ) -> dict[str, Signal]:
        found: dict[str, Entry] = {}
        failed: list[CoordinationError] = []
        came = asyncio.Event()
        stopped = self.mailbox.patience.ended

        async def one(correlation_id: str) -> None:
            try:
                found[correlation_id] = await self._waiter.wait(
                    correlation_id, (), (), limit_s, "", is_part=True
                )
            except BlockingTimeoutError:
                return  # All of them have the same limit: it is told below, once.
            except CoordinationError as error:
                failed.append(error)
            except asyncio.CancelledError:
                # If the call still waits, nobody but the end of the member has done it.
                failed.append(stopped())
                raise
            finally:
                came.set()

        limit_s = await self._waiter.limit_of(timeout_s, None, None, "")
        waited = Waited("", self._parts.clock.now())
        tokens = [self._parts.tasks.start("wait", one(each)) for each in wanted]
        try:
            if not all(token.task for token in tokens):
                raise stopped()
            async with asyncio.timeout(limit_s):
                while len(found) < enough and not failed:
                    came.clear()
                    await came.wait()
            if len(found) < enough:
                raise failed[0]
        except TimeoutError:
            names, partial = ", ".join(wanted), _signals(found)
            took_s = self._waiter.count_timeout(waited, names)
            raise BlockingTimeoutError(self._parts.member_id, names, took_s, {}, partial) from None
        except BaseException:
            for entry in found.values():
                self.mailbox.give_back(entry)
            raise
        finally:
            for token in tokens:
                self._parts.tasks.cancel(token)
        return _signals(found)

    def _let_go(self, entry: Entry) -> None:
        """Of what was done with it only the delivery is left; nobody else may do it again."""
        if entry.handled:
            self._parts.tasks.start("signal delivered", self.mailbox.deliver(entry))
        else:
            self.mailbox.give_back(entry)


def _signals(found: Mapping[str, Entry]) -> dict[str, Signal]:
    return {correlation_id: entry.signal for correlation_id, entry in found.items()}
