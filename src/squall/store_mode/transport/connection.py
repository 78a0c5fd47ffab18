"""One connection of a `StoreNetwork`: a byte stream in numbered parts.

    OPENING ──ACCEPT──► OPEN ──close()──► FINISHING ──CLOSE left──► OVER
       └──REFUSE, RESET, abort(), a gap, CLOSE of the peer, the store is gone ──────► OVER

Queued data is sent in order, and received parts are delivered in order, each once: a repeat
changes nothing, a gap ends the connection. The reader reports how many bytes it has read (CREDIT),
and the writer is never more than `WINDOW_BYTES` ahead. So a paused reader holds at most that much,
and everything else waits at the writer, in `unsent`.

It must never call its handler from inside a call of its owner, nor after `on_closed`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from squall.runtime.interfaces import Address, StreamHandler
from squall.store_mode.transport.envelope import PartKind, StreamPart

WINDOW_BYTES = 4 * 1024 * 1024
"""A bulk link has two megabytes of chunks in flight; with twice that it never waits for credit."""
CREDIT_EVERY = WINDOW_BYTES // 4
PIECE_BYTES = 64 * 1024
"""Connections take turns in an envelope with this much, so that bulk does not delay control."""
UNSENT_MAX = 64 * 1024 * 1024
"""A caller that watches `unsent` never comes near it; one that does not is cut off."""


class ConnectionState(Enum):
    """The states of a connection; the module's diagram shows the transitions."""

    OPENING = "opening"
    OPEN = "open"
    FINISHING = "finishing"
    OVER = "over"


class ConnectionOwner(Protocol):
    """What a connection needs of its network."""

    def ready(self, connection: StoreConnection) -> None:
        """The connection has something to send."""
        ...

    def ended(
        self, connection: StoreConnection, error: Exception | None, notify_peer: bool
    ) -> None:
        """The connection has ended; with `notify_peer` the peer is notified."""
        ...


class StoreConnection:
    """One end of a byte stream between two mailboxes. `number` is positive on the dialling side
    and negative on the other."""

    def __init__(
        self, owner: ConnectionOwner, number: int, own: str, peer: str, *, linger_s: float
    ) -> None:
        self.number = number
        self.local: Address = (own, 0)
        self.peer: Address = (peer, 0)
        self.peer_names: tuple[str, ...] = ()
        # Set while dialling; done when the peer has answered.
        self.accepted: asyncio.Future[None] | None = None
        self._owner = owner
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._state = ConnectionState.OPENING
        self._handler: StreamHandler | None = None
        self._linger: asyncio.TimerHandle | None = None
        # Outgoing: queued data, bytes in envelopes in flight, the next sequence number, and the
        # bytes that were sent and may be sent.
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._leaving_bytes = 0
        self._next = 0
        self._written = 0
        self._may_write = WINDOW_BYTES
        self._greeting: PartKind | None = None
        self._close_left = False
        # Incoming: data the handler has not taken, the next expected sequence number, and the
        # bytes that were read and reported to the writer.
        self._held: deque[bytes] = deque()
        self._expected = 0
        self._read = 0
        self._credited = 0
        self._credit_due = False
        self._paused = False
        self._peer_closed = False
        self._delivering = False

    # Called by the user of the stream.

    def send(self, data: bytes) -> None:
        if self._state is not ConnectionState.OPEN or not data:
            return
        self._queue.append(memoryview(data))
        self._queued_bytes += len(data)
        if self._queued_bytes > UNSENT_MAX:
            self._loop.call_soon(
                self.fail, ConnectionAbortedError("too much unsent data: the peer does not read")
            )
            return
        self._owner.ready(self)

    @property
    def unsent(self) -> int:
        return self._queued_bytes + self._leaving_bytes

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._deliver)

    def close(self) -> None:
        if self._state is not ConnectionState.OPEN:
            return
        self._state = ConnectionState.FINISHING
        self._held.clear()
        self._linger = self._loop.call_later(self._linger_s, self.abort)
        self._owner.ready(self)

    def abort(self) -> None:
        self._end(None, notify_peer=True)

    # Called by the network.

    def abort_later(self) -> None:
        """Ends a dial in the next turn of the loop. A process that is ending has no next turn,
        so it sends nothing more."""
        if not self._loop.is_closed():
            self._loop.call_soon(self.abort)

    @property
    def state(self) -> ConnectionState:
        return self._state

    def greet(self, kind: PartKind) -> None:
        """Queues the first part of this side: OPEN or ACCEPT."""
        self._greeting = kind
        self._owner.ready(self)

    def begin(self, handler: StreamHandler) -> None:
        """Opens the stream for its handler; data that came before is delivered in a later turn
        of the loop."""
        self._state = ConnectionState.OPEN
        self._handler = handler
        self._call(handler.on_open, self)
        self._loop.call_soon(self._deliver)

    @property
    def greeted(self) -> bool:
        """Whether the first part was handed to the sender."""
        return self._next > 0

    def fail(self, error: Exception | None, *, notify_peer: bool = True) -> None:
        if self.accepted is not None and not self.accepted.done():
            self.accepted.set_exception(
                error or ConnectionResetError("the peer closed the connection before it was open")
            )
        self._end(error, notify_peer=notify_peer)

    def collect(self, room: int) -> tuple[list[StreamPart], int]:
        """Takes the parts that may be sent now, with at most `room` bytes of data; returns them
        and their size."""
        parts: list[StreamPart] = []
        if self._greeting is not None:
            parts.append(self._part(self._greeting))
            self._greeting = None
        if self._credit_due:
            self._credit_due = False
            self._credited = self._read
            parts.append(StreamPart(self.number, self._read, PartKind.CREDIT))
        taken = self._take(min(room, self._may_write - self._written))
        if taken:
            parts.append(self._part(PartKind.DATA, taken))
            self._queued_bytes -= len(taken)
            self._leaving_bytes += len(taken)
            self._written += len(taken)
        if self._state is ConnectionState.FINISHING and not self._queue and not self._close_left:
            self._close_left = True
            parts.append(self._part(PartKind.CLOSE))
        return parts, len(taken)

    @property
    def has_more(self) -> bool:
        """Whether `collect` would return anything."""
        return (
            self._greeting is not None
            or self._credit_due
            or (bool(self._queue) and self._may_write > self._written)
            or (
                self._state is ConnectionState.FINISHING
                and not self._queue
                and not self._close_left
            )
        )

    def left(self, size: int) -> None:
        """This many collected bytes are now in the store."""
        if self._state is ConnectionState.OVER:
            return
        self._leaving_bytes -= size
        if self._close_left and self._leaving_bytes == 0:
            self._end(None, notify_peer=False)

    def arrived(self, part: StreamPart) -> None:
        if self._state is ConnectionState.OVER:
            return
        if part.kind is PartKind.RESET:
            self.fail(ConnectionResetError("the peer reset the connection"), notify_peer=False)
            return
        if part.kind is PartKind.CREDIT:
            self._may_write = max(self._may_write, part.sequence + WINDOW_BYTES)
            if self.has_more:
                self._owner.ready(self)
            return
        # A repeat: the envelope was sent again because its first answer was lost.
        if part.sequence < self._expected:
            return
        if part.sequence > self._expected:
            self.fail(ConnectionResetError("the store lost a part of the stream"))
            return
        self._expected += 1
        self._in_order(part)

    # Receiving, sending and ending.

    def _in_order(self, part: StreamPart) -> None:
        match part.kind:
            case PartKind.ACCEPT:
                if self.accepted is not None and not self.accepted.done():
                    self.accepted.set_result(None)
            case PartKind.REFUSE:
                refusal = ConnectionRefusedError(f"there is no listener at {self.peer[0]}")
                self.fail(refusal, notify_peer=False)
            case PartKind.DATA:
                if self._state is ConnectionState.FINISHING:
                    self._note_read(len(part.data))
                else:
                    self._held.append(part.data)
                    self._deliver()
            case PartKind.CLOSE:
                self._peer_closed = True
                self._deliver()
            case _:
                return

    def _deliver(self) -> None:
        """Delivers held data to the handler until it pauses."""
        handler = self._handler
        if handler is None or self._delivering:
            return
        self._delivering = True
        try:
            while self._held and not self._paused and self._state is ConnectionState.OPEN:
                data = self._held.popleft()
                self._note_read(len(data))
                self._call(handler.on_data, data)
        finally:
            self._delivering = False
        wants_end = not self._paused or self._state is ConnectionState.FINISHING
        if self._peer_closed and not self._held and wants_end:
            self._end(None, notify_peer=False)

    def _note_read(self, size: int) -> None:
        self._read += size
        if self._read - self._credited >= CREDIT_EVERY and not self._credit_due:
            self._credit_due = True
            self._owner.ready(self)

    def _take(self, room: int) -> bytes:
        """Takes the next bytes from the queue, as one piece."""
        pieces: list[memoryview] = []
        while self._queue and room > 0:
            piece = self._queue.popleft()
            if len(piece) > room:
                self._queue.appendleft(piece[room:])
                piece = piece[:room]
            pieces.append(piece)
            room -= len(piece)
        return b"".join(pieces)

    def _part(self, kind: PartKind, data: bytes = b"") -> StreamPart:
        sequence = self._next
        self._next += 1
        return StreamPart(self.number, sequence, kind, data)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Calls the handler; an exception ends only this connection."""
        try:
            function(*arguments)
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": f"a handler failed in {function.__name__}", "exception": error}
            )
            self.abort()

    def _end(self, error: Exception | None, *, notify_peer: bool) -> None:
        if self._state is ConnectionState.OVER:
            return
        self._state = ConnectionState.OVER
        self._queue.clear()
        self._held.clear()
        self._queued_bytes = self._leaving_bytes = 0
        self._greeting, self._credit_due = None, False
        if self._linger is not None:
            self._linger.cancel()
        self._owner.ended(self, error, notify_peer)
        handler, self._handler = self._handler, None
        if handler is not None:
            self._loop.call_soon(self._report_closed, handler, error)

    def _report_closed(self, handler: StreamHandler, error: Exception | None) -> None:
        self._call(handler.on_closed, error)
