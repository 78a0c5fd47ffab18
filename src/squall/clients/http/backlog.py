"""Limits how many answers one turn of the event loop handles.

libuv reads every ready socket before it looks at a timer again. With thousands of busy users a
turn would read as many answers, wake as many users and take hundreds of milliseconds; timers and
planned starts would wait for it. So beyond `TURN_MAX` answers in a turn the bytes are stamped and
set aside, and the next turns handle them. Users whose answer waits send nothing, therefore the
number of ready sockets falls to the same limit.

Invariants: bytes of a connection are handled in the order of their arrival, with the stamp of their
arrival, and before anything else happens to the connection (its end, its timeout).
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

from squall.clients.http.connection import ConnectionPool, HTTPConnection

if TYPE_CHECKING:
    from squall.clients.http.origin import Origin
    from squall.clients.http.shared import HTTPShared

# An answer with the step that it wakes takes 20 to 40 us: a turn stays at about 10 ms.
TURN_MAX = 256
# Connections of a share from which on new ones use the backlog. Below, a turn is short enough, and
# an answer costs less without it.
CROWD_MIN = 1000


class AnswerBacklog:
    """The connections of a share with bytes that wait for their turn."""

    __slots__ = ("_is_scheduled", "_waiting", "taken")

    def __init__(self) -> None:
        # Answers handled in the present turn.
        self.taken = 0
        self._waiting: deque[CrowdConnection] = deque()
        self._is_scheduled = False

    def add(self, conn: CrowdConnection) -> None:
        self._waiting.append(conn)

    def schedule(self) -> None:
        """Begins the next turn with the answers that wait."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self.taken = 0
        waiting = self._waiting
        while waiting and self.taken < TURN_MAX:
            self.taken += waiting.popleft().handle_waiting()
        if self.taken:
            # Also resets `taken` if nothing waits any more.
            self.schedule()

    def drain(self) -> None:
        """Handles all that waits, at the end of a share."""
        while self._waiting:
            self._waiting.popleft().handle_waiting()


class CrowdConnection(HTTPConnection):
    """A connection among many, whose answers may have to wait for the next turn."""

    __slots__ = ("backlog", "waiting")

    def __init__(self, shared: HTTPShared, pool: ConnectionPool, origin: Origin) -> None:
        super().__init__(shared, pool, origin)
        self.backlog = shared.backlog
        # Bytes and the moments of their arrival; None while there are none.
        self.waiting: list[tuple[bytes, float]] | None = None

    def data_received(self, data: bytes, arrived: float = 0.0) -> None:
        backlog = self.backlog
        backlog.schedule()
        if self.waiting:
            self.waiting.append((data, perf_counter()))
        elif backlog.taken < TURN_MAX:
            backlog.taken += 1
            super().data_received(data)
        else:
            self.waiting = [(data, perf_counter())]
            backlog.add(self)

    def handle_waiting(self) -> int:
        """Handles the bytes that wait; returns how many packets there were."""
        packets, self.waiting = self.waiting, None
        if packets is None:
            return 0
        for data, arrived in packets:
            super().data_received(data, arrived)
        return len(packets)

    def connection_lost(self, exc: Exception | None) -> None:
        self.handle_waiting()
        super().connection_lost(exc)

    def fail(self, reason: str, now: float) -> None:
        """An answer that arrived in time is not late because it waited here."""
        if self.handle_waiting() and self.future is None:
            return
        super().fail(reason, now)
