"""A model of a store behind a simulated network.

The state is one `MemoryStore`, which survives a crash of the store's machine like a disk. Each call
is a request and a reply: either may be delayed, lost or cut off, and a request may arrive twice. A
request that was sent arrives even if its sender is paused or dead. An operation that gets through
has its normal meaning.

The store behaves like one of the real ones. In 40 % of the seeds it has no transactions, like S3: a
batch is applied write by write and may stop in the middle. Of the others, three in four also push
items to listeners and write and read in one step, like Redis; the rest do not, like SQLite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

import msgspec

from lab.sim.process import KERNEL
from lab.sim.world import World
from squall.coordination.store_errors import StoreUnavailableError, VersionConflict
from squall.coordination.stores.interface import (
    Capabilities,
    Check,
    Claim,
    Depth,
    Fence,
    Item,
    Page,
    Put,
    Record,
    Watch,
    Write,
)
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.interfaces import Runtime

T = TypeVar("T")
STORE = "store"
CLIENT_TIMEOUT_S = 1.0
WAIT_SLICE_S = 5.0
REQUEST_BYTES = 400


class WorldClock:
    """The clock of the store: it runs at its own rate and belongs to no process."""

    def __init__(self, world: World, rate: float) -> None:
        self._world = world
        self._rate = rate

    def now(self) -> float:
        return self._world.now * self._rate

    def boot_time(self) -> float:
        return self.now()

    def kernel_boot(self) -> str:
        return ""

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Ways:
    """Faults between members and the store, in addition to those of the links."""

    lost_requests: float
    lost_replies: float
    duplicates: float
    slow: float
    """The part of the requests that take up to `slow_s` longer."""
    slow_s: float
    transactions: bool
    pushes: bool
    """The store has `listen` and `write_and_get`."""


def draw_ways(draw: Random) -> Ways:
    ways = Ways(
        lost_requests=draw.choice((0.0, draw.uniform(0.0, 0.1))),
        lost_replies=draw.choice((0.0, draw.uniform(0.0, 0.15))),
        duplicates=draw.choice((0.0, draw.uniform(0.0, 0.3))),
        slow=draw.choice((0.0, draw.uniform(0.0, 0.1))),
        slow_s=draw.uniform(0.2, 4.0),
        transactions=draw.random() < 0.6,
        pushes=draw.random() < 0.75,
    )
    return replace(ways, pushes=ways.pushes and ways.transactions)


class StoreMachine:
    """The machine of the store; `observe` receives every write that took effect."""

    def __init__(
        self, world: World, ways: Ways, observe: Callable[[Sequence[Write], Fence | None], None]
    ) -> None:
        draw = world.random("store")
        self.world = world
        self.ways = ways
        self.healthy = False
        self.members: list[str] = []
        # Whether members still enqueue tickets.
        self.takes_tickets = True
        self._clock = WorldClock(world, 1.0 + draw.uniform(-0.02, 0.02))
        self.memory = MemoryStore(self._clock)
        self.draw = draw
        self._observe = observe
        # Extra delay of the requests of each member.
        self.late_s: dict[str, float] = {}

    async def program(self, runtime: Runtime) -> None:
        await asyncio.get_running_loop().create_future()

    def forget(self) -> None:
        """Loses everything, as Redis does when it restarts empty."""
        self.memory = MemoryStore(self._clock)

    def heal(self, left: list[str]) -> None:
        """Ends the faults of the store; `left` are the members that still run."""
        self.healthy = True
        self.late_s.clear()
        self.members = left

    async def write(self, writes: Sequence[Write], fence: Fence | None) -> tuple[str, ...]:
        if self.ways.transactions:
            results = await self.memory.write(*writes, fence=fence)
            self._observe(writes, fence)
            return results
        results: tuple[str, ...] = ()
        scope = "" if fence is None else fence.scope
        elects = any(isinstance(write, Put) and write.key == scope for write in writes)
        for number, write in enumerate(writes):
            judged = None if elects and getattr(write, "key", "") != scope else fence
            if number and not self.healthy and self.draw.random() < 0.01:
                raise StoreUnavailableError("the store stopped in the middle of a batch")
            try:
                results += await self.memory.write(write, fence=judged)
            except VersionConflict as conflict:
                conflict.applied = number
                raise
            self._observe((write,), fence)
        return results


class SimStore:
    """One member's connection to the store."""

    def __init__(self, machine: StoreMachine, node: str) -> None:
        self._machine = machine
        self._node = node

    @property
    def url(self) -> str:
        return "sim://store"

    @property
    def capabilities(self) -> Capabilities:
        known = self._machine.memory.capabilities
        return msgspec.structs.replace(
            known, transactions=self._machine.ways.transactions, cross_process=True
        )

    async def now_ms(self) -> int:
        return await self._call(lambda store: store.now_ms())

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        return await self._call(lambda store: store.get(*keys))

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        named = self._with_tokens(writes)
        return await self._call(lambda store: self._machine.write(named, fence))

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        return await self._call(
            lambda store: store.list(kind, idle_ms=idle_ms, after=after, limit=limit)
        )

    async def sweep(self, kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        return await self._call(lambda store: store.sweep(kind, limit=limit, idle_ms=idle_ms))

    async def count(self) -> Mapping[str, int]:
        return await self._call(lambda store: store.count())

    async def read(self, stream: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        return await self._call(lambda store: store.read(stream, after=after, limit=limit))

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
        return await self._call(
            lambda store: store.take(
                *(stream, owner),
                lease_s=lease_s,
                limit=limit,
                request=request,
                provided=provided,
            )
        )

    async def depth(self, stream: str) -> Depth:
        return await self._call(lambda store: store.depth(stream))

    async def wait(self, *watches: Watch, timeout_s: float) -> frozenset[Watch]:
        slice_s = min(timeout_s, WAIT_SLICE_S)
        return await self._call(
            lambda store: store.wait(*watches, timeout_s=slice_s), extra_s=slice_s
        )

    async def probe(self) -> None:
        return

    async def close(self) -> None:
        return

    def _with_tokens(self, writes: Sequence[Write]) -> tuple[Write, ...]:
        return tuple(
            msgspec.structs.replace(write, token=self._machine.draw.randbytes(8).hex())
            if isinstance(write, Put) and not write.token
            else write
            for write in writes
        )

    async def _call(
        self, call: Callable[[MemoryStore], Awaitable[T]], *, extra_s: float = 0.0
    ) -> T:
        machine = self._machine
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()
        for copy in range(1 + self._strikes("duplicates")):
            if not self._strikes("lost_requests") or copy:
                delay_s = self._delay(self._node, STORE) + machine.late_s.get(self._node, 0.0)
                self._later(delay_s, lambda: self._arrive(call, reply, loop))
        limit = asyncio.timeout(CLIENT_TIMEOUT_S + extra_s)
        try:
            async with limit:
                return await reply
        except TimeoutError:
            raise StoreUnavailableError(f"{machine.world.now:.3f}: no answer") from None

    def _arrive(
        self,
        call: Callable[[MemoryStore], Awaitable[T]],
        reply: asyncio.Future[T],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        machine = self._machine
        link = machine.world.links.between(self._node, STORE)
        if not link.open or not machine.world.is_up(STORE):
            return
        process = machine.world.nodes[STORE].process
        if process is None or not process.alive:
            return
        process.context.copy().run(loop.create_task, self._serve(call, reply))

    async def _serve(
        self, call: Callable[[MemoryStore], Awaitable[T]], reply: asyncio.Future[T]
    ) -> None:
        machine = self._machine
        result: Any = None
        error: Exception | None = None
        try:
            result = await call(machine.memory)
        except Exception as raised:
            error = raised
        if self._strikes("lost_replies") or not machine.world.links.between(STORE, self._node).open:
            return

        def answer() -> None:
            if reply.done() or not machine.world.links.between(STORE, self._node).open:
                return
            if error is None:
                reply.set_result(result)
            else:
                reply.set_exception(error)

        self._later(self._delay(STORE, self._node), answer)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        loop = self._machine.world.loop
        KERNEL.context.copy().run(loop.call_later, delay_s, action)

    def _delay(self, source: str, target: str) -> float:
        machine = self._machine
        link = machine.world.links.between(source, target)
        delay_s = link.delay(machine.draw, machine.world.now, REQUEST_BYTES)
        if self._strikes("slow"):
            delay_s += machine.draw.uniform(0.0, machine.ways.slow_s)
        return delay_s

    def _strikes(self, what: str) -> bool:
        machine = self._machine
        return not machine.healthy and machine.draw.random() < getattr(machine.ways, what)


class PushingSimStore(SimStore):
    """A connection to a store that pushes items and writes and reads in one step."""

    async def write_and_get(
        self, writes: Sequence[Write], keys: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[Record | None, ...]]:
        named = self._with_tokens(writes)

        async def both(store: MemoryStore) -> tuple[tuple[str, ...], tuple[Record | None, ...]]:
            return await self._machine.write(named, None), await store.get(*keys)

        return await self._call(both)

    async def listen(self, stream: str, *, after: str, timeout_s: float) -> Sequence[Item]:
        slice_s = min(timeout_s, WAIT_SLICE_S)
        return await self._call(
            lambda store: store.listen(stream, after=after, timeout_s=slice_s), extra_s=slice_s
        )


def connect(machine: StoreMachine, node: str) -> SimStore:
    return PushingSimStore(machine, node) if machine.ways.pushes else SimStore(machine, node)
