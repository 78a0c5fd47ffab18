"""Stops a member process exactly between a decision and its write.

A file next to its journal orders the stop. The store is the last layer that a fenced write
passes in the process: up to there every local check says that the member leads. The store's
answer to the late write is recorded, even if the member has given up waiting for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from squall.coordination import CoordinationError
from squall.coordination.stores.interface import Append, Fence, Store, Write

EFFECTS = "effects"
PAGE = 1000


class Notes(Protocol):
    path: str

    def note(self, what: str, **fields: object) -> None: ...


class Missing(Protocol):
    missed_s: float


def order_of(journal: Path | str) -> Path:
    return Path(f"{journal}.hold")


class HeldWrites:
    """With a clock, the member does not see how long it was stopped."""

    def __init__(self, journal: Notes, clock: Missing | None) -> None:
        self._journal = journal
        self._clock = clock
        self._order = order_of(journal.path)

    def install(self, store: Store) -> None:
        write = store.write

        async def held(*writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
            if fence is None or not self._is_meant(writes):
                return await write(*writes, fence=fence)
            self._stop(fence.epoch)
            late = asyncio.ensure_future(write(*writes, fence=fence))
            late.add_done_callback(lambda done: self._answered(done, fence.epoch))
            return await asyncio.shield(late)

        store.write = held  # type: ignore[method-assign]

    def _is_meant(self, writes: Sequence[Write]) -> bool:
        effects = any(isinstance(each, Append) and each.stream == EFFECTS for each in writes)
        return effects and self._order.exists()

    def _stop(self, epoch: int) -> None:
        self._order.unlink()
        self._journal.note("held", epoch=epoch)
        begun = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        if self._clock is not None:
            self._clock.missed_s += time.monotonic() - begun

    def _answered(self, late: asyncio.Future[Any], epoch: int) -> None:
        error = None if late.cancelled() else late.exception()
        known = type(error).__name__ if isinstance(error, CoordinationError) else repr(error)
        self._journal.note("late", epoch=epoch, answer="taken" if error is None else known)


class Effects:
    """All that stand in the store, read on from where it was last."""

    def __init__(self, store: Store) -> None:
        self.numbers: list[int] = []
        self._store = store
        self._cursor = ""

    async def next(self) -> int:
        """The decision: the one after the last."""
        await self.read()
        return max(self.numbers, default=0) + 1

    async def read(self) -> None:
        while True:
            items = await self._store.read(EFFECTS, after=self._cursor, limit=PAGE)
            self.numbers += [int(item.value) for item in items]
            self._cursor = items[-1].cursor if items else self._cursor
            if len(items) < PAGE:
                return
