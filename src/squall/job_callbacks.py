"""Calls the functions that a client gave with its job.

A callback may be a plain or an async function. Each kind has a queue and a task of its own, so that
a slow callback delays neither the follower of the job nor the other callbacks. A callback that
raises is logged and called again for the next item.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal

from squall.api.errors import SquallError
from squall.cluster.client.job_updates import JobUpdate
from squall.stats.snapshot import Snapshot

log = logging.getLogger("squall.client")

UpdateKind = Literal["status", "progress", "workflow"]
Callback = Callable[[Any], Awaitable[None] | None]
SNAPSHOTS_WAITING_MAX = 60
"""Snapshots that wait for a slow callback; the oldest are dropped, because each snapshot holds all
totals so far."""


class JobCallbacks:
    """Follows a job and calls the callbacks of its client."""

    def __init__(self, callbacks: Mapping[UpdateKind, Callback]) -> None:
        self._runners: list[asyncio.Task[None]] = []
        self._queues = {kind: _CallbackQueue(kind, each) for kind, each in callbacks.items()}

    async def run(
        self, updates: AsyncIterator[JobUpdate], final: Callable[[], Awaitable[Snapshot | None]]
    ) -> None:
        """Returns when the job is over and every callback has had every item."""
        self._runners = [asyncio.create_task(queue.run()) for queue in self._queues.values()]
        try:
            await self._follow(updates, final)
            for queue in self._queues.values():
                await queue.drained()
        finally:
            for runner in self._runners:
                runner.cancel()

    async def _follow(
        self, updates: AsyncIterator[JobUpdate], final: Callable[[], Awaitable[Snapshot | None]]
    ) -> None:
        try:
            async for update in updates:
                self._put("progress", *update.snapshots)
                self._put("workflow", *update.results)
                if update.view is not None:
                    self._put("status", update.view)
            last = await final()
            if last is not None:
                self._put("progress", last)
        except SquallError as error:
            # `Job.result` raises the same to the caller; the callbacks have no one to raise to.
            log.error("the callbacks end: %s", error)

    @property
    def is_calling(self) -> bool:
        """Whether a callback is what asks: it must not wait for itself."""
        return asyncio.current_task() in self._runners

    def _put(self, kind: UpdateKind, *items: object) -> None:
        if kind in self._queues:
            for item in items:
                self._queues[kind].put(item)


class _CallbackQueue:
    """Calls one callback with one item after the other."""

    def __init__(self, kind: UpdateKind, callback: Callback) -> None:
        self._kind = kind
        self._callback = callback
        self._items: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, item: object) -> None:
        if isinstance(item, Snapshot) and self._items.qsize() >= SNAPSHOTS_WAITING_MAX:
            self._items.get_nowait()
            self._items.task_done()
        self._items.put_nowait(item)

    async def run(self) -> None:
        while True:
            item = await self._items.get()
            try:
                called = self._callback(item)
                if inspect.isawaitable(called):
                    await called
            except Exception:
                log.exception("the %s callback raised", self._kind)
            finally:
                self._items.task_done()

    async def drained(self) -> None:
        await self._items.join()
