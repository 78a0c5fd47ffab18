"""All waits of a process on one Redis connection.

Each key or stream that is waited for has a *bell*: a Redis stream of one entry, which exists only
while a process waits. The script `ARM` checks the watches and returns the last entry ids of their
bells in one step. Then a blocking XREAD from those ids sleeps until the next write adds an entry.
So no write is missed between the check and the sleep, and nothing is asked while nothing changes.

An XREAD blocks for at most one slice; then all watches are checked again. That also covers a
reconnect and a bell that was lost. A bell of the loop's own wakes it when a wait is added. The loop
keeps listening to the bell of a stream until the end of the slice, also without a waiter: a reader
waits for its stream again and again, and then only has to check once.

The bell entry of a carried item contains the item. While a bell is listened to, the end of its
stream is therefore known: a reader that has read up to there need not check before it sleeps, and a
listener gets the next item without a read. Carried items are passed on only if they follow the
asked cursor without a gap; in all other cases the reader reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol

from squall.coordination.store_errors import StoreError
from squall.coordination.stores.interface import Appended, Changed, Takeable, Watch
from squall.coordination.stores.redis import scripts
from squall.coordination.stores.redis.connection import RedisConnection
from squall.runtime.backoff import Backoff
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken

# The longest blocking read: how late a lost bell entry is noticed.
SLICE_S = 5.0
# All waits of the process depend on this one loop, so it returns soon. Its callers see the failure
# and back off by themselves.
RECONNECT = Backoff(first_s=0.2, factor=1.0)
WaitFuture = asyncio.Future[frozenset[Watch]]
CarriedItem = tuple[bytes, bytes, bytes, bytes]
"""Birth, number and body of an item, and the versions beside it."""
CARRIED_FIELDS = 8
CARRIED_MAX = 16
_NOTHING: frozenset[Watch] = frozenset()


class RedisCommands(Protocol):
    def script(self, text: str, *arguments: str | int | bytes) -> Awaitable[Any]: ...
    def command(
        self, *arguments: str | int | bytes, connection: RedisConnection | None = None
    ) -> Awaitable[Any]: ...


class RedisWaits:
    """Runs a task while there are waits and for one slice after, and none otherwise."""

    def __init__(
        self,
        server: RedisCommands,
        connection: RedisConnection,
        clock: Clock,
        tasks: TaskRunner,
        tag: str,
        name: str,
    ) -> None:
        self._server = server
        # Only for the blocking read: other commands would wait behind it.
        self._connection = connection
        self._clock = clock
        self._tasks = tasks
        self._tag = tag
        self._waiting: dict[Watch, set[WaitFuture]] = {}
        # Watches that the loop has not armed yet.
        self._unarmed: set[Watch] = set()
        self._loop: TaskToken | None = None
        # The loop is in its blocking read, with the bells of `_bells`.
        self._is_blocked = False
        # The bell of the loop itself.
        self._wake_bell = f"@{name}"
        # By name, the last entry of its bell that was seen. The blocking read begins there.
        self._bells: dict[str, str] = {}
        # Bells of streams, which are listened to also without a waiter.
        self._streams: set[str] = set()
        self._rearm_at = 0.0
        # By stream whose bell is listened to, its birth and last number. Absent when unknown.
        self._ends: dict[str, tuple[str, int]] = {}
        # By stream, the last carried items, without a gap and up to its end in `_ends`.
        self._carried: dict[str, deque[CarriedItem]] = {}

    async def listen(self, stream: str, after: str, timeout_s: float) -> Sequence[CarriedItem]:
        found = self._behind(stream, after)
        if not found and await self.wait((Appended(stream, after),), timeout_s):
            found = self._behind(stream, after)
        return found

    def _behind(self, stream: str, after: str) -> Sequence[CarriedItem]:
        carried = self._carried.get(stream)
        if not carried or self._ends.get(stream, ("", 0))[0] != after.rpartition(".")[0]:
            return ()
        number = _number_of(after)
        while carried and int(carried[0][1]) <= number:
            carried.popleft()
        return tuple(carried) if carried and int(carried[0][1]) == number + 1 else ()

    async def wait(self, watches: Sequence[Watch], timeout_s: float) -> frozenset[Watch]:
        if timeout_s <= 0.0:
            return (await self._check(watches))[0]
        loop = asyncio.get_running_loop()
        done: WaitFuture = loop.create_future()
        # The loop arms new watches. Those whose bell it listens to already are checked here, so
        # that the loop need not be woken for them.
        known = [watch for watch in watches if not self._needs_arming(watch)]
        is_sure = all(map(self._is_at_end, watches))
        for watch in watches:
            self._waiting.setdefault(watch, set()).add(done)
        timer = loop.call_later(timeout_s, _finish, done, _NOTHING)
        due: asyncio.TimerHandle | None = None
        try:
            if len(known) < len(watches):
                await self._wake_loop()
            if known and not is_sure:
                holding, due_s = await self._check(known)
                if holding:
                    return holding
                if due_s is not None:
                    due = loop.call_later(due_s, _finish, done, frozenset(known))
            return await done
        finally:
            timer.cancel()
            if due is not None:
                due.cancel()
            if done.done() and not done.cancelled():
                # Marks a failure as seen that came while this call was checking by itself.
                done.exception()
            self._forget(watches, done)

    async def close(self) -> None:
        if self._loop is not None:
            self._tasks.cancel(self._loop)
            await self._tasks.stopped(self._loop)
        self._connection.close()

    def _needs_arming(self, watch: Watch) -> bool:
        """Whether the loop must be woken to arm it."""
        if not self._is_blocked or _name(watch) not in self._bells:
            if watch not in self._waiting:
                self._unarmed.add(watch)
            return watch in self._unarmed
        return False

    def _is_at_end(self, watch: Watch) -> bool:
        """Whether its bell is listened to and the cursor is the end of the stream."""
        if not isinstance(watch, Appended) or watch in self._unarmed:
            return False
        end = self._ends.get(watch.stream)
        return end is not None and watch.after == f"{end[0]}.{end[1]}"

    def _forget(self, watches: Sequence[Watch], done: WaitFuture) -> None:
        for watch in watches:
            self._waiting[watch].discard(done)
            if not self._waiting[watch]:
                del self._waiting[watch]
                self._unarmed.discard(watch)

    async def _check(self, watches: Sequence[Watch]) -> tuple[frozenset[Watch], float | None]:
        """The watches that hold, and when one may hold because a claim runs out."""
        found = await self._server.script(scripts.ARM, *_encoded(watches))
        holding = frozenset(
            watch for watch, (holds, *_) in zip(watches, found, strict=True) if holds
        )
        due = [(due_ms + 1) / 1000.0 for _, _, due_ms, _ in found if due_ms >= 0]
        return holding, min(due, default=None)

    async def _wake_loop(self) -> None:
        """Makes sure that the loop runs and arms the new watches."""
        if self._loop is None or self._loop.task is None or self._loop.task.done():
            self._loop = self._tasks.start("redis waits", self._run())
        elif self._is_blocked and self._unarmed:
            self._is_blocked = False
            bell = self._bell(self._wake_bell)
            await self._server.command("XADD", bell, "MAXLEN", "1", "*", "w", "1")

    async def _run(self) -> None:
        while self._waiting or self._clock.now() < self._rearm_at:
            try:
                await self._turn()
            except StoreError as error:
                self._is_blocked = False
                self._rearm_at = min(self._rearm_at, self._clock.now())
                self._fail(error)
                await self._clock.sleep(RECONNECT.first_s)

    async def _turn(self) -> None:
        """Arms the new watches, or all of them once per slice; then sleeps until a bell."""
        now = self._clock.now()
        if now >= self._rearm_at:
            for known in (self._bells, self._streams, self._ends, self._carried):
                known.clear()
            self._rearm_at = now + SLICE_S
            await self._arm(list(self._waiting))
        elif self._unarmed:
            await self._arm(list(self._unarmed))
        if self._unarmed:
            return
        names = self._streams.union(map(_name, self._waiting), (self._wake_bell,))
        self._bells = {name: at for name, at in self._bells.items() if name in names}
        slice_ms = max(1, round((self._rearm_at - self._clock.now()) * 1000.0))
        self._is_blocked = True
        # Callers that were woken run first: their commands leave before the blocking read.
        await asyncio.sleep(0.0)
        rung = await self._server.command(
            *("XREAD", "BLOCK", slice_ms, "STREAMS"),
            *(self._bell(name) for name in self._bells),
            *self._bells.values(),
            connection=self._connection,
        )
        self._is_blocked = False
        woken: set[str] = set()
        for bell, entries in rung or ():
            name = _bell_name(bell.decode())
            self._bells[name] = entries[-1][0].decode()
            for _, fields in entries:
                self._note_bell(name, fields)
            woken.add(name)
        # The waiters check for themselves what the write changed; checking here as well would be
        # one more command.
        self._notify([watch for watch in self._waiting if _name(watch) in woken])

    def _note_bell(self, name: str, fields: Sequence[bytes]) -> None:
        """Notes what a bell entry says about the end of its stream. An entry without an item, as
        for a removal or a large item, makes the end unknown."""
        if len(fields) < CARRIED_FIELDS:
            self._ends.pop(name, None)
            self._carried.pop(name, None)
            return
        _, birth, _, number, _, body, _, versions = fields
        end = (birth.decode(), int(number))
        carried = self._carried.setdefault(name, deque(maxlen=CARRIED_MAX))
        if self._ends.get(name) != (end[0], end[1] - 1):
            carried.clear()
        carried.append((birth, number, body, versions))
        self._ends[name] = end

    async def _arm(self, watches: list[Watch]) -> None:
        *states, (_, wake_id, *_) = await self._server.script(
            scripts.ARM, *_encoded(watches, self._wake_bell)
        )
        self._unarmed.difference_update(watches)
        self._bells.setdefault(self._wake_bell, wake_id.decode())
        holding: list[Watch] = []
        for watch, (holds, bell_id, due_ms, last_item) in zip(watches, states, strict=True):
            name = _name(watch)
            self._bells[name] = bell_id.decode()
            if not isinstance(watch, Changed):
                self._streams.add(name)
            self._set_end(name, last_item.decode())
            if holds:
                holding.append(watch)
            elif due_ms >= 0:
                due_at = self._clock.now() + (due_ms + 1) / 1000.0
                self._rearm_at = min(self._rearm_at, due_at)
        self._notify(holding)

    def _set_end(self, name: str, cursor: str) -> None:
        self._carried.pop(name, None)
        self._ends.pop(name, None)
        if cursor:
            self._ends[name] = (cursor.rpartition(".")[0], _number_of(cursor))

    def _bell(self, name: str) -> str:
        return f"{self._tag}#bell:{name}"

    def _notify(self, watches: Iterable[Watch]) -> None:
        for watch in watches:
            for done in self._waiting.get(watch, ()):
                if not done.done():
                    done.set_result(frozenset({watch}))

    def _fail(self, error: Exception) -> None:
        for waiting in list(self._waiting.values()):
            for done in waiting:
                if not done.done():
                    done.set_exception(error)


def _finish(done: WaitFuture, result: frozenset[Watch]) -> None:
    if not done.done():
        done.set_result(result)


def _number_of(cursor: str) -> int:
    return int(cursor.rpartition(".")[2] or "0")


def _name(watch: Watch) -> str:
    return watch.key if isinstance(watch, Changed) else watch.stream


def _encoded(watches: Sequence[Watch], wake: str = "") -> list[str | int]:
    """The arguments of `ARM`: four per watch."""
    asked: list[str | int] = []
    for watch in watches:
        if isinstance(watch, Changed):
            asked += (0, watch.key, watch.version, "")
        elif isinstance(watch, Takeable):
            asked += (2, watch.stream, "", "")
        else:
            birth, _, number = watch.after.rpartition(".")
            asked += (1, watch.stream, birth, number or "0")
    if wake:
        asked += (3, wake, "", "")
    return asked


def _bell_name(bell: str) -> str:
    return bell.partition("#bell:")[2]
