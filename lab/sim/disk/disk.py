"""The disk of a simulated machine, with the faults of a real one.

`SimDisk` belongs to the machine and outlives its processes; `NodeDisk` is what one boot
gets. A call takes simulated time and has its effect at the end of it, also when its
caller was cancelled meanwhile, but not when the process is gone by then. Appended bytes
are durable after a `sync` that succeeded.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lab.sim.disk.files import FileTree, Inode, parent
from lab.sim.loop import SimLoop
from lab.sim.process import KERNEL, SimProcess
from lab.sim.trace import Trace
from squall.runtime.interfaces import DirectoryLock, File

T = TypeVar("T")

OWN_PREFIX = ".squall-"
"""Names of unfinished atomic writes; never listed, as on the real disk."""


@dataclass(slots=True)
class DiskProfile:
    """How a disk behaves; scenarios and faults change it while it runs."""

    call_s: float = 0.00003
    sync_s: float = 0.001
    sync_jitter_s: float = 0.002
    stall: float = 0.0
    """Probability that a call takes up to `stall_s` longer."""
    stall_s: float = 0.0
    sync_error: float = 0.0
    capacity_bytes: int | None = None
    """None: it never fills up."""


class SimDisk:
    def __init__(self, node: str, trace: Trace, draw: random.Random) -> None:
        self.node = node
        self.profile = DiskProfile()
        self.tree = FileTree()
        self.draw = draw
        self._trace = trace
        self._holder: SimProcess | None = None

    def note(self, text: str) -> None:
        self._trace.note(self.node, f"disk {text}")

    def lose_power(self) -> None:
        changes = self.tree.lose_power(self.draw)
        if changes:
            self.note("; ".join(changes))

    def wipe(self) -> None:
        self.tree = FileTree()
        self.note("lost with all data")

    def rot(self, suffix: str = "") -> str | None:
        path = self.tree.rot(self.draw, suffix)
        if path is not None:
            self.note(f"bit rot in {path}")
        return path

    def take_lock(self, process: SimProcess) -> None:
        if self._holder is not None and self._holder.alive:
            raise BlockingIOError(errno.EAGAIN, "another process holds this data directory")
        self._holder = process

    def release_lock(self, process: SimProcess) -> None:
        if self._holder is process:
            self._holder = None

    def room_for(self, size: int) -> int:
        if self.profile.capacity_bytes is None:
            return size
        return min(size, max(self.profile.capacity_bytes - self.tree.used_bytes, 0))

    def latency(self, *, sync: bool = False) -> float:
        profile = self.profile
        latency = profile.call_s
        if sync:
            latency += profile.sync_s + self.draw.random() * profile.sync_jitter_s
        if profile.stall and self.draw.random() < profile.stall:
            latency += self.draw.random() * profile.stall_s
        return latency

    def sync_fails(self) -> bool:
        return bool(self.profile.sync_error) and self.draw.random() < self.profile.sync_error


class Strand:
    """Calls that take effect one after the other, also when their caller gave up."""

    def __init__(self, loop: SimLoop, process: SimProcess) -> None:
        self._loop = loop
        self._process = process
        self._busy_until = 0.0

    async def run(self, *steps: tuple[float, Callable[[], T]]) -> T:
        """Runs steps of (duration, effect at its end); returns the value of the last one."""
        future: asyncio.Future[T] = self._loop.create_future()
        begin = max(self._loop.now, self._busy_until)
        self._busy_until = begin + sum(duration for duration, _ in steps)
        self._next(begin, steps, future)
        return await future

    def _next(
        self, begin: float, steps: tuple[tuple[float, Callable[[], T]], ...], future: Any
    ) -> None:
        duration, effect = steps[0]
        when = begin + duration
        self._loop.post(when, KERNEL, self._take, when, effect, steps[1:], future)

    def _take(
        self,
        now: float,
        effect: Callable[[], T],
        rest: tuple[tuple[float, Callable[[], T]], ...],
        future: asyncio.Future[T],
    ) -> None:
        if not self._process.alive:
            return
        try:
            value = effect()
        except OSError as error:
            if not future.done():
                future.set_exception(error)
            return
        if rest:
            self._next(now, rest, future)
        elif not future.done():
            future.set_result(value)


class NodeDisk:
    def __init__(self, disk: SimDisk, loop: SimLoop, process: SimProcess) -> None:
        self._disk = disk
        self._loop = loop
        self._process = process
        self._writes: dict[str, Strand] = {}

    async def open(self, path: str, *, preallocate: int = 0, ahead: int = 0) -> File:
        path = _checked(path)
        inode = await self._call(lambda: self._inode(path))
        fill = ahead, preallocate
        return SimFile(self._disk, path, inode, Strand(self._loop, self._process), fill)

    async def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        path = _checked(path)

        def read() -> bytes:
            content = self._found(path).content
            return bytes(content[offset : len(content) if size is None else offset + size])

        return await self._call(read)

    async def write_atomic(self, path: str, data: bytes) -> None:
        path = _checked(path)
        folder, _, name = path.rpartition("/")
        partial = f"{folder}/{OWN_PREFIX}partial-{name}".lstrip("/")
        # Two writers of one name share its temporary file, so they take turns.
        strand = self._writes.setdefault(path, Strand(self._loop, self._process))
        disk = self._disk

        def write() -> None:
            if partial in disk.tree.names.files:
                disk.tree.remove(partial)
            if disk.room_for(len(data)) < len(data):
                disk.note("is full")
                raise OSError(errno.ENOSPC, "no space left on device", path)
            self._inode(partial).append(data)

        def sync_and_rename() -> None:
            inode = self._found(partial)
            if disk.sync_fails():
                disk.note(f"sync of {path} failed")
                disk.tree.remove(partial)
                raise OSError(errno.EIO, "sync failed", path)
            inode.make_durable(len(inode.pending))
            disk.tree.rename(partial, path)

        await strand.run(
            (disk.latency(), write),
            (disk.latency(sync=True), sync_and_rename),
            (disk.latency(sync=True), lambda: self._sync_names(folder)),
        )

    async def rename(self, source: str, target: str) -> None:
        source, target = _checked(source), _checked(target)

        def rename() -> None:
            if source not in self._disk.tree.names.directories:
                self._found(source)
            self._directory(parent(target))
            self._disk.tree.rename(source, target)

        await self._call(rename)

    async def remove(self, path: str) -> None:
        path = _checked(path)

        def remove() -> None:
            self._found(path)
            self._disk.tree.remove(path)

        await self._call(remove)

    async def list(self, directory: str = "") -> Sequence[str]:
        directory = _checked(directory)

        def names() -> list[str]:
            names = self._disk.tree.names
            paths = (*names.files, *(path for path in names.directories if path))
            found = (p.rpartition("/")[2] for p in paths if parent(p) == directory)
            return sorted(name for name in found if not name.startswith(OWN_PREFIX))

        return await self._call(names)

    async def make_directory(self, path: str) -> None:
        path = _checked(path)

        def make() -> None:
            parts = path.split("/")
            for depth in range(1, len(parts) + 1):
                prefix = "/".join(parts[:depth])
                if prefix not in self._disk.tree.names.directories:
                    self._disk.tree.make_directory(prefix)

        await self._call(make)

    async def sync_directory(self, path: str = "") -> None:
        path = _checked(path)
        await self._call(lambda: self._sync_names(path), sync=True)

    async def size(self, path: str) -> int:
        path = _checked(path)
        return await self._call(lambda: len(self._found(path).content))

    def lock(self) -> DirectoryLock:
        self._disk.take_lock(self._process)
        return SimLock(self._disk, self._process)

    async def _call(self, effect: Callable[[], T], *, sync: bool = False) -> T:
        strand = Strand(self._loop, self._process)
        return await strand.run((self._disk.latency(sync=sync), effect))

    def _sync_names(self, directory: str) -> None:
        self._directory(directory)
        if self._disk.sync_fails():
            self._disk.note("directory sync failed")
            raise OSError(errno.EIO, "directory sync failed", directory)
        self._disk.tree.sync_names(directory)

    def _inode(self, path: str) -> Inode:
        inode = self._disk.tree.names.files.get(path)
        if inode is None:
            self._directory(parent(path))
            inode = self._disk.tree.create(path)
        return inode

    def _found(self, path: str) -> Inode:
        inode = self._disk.tree.names.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _directory(self, path: str) -> None:
        if path not in self._disk.tree.names.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)


class SimFile:
    """An open file. Calls on it take effect in their order."""

    def __init__(
        self, disk: SimDisk, path: str, inode: Inode, strand: Strand, fill: tuple[int, int]
    ) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._strand = strand
        self._ahead, self._reserved = fill
        self._size = len(inode.content)
        self._poison = ""
        self._closed = False

    @property
    def size(self) -> int:
        return self._size

    @property
    def poisoned(self) -> bool:
        return bool(self._poison)

    async def append(self, data: bytes) -> None:
        await self._strand.run((self._disk.latency(), lambda: self._append(data)))

    async def sync(self) -> None:
        await self._strand.run((self._disk.latency(sync=True), self._sync))

    async def append_and_sync(self, data: bytes) -> None:
        await self._strand.run(
            (self._disk.latency(), lambda: self._append(data)),
            (self._disk.latency(sync=True), self._sync),
        )

    async def truncate(self, size: int) -> None:
        await self._strand.run((self._disk.latency(), lambda: self._truncate(size)))

    async def close(self) -> None:
        await self._strand.run((0.0, self._close))

    def _append(self, data: bytes) -> None:
        self._check()
        room = self._disk.room_for(len(data))
        if room < len(data):
            self._disk.note("is full")
            if room and self._disk.draw.random() < 0.5:
                # A part arrived and could not be taken back.
                self._inode.write(self._size, data[:room])
                self._poison = "an append failed halfway"
            raise OSError(errno.ENOSPC, "no space left on device", self._path)
        self._inode.write(self._size, data)
        self._size += len(data)
        if self._size >= len(self._inode.content):
            zeros = min(self._ahead, self._reserved - self._size)
            if 0 < zeros <= self._disk.room_for(zeros):
                self._inode.write(self._size, bytes(zeros))

    def _sync(self) -> None:
        # Calls on a file take turns, so nothing was appended since the sync began.
        self._check()
        writes = len(self._inode.pending)
        if self._disk.sync_fails():
            self._poison = "a sync failed"
            self._inode.fail_sync(self._disk.draw, writes)
            self._disk.note(f"sync of {self._path} failed")
            raise OSError(errno.EIO, "sync failed", self._path)
        self._inode.make_durable(writes)

    def _truncate(self, size: int) -> None:
        self._check()
        if size > self._size:
            raise OSError(errno.EINVAL, f"holds {self._size} bytes, not {size}", self._path)
        self._inode.truncate(size)
        self._size = size

    def _close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "is closed", self._path)
        if self._poison:
            raise OSError(errno.EIO, f"its content is unknown: {self._poison}", self._path)


class SimLock:
    def __init__(self, disk: SimDisk, process: SimProcess) -> None:
        self._disk = disk
        self._process = process

    def release(self) -> None:
        self._disk.release_lock(self._process)


def _checked(path: str) -> str:
    for part in path.split("/") if path else ():
        if part in ("", ".", "..") or "\0" in part or part.startswith(OWN_PREFIX):
            raise OSError(errno.EINVAL, "not a path inside the data directory", path)
    return path
