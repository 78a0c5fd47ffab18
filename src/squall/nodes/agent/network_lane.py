"""The way out to one mailbox: everything for it, in one letter at a time.

One letter is under way; what comes meanwhile goes into the next, and never sooner than
`pace.flush_s` after the last. A letter that got no answer is sent again with the same id.
While the store does not answer, or the mailbox is full, connections keep what they have;
when that lasts too long they end with an error, all of this lane.

It must never have two letters under way, nor drop one and send the next: the streams in
it would have a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from squall.coordination.stores.errors import CoordinationError, StreamFullError
from squall.nodes.agent.network_connection import PIECE_BYTES, StoreConnection
from squall.nodes.agent.pace import Pace
from squall.nodes.agent.parcels import Kind, Parcel
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken

GROUP = "store network"
LOOSE_MAX = 1024
"""Resets for connections that are not ours; more are dropped, the peer asks again."""

Ship = Callable[[str, str, list[Parcel]], Awaitable[None]]
"""Brings a letter with this id to this mailbox; the same id twice is one letter."""


class Lane:
    """`on_idle` is called when everything has left."""

    def __init__(
        self,
        peer: str,
        *,
        ship: Ship,
        name_letter: Callable[[], str],
        clock: Clock,
        tasks: TaskRunner,
        pace: Pace,
        on_idle: Callable[[Lane], None],
    ) -> None:
        self.peer = peer
        self.connections: dict[StoreConnection, None] = {}
        """All with this mailbox, whether or not they have something to send."""
        self._ship = ship
        self._name_letter = name_letter
        self._clock = clock
        self._tasks = tasks
        self._pace = pace
        self._on_idle = on_idle
        self._ready: dict[StoreConnection, None] = {}
        self._loose: dict[tuple[int, Kind], None] = {}
        self._under_way: dict[StoreConnection, int] = {}
        self._last_at = float("-inf")
        self._loop = asyncio.get_running_loop()
        self._begins = False
        self._task: TaskToken | None = None

    @property
    def is_idle(self) -> bool:
        return not self._begins and not self._runs

    def ready(self, connection: StoreConnection) -> None:
        self._ready[connection] = None
        self._start()

    def say(self, connection: int, kind: Kind) -> None:
        """A REFUSE or a RESET, for a connection that is not kept here."""
        if len(self._loose) < LOOSE_MAX:
            self._loose[connection, kind] = None
            self._start()

    def forget(self, connection: StoreConnection) -> None:
        self.connections.pop(connection, None)
        self._ready.pop(connection, None)
        self._under_way.pop(connection, None)

    async def stop(self) -> None:
        if self._task is not None:
            self._tasks.cancel(self._task)
            await self._tasks.stopped(self._task)

    def _start(self) -> None:
        """In a turn of its own: what is sent in this one goes together, and a process that
        ends begins nothing."""
        if self.is_idle:
            self._begins = True
            self._loop.call_soon(self._begin)

    @property
    def _runs(self) -> bool:
        task = self._task.task if self._task is not None else None
        return task is not None and not task.done()

    def _begin(self) -> None:
        self._begins = False
        if not self._runs:
            self._task = self._tasks.start(f"mail to {self.peer}", self._run(), group=GROUP)

    async def _run(self) -> None:
        while self._ready or self._loose:
            wait_s = self._last_at + self._pace.flush_s - self._clock.now()
            if wait_s > 0.0:
                await self._clock.sleep(wait_s)
            parcels = self._collect()
            if parcels and not await self._leaves(parcels):
                self._loose.clear()
            self._last_at = self._clock.now()
        self._task = None
        self._on_idle(self)

    def _collect(self) -> list[Parcel]:
        """Connections take turns with a piece each, until the letter is full."""
        parcels = [Parcel(connection, 0, kind) for connection, kind in self._loose]
        self._loose.clear()
        room = self._pace.letter_bytes
        while self._ready and room > 0:
            connection = next(iter(self._ready))
            del self._ready[connection]
            taken, size = connection.collect(min(room, PIECE_BYTES))
            parcels += taken
            room -= size
            if taken:
                self._under_way[connection] = self._under_way.get(connection, 0) + size
            if connection.has_more:
                self._ready[connection] = None
        return parcels

    async def _leaves(self, parcels: list[Parcel]) -> bool:
        error = await self._deliver(parcels)
        under_way, self._under_way = self._under_way, {}
        if error is None:
            for connection, size in under_way.items():
                connection.left(size)
            return True
        # What waits has bytes of the same stream behind those that are lost.
        for connection in list(self.connections):
            connection.fail(error, tell=False)
        self._ready.clear()
        return False

    async def _deliver(self, parcels: list[Parcel]) -> Exception | None:
        """Tries until it is there; why not, after too long."""
        clock, pace, letter = self._clock, self._pace, self._name_letter()
        full_since: float | None = None
        lost_since: float | None = None
        pause_s = pace.retry_s
        while True:
            try:
                await self._ship(self.peer, letter, parcels)
                return None
            except StreamFullError:
                lost_since, full_since = None, full_since or clock.now()
                if clock.now() - full_since > pace.full_s:
                    return ConnectionResetError(
                        f"{self.peer} has read nothing for {pace.full_s:g} s"
                    )
            except CoordinationError as error:
                full_since, lost_since = None, lost_since or clock.now()
                if clock.now() - lost_since > pace.give_up_s:
                    return ConnectionError(f"no store for {pace.give_up_s:g} s: {error}")
            await clock.sleep(pause_s)
            pause_s = min(2.0 * pause_s, pace.retry_max_s)
