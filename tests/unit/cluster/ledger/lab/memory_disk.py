"""A disk in memory whose faults a test switches on, and a clock that it moves."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Sequence

from squall.runtime.interfaces import BootId, NodeId


class MemoryDisk:
    """Everything is durable at once; what was asked of it is in `calls`."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.directories: set[str] = {""}
        self.calls: list[str] = []
        self.sync_errors: list[OSError] = []
        """The next syncs fail with these."""
        self.gate: asyncio.Event | None = None
        """Syncs wait for it."""
        self.capacity: int | None = None
        self.locked = False
        self.before: dict[str, int] = {}
        """Sizes that a test wrote down."""

    @property
    def used(self) -> int:
        return sum(map(len, self.files.values()))

    async def open(self, path: str, *, preallocate: int = 0, ahead: int = 0) -> MemoryFile:
        self.calls.append(f"open {path}")
        return MemoryFile(self, self.files.setdefault(path, bytearray()), path)

    async def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        content = self._found(path)
        return bytes(content[offset : len(content) if size is None else offset + size])

    async def write_atomic(self, path: str, data: bytes) -> None:
        self.calls.append(f"write {path}")
        self.room_for(len(data))
        await self.sync()
        self.files[path] = bytearray(data)

    async def rename(self, source: str, target: str) -> None:
        self.calls.append(f"rename {target}")
        self.files[target] = self._found(source)
        del self.files[source]

    async def remove(self, path: str) -> None:
        self.calls.append(f"remove {path}")
        self._found(path)
        del self.files[path]

    async def list(self, directory: str = "") -> Sequence[str]:
        prefix = f"{directory}/" if directory else ""
        names = {p[len(prefix) :] for p in self.files if p.startswith(prefix)}
        return sorted(name for name in names if "/" not in name)

    async def make_directory(self, path: str) -> None:
        self.directories.add(path)

    async def sync_directory(self, path: str = "") -> None:
        self.calls.append(f"sync directory {path}")

    async def size(self, path: str) -> int:
        return len(self._found(path))

    def lock(self) -> MemoryLock:
        if self.locked:
            raise BlockingIOError(errno.EAGAIN, "another process holds this data directory")
        self.locked = True
        return MemoryLock(self)

    def room_for(self, size: int) -> None:
        if self.capacity is not None and self.used + size > self.capacity:
            raise OSError(errno.ENOSPC, "no space left on device")

    async def sync(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        else:
            # As a real one: the caller does not go on in the same turn.
            await asyncio.sleep(0)
        if self.sync_errors:
            raise self.sync_errors.pop(0)

    def _found(self, path: str) -> bytearray:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self.files[path]


class MemoryFile:
    def __init__(self, disk: MemoryDisk, content: bytearray, path: str) -> None:
        self._disk = disk
        self._content = content
        self._path = path
        self.poisoned = False

    @property
    def size(self) -> int:
        return len(self._content)

    async def append(self, data: bytes) -> None:
        self._check()
        self._disk.room_for(len(data))
        self._disk.calls.append(f"append {len(data)}")
        self._content += data

    async def sync(self) -> None:
        self._check()
        self._disk.calls.append("sync")
        try:
            await self._disk.sync()
        except OSError:
            self.poisoned = True
            raise

    async def append_and_sync(self, data: bytes) -> None:
        await self.append(data)
        await self.sync()

    async def truncate(self, size: int) -> None:
        del self._content[size:]

    async def close(self) -> None:
        self._disk.calls.append(f"close {self._path}")

    def _check(self) -> None:
        if self.poisoned:
            raise OSError(errno.EIO, "its content is unknown")


class MemoryLock:
    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def release(self) -> None:
        self._disk.locked = False


class HandClock:
    """Stands still until it is moved. `sleep` only gives up the turn."""

    def __init__(self) -> None:
        self.time_s = 1000.0
        self.suspended_s = 0.0
        self.wall_s = 1.7e9
        self.kernel = ""

    def now(self) -> float:
        return self.time_s

    def boot_time(self) -> float:
        return self.time_s + self.suspended_s

    def kernel_boot(self) -> str:
        return self.kernel

    def wall(self) -> float:
        return self.wall_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class MemoryRuntime:
    """One boot of a node that has a disk, a clock and nothing else."""

    def __init__(self, disk: MemoryDisk, clock: HandClock, node: str = "m1") -> None:
        self.disk = disk
        self.clock = clock
        self.node = NodeId(node)
        self.boot = BootId("boot")
        self.random = random.Random(1)

    def entropy(self, size: int) -> bytes:
        return self.random.randbytes(size)
