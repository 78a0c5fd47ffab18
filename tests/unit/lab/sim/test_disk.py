"""What survives on a simulated disk, and what does not."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from lab.sim.world import World
from squall.runtime.interfaces import Disk, Runtime
from tests.unit.lab.sim.worlds import act, idle, in_world


def after_crash(
    seed: int,
    write: Callable[[Disk], Awaitable[None]],
    read: Callable[[Disk], Awaitable[object]],
    *,
    crash_after_s: float | None = None,
    power_lost: bool = True,
) -> object:
    """Writes in one boot, crashes, reads in the next."""

    async def scenario(world: World) -> object:
        world.add("a", idle)
        world.start()
        writing = asyncio.ensure_future(act(world, "a", lambda runtime: write(runtime.disk)))
        if crash_after_s is None:
            await writing
        else:
            await asyncio.sleep(crash_after_s)
        if power_lost:
            world.crash("a")
        else:
            world.kill("a")
        writing.cancel()
        world.start("a")
        return await act(world, "a", lambda runtime: read(runtime.disk))

    return in_world(scenario, seed)


async def content(disk: Disk) -> bytes | None:
    try:
        return await disk.read("log")
    except FileNotFoundError:
        return None


def test_what_was_synced_with_its_name_survives_every_crash() -> None:
    async def write(disk: Disk) -> None:
        file = await disk.open("log")
        await file.append(b"one")
        await file.append(b"two")
        await file.sync()
        await disk.sync_directory()

    for seed in range(30):
        assert after_crash(seed, write, content) == b"onetwo"


def test_unsynced_bytes_are_lost_torn_or_kept() -> None:
    async def write(disk: Disk) -> None:
        file = await disk.open("log")
        await file.append(b"durable.")
        await file.sync()
        await disk.sync_directory()
        await file.append(b"abcdefgh")

    seen = {after_crash(seed, write, content) for seed in range(100)}
    assert b"durable." in seen
    assert b"durable.abcdefgh" in seen
    assert any(isinstance(c, bytes) and 8 < len(c) < 16 for c in seen)
    assert all(isinstance(c, bytes) and c.startswith(b"durable.") for c in seen)


def test_a_killed_process_loses_nothing_that_it_wrote() -> None:
    async def write(disk: Disk) -> None:
        file = await disk.open("log")
        await file.append(b"in the page cache")

    for seed in range(10):
        found = after_crash(seed, write, content, power_lost=False)
        assert found == b"in the page cache"


def test_a_name_without_a_directory_sync_may_be_lost() -> None:
    async def write(disk: Disk) -> None:
        file = await disk.open("log")
        await file.append(b"content")
        await file.sync()

    assert {after_crash(seed, write, content) for seed in range(30)} == {None, b"content"}


def test_a_rename_without_a_directory_sync_may_be_lost() -> None:
    async def write(disk: Disk) -> None:
        file = await disk.open("new")
        await file.append(b"content")
        await file.sync()
        await disk.sync_directory()
        await disk.rename("new", "log")

    async def names(disk: Disk) -> tuple[str, ...]:
        return tuple(await disk.list())

    assert {after_crash(seed, write, names) for seed in range(30)} == {("new",), ("log",)}


def test_a_renamed_directory_takes_its_files_with_it_or_stays_as_it_was() -> None:
    async def write(disk: Disk) -> None:
        await disk.make_directory("old")
        await disk.make_directory("old/part")
        await disk.sync_directory("old")
        await disk.write_atomic("old/part/file", b"content")
        await disk.sync_directory()
        await disk.rename("old", "new")

    async def found(disk: Disk) -> tuple[str, ...]:
        (name,) = await disk.list()
        assert await disk.read(f"{name}/part/file") == b"content"
        return (name,)

    assert {after_crash(seed, write, found) for seed in range(30)} == {("old",), ("new",)}


def test_an_atomic_write_is_all_or_nothing_whenever_the_power_goes() -> None:
    async def write(disk: Disk) -> None:
        await disk.write_atomic("log", b"old")
        await disk.write_atomic("log", b"new" * 100)

    seen = {
        after_crash(step, write, content, crash_after_s=step * 0.0002) for step in range(1, 100)
    }
    assert seen == {None, b"old", b"new" * 100}


def test_a_failed_sync_poisons_the_file_and_leaves_its_content_unknown() -> None:
    async def scenario(world: World) -> bytes:
        world.add("a", idle)
        world.start()

        async def write(runtime: Runtime) -> None:
            file = await runtime.disk.open("log")
            await runtime.disk.sync_directory()
            await file.append(b"x" * 8)
            world.nodes["a"].disk.profile.sync_error = 1.0
            with pytest.raises(OSError, match="sync failed"):
                await file.sync()
            world.nodes["a"].disk.profile.sync_error = 0.0
            for call in (file.sync, lambda: file.append(b"y")):
                with pytest.raises(OSError, match="content is unknown"):
                    await call()
            again = await runtime.disk.open("log")
            await again.sync()

        await act(world, "a", write)
        world.crash("a")
        world.start("a")
        return await act(world, "a", lambda runtime: runtime.disk.read("log"))

    found = {in_world(scenario, seed) for seed in range(20)}
    assert found == {b"x" * 8, bytes(8)}, "a later sync that succeeds proves nothing"


def test_a_full_disk_says_so_and_takes_nothing() -> None:
    async def scenario(world: World) -> None:
        world.add("a", idle)
        world.start()
        world.nodes["a"].disk.profile.capacity_bytes = 10

        async def write(runtime: Runtime) -> None:
            file = await runtime.disk.open("log")
            await file.append(b"12345678")
            with pytest.raises(OSError) as caught:
                await file.append(b"12345678")
            assert caught.value.errno == errno.ENOSPC
            with pytest.raises(OSError) as caught:
                await runtime.disk.write_atomic("other", b"123")
            assert caught.value.errno == errno.ENOSPC

        await act(world, "a", write)

    for seed in range(5):
        in_world(scenario, seed)


def test_a_crash_releases_the_lock_and_a_living_process_holds_it() -> None:
    async def scenario(world: World) -> None:
        world.add("a", idle)
        world.start()

        async def take(runtime: Runtime) -> None:
            runtime.disk.lock()
            with pytest.raises(BlockingIOError):
                runtime.disk.lock()

        await act(world, "a", take)
        world.kill("a")
        world.start("a")
        await act(world, "a", take)

    in_world(scenario)


def test_a_call_takes_effect_though_its_caller_gave_up() -> None:
    async def scenario(world: World) -> bytes:
        world.add("a", idle)
        world.start()
        world.nodes["a"].disk.profile.call_s = 1.0

        async def write(runtime: Runtime) -> bytes:
            file = await runtime.disk.open("log")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(file.append(b"all the same"), 0.5)
            await runtime.clock.sleep(2.0)
            return await runtime.disk.read("log")

        return await act(world, "a", write)

    assert in_world(scenario) == b"all the same"


def test_bit_rot_changes_one_bit_and_a_lost_disk_is_empty() -> None:
    async def scenario(world: World) -> None:
        world.add("a", idle)
        world.start()

        async def write(runtime: Runtime) -> None:
            await runtime.disk.write_atomic("log", bytes(64))

        await act(world, "a", write)
        assert world.nodes["a"].disk.rot() == "log"
        rotten = await act(world, "a", lambda runtime: runtime.disk.read("log"))
        assert sum(byte.bit_count() for byte in rotten) == 1
        world.crash("a")
        world.nodes["a"].disk.wipe()
        world.start("a")
        assert await act(world, "a", lambda runtime: runtime.disk.list()) == []

    in_world(scenario)


def test_directories_hold_names_and_paths_stay_inside() -> None:
    async def scenario(world: World) -> None:
        world.add("a", idle)
        world.start()

        async def use(runtime: Runtime) -> None:
            disk = runtime.disk
            with pytest.raises(FileNotFoundError):
                await disk.open("blobs/ab/1")
            await disk.make_directory("blobs/ab")
            await (await disk.open("blobs/ab/1")).append(b"123")
            assert await disk.list("blobs/ab") == ["1"]
            assert await disk.list() == ["blobs"]
            assert await disk.list("nowhere") == []
            assert await disk.size("blobs/ab/1") == 3
            assert await disk.read("blobs/ab/1", 1, 1) == b"2"
            await disk.remove("blobs/ab/1")
            assert await disk.list("blobs/ab") == []
            for path in ("../x", "/x", "a//b", "."):
                with pytest.raises(OSError, match="not a path inside"):
                    await disk.read(path)

        await act(world, "a", use)

    in_world(scenario)


def test_a_truncated_file_is_cut_durably_only_after_a_sync() -> None:
    async def write(disk: Disk) -> None:
        file = await disk.open("log")
        await file.append(b"12345678")
        await file.sync()
        await disk.sync_directory()
        await file.truncate(4)
        assert file.size == 4

    assert {after_crash(seed, write, content) for seed in range(30)} == {b"12345678", b"1234"}
