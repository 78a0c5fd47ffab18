"""Small worlds for the tests of the simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lab.sim.loop import SimLoop
from lab.sim.world import World
from squall.runtime.interfaces import Address, Connection, Runtime

T = TypeVar("T")


def on_loop(main: Callable[[], Awaitable[T]], loop: SimLoop | None = None) -> T:
    """The result of a coroutine on a simulated loop of its own."""

    async def run() -> T:
        return await main()

    return (loop or SimLoop(limit_s=10_000.0)).run(run())


def in_world(
    scenario: Callable[[World], Awaitable[T]], seed: int = 1, world: World | None = None
) -> T:
    world = world or World(seed, limit_s=10_000.0)

    async def run() -> T:
        return await scenario(world)

    try:
        return world.loop.run(run())
    finally:
        world.close()


async def idle(runtime: Runtime) -> None:
    """A node that does nothing by itself; scenarios act through its runtime."""
    await asyncio.Event().wait()


async def act(world: World, node: str, action: Callable[[Runtime], Awaitable[T]]) -> T:
    """Runs `action` as code of that node."""
    process = world.nodes[node].process
    assert process is not None

    async def run() -> T:
        return await action(world.runtime(node))

    task = process.context.copy().run(asyncio.get_running_loop().create_task, run())
    return await task


class Stream:
    """A stream handler that stores its events."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.pieces: list[bytes] = []
        self.closed: list[Exception | None] = []

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    def on_open(self, connection: Connection) -> None:
        self.connection = connection

    def on_data(self, data: bytes) -> None:
        assert not self.closed
        self.pieces.append(data)

    def on_closed(self, error: Exception | None) -> None:
        self.closed.append(error)


class Datagrams:
    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.senders: list[Address] = []

    def on_datagram(self, data: bytes, sender: Address) -> None:
        self.received.append(data)
        self.senders.append(sender)


async def connected(world: World, client: str = "a", server: str = "b") -> tuple[Stream, Stream]:
    """A stream from one idle node to another: the handlers of its two ends."""
    accepted = Stream()
    dialled = Stream()

    async def listen(runtime: Runtime) -> None:
        await runtime.network.listen(("", 80), lambda: accepted)

    async def dial(runtime: Runtime) -> None:
        await runtime.network.dial((server, 80), dialled, timeout_s=5.0)

    await act(world, server, listen)
    await act(world, client, dial)
    await asyncio.sleep(0.1)
    return dialled, accepted


def two_idle_nodes(seed: int = 1) -> World:
    world = World(seed, limit_s=10_000.0)
    world.add("a", idle)
    world.add("b", idle)
    world.start()
    return world
