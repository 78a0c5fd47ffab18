"""Byte streams between simulated processes, which behave like TCP.

Decides when bytes arrive, in which pieces, and how each end learns that the other is
gone: by an end or a reset that travels the link, by a reset in answer to something sent,
or by its own timeout (`break_after_s`). An end that sends nothing to a host that lost
power never learns it. Bytes in the network and unread bytes of the receiver share one
window; what does not fit waits with the sender as `unsent`.

Handlers are called only in turns of their own process.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lab.sim.process import KERNEL, SimProcess
from squall.runtime.interfaces import Address, StreamHandler

if TYPE_CHECKING:
    from lab.sim.network.network import SimNetwork

WINDOW_BYTES = 256 * 1024
SEGMENT_BYTES = 64 * 1024
RETRANSMIT_S = 0.2
RETRANSMIT_TRIES = 10
COALESCE_S = 0.002
MOST_CUTS = 3


class End:
    """The last item of a stream; `reset` if the stream did not end in order."""

    __slots__ = ("reset",)

    def __init__(self, reset: bool) -> None:
        self.reset = reset


Piece = bytes | End


class Endpoint:
    """One end of a stream: the kernel's socket and the `Connection` of its process."""

    def __init__(
        self, network: SimNetwork, process: SimProcess, local: Address, peer: Address
    ) -> None:
        self.local = local
        self.peer = peer
        self.process = process
        self.peer_names: tuple[str, ...] = ()
        self.remote: Endpoint
        self._network = network
        self._loop = network.loop
        self._link = network.links.between(local[0], peer[0])
        self._handler: StreamHandler | None = None
        self._queue: deque[memoryview | bytes] = deque()
        self._unsent = 0
        self._in_network = 0
        # Taken by the kernel while the link is closed.
        self._waiting: deque[Piece] = deque()
        # Bytes that were received and whose acknowledgment could not travel back.
        self._unacknowledged = 0
        self._last_arrival = 0.0
        self._received: list[Piece] = []
        # Data is delivered only after the handler's `on_open`.
        self._reading = False
        self._coalescing = False
        self._finishing = False
        # Our end was sent; nothing follows it.
        self._ended = False
        self.closed = False
        self._remote_gone = False
        # Counts the waits for an acknowledgment, so that an old timer finds a newer one.
        self._ack_waits = 0
        self._is_waiting_for_ack = False
        network.register(self)

    # What the process calls.

    def send(self, data: bytes) -> None:
        if self._finishing or self.closed or not data or not self.process.alive:
            return
        size = len(data)
        if not self._queue and size <= SEGMENT_BYTES and self._in_network + size <= WINDOW_BYTES:
            self._in_network += size
            self._transmit(bytes(data))
            return
        self._queue.append(bytes(data))
        self._unsent += size
        self._pump()

    @property
    def unsent(self) -> int:
        return self._unsent

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self.closed:
            self._reading = True
            if self._received:
                self._loop.post_soon(self.process, self._read)

    def close(self) -> None:
        if self._finishing or self.closed or not self.process.alive:
            return
        self._finishing = True
        self._received.clear()
        self._pump()

    def abort(self) -> None:
        if self.closed or not self.process.alive:
            return
        self._drop_outgoing()
        self._waiting.clear()
        if not self._ended:
            self._ended = True
            self._transmit(End(reset=True))
        self._lose(None)

    # What the network calls.

    def opened(self, handler: StreamHandler) -> None:
        """In a turn of the process."""
        self._handler = handler
        self._reading = True
        if not self.closed:
            handler.on_open(self)
            if self._received:
                self._loop.post_soon(self.process, self._read)

    def expect_from(self, arrival: float) -> None:
        """Nothing from here arrives before the other end is established."""
        self._last_arrival = arrival

    def process_ended(self, *, power_lost: bool) -> None:
        """The process is gone. Its kernel notifies the peer, unless the machine lost power too."""
        if self.closed:
            return
        self.closed = True
        self._drop_outgoing()
        if power_lost:
            self._waiting.clear()
            self.remote.peer_vanished()
        elif not self._ended:
            self._ended = True
            self._transmit(End(reset=self._network.draw.random() < 0.5))
            self.remote.peer_vanished()
        self._network.forget(self)

    def peer_vanished(self) -> None:
        self._remote_gone = True
        if not self.closed and (self._in_network or self._waiting or self._unacknowledged):
            self._unanswered()

    def reset(self) -> None:
        """The network reports that this stream no longer exists."""
        if not self.closed:
            self._drop_outgoing()
            self._waiting.clear()
            self._lose(ConnectionResetError("connection reset by peer"))

    def host_returned(self) -> None:
        """The peer's host started again: it answers a retransmission with a reset."""
        if self._remote_gone and self._is_waiting_for_ack and not self.closed and self._both_open():
            draw = self._network.draw
            when = self._loop.now + self._round_trip() + draw.uniform(0.0, 2.0)
            self._loop.post(when, self.process, self.reset)

    def link_opened(self) -> None:
        """The network sends again at the next tick of the sender's retransmission timer."""
        when = self._loop.now + self._network.draw.uniform(0.0, 2.0 * RETRANSMIT_S)
        self._loop.post(when, KERNEL, self._resume)

    # Outgoing.

    def _pump(self) -> None:
        queue = self._queue
        while queue and self._in_network < WINDOW_BYTES:
            data = queue.popleft()
            room = min(WINDOW_BYTES - self._in_network, SEGMENT_BYTES)
            if len(data) > room:
                view = memoryview(data)
                queue.appendleft(view[room:])
                data = view[:room]
            self._unsent -= len(data)
            self._in_network += len(data)
            self._transmit(bytes(data))
        if self._finishing and not queue and not self._ended:
            self._ended = True
            self._transmit(End(reset=False))
            self._lose(None)

    def _transmit(self, piece: Piece) -> None:
        if self._remote_gone:
            self._unanswered()
            return
        if self._waiting or not self._link.open:
            self._wait(piece)
            return
        profile = self._link.profile
        if profile.fragment and isinstance(piece, bytes):
            draw = self._network.draw
            for _ in range(MOST_CUTS):
                if len(piece) == 1 or draw.random() >= profile.fragment:
                    break
                at = draw.randrange(1, len(piece))
                self._send_piece(piece[:at])
                piece = piece[at:]
        self._send_piece(piece)

    def _send_piece(self, piece: Piece) -> None:
        network = self._network
        link = self._link
        now = self._loop.now
        size = len(piece) if isinstance(piece, bytes) else 0
        arrival = now + link.delay(network.draw, now, size)
        loss = link.profile.loss
        if loss:
            tries = 0
            while network.draw.random() < loss:
                arrival += RETRANSMIT_S * (1 << tries)
                tries += 1
                if tries > RETRANSMIT_TRIES:
                    self._break()
                    return
        # A stream keeps its order, so a piece cannot overtake the one before it.
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        self._last_arrival = arrival
        remote = self.remote
        self._loop.post(arrival, remote.process, remote.arrive, piece)

    def _wait(self, piece: Piece) -> None:
        self._waiting.append(piece)
        self._link.waiters[self] = None
        self._begin_ack_timeout()

    def _resume(self) -> None:
        if not self._link.open:
            self._link.waiters[self] = None
            return
        if self._unacknowledged and not self._remote_gone:
            self.remote.acknowledged(self._unacknowledged)
            self._unacknowledged = 0
        waiting, self._waiting = self._waiting, deque()
        if waiting and not self._remote_gone:
            self._ack_waits += 1
            self._is_waiting_for_ack = False
        for piece in waiting:
            self._transmit(piece)

    def acknowledged(self, size: int) -> None:
        self._in_network -= size
        if self._is_waiting_for_ack and not self._waiting and not self._remote_gone:
            self._ack_waits += 1
            self._is_waiting_for_ack = False
        if not self.closed and (self._queue or self._finishing):
            self._pump()

    # Incoming, in turns of the process.

    def arrive(self, piece: Piece) -> None:
        if self.closed:
            if isinstance(piece, bytes):
                self.remote.unacknowledged()
            return
        if self._finishing:
            # We read no more; the kernel takes and drops, so that the peer does not wait.
            if isinstance(piece, bytes):
                self._acknowledge(len(piece))
            return
        if not self._reading or self._received or self._coalescing:
            self._received.append(piece)
            return
        profile = self._link.profile
        if (
            profile.coalesce
            and isinstance(piece, bytes)
            and self._network.draw.random() < profile.coalesce
        ):
            self._received.append(piece)
            self._coalescing = True
            later = self._loop.now + self._network.draw.uniform(0.0, COALESCE_S)
            self._loop.post(later, self.process, self._coalesced)
            return
        self._deliver(piece)

    def _coalesced(self) -> None:
        self._coalescing = False
        self._read()

    def _read(self) -> None:
        """Hands over what waited, as one piece, and then the end if it came."""
        if not self._reading or self._coalescing:
            return
        received, self._received = self._received, []
        data = b"".join(piece for piece in received if isinstance(piece, bytes))
        if data:
            self._deliver(data)
        for piece in received:
            if isinstance(piece, End):
                self._deliver(piece)

    def _deliver(self, piece: Piece) -> None:
        if self.closed or self._handler is None:
            return
        network = self._network
        if isinstance(piece, End):
            network.trace.stream(self.peer[0], self.local[0], "stream ends")
            self._drop_outgoing()
            self._waiting.clear()
            error = ConnectionResetError("connection reset by peer") if piece.reset else None
            self._remote_gone = True
            self._lose(error)
            return
        self._acknowledge(len(piece))
        network.trace.packet(self.peer[0], self.local[0], "stream", len(piece))
        self._handler.on_data(piece)

    def _acknowledge(self, size: int) -> None:
        if self._link.open:
            self.remote.acknowledged(size)
            return
        self._unacknowledged += size
        self._link.waiters[self] = None
        self.remote.unacknowledged()

    def unacknowledged(self) -> None:
        self._begin_ack_timeout()

    # The end.

    def _unanswered(self) -> None:
        """Something was sent to an end that is gone: a reset comes back, or nothing does."""
        if self.closed:
            return
        if self._network.host_is_up(self.peer[0]) and self._both_open():
            when = self._loop.now + self._round_trip()
            self._loop.post(when, self.process, self.reset)
        self._begin_ack_timeout()

    def _begin_ack_timeout(self) -> None:
        if self._is_waiting_for_ack or self.closed:
            return
        self._is_waiting_for_ack = True
        self._ack_waits += 1
        when = self._loop.now + self._link.profile.break_after_s
        self._loop.post(when, KERNEL, self._end_ack_timeout, self._ack_waits)

    def _end_ack_timeout(self, wait: int) -> None:
        if wait == self._ack_waits and self._is_waiting_for_ack and not self.closed:
            self._break()

    def _break(self) -> None:
        self._drop_outgoing()
        self._waiting.clear()
        self._lose(TimeoutError("connection timed out"))
        self.remote.peer_vanished()

    def _lose(self, error: Exception | None) -> None:
        """This end is closed; the handler is called once, in a later turn."""
        if self.closed:
            return
        self.closed = True
        self._network.forget(self)
        if error is not None:
            self._network.trace.stream(
                self.local[0], self.peer[0], f"stream lost: {type(error).__name__}"
            )
        self._loop.post_soon(self.process, self._notify_closed, error)

    def _notify_closed(self, error: Exception | None) -> None:
        if self._handler is not None:
            self._handler.on_closed(error)

    def _drop_outgoing(self) -> None:
        self._queue.clear()
        self._unsent = 0

    def _both_open(self) -> bool:
        back = self._network.links.between(self.peer[0], self.local[0])
        return self._link.open and back.open

    def _round_trip(self) -> float:
        network = self._network
        back = network.links.between(self.peer[0], self.local[0])
        now = self._loop.now
        return self._link.delay(network.draw, now, 0) + back.delay(network.draw, now, 0)
