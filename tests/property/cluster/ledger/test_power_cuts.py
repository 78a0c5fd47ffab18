"""Power that fails, and processes that are killed, at any call to the disk: what was
acknowledged is there after the restart, once and at its number, and the log goes on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from lab.sim.world import World
from squall.cluster.ledger.settings import Durability, LedgerSettings, WalSettings
from squall.cluster.ledger.wal.log import Wal
from squall.cluster.ledger.wal.open_wal import open_wal
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner
from tests.unit.cluster.ledger.lab.ledgers import Words, open_alone
from tests.unit.cluster.ledger.lab.logs import IDENTITY, all_of
from tests.unit.lab.sim.worlds import act, idle, in_world

pytestmark = pytest.mark.timeout(600)

WAL = WalSettings(segment_bytes=64 * 1024, read_bytes=4096)
LEDGER = LedgerSettings(
    wal=WalSettings(segment_bytes=4096, read_bytes=4096),
    checkpoint_entries=10**9,
    checkpoint_interval_s=1e9,
    checkpoints_kept=2,
)
WRITERS = 200


async def opened(runtime: Runtime) -> Wal:
    tasks = TaskRunner(runtime.clock, runtime.random)
    return await open_wal(runtime.disk, runtime.clock, tasks, "wal", IDENTITY, WAL)


# Many writers, and the power goes at any time.


async def append_for_ever(runtime: Runtime, start: int, acked: dict[int, bytes]) -> None:
    """Compares the disk with what was acknowledged, then goes on writing."""
    wal = await opened(runtime)
    found = {record.lsn: record.body for record in await all_of(wal)}
    assert list(found) == list(range(1, len(found) + 1))
    assert len(set(found.values())) == len(found)
    assert {lsn: found.get(lsn) for lsn in acked} == acked
    assert wal.next_lsn == len(found) + 1

    async def write(writer: int) -> None:
        count = 0
        while True:
            body = b"%d %d %d" % (start, writer, count)
            acked[await wal.append(1, body)] = body
            count += 1

    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))


@pytest.mark.parametrize("seed", range(25))
def test_two_hundred_writers_lose_nothing_that_was_acknowledged(seed: int) -> None:
    acked: dict[int, bytes] = {}

    async def scenario(world: World) -> None:
        draw = world.random("cuts")
        world.add("a", idle)
        for start in range(4):
            world.start("a")
            running = asyncio.ensure_future(
                act(world, "a", lambda runtime, n=start: append_for_ever(runtime, n, acked))
            )
            await asyncio.sleep(draw.uniform(0.0, 0.05) if start < 3 else 0.1)
            if running.done():
                await running
            world.crash("a") if draw.random() < 0.7 else world.kill("a")
            running.cancel()

    in_world(scenario, seed)
    assert len(acked) > WRITERS


# What a flush promises.


@pytest.mark.parametrize("flushed", [True, False])
def test_a_flush_makes_durable_what_was_only_written(flushed: bool) -> None:
    async def write(runtime: Runtime) -> None:
        wal = await opened(runtime)
        await wal.append(1, b"written", Durability.WRITE)
        if flushed:
            await wal.flush()

    async def read(runtime: Runtime) -> int:
        return len(await all_of(await opened(runtime)))

    async def scenario(world: World) -> int:
        world.add("a", idle)
        world.start("a")
        await act(world, "a", write)
        world.crash("a")
        world.start("a")
        return await act(world, "a", read)

    kept = {in_world(scenario, seed) for seed in range(20)}
    assert kept == ({1} if flushed else {0, 1})


# Every call to the disk.


class Counted:
    """A disk, a file of it, or a runtime with it: each call is announced."""

    def __init__(self, inner: Any, comes: Callable[[], None]) -> None:
        self._inner = inner
        self._comes = comes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "disk":
            return Counted(found, self._comes)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **how: Any) -> Any:
            self._comes()
            result = await found(*args, **how)
            return Counted(result, self._comes) if name == "open" else result

        return call


class Cut:
    """Is set when the call with that number comes."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.came = asyncio.Event()

    def comes(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.came.set()


async def work(runtime: Any, said: list[str]) -> None:
    """Commits in several segments, with checkpoints and what they make superfluous."""
    ledger = await open_alone(runtime, Words(), LEDGER)

    async def commit(word: str) -> None:
        await ledger.submit(word.ljust(300, ".").encode())
        said.append(word)

    for part in range(4):
        await asyncio.gather(*(commit(f"{part} {number}") for number in range(9)))
        await ledger.snapshots.checkpoint()
    await ledger.close()


async def look(runtime: Any, said: list[str]) -> None:
    machine = Words()
    ledger = await open_alone(runtime, machine, LEDGER)
    words = [word.rstrip(".") for word in machine.words]
    assert len(set(words)) == len(words)
    assert set(said) - set(words) == set()
    await ledger.submit(b"more")
    await ledger.close()


async def until_cut(
    world: World, at: int, action: Callable[[Any], Any], end: Callable[[str], None]
) -> bool:
    """Does something on the node and ends it at that call; whether it came to that."""
    cut = Cut(at)
    world.start("a")
    running = asyncio.ensure_future(act(world, "a", lambda r: action(Counted(r, cut.comes))))
    coming = asyncio.ensure_future(cut.came.wait())
    await asyncio.wait((running, coming), return_when=asyncio.FIRST_COMPLETED)
    came = cut.came.is_set()
    if not came:
        await running
    end("a")
    running.cancel()
    coming.cancel()
    return came


@pytest.mark.parametrize("how", ["crash", "kill"])
def test_an_end_at_any_call_to_the_disk_costs_nothing(how: str) -> None:
    at = 0
    while True:
        at += 1
        said: list[str] = []

        async def scenario(world: World, at: int = at, said: list[str] = said) -> bool:
            end = world.crash if how == "crash" else world.kill
            world.add("a", idle)
            came = await until_cut(world, at, lambda runtime: work(runtime, said), end)
            world.start("a")
            await act(world, "a", lambda runtime: look(runtime, said))
            return came

        if not in_world(scenario, at):
            break
    assert len(said) == 36
    assert at > 60


def test_an_end_at_any_call_of_a_recovery_costs_nothing() -> None:
    at = 0
    while True:
        at += 1

        async def scenario(world: World, at: int = at) -> bool:
            said: list[str] = []
            world.add("a", idle)
            # In the midst of the second part.
            assert await until_cut(world, 45, lambda runtime: work(runtime, said), world.kill)
            came = await until_cut(world, at, lambda r: look(r, said), world.crash)
            world.start("a")
            await act(world, "a", lambda runtime: look(runtime, said))
            return came

        if not in_world(scenario, at):
            break
    assert at > 15
