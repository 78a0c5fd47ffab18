"""All waits of a process in one loop that looks again and again, for stores that cannot wake
us. It looks while somebody waits, and not at all otherwise: after 0.5 s first, then half as
long again each time up to 2 s; a new wait or something found begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from squall.coordination.stores.errors import StoreError
from squall.coordination.stores.interface import Watch
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken

FIRST_S = 0.5
GROWTH = 1.5
LAST_S = 2.0

Look = Callable[[Sequence[Watch]], Awaitable[frozenset[Watch]]]


class PolledWaits:
    def __init__(self, look: Look, clock: Clock, tasks: TaskRunner) -> None:
        self._look = look
        self._clock = clock
        self._tasks = tasks
        self._waiting: dict[Watch, set[asyncio.Future[frozenset[Watch]]]] = {}
        self._loop: TaskToken | None = None
        self._pause_s = FIRST_S

    async def wait(self, watches: Sequence[Watch], timeout_s: float) -> frozenset[Watch]:
        holding = await self._look(watches)
        if holding or timeout_s <= 0.0:
            return holding
        done: asyncio.Future[frozenset[Watch]] = asyncio.get_running_loop().create_future()
        for watch in watches:
            self._waiting.setdefault(watch, set()).add(done)
        self._pause_s = FIRST_S
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
            await self._clock.sleep(self._pause_s)
            self._pause_s = min(LAST_S, self._pause_s * GROWTH)
            watches = list(self._waiting)
            if not watches:
                return
            try:
                holding = await self._look(watches)
            except StoreError as error:
                self._fail(error)
                continue
            for watch in holding:
                self._pause_s = FIRST_S
                for done in self._waiting.get(watch, ()):
                    if not done.done():
                        done.set_result(frozenset({watch}))

    def _fail(self, error: Exception) -> None:
        for waiting in list(self._waiting.values()):
            for done in waiting:
                if not done.done():
                    done.set_exception(error)
