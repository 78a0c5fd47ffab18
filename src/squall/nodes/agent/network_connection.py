"""One connection of a `StoreNetwork`: a byte stream in numbered parcels.

    OPENING ──ACCEPT──► OPEN ──close()──► FINISHING ──CLOSE left──► OVER
       └──REFUSE, RESET, abort(), a gap, CLOSE of the peer, the store is gone ──────► OVER

What was queued leaves in order; what comes is handed on in order, each part once: a
repeat changes nothing, a gap ends the connection. The reader tells how many bytes it has
read (CREDIT), and the writer is never more than `WINDOW_BYTES` ahead: so a reader that
pauses holds that much at most, and everything else waits at the writer, in `unsent`.

It must never call its handler from inside a call of its owner, nor after `on_closed`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from squall.nodes.agent.parcels import Kind, Parcel
from squall.runtime.interfaces import Address, StreamHandler

WINDOW_BYTES = 4 * 1024 * 1024
"""A bulk link has two megabytes of chunks under way; twice that never waits for credit."""
CREDIT_EVERY = WINDOW_BYTES // 4
PIECE_BYTES = 64 * 1024
"""Connections of one letter take turns with so much: bulk does not delay control."""
UNSENT_MAX = 64 * 1024 * 1024
"""No owner that looks at `unsent` comes near it; one that does not is cut off."""


class State(Enum):
    OPENING = "opening"
    OPEN = "open"
    FINISHING = "finishing"
    OVER = "over"


class Owner(Protocol):
    """What a connection asks of its network."""

    def ready(self, connection: StoreConnection) -> None:
        """It has something that may leave."""
        ...

    def over(self, connection: StoreConnection, error: Exception | None, tell: bool) -> None:
        """It is to be forgotten; `tell`: the peer should hear of it."""
        ...


class StoreConnection:
    """`number` is positive on the dialling side, negative on the other."""

    def __init__(self, owner: Owner, number: int, own: str, peer: str, *, linger_s: float) -> None:
        self.number = number
        self.local: Address = (own, 0)
        self.peer: Address = (peer, 0)
        self.peer_names: tuple[str, ...] = ()
        self.accepted: asyncio.Future[None] | None = None
        """Of a dial: done when the peer has answered."""
        self._owner = owner
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._state = State.OPENING
        self._handler: StreamHandler | None = None
        self._linger: asyncio.TimerHandle | None = None
        # Out.
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._leaving_bytes = 0
        self._next = 0
        self._written = 0
        self._may_write = WINDOW_BYTES
        self._greeting: Kind | None = None
        self._close_left = False
        # In.
        self._held: deque[bytes] = deque()
        self._expected = 0
        self._read = 0
        self._credited = 0
        self._credit_due = False
        self._paused = False
        self._peer_closed = False
        self._handing_on = False

    # What the owner of the stream calls.

    def send(self, data: bytes) -> None:
        if self._state is not State.OPEN or not data:
            return
        self._queue.append(memoryview(data))
        self._queued_bytes += len(data)
        if self._queued_bytes > UNSENT_MAX:
            self._loop.call_soon(
                self.fail, ConnectionAbortedError("more was queued than any peer could take")
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
            self._loop.call_soon(self._hand_on)

    def close(self) -> None:
        if self._state is not State.OPEN:
            return
        self._state = State.FINISHING
        self._held.clear()
        self._linger = self._loop.call_later(self._linger_s, self.abort)
        self._owner.ready(self)

    def abort(self) -> None:
        self._end(None, tell=True)

    # What the network calls.

    def abort_later(self) -> None:
        """For a dial that ends: a process that dies in the middle of it begins nothing."""
        if not self._loop.is_closed():
            self._loop.call_soon(self.abort)

    @property
    def state(self) -> State:
        return self._state

    def greet(self, kind: Kind) -> None:
        """The first parcel of this side: OPEN or ACCEPT."""
        self._greeting = kind
        self._owner.ready(self)

    def begin(self, handler: StreamHandler) -> None:
        """The stream is open for its owner; what came before is handed on in a later turn."""
        self._state = State.OPEN
        self._handler = handler
        self._call(handler.on_open, self)
        self._loop.call_soon(self._hand_on)

    @property
    def greeted(self) -> bool:
        """The first parcel left, or is leaving."""
        return self._next > 0

    def fail(self, error: Exception | None, *, tell: bool = True) -> None:
        if self.accepted is not None and not self.accepted.done():
            self.accepted.set_exception(error or ConnectionResetError("closed while dialled"))
        self._end(error, tell=tell)

    def collect(self, room: int) -> tuple[list[Parcel], int]:
        """Parcels that may leave now, with at most about `room` bytes, and how many."""
        parcels: list[Parcel] = []
        if self._greeting is not None:
            parcels.append(self._parcel(self._greeting))
            self._greeting = None
        if self._credit_due:
            self._credit_due = False
            self._credited = self._read
            parcels.append(Parcel(self.number, self._read, Kind.CREDIT))
        taken = self._take(min(room, self._may_write - self._written))
        if taken:
            parcels.append(self._parcel(Kind.DATA, taken))
            self._queued_bytes -= len(taken)
            self._leaving_bytes += len(taken)
            self._written += len(taken)
        if self._state is State.FINISHING and not self._queue and not self._close_left:
            self._close_left = True
            parcels.append(self._parcel(Kind.CLOSE))
        return parcels, len(taken)

    @property
    def has_more(self) -> bool:
        """`collect` would give something."""
        return (
            self._greeting is not None
            or self._credit_due
            or (bool(self._queue) and self._may_write > self._written)
            or (self._state is State.FINISHING and not self._queue and not self._close_left)
        )

    def left(self, size: int) -> None:
        """So many bytes of what was collected are in the store."""
        if self._state is State.OVER:
            return
        self._leaving_bytes -= size
        if self._close_left and self._leaving_bytes == 0:
            self._end(None, tell=False)

    def arrived(self, parcel: Parcel) -> None:
        if self._state is State.OVER:
            return
        if parcel.kind is Kind.RESET:
            self.fail(ConnectionResetError("the peer reset the connection"), tell=False)
            return
        if parcel.kind is Kind.CREDIT:
            self._may_write = max(self._may_write, parcel.sequence + WINDOW_BYTES)
            if self.has_more:
                self._owner.ready(self)
            return
        if parcel.sequence < self._expected:
            return
        if parcel.sequence > self._expected:
            self.fail(ConnectionResetError("the store lost a part of the stream"))
            return
        self._expected += 1
        self._in_order(parcel)

    # Details.

    def _in_order(self, parcel: Parcel) -> None:
        match parcel.kind:
            case Kind.ACCEPT:
                if self.accepted is not None and not self.accepted.done():
                    self.accepted.set_result(None)
            case Kind.REFUSE:
                refusal = ConnectionRefusedError(f"nobody listens at {self.peer[0]}")
                self.fail(refusal, tell=False)
            case Kind.DATA:
                if self._state is State.FINISHING:
                    self._note_read(len(parcel.data))
                else:
                    self._held.append(parcel.data)
                    self._hand_on()
            case Kind.CLOSE:
                self._peer_closed = True
                self._hand_on()
            case _:
                return

    def _hand_on(self) -> None:
        """What is held goes to the handler, as long as it wants it."""
        handler = self._handler
        if handler is None or self._handing_on:
            return
        self._handing_on = True
        try:
            while self._held and not self._paused and self._state is State.OPEN:
                data = self._held.popleft()
                self._note_read(len(data))
                self._call(handler.on_data, data)
        finally:
            self._handing_on = False
        wants_end = not self._paused or self._state is State.FINISHING
        if self._peer_closed and not self._held and wants_end:
            self._end(None, tell=False)

    def _note_read(self, size: int) -> None:
        self._read += size
        if self._read - self._credited >= CREDIT_EVERY and not self._credit_due:
            self._credit_due = True
            self._owner.ready(self)

    def _take(self, room: int) -> bytes:
        """The next bytes of the queue, as one piece."""
        pieces: list[memoryview] = []
        while self._queue and room > 0:
            piece = self._queue.popleft()
            if len(piece) > room:
                self._queue.appendleft(piece[room:])
                piece = piece[:room]
            pieces.append(piece)
            room -= len(piece)
        return b"".join(pieces)

    def _parcel(self, kind: Kind, data: bytes = b"") -> Parcel:
        sequence = self._next
        self._next += 1
        return Parcel(self.number, sequence, kind, data)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """A handler that raises loses its connection and nothing else."""
        try:
            function(*arguments)
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": f"a handler failed in {function.__name__}", "exception": error}
            )
            self.abort()

    def _end(self, error: Exception | None, *, tell: bool) -> None:
        if self._state is State.OVER:
            return
        self._state = State.OVER
        self._queue.clear()
        self._held.clear()
        self._queued_bytes = self._leaving_bytes = 0
        self._greeting, self._credit_due = None, False
        if self._linger is not None:
            self._linger.cancel()
        self._owner.over(self, error, tell)
        handler, self._handler = self._handler, None
        if handler is not None:
            self._loop.call_soon(self._tell_closed, handler, error)

    def _tell_closed(self, handler: StreamHandler, error: Exception | None) -> None:
        self._call(handler.on_closed, error)
