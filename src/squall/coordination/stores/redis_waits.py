"""All waits of a process on one Redis connection.

A name that is waited for has a bell, a stream of one entry that exists only while somebody
waits. `ARM` looks at what is waited for and gives the bells' last ids in one step; then a
blocking XREAD from those ids sleeps until the next write rings. So nothing is missed
between looking and sleeping, and nothing is looked at while nothing changes.

A read blocks for at most one slice; then everything is looked at again, which also covers
a reconnect and a bell that was lost. A bell of its own wakes the loop when a wait is added.
The bell of a stream is listened to until the end of the slice, also while nobody waits: who
reads a stream waits for it again and again, and then only has to look once.

A bell also tells the number of an item that is carried, and brings the item itself. So it is
known where a stream ends while its bell is listened to: who has read up to there need not look
before it sleeps, and who listens gets the next item without a read. What was carried is given
on only in an unbroken row behind the cursor that is asked for; in all other cases the
reader reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol

from squall.coordination.stores import redis_scripts as scripts
from squall.coordination.stores.errors import StoreError
from squall.coordination.stores.interface import Appended, Changed, Takeable, Watch
from squall.coordination.stores.redis_line import Line
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken

SLICE_S = 5.0
PAUSE_S = 0.2
"""After a failure, before the connection is made again."""
Done = asyncio.Future[frozenset[Watch]]
Carried = tuple[bytes, bytes, bytes, bytes]
"""Birth, number and body of an item, and what is told beside it."""
CARRIED_FIELDS = 8
CARRIED_MAX = 16
_NOTHING: frozenset[Watch] = frozenset()


class Server(Protocol):
    def script(self, text: str, *arguments: str | int | bytes) -> Awaitable[Any]: ...
    def command(
        self, *arguments: str | int | bytes, line: Line | None = None
    ) -> Awaitable[Any]: ...


class RedisWaits:
    """Runs a task while somebody waits and for one slice after, and none otherwise."""

    def __init__(
        self, server: Server, line: Line, clock: Clock, tasks: TaskRunner, tag: str, name: str
    ) -> None:
        self._server = server
        self._line = line
        """Only for reads that block."""
        self._clock = clock
        self._tasks = tasks
        self._tag = tag
        self._waiting: dict[Watch, set[Done]] = {}
        self._fresh: set[Watch] = set()
        """Not looked at yet by the loop."""
        self._loop: TaskToken | None = None
        self._is_asleep = False
        self._wake = f"@{name}"
        """The bell of the loop itself."""
        self._bells: dict[str, str] = {}
        """By name, the last entry of its bell that was taken note of."""
        self._streams: set[str] = set()
        """Names of bells that are listened to although nobody may wait."""
        self._look_again_at = 0.0
        self._ends: dict[str, tuple[str, int]] = {}
        """By stream whose bell is listened to, its birth and last number, as far as heard."""
        self._carried: dict[str, deque[Carried]] = {}
        """The last ones that bells brought, up to the end and without a gap."""

    async def listen(self, stream: str, after: str, timeout_s: float) -> Sequence[Carried]:
        found = self._behind(stream, after)
        if not found and await self.wait((Appended(stream, after),), timeout_s):
            found = self._behind(stream, after)
        return found

    def _behind(self, stream: str, after: str) -> Sequence[Carried]:
        carried = self._carried.get(stream)
        if not carried or self._ends.get(stream, ("", 0))[0] != after.rpartition(".")[0]:
            return ()
        number = _number_of(after)
        while carried and int(carried[0][1]) <= number:
            carried.popleft()
        return tuple(carried) if carried and int(carried[0][1]) == number + 1 else ()

    async def wait(self, watches: Sequence[Watch], timeout_s: float) -> frozenset[Watch]:
        if timeout_s <= 0.0:
            return (await self._look(watches))[0]
        loop = asyncio.get_running_loop()
        done: Done = loop.create_future()
        # The loop looks at those that are new; at what it listens to already we look ourselves.
        known = [watch for watch in watches if not self._is_fresh(watch)]
        is_sure = all(map(self._is_at_end, watches))
        for watch in watches:
            self._waiting.setdefault(watch, set()).add(done)
        timer = loop.call_later(timeout_s, _finish, done, _NOTHING)
        due: asyncio.TimerHandle | None = None
        try:
            if len(known) < len(watches):
                await self._disturb()
            if known and not is_sure:
                holding, due_s = await self._look(known)
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
                # A failure that came while this one was looking for itself.
                done.exception()
            self._forget(watches, done)

    async def close(self) -> None:
        if self._loop is not None:
            self._tasks.cancel(self._loop)
            await self._tasks.stopped(self._loop)
        self._line.close()

    def _is_fresh(self, watch: Watch) -> bool:
        """Whether the loop must be told of it."""
        if not self._is_asleep or _name(watch) not in self._bells:
            if watch not in self._waiting:
                self._fresh.add(watch)
            return watch in self._fresh
        return False

    def _is_at_end(self, watch: Watch) -> bool:
        """Its bell is listened to, and told of nothing behind the cursor."""
        if not isinstance(watch, Appended) or watch in self._fresh:
            return False
        end = self._ends.get(watch.stream)
        return end is not None and watch.after == f"{end[0]}.{end[1]}"

    def _forget(self, watches: Sequence[Watch], done: Done) -> None:
        for watch in watches:
            self._waiting[watch].discard(done)
            if not self._waiting[watch]:
                del self._waiting[watch]
                self._fresh.discard(watch)

    async def _look(self, watches: Sequence[Watch]) -> tuple[frozenset[Watch], float | None]:
        """Those that hold, and when one may hold because a claim has run out."""
        found = await self._server.script(scripts.ARM, *_encoded(watches))
        holding = frozenset(
            watch for watch, (holds, *_) in zip(watches, found, strict=True) if holds
        )
        due = [(due_ms + 1) / 1000.0 for _, _, due_ms, _ in found if due_ms >= 0]
        return holding, min(due, default=None)

    async def _disturb(self) -> None:
        """Makes sure that the loop runs and sees what is new."""
        if self._loop is None or self._loop.task is None or self._loop.task.done():
            self._loop = self._tasks.start("redis waits", self._run())
        elif self._is_asleep and self._fresh:
            self._is_asleep = False
            bell = self._bell(self._wake)
            await self._server.command("XADD", bell, "MAXLEN", "1", "*", "w", "1")

    async def _run(self) -> None:
        while self._waiting or self._clock.now() < self._look_again_at:
            try:
                await self._turn()
            except StoreError as error:
                self._is_asleep = False
                self._look_again_at = min(self._look_again_at, self._clock.now())
                self._fail(error)
                await self._clock.sleep(PAUSE_S)

    async def _turn(self) -> None:
        """Looks at what is new, or at everything once per slice; then sleeps."""
        now = self._clock.now()
        if now >= self._look_again_at:
            for known in (self._bells, self._streams, self._ends, self._carried):
                known.clear()
            self._look_again_at = now + SLICE_S
            await self._arm(list(self._waiting))
        elif self._fresh:
            await self._arm(list(self._fresh))
        if self._fresh:
            return
        names = self._streams.union(map(_name, self._waiting), (self._wake,))
        self._bells = {name: at for name, at in self._bells.items() if name in names}
        slice_ms = max(1, round((self._look_again_at - self._clock.now()) * 1000.0))
        self._is_asleep = True
        # Who was woken goes first: what it asks of the server need not wait for this.
        await asyncio.sleep(0.0)
        rung = await self._server.command(
            *("XREAD", "BLOCK", slice_ms, "STREAMS"),
            *(self._bell(name) for name in self._bells),
            *self._bells.values(),
            line=self._line,
        )
        self._is_asleep = False
        woken: set[str] = set()
        for bell, entries in rung or ():
            name = _bell_name(bell.decode())
            self._bells[name] = entries[-1][0].decode()
            for _, fields in entries:
                self._hear(name, fields)
            woken.add(name)
        # A write is worth a look of the waiter's own: telling it saves one more of ours.
        self._tell([watch for watch in self._waiting if _name(watch) in woken])

    def _hear(self, name: str, fields: Sequence[bytes]) -> None:
        """What a bell says of the end of its stream."""
        if len(fields) < CARRIED_FIELDS:
            self._ends.pop(name, None)
            self._carried.pop(name, None)
            return
        _, birth, _, number, _, body, _, beside = fields
        end = (birth.decode(), int(number))
        carried = self._carried.setdefault(name, deque(maxlen=CARRIED_MAX))
        if self._ends.get(name) != (end[0], end[1] - 1):
            carried.clear()
        carried.append((birth, number, body, beside))
        self._ends[name] = end

    async def _arm(self, watches: list[Watch]) -> None:
        *states, (_, wake_id, *_) = await self._server.script(
            scripts.ARM, *_encoded(watches, self._wake)
        )
        self._fresh.difference_update(watches)
        self._bells.setdefault(self._wake, wake_id.decode())
        holding: list[Watch] = []
        for watch, (holds, bell_id, due_ms, last_item) in zip(watches, states, strict=True):
            name = _name(watch)
            self._bells[name] = bell_id.decode()
            if not isinstance(watch, Changed):
                self._streams.add(name)
            self._end_is(name, last_item.decode())
            if holds:
                holding.append(watch)
            elif due_ms >= 0:
                due_at = self._clock.now() + (due_ms + 1) / 1000.0
                self._look_again_at = min(self._look_again_at, due_at)
        self._tell(holding)

    def _end_is(self, name: str, cursor: str) -> None:
        self._carried.pop(name, None)
        self._ends.pop(name, None)
        if cursor:
            self._ends[name] = (cursor.rpartition(".")[0], _number_of(cursor))

    def _bell(self, name: str) -> str:
        return f"{self._tag}#bell:{name}"

    def _tell(self, watches: Iterable[Watch]) -> None:
        for watch in watches:
            for done in self._waiting.get(watch, ()):
                if not done.done():
                    done.set_result(frozenset({watch}))

    def _fail(self, error: Exception) -> None:
        for waiting in list(self._waiting.values()):
            for done in waiting:
                if not done.done():
                    done.set_exception(error)


def _finish(done: Done, result: frozenset[Watch]) -> None:
    if not done.done():
        done.set_result(result)


def _number_of(cursor: str) -> int:
    return int(cursor.rpartition(".")[2] or "0")


def _name(watch: Watch) -> str:
    return watch.key if isinstance(watch, Changed) else watch.stream


def _encoded(watches: Sequence[Watch], wake: str = "") -> list[str | int]:
    """Four arguments each, as `ARM` reads them."""
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
