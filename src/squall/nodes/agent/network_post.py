"""How letters lie in a store: a stream per mailbox, or, on S3, a record per letter.

`StreamPost` is for stores that append in one step: `mail/<owner>` is a stream, an append
and a read are one request each, and the store wakes the reader or is looked at.

A stream on S3 would cost its writers a request for every letter of everybody else, so
`network_records` lays letters out differently there. Both keep the letters of one sender
in order, know a repeat by its id, and let an inbox that nobody reads vanish.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from squall.coordination.stores.errors import CoordinationError
from squall.coordination.stores.interface import Append, Appended, Remove, Store, make_key
from squall.nodes.agent.network_lane import GROUP
from squall.nodes.agent.pace import Pace
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken

KIND = "mail"
LETTERS_AT_ONCE = 16
REMOVES_AT_ONCE = 100
KEPT_MAX = 100_000
LAST_REMOVE_S = 1.0


class NetworkCounters(msgspec.Struct):
    """What a network cost so far."""

    requests: int = 0
    """To the store, as it counts and may charge them; a wait is one."""
    bytes_out: int = 0
    bytes_in: int = 0
    letters_out: int = 0
    letters_in: int = 0
    resets: int = 0
    """Connections that ended with an error."""
    outages: int = 0
    """Times that the store stopped answering."""


class Post(Protocol):
    async def append(self, to: str, letter: str, content: bytes) -> None:
        """One at a time per mailbox. Raises `StreamFullError` or what a store raises; then
        it may have happened, and the same letter is to be appended again."""
        ...

    async def wait(self) -> None:
        """Until there may be letters, for a while."""
        ...

    async def read(self, senders: Collection[str], *, listens: bool) -> Sequence[bytes]:
        """New letters, each sender's in order. Who does not listen need not be told soon of
        senders that it does not name."""
        ...

    def expect(self) -> None:
        """An answer is due, or somebody new is expected: look soon."""
        ...

    async def close(self) -> None: ...


class Tidier:
    """Removes what was read, some time later and many at once; a failure is tried again.
    What is forgotten beyond the bound vanishes with the inbox."""

    def __init__(
        self,
        remove: Callable[[Sequence[str]], Awaitable[None]],
        *,
        at_once: int,
        wait_s: Callable[[], float],
        clock: Clock,
        tasks: TaskRunner,
    ) -> None:
        self._remove = remove
        self._at_once = at_once
        self._wait_s = wait_s
        self._clock = clock
        self._tasks = tasks
        self._read: dict[str, None] = {}
        self._task: TaskToken | None = None

    def add(self, names: Iterable[str]) -> None:
        if len(self._read) < KEPT_MAX:
            self._read.update(dict.fromkeys(names))
        if self._read and self._task is None:
            self._task = self._tasks.start("mail tidy", self._run(), group=GROUP)

    async def close(self) -> None:
        if self._task is not None:
            self._tasks.cancel(self._task)
            await self._tasks.stopped(self._task)
        with contextlib.suppress(CoordinationError, TimeoutError):
            async with asyncio.timeout(LAST_REMOVE_S):
                await self._round()

    async def _run(self) -> None:
        try:
            while self._read:
                await self._clock.sleep(self._wait_s())
                with contextlib.suppress(CoordinationError):
                    await self._round()
        finally:
            self._task = None

    async def _round(self) -> None:
        while self._read:
            names = list(islice(self._read, self._at_once))
            await self._remove(names)
            for name in names:
                self._read.pop(name, None)


class StreamPost:
    def __init__(
        self,
        store: Store,
        *,
        own: str,
        clock: Clock,
        tasks: TaskRunner,
        pace: Pace,
        counters: NetworkCounters,
    ) -> None:
        self._store = store
        self._own = own
        self._clock = clock
        self._pace = pace
        self._counters = counters
        self._inbox = make_key(KIND, own)
        self._cursor = ""
        self._has_more = True
        self._busy_until = float("-inf")
        self._tidier = Tidier(
            self._remove,
            at_once=REMOVES_AT_ONCE,
            wait_s=lambda: pace.tidy_s,
            clock=clock,
            tasks=tasks,
        )

    async def append(self, to: str, letter: str, content: bytes) -> None:
        self._counters.requests += 1
        await self._store.write(
            Append(
                make_key(KIND, to),
                f"{self._own}-{letter}",
                content,
                ttl_s=self._pace.ttl_s,
                limit=self._pace.inbox_letters,
            )
        )

    async def wait(self) -> None:
        """A store that wakes nobody but looks by itself is asked directly while an answer is
        due."""
        if self._has_more:
            return
        pause_s = self._pace.busy_poll_s
        if pause_s > 0.0 and self._clock.now() < self._busy_until:
            await self._clock.sleep(pause_s)
            return
        self._counters.requests += 1
        watch = Appended(self._inbox, self._cursor)
        await self._store.wait(watch, timeout_s=self._pace.poll_s)

    async def read(self, senders: Collection[str], *, listens: bool) -> Sequence[bytes]:
        self._counters.requests += 1
        items = await self._store.read(self._inbox, after=self._cursor, limit=LETTERS_AT_ONCE)
        self._has_more = len(items) == LETTERS_AT_ONCE
        if items:
            self._cursor = items[-1].cursor
            self._tidier.add(item.cursor for item in items)
            self.expect()
        return [item.value for item in items]

    def expect(self) -> None:
        self._busy_until = self._clock.now() + self._pace.busy_s

    async def close(self) -> None:
        await self._tidier.close()

    async def _remove(self, cursors: Sequence[str]) -> None:
        self._counters.requests += 1
        await self._store.write(*(Remove(self._inbox, cursor) for cursor in cursors))
