"""Sends everything for one mailbox, one envelope at a time.

What connections queue while an envelope is in flight goes into the next one, at least
`tuning.flush_s` after the last. An envelope without an answer is sent again with the same id.
While the store does not answer, or the mailbox is full, connections keep their data; when that
lasts too long, all connections to this mailbox end with an error.

It must never have two envelopes in flight, nor drop one and send the next: the streams inside
would have a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from squall.coordination.store_errors import CoordinationError, StreamFullError
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken
from squall.store_mode.transport.connection import PIECE_BYTES, StoreConnection
from squall.store_mode.transport.envelope import PartKind, StreamPart
from squall.store_mode.transport.mailbox import GROUP
from squall.store_mode.transport.tuning import TransportTuning

LOOSE_PARTS_MAX = 1024
"""Most queued replies for unknown connections. More are dropped, and the peer sends again."""

SendEnvelope = Callable[[str, str, list[StreamPart]], Awaitable[None]]
"""Stores an envelope with this id in this mailbox; the same id twice is one envelope."""


class MailboxSender:
    """Sends the parts of all connections with `peer`; calls `on_idle` when everything was sent."""

    def __init__(
        self,
        peer: str,
        *,
        send: SendEnvelope,
        next_envelope_id: Callable[[], str],
        clock: Clock,
        tasks: TaskRunner,
        tuning: TransportTuning,
        on_idle: Callable[[MailboxSender], None],
    ) -> None:
        self.peer = peer
        # All connections with this mailbox, whether or not they have anything to send.
        self.connections: dict[StoreConnection, None] = {}
        self._send_envelope = send
        self._next_envelope_id = next_envelope_id
        self._clock = clock
        self._tasks = tasks
        self._tuning = tuning
        self._on_idle = on_idle
        self._ready: dict[StoreConnection, None] = {}
        self._loose: dict[tuple[int, PartKind], None] = {}
        self._in_flight: dict[StoreConnection, int] = {}
        self._last_at = float("-inf")
        self._loop = asyncio.get_running_loop()
        self._start_queued = False
        self._task: TaskToken | None = None

    @property
    def is_idle(self) -> bool:
        return not self._start_queued and not self._is_running

    def ready(self, connection: StoreConnection) -> None:
        self._ready[connection] = None
        self._start()

    def queue_reply(self, connection: int, kind: PartKind) -> None:
        """Queues a REFUSE or a RESET for a connection that is not kept here."""
        if len(self._loose) < LOOSE_PARTS_MAX:
            self._loose[connection, kind] = None
            self._start()

    def forget(self, connection: StoreConnection) -> None:
        self.connections.pop(connection, None)
        self._ready.pop(connection, None)
        self._in_flight.pop(connection, None)

    async def stop(self) -> None:
        if self._task is not None:
            self._tasks.cancel(self._task)
            await self._tasks.stopped(self._task)

    def _start(self) -> None:
        """Starts in the next turn of the loop: everything sent in this one goes together, and
        a process that is ending starts nothing."""
        if self.is_idle:
            self._start_queued = True
            self._loop.call_soon(self._begin)

    @property
    def _is_running(self) -> bool:
        task = self._task.task if self._task is not None else None
        return task is not None and not task.done()

    def _begin(self) -> None:
        self._start_queued = False
        if not self._is_running:
            self._task = self._tasks.start(f"mail to {self.peer}", self._run(), group=GROUP)

    async def _run(self) -> None:
        while self._ready or self._loose:
            wait_s = self._last_at + self._tuning.flush_s - self._clock.now()
            if wait_s > 0.0:
                await self._clock.sleep(wait_s)
            parts = self._collect()
            if parts and not await self._send(parts):
                self._loose.clear()
            self._last_at = self._clock.now()
        self._task = None
        self._on_idle(self)

    def _collect(self) -> list[StreamPart]:
        """Connections take turns with one piece each, until the envelope is full."""
        parts = [StreamPart(connection, 0, kind) for connection, kind in self._loose]
        self._loose.clear()
        room = self._tuning.envelope_bytes
        while self._ready and room > 0:
            connection = next(iter(self._ready))
            del self._ready[connection]
            taken, size = connection.collect(min(room, PIECE_BYTES))
            parts += taken
            room -= size
            if taken:
                self._in_flight[connection] = self._in_flight.get(connection, 0) + size
            if connection.has_more:
                self._ready[connection] = None
        return parts

    async def _send(self, parts: list[StreamPart]) -> bool:
        error = await self._deliver(parts)
        under_way, self._in_flight = self._in_flight, {}
        if error is None:
            for connection, size in under_way.items():
                connection.left(size)
            return True
        # These bytes are lost, so anything that follows them on the same streams would be a gap.
        for connection in list(self.connections):
            connection.fail(error, notify_peer=False)
        self._ready.clear()
        return False

    async def _deliver(self, parts: list[StreamPart]) -> Exception | None:
        """Retries until the envelope is stored; returns the error if that takes too long. The
        same id makes repeats one envelope."""
        clock, tuning, envelope_id = self._clock, self._tuning, self._next_envelope_id()
        full_since: float | None = None
        lost_since: float | None = None
        failures = 0
        while True:
            try:
                await self._send_envelope(self.peer, envelope_id, parts)
                return None
            except StreamFullError:
                lost_since, full_since = None, full_since or clock.now()
                if clock.now() - full_since > tuning.full_s:
                    return ConnectionResetError(
                        f"{self.peer} has read nothing for {tuning.full_s:g} s"
                    )
            except CoordinationError as error:
                full_since, lost_since = None, lost_since or clock.now()
                if clock.now() - lost_since > tuning.give_up_s:
                    return ConnectionError(
                        f"the store did not answer for {tuning.give_up_s:g} s: {error}"
                    )
            failures += 1
            await clock.sleep(tuning.retry.delay_s(failures))
