"""A conversation with one peer: requests, answers and one-way messages over a link.

The dialling side keeps its channel while links come and go; the listening side has one
per link. Both sides may send requests. A message goes straight to the link while that has
room, and waits in the outbox otherwise. Every request ends exactly once: with its answer, a
typed error, `NotSent` or `OutcomeUnknown`. Nothing is sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil
from typing import Any

import msgspec

from squall.cluster.wire.catalogue import MessageType
from squall.cluster.wire.errors import (
    DecodeError,
    MessageTooLarge,
    NotSent,
    OutcomeUnknown,
    RemoteError,
    WireError,
)
from squall.cluster.wire.header import BUDGET_MAX_MS, Kind, MessageClass
from squall.cluster.wire.links.dispatch import Dispatcher
from squall.cluster.wire.links.handshake import Session
from squall.cluster.wire.links.link import Link
from squall.cluster.wire.links.outbox import Outbox, PutResult, QueuedMessage, QueueLevel
from squall.cluster.wire.links.pending_calls import Call, Calls
from squall.cluster.wire.links.switchboard import Switchboard
from squall.cluster.wire.messages import ErrorAnswer

# Deadlines closer together than this share one timer.
TIMER_SLACK_S = 0.005
# A caller with a full queue comes back after half a second: by then a link that moves at
# all has sent some of it.
FULL_RETRY_S = 0.5

CONTROL_FULL = "the queue of CONTROL messages is full"

_ONE_WAY = int(Kind.ONE_WAY)
_REQUEST = int(Kind.REQUEST)
_RESPONSE = int(Kind.RESPONSE)
_ERROR = int(Kind.ERROR)
_CANCEL = int(Kind.CANCEL)
_ANSWERS = (_RESPONSE, _ERROR)
_NO_DEADLINE = float("inf")

Waiter = asyncio.Future[Any]


class Channel:
    def __init__(
        self,
        board: Switchboard,
        *,
        on_established: Callable[[Channel], None],
        on_lost: Callable[[Channel, Exception | None], None],
    ) -> None:
        self.link: Link | None = None
        # Set by the first message: the bulk link is dialled only then.
        self.wanted = asyncio.Event()
        self._board = board
        self._clock = board.runtime.clock
        self._loop = asyncio.get_running_loop()
        self._encode = board.catalogue.encode
        self._on_established = on_established
        self._on_lost = on_lost
        self._outbox = Outbox(board.limits)
        self._calls: Calls[Waiter] = Calls()
        self._dispatcher = Dispatcher(
            board.handlers, board.admit, board.passes, board.tasks, board.counters, board.on_error
        )
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NO_DEADLINE
        self._closed = ""

    # Called by the owner.

    @property
    def session(self) -> Session | None:
        return self.link.session if self.link is not None else None

    @property
    def waiting(self) -> int:
        """Messages in the outbox."""
        return self._outbox.waiting

    @property
    def pending(self) -> int:
        """Requests without an answer."""
        return len(self._calls.pending)

    @property
    def handling(self) -> int:
        return self._dispatcher.running

    def send(self, message: msgspec.Struct) -> None:
        """Sends a one-way message, at most once. Raises `NotSent` if the queue is full."""
        row, body = self._encode(message)
        link = self.link
        if link is not None and link.room > 0 and not self._outbox.waiting:
            link.post(row.message_class, _ONE_WAY, row.number, 0, 0, body)
            return
        self._enqueue(
            QueuedMessage(row.message_class, _ONE_WAY, row.number, 0, _NO_DEADLINE, body, message)
        )

    async def request(self, message: msgspec.Struct, timeout_s: float) -> Any:
        """The answer. The peer learns what is left of `timeout_s` when the request leaves."""
        row, body = self._encode(message)
        return await self.request_body(row, body, timeout_s)

    async def request_body(self, row: MessageType, body: bytes, timeout_s: float) -> Any:
        """`request` for an encoded message."""
        call = self._ask(row, body, timeout_s)
        try:
            return await call.waiter
        except asyncio.CancelledError:
            self._give_up(call)
            raise

    def abandon(self, reason: str) -> None:
        """Fails the messages that still wait; requests that left may still be answered."""
        for entry in self._outbox.clear():
            self._undelivered(entry, reason)

    def close(self, reason: str) -> None:
        """Closes for good: every pending request fails, and nothing is accepted any more."""
        self._closed = reason
        if self.link is not None:
            self.link.close()
        self._fail_pending(reason)
        self._stop_timer()

    # Called by the link.

    def on_established(self, link: Link, session: Session) -> None:
        self.link = link
        self._on_established(self)
        self.on_writable(link)

    def on_heard(self, link: Link) -> None:
        if link.session is not None:
            self._board.on_heard(link.session.peer)

    def on_frame(
        self,
        link: Link,
        kind: int,
        type_number: int,
        correlation: int,
        budget_ms: int,
        frame: bytes,
    ) -> None:
        if kind in _ANSWERS:
            body = link.unseal(frame)
            call = self._calls.pending.pop(correlation, None)
            if call is None or call.waiter.done():
                self._board.counters.late_answer += 1
            else:
                self._resolve(call.waiter, kind, type_number, body)
        elif kind != _CANCEL:
            deadline = link.arrived_at + budget_ms / 1000 if budget_ms else None
            self._dispatcher.receive(self, link, kind, type_number, correlation, deadline, frame)
        else:
            link.unseal(frame)
            self._dispatcher.cancel(correlation)

    def awaits_answers(self) -> bool:
        return bool(self._calls.pending)

    def on_writable(self, link: Link) -> None:
        while link.room > 0:
            entry = self._outbox.take()
            if entry is None:
                break
            self._post_queued(link, entry)
        if self._outbox.level < QueueLevel.PAUSED:
            link.resume_reading()

    def on_error(self, link: Link, error: Exception) -> None:
        self._board.on_error(error)

    def on_lost(self, link: Link, error: Exception | None) -> None:
        if self.link is link:
            self.link = None
            self._fail_pending(f"link lost: {error}" if error is not None else "link closed")
        self._on_lost(self, error)

    def answer(self, link: Link, correlation: int, kind: Kind, message: msgspec.Struct) -> None:
        """Sends an answer over the link that its request came on, or not at all. Raises
        `MessageTooLarge` for one that the link does not carry: the peer would end the link."""
        if self.link is not link:
            self._board.counters.answers_lost += 1
            return
        row, body = self._encode(message)
        if len(body) > link.body_max:
            raise MessageTooLarge(
                f"{row.name} has {len(body)} bytes, the link of its request carries "
                f"{link.body_max}: register the request as {row.size.name}"
            )
        if link.room > 0 and not self._outbox.waiting:
            link.post(row.message_class, kind, row.number, correlation, 0, body)
            return
        entry = QueuedMessage(row.message_class, kind, row.number, correlation, _NO_DEADLINE, body)
        certain = row.message_class != MessageClass.CONTROL
        if self._outbox.put(entry, certain=certain) is PutResult.CONTROL_FULL:
            self._control_full(link)
        elif self._outbox.level >= QueueLevel.PAUSED:
            # Answers to further requests would have no place.
            link.pause_reading()

    # Sending.

    def _ask(self, row: MessageType, body: bytes, timeout_s: float) -> Call[Waiter]:
        if self._closed:
            raise NotSent(self._closed)
        if len(self._calls.pending) >= self._board.limits.calls_max:
            self._board.counters.saturated += 1
            raise NotSent("too many requests wait for answers", retry_after_s=0.5)
        now = self._clock.now()
        call = self._calls.open(self._loop.create_future(), now + timeout_s)
        link = self.link
        if link is not None and link.room > 0 and not self._outbox.waiting:
            link.post(
                row.message_class,
                _REQUEST,
                row.number,
                call.correlation,
                _budget_ms(timeout_s),
                body,
            )
        else:
            call.queued = QueuedMessage(
                row.message_class, _REQUEST, row.number, call.correlation, call.deadline, body
            )
            try:
                self._enqueue(call.queued)
            except NotSent:
                del self._calls.pending[call.correlation]
                raise
        if call.deadline < self._timer_at - TIMER_SLACK_S:
            self._start_timer(call.deadline, now)
        return call

    def _enqueue(self, entry: QueuedMessage) -> None:
        if self._closed:
            raise NotSent(self._closed)
        before = self._outbox.dropped
        outcome = self._outbox.put(entry)
        counters = self._board.counters
        counters.telemetry_dropped += self._outbox.dropped - before
        if outcome is PutResult.QUEUED:
            self.wanted.set()
            return
        if outcome is PutResult.CONTROL_FULL:
            self._control_full(self.link)
            raise NotSent(CONTROL_FULL)
        counters.saturated += 1
        raise NotSent("the queue to this peer is full", retry_after_s=FULL_RETRY_S)

    def _control_full(self, link: Link | None) -> None:
        """Closes the link: the peer derives its CONTROL again from state after a reconnect."""
        self._board.counters.control_overflow += 1
        if link is not None:
            link.abort(WireError(CONTROL_FULL))

    def _post_queued(self, link: Link, entry: QueuedMessage) -> None:
        budget_ms = 0
        if entry.kind == _REQUEST:
            call = self._calls.pending.get(entry.correlation)
            if call is None:
                return
            call.queued = None
            budget_ms = _budget_ms(entry.deadline - self._clock.now())
        link.post(
            entry.message_class,
            entry.kind,
            entry.type_number,
            entry.correlation,
            budget_ms,
            entry.body,
        )

    # Ending.

    def _resolve(self, waiter: Waiter, kind: int, type_number: int, body: bytes) -> None:
        catalogue, counters = self._board.catalogue, self._board.counters
        row = catalogue.by_number.get(type_number)
        if row is None:
            counters.unknown_type += 1
            waiter.set_exception(OutcomeUnknown(f"answered by a message of type {type_number}"))
            return
        try:
            message = catalogue.decode(row, body)
        except DecodeError as error:
            counters.decode_error += 1
            waiter.set_exception(OutcomeUnknown(f"the answer cannot be read: {error}"))
            return
        if kind == _RESPONSE:
            waiter.set_result(message)
        elif isinstance(message, ErrorAnswer):
            waiter.set_exception(
                RemoteError(
                    message.code,
                    message.text,
                    retry_after_s=message.retry_after_s,
                    primary=message.primary,
                    leader_within_s=message.leader_within_s,
                )
            )
        else:
            counters.decode_error += 1
            waiter.set_exception(OutcomeUnknown(f"answered with {row.name} for an error"))

    def _give_up(self, call: Call[Waiter]) -> None:
        """The caller was cancelled: withdraw the request, or cancel it at the peer."""
        if self._calls.pending.pop(call.correlation, None) is not None:
            self._withdraw(call)

    def _withdraw(self, call: Call[Waiter]) -> bool:
        """Returns True if the request had not left; otherwise sends a cancel."""
        queued = call.queued
        if queued is not None:
            return self._outbox.forget(queued)
        if self.link is not None:
            self.link.post(MessageClass.CONTROL, Kind.CANCEL, 0, call.correlation, 0, b"")
        return False

    def _undelivered(self, entry: QueuedMessage, reason: str) -> None:
        counters = self._board.counters
        if entry.kind == _REQUEST:
            call = self._calls.pending.pop(entry.correlation, None)
            if call is not None:
                _fail(call.waiter, NotSent(reason))
        elif entry.kind == _ONE_WAY:
            counters.undelivered += 1
            if entry.message_class != MessageClass.TELEMETRY:
                row = self._board.catalogue.by_number[entry.type_number]
                self._board.on_undelivered(row, entry.message, reason)
        else:
            counters.answers_lost += 1

    def _fail_pending(self, reason: str) -> None:
        """The link is gone: queued messages were not sent, sent requests have no known outcome."""
        self.abandon(reason)
        for call in self._calls.clear():
            _fail(call.waiter, OutcomeUnknown(reason))
        self._dispatcher.cancel_all()

    # Deadlines.

    def _start_timer(self, deadline: float, now: float) -> None:
        self._stop_timer()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - now), self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, _NO_DEADLINE

    def _on_timer(self) -> None:
        self._stop_timer()
        now = self._clock.now()
        for call in self._calls.expired(now + TIMER_SLACK_S):
            if self._withdraw(call):
                _fail(call.waiter, NotSent("the deadline passed before it could be sent"))
            else:
                _fail(call.waiter, OutcomeUnknown("the deadline passed without an answer"))
        if self._calls.pending:
            self._start_timer(max(self._calls.earliest, now + TIMER_SLACK_S), now)


def _fail(waiter: Waiter, error: WireError) -> None:
    if not waiter.done():
        waiter.set_exception(error)


def _budget_ms(remaining_s: float) -> int:
    """At least 1: zero means "no deadline"."""
    return min(max(1, ceil(remaining_s * 1000)), BUDGET_MAX_MS)
