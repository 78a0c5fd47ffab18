"""A store that fails on purpose, for tests and simulations.

It wraps any store and draws the fault of each call from a seeded source: the request is lost, the
reply is lost after the call took effect, or the call is slow. A call that gets through must have
its normal effect.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from squall.coordination.store_errors import StoreUnavailableError
from squall.coordination.stores.interface import (
    Appended,
    Capabilities,
    Check,
    Claim,
    Depth,
    Fence,
    Item,
    Page,
    PushStore,
    Record,
    Store,
    Watch,
    Write,
    WriteAndGetStore,
)
from squall.runtime.interfaces import Clock

T = TypeVar("T")


@dataclass
class StoreFaults:
    """The faults of a store and their rates, which a test may change at any time."""

    lost_requests: float = 0.0
    """Share of calls that fail without effect."""
    lost_replies: float = 0.0
    """Share of calls that take effect and still fail."""
    delay_s: float = 0.0
    """The longest delay before a call takes effect; each call draws its own."""
    reply_delay_s: float = 0.0
    """The longest delay after a call took effect."""
    down: bool = False
    """Every call fails."""


class FaultyStore:
    """Wraps a store with faults. `on_write` is awaited before each write, so that a test can stop
    a member there."""

    def __init__(
        self,
        inner: Store,
        clock: Clock,
        source: random.Random,
        faults: StoreFaults | None = None,
        *,
        on_write: Callable[[Sequence[Write]], Awaitable[None]] | None = None,
    ) -> None:
        self.inner = inner
        self.faults = faults or StoreFaults()
        self.failed = 0
        self._clock = clock
        self._random = source
        self._on_write = on_write

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def now_ms(self) -> int:
        return await self._call(self.inner.now_ms)

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        return await self._call(lambda: self.inner.get(*keys))

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        if self._on_write is not None:
            await self._on_write(writes)
        return await self._call(lambda: self.inner.write(*writes, fence=fence))

    async def write_and_get(
        self, writes: Sequence[Write], keys: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[Record | None, ...]]:
        inner = self.inner
        if not isinstance(inner, WriteAndGetStore):
            return await self.write(*writes), await self.get(*keys)
        if self._on_write is not None:
            await self._on_write(writes)
        return await self._call(lambda: inner.write_and_get(writes, keys))

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        call = self.inner.list
        return await self._call(lambda: call(kind, idle_ms=idle_ms, after=after, limit=limit))

    async def sweep(self, kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        return await self._call(lambda: self.inner.sweep(kind, limit=limit, idle_ms=idle_ms))

    async def count(self) -> Mapping[str, int]:
        return await self._call(self.inner.count)

    async def read(self, stream: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        return await self._call(lambda: self.inner.read(stream, after=after, limit=limit))

    async def take(
        self,
        stream: str,
        owner: str,
        *,
        lease_s: float,
        limit: int = 1,
        request: str = "",
        provided: Check | None = None,
    ) -> Sequence[Claim]:
        call = partial(self.inner.take, stream, owner, lease_s=lease_s, limit=limit)
        return await self._call(lambda: call(request=request, provided=provided))

    async def depth(self, stream: str) -> Depth:
        return await self._call(lambda: self.inner.depth(stream))

    async def wait(self, *watches: Watch, timeout_s: float) -> frozenset[Watch]:
        return await self._call(lambda: self.inner.wait(*watches, timeout_s=timeout_s))

    async def listen(self, stream: str, *, after: str, timeout_s: float) -> Sequence[Item]:
        inner = self.inner
        if isinstance(inner, PushStore):
            return await self._call(lambda: inner.listen(stream, after=after, timeout_s=timeout_s))
        await self.wait(Appended(stream, after), timeout_s=timeout_s)
        return ()

    async def probe(self) -> None:
        await self.inner.probe()

    async def close(self) -> None:
        await self.inner.close()

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        faults = self.faults
        if faults.delay_s > 0.0:
            await self._clock.sleep(self._random.uniform(0.0, faults.delay_s))
        if faults.down or self._random.random() < faults.lost_requests:
            raise self._failure("the request was lost")
        result = await call()
        if faults.reply_delay_s > 0.0:
            await self._clock.sleep(self._random.uniform(0.0, faults.reply_delay_s))
        if faults.down or self._random.random() < faults.lost_replies:
            raise self._failure("the reply was lost")
        return result

    def _failure(self, what: str) -> StoreUnavailableError:
        self.failed += 1
        return StoreUnavailableError(f"{self.url}: {what}")
