"""All waits of a process in one polling loop, for stores that announce nothing.

It polls only while there are waits. The interval grows as long as nothing is found; a new wait, or
a watch that holds, starts again with the shortest one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from squall.coordination.store_errors import StoreError
from squall.coordination.stores.interface import Watch
from squall.runtime.backoff import Backoff
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken

# Each turn costs at least one paid request per watch, so they become rarer while nothing happens.
# 2 s is how late a waiter may see a change.
POLL = Backoff(first_s=0.5, factor=1.5, cap_s=2.0)

CheckWatches = Callable[[Sequence[Watch]], Awaitable[frozenset[Watch]]]


class PolledWaits:
    """Polls for all waits of a process together: each watch is checked once per turn, however many
    callers wait for it."""

    def __init__(self, check: CheckWatches, clock: Clock, tasks: TaskRunner) -> None:
        self._check = check
        self._clock = clock
        self._tasks = tasks
        self._waiting: dict[Watch, set[asyncio.Future[frozenset[Watch]]]] = {}
        self._loop: TaskToken | None = None
        self._polls = 0

    async def wait(self, watches: Sequence[Watch], timeout_s: float) -> frozenset[Watch]:
        holding = await self._check(watches)
        if holding or timeout_s <= 0.0:
            return holding
        done: asyncio.Future[frozenset[Watch]] = asyncio.get_running_loop().create_future()
        for watch in watches:
            self._waiting.setdefault(watch, set()).add(done)
        self._polls = 0
        if self._loop is None or self._loop.task is None or self._loop.task.done():
            self._loop = self._tasks.start("polled waits", self._run())
        try:
            await asyncio.wait([done], timeout=timeout_s)
            return done.result() if done.done() else frozenset()
        finally:
            for watch in watches:
                self._waiting[watch].discard(done)
                if not self._waiting[watch]:
                    del self._waiting[watch]

    async def close(self) -> None:
        if self._loop is not None:
            self._tasks.cancel(self._loop)
            await self._tasks.stopped(self._loop)

    async def _run(self) -> None:
        while self._waiting:
            self._polls += 1
            await self._clock.sleep(POLL.delay_s(self._polls))
            watches = list(self._waiting)
            if not watches:
                return
            try:
                holding = await self._check(watches)
            except StoreError as error:
                self._fail(error)
                continue
            for watch in holding:
                self._polls = 0
                for done in self._waiting.get(watch, ()):
                    if not done.done():
                        done.set_result(frozenset({watch}))

    def _fail(self, error: Exception) -> None:
        for waiting in list(self._waiting.values()):
            for done in waiting:
                if not done.done():
                    done.set_exception(error)
