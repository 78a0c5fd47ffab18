"""The signals of one member, as callers use them: send, wait, handle, iterate.

    await coordinator.send_signal_with_retry("worker-2", "wake", payload={"job": 7})
    signal = await coordinator.block_until_signal(correlation_id="job-7", timeout_s=600)

    async for signal in coordinator.signals.iterate(types=["progress"]):
        ...

The work is done by `sender`, `receiver`, `blocking_wait` and `handler_loop`. A signal that was
acknowledged is never lost to a consumer that still wants it, and no call waits on after the member
has stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

from squall.coordination.errors import (
    BlockingTimeoutError,
    ConfigurationError,
    CoordinationError,
    DeadCoordinatorError,
)
from squall.coordination.member_parts import MemberParts
from squall.coordination.options import RETRIES_RANGE, Options
from squall.coordination.records import keys
from squall.coordination.records.schemas import MemberRecord, Signal, SignalAck, WaitState
from squall.coordination.signals.blocking_wait import BlockingWaits, WaitTiming
from squall.coordination.signals.handler_loop import Delivery, HandlerLoop, SignalHandler
from squall.coordination.signals.matching import InboxEntry, SignalFilter
from squall.coordination.signals.member_context import MemberContext
from squall.coordination.signals.receiver import Receiver
from squall.coordination.signals.sender import Sender
from squall.coordination.value_rules import wrong

__all__ = ["Delivery", "SignalHandler", "Signals"]


class Signals:
    """Sends and receives the signals of one member. `Coordinator` makes and runs it."""

    def __init__(self, parts: MemberParts, context: MemberContext, options: Options) -> None:
        self._parts = parts
        self._options = options
        self._context = context
        self.receiver = Receiver(parts, context)
        self._sender = Sender(parts, context, options)
        self._waits = BlockingWaits(parts, self.receiver, options)

    def start(self) -> None:
        self._parts.tasks.start("inbox", self.receiver.run(), essential=True)
        self._parts.tasks.start("wait states", self._waits.store_open_waits())
        self._parts.tasks.start("receipts", self.receiver.write_receipts())

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
        """Appends a signal to the receiver's inbox and returns; it is then as durable as the
        store. A leader passes `epoch=term.epoch` with its orders."""
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
        timeout_s: float | None = None,
    ) -> SignalAck:
        """Sends until the receiver acknowledges: its handler is done. `max_retries` counts all
        tries without any answer. A receiver whose handler takes long answers a repeat with a
        receipt; from then on nothing is repeated, and the handler has `timeout_s` more (default:
        that of `block_until_signal`). Raises `SignalDeliveryError`; its `received` says whether a
        handler has the signal."""
        tries = self._options.max_retries if max_retries is None else max_retries
        low, high = RETRIES_RANGE
        if not low <= tries <= high:
            wrong("max_retries", tries, f"it must be within {low} .. {high}", "3")
        limit_s = await self._waits.limit_of(timeout_s, None, None, "")
        return await self._sender.send_with_retry(
            receiver_id,
            type,
            iteration=iteration,
            payload=payload,
            correlation_id=correlation_id,
            epoch=epoch,
            allow_unknown=allow_unknown,
            max_retries=tries,
            handled_within_s=limit_s,
        )

    async def block_until_signal(
        self,
        *,
        correlation_id: str | None = None,
        types: Collection[str] = (),
        from_: str | Sequence[str] = (),
        timeout_s: float | None = None,
        expected_duration: float | None = None,
        planned_duration: float | None = None,
        task_type: str = "",
    ) -> Signal:
        """Waits for the first verified signal that matches all filters, also one that arrived
        before the call. Raises `BlockingTimeoutError`, `DeadCoordinatorError` (all of `from_` are
        gone), `StateLostError` or, when the member stops, `NotRunningError`."""
        senders = _senders(from_)
        limit_s = await self._waits.limit_of(
            timeout_s, expected_duration, planned_duration, task_type
        )
        entry = await self._waits.wait(correlation_id, tuple(types), senders, limit_s, task_type)
        return entry.signal

    async def wait_all(
        self,
        correlation_ids: Sequence[str],
        timeout_s: float | None = None,
        *,
        from_: str | Sequence[str] = (),
    ) -> dict[str, Signal]:
        """Waits for one signal per correlation id. After a timeout, `partial` of the error has
        what came in time. Raises `DeadCoordinatorError` when all of `from_` that sent nothing yet
        are gone, unless the others still have to send more than one each, and `StateLostError` if
        the store lost data. A call that fails otherwise leaves the signals that came to a later
        call."""
        wanted = tuple(dict.fromkeys(correlation_ids))
        return await self._gather(wanted, _senders(from_), timeout_s, len(wanted))

    async def wait_any(
        self,
        correlation_ids: Sequence[str],
        timeout_s: float | None = None,
        *,
        from_: str | Sequence[str] = (),
    ) -> dict[str, Signal]:
        """Waits for a signal of at least one of the correlation ids; otherwise as `wait_all`."""
        wanted = tuple(dict.fromkeys(correlation_ids))
        return await self._gather(wanted, _senders(from_), timeout_s, min(1, len(wanted)))

    def on_signal(self, type: str, handler: SignalHandler) -> Callable[[], None]:
        """Calls `handler(delivery)` for each signal of the type ("*": of any type), one after
        another. A signal is acknowledged after the handler returned. Call the result to remove the
        handler; a call that is running ends normally."""
        loop = HandlerLoop(self._parts, self.receiver, handler)
        loop.begin(type)
        return loop.remove

    async def iterate(
        self, types: Collection[str] = (), *, from_: str | Sequence[str] = ()
    ) -> AsyncIterator[Signal]:
        """Yields signals as they arrive. Asking for the next signal acknowledges the one before; a
        loop body that raises or leaves the loop gives its signal back."""
        wanted = SignalFilter(types=tuple(types), senders=_senders(from_))
        while True:
            entry = await self.receiver.consumers.take_one(wanted)
            self.receiver.consumers.note_taken(entry)
            done = False
            try:
                if not await self.receiver.is_refused(entry):
                    yield entry.signal
                    entry.handled = True
                    await self.receiver.deliver(entry)
                done = True
            finally:
                if not done:
                    self._release(entry)

    async def open_waits(self) -> tuple[WaitState, ...]:
        """What this member waited for before it was restarted. To continue a wait, call
        `block_until_signal` with its correlation id."""
        return await self._waits.stored_waits()

    async def adopt_inbox(self, dead_id: str) -> None:
        """Reads the inbox of another member that is dead or has left, until it comes back."""
        (found,) = await self._parts.patient.get(keys.member(dead_id))
        known = None if found is None else self._parts.codec.read(MemberRecord, found.value)
        own = dead_id == self._parts.member_id
        if found is None or known is None or known.status == "alive" or own:
            raise ConfigurationError(
                f"dead_id is {dead_id!r}: a member adopts only the inbox of another member that is"
                " dead or has left"
            )
        self.receiver.adopt(found, known)

    @property
    def blocked(self) -> int:
        """How many calls wait now."""
        return self._waits.open_count

    # Inside.

    async def _gather(
        self, wanted: Sequence[str], senders: Sequence[str], timeout_s: float | None, enough: int
    ) -> dict[str, Signal]:
        found: dict[str, InboxEntry] = {}
        failed: list[CoordinationError] = []
        came = asyncio.Event()
        stopped = self.receiver.retry.ended

        async def one(correlation_id: str) -> None:
            try:
                found[correlation_id] = await self._waits.wait(
                    correlation_id, (), senders, limit_s, "", is_part=True
                )
            except BlockingTimeoutError:
                return  # All parts have the same limit; the call reports it once, below.
            except CoordinationError as error:
                failed.append(error)
            except asyncio.CancelledError:
                # The call cancels its parts only after it stopped waiting. If it still waits, the
                # member ended.
                failed.append(stopped())
                raise
            finally:
                came.set()

        def missing() -> Sequence[str]:
            """The senders without which the call cannot end: those that sent nothing yet, if there
            is one for each signal that is missing; else all."""
            came_from = {entry.signal.sender_id for entry in found.values()}
            silent = [each for each in senders if each not in came_from]
            return silent if len(silent) >= len(wanted) - len(found) else senders

        def on_gone(ids: Sequence[str], reason: str) -> None:
            self._waits.count_dead(waited)
            failed.append(DeadCoordinatorError(", ".join(ids), reason))
            came.set()

        limit_s = await self._waits.limit_of(timeout_s, None, None, "")
        waited = WaitTiming("", self._parts.clock.now())
        unwatch = self._waits.watch(missing, on_gone)
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
            took_s = self._waits.count_timeout(waited, names)
            health = await self._waits.health_of(senders)
            raise BlockingTimeoutError(
                self._parts.member_id, names, took_s, health, partial
            ) from None
        except BaseException:
            for entry in found.values():
                self.receiver.give_back(entry)
            raise
        finally:
            unwatch()
            for token in tokens:
                self._parts.tasks.cancel(token)
        return _signals(found)

    def _release(self, entry: InboxEntry) -> None:
        """The loop body ended early. If it had acted on the signal, only the delivery is left, and
        no other consumer may get it."""
        if entry.handled:
            self._parts.tasks.start("signal delivered", self.receiver.deliver(entry))
        else:
            self.receiver.give_back(entry)


def _senders(from_: str | Sequence[str]) -> tuple[str, ...]:
    return (from_,) if isinstance(from_, str) else tuple(from_)


def _signals(found: Mapping[str, InboxEntry]) -> dict[str, Signal]:
    return {correlation_id: entry.signal for correlation_id, entry in found.items()}
