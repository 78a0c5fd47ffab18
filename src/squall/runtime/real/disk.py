"""`interfaces.Disk` on the files of one data directory.

Blocking calls run in a small pool of threads. An open file has a thread of its own, so that
an append never waits behind large files. The calls on one file run in the order in which
they were made, even if their caller was cancelled; calls on different files run in parallel.
A failed append leaves the file as it was or poisons it. A failed sync always poisons it: the
kernel may have dropped the pages that it could not write, and the next sync would wrongly
succeed. No call leaves the data directory, and none reports as durable what is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from squall.runtime.interfaces import DirectoryLock, File
from squall.runtime.log import Log

THREADS = 4
OWN_PREFIX = ".squall-"
"""Prefix of the runtime's own files, the lock and unfinished atomic writes; never listed."""
LOCK = OWN_PREFIX + "lock"
FALLOC_FL_KEEP_SIZE = 1
PRIVATE = 0o700
"""The mode of a new data directory: results and the authors' code are in it."""

P = ParamSpec("P")
T = TypeVar("T")


def warn_of_open_directory(log: Log, root: Path) -> None:
    """Logs a data directory that other users can enter. It is left as it is: it may be a mount, or
    shared on purpose."""
    mode = root.stat().st_mode & 0o777
    if mode & ~PRIVATE:
        log.warning(
            "data_directory_open",
            path=str(root),
            mode=f"{mode:o}",
            note=f"other users of this machine can read it: chmod {PRIVATE:o} {root}",
        )


class RealDisk:
    """The data directory `root`, which is made if it is absent."""

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        self._root = root.resolve()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="squall-disk")
        self._files: dict[_File, None] = {}
        self._locks: dict[_Lock, None] = {}
        self._writes: dict[str, _Strand] = {}

    @property
    def open_count(self) -> int:
        """Number of open files and locks."""
        return len(self._files) + len(self._locks)

    async def open(self, path: str, *, preallocate: int = 0, ahead: int = 0) -> File:
        inside = self._inside(path)
        thread = _FileThread()
        opening = thread.call(_open, inside, preallocate)
        try:
            descriptor, size, reserved = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The descriptor arrives anyway, and no caller will use it: close it.
            opening.add_done_callback(_close_unseen)
            thread.end(_nothing)
            raise
        except OSError:
            thread.end(_nothing)
            raise
        fill = _Fill(ahead, reserved)
        file = _File(path, descriptor, size, thread, fill, self._files)
        self._files[file] = None
        return file

    async def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        return await self._run(_read, self._inside(path), offset, size)

    async def write_atomic(self, path: str, data: bytes) -> None:
        # Two writers of one name share its temporary file, so they take turns.
        strand = self._writes.setdefault(path, _Strand(self._pool))
        try:
            await strand.run(_write_atomic, self._inside(path), data)
        finally:
            if strand.idle:
                self._writes.pop(path, None)

    async def rename(self, source: str, target: str) -> None:
        await self._run(os.replace, self._inside(source), self._inside(target))

    async def remove(self, path: str) -> None:
        await self._run(os.unlink, self._inside(path))

    async def list(self, directory: str = "") -> list[str]:
        return await self._run(_list, self._inside(directory))

    async def make_directory(self, path: str) -> None:
        await self._run(os.makedirs, self._inside(path), exist_ok=True)

    async def sync_directory(self, path: str = "") -> None:
        await self._run(_sync_directory, self._inside(path))

    async def size(self, path: str) -> int:
        return (await self._run(os.stat, self._inside(path))).st_size

    def lock(self) -> DirectoryLock:
        descriptor = os.open(self._root / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise BlockingIOError(
                error.errno, "another process holds this data directory", str(self._root)
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        lock = _Lock(descriptor, self._locks)
        self._locks[lock] = None
        return lock

    async def close(self) -> None:
        """Closes the remaining files and ends the threads, after the calls under way."""
        for file in list(self._files):
            await file.close()
        for lock in list(self._locks):
            lock.release()
        self._pool.shutdown(wait=True)

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._pool.submit(function, *args, **kwargs))

    def _inside(self, path: str) -> Path:
        parts = path.split("/") if path else []
        for part in parts:
            if part in ("", ".", "..") or "\0" in part or part.startswith(OWN_PREFIX):
                raise OSError(errno.EINVAL, "not a path inside the data directory", path)
        return self._root.joinpath(*parts)


class _Strand:
    """Runs calls one after the other in the pool, in the order of their arrival."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._guard = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._running = False

    @property
    def idle(self) -> bool:
        with self._guard:
            return not self._running

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call runs even if its caller is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._guard:
            self._waiting.append((loop, future, lambda: function(*args, **kwargs)))
            if not self._running:
                self._running = True
                self._pool.submit(self._drain)
        return await future

    def _drain(self) -> None:
        while True:
            with self._guard:
                if not self._waiting:
                    self._running = False
                    return
                loop, future, call = self._waiting.popleft()
            try:
                completion: tuple[Any, ...] = (_succeed, future, call())
            except BaseException as error:
                completion = (_fail, future, error)
            # A loop that is closed by now has no waiting caller.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(*completion)


_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class _FileThread:
    """Runs the calls on one file in the order of their arrival, in a thread of its own. That is
    cheaper than a pool, which makes a second future per call and wakes changing threads."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_FileCall] = SimpleQueue()
        self._last: asyncio.Future[Any] | None = None
        self._thread = threading.Thread(target=self._work, name="squall-file", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """The call runs even if its caller is cancelled."""
        if self._last is not None:
            raise OSError(errno.EBADF, "the file is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put((loop, future, function, args, False))
        return future

    def end(self, function: Callable[[], None]) -> asyncio.Future[Any]:
        """Runs the last call; the thread ends with it."""
        if self._last is None:
            loop = asyncio.get_running_loop()
            self._last = loop.create_future()
            self._calls.put((loop, self._last, function, (), True))
        return self._last

    def join(self) -> None:
        self._thread.join()

    def _work(self) -> None:
        is_last = False
        while not is_last:
            loop, future, function, args, is_last = self._calls.get()
            try:
                completion: tuple[Any, ...] = (_succeed, future, function(*args))
            except BaseException as error:
                completion = (_fail, future, error)
            try:
                loop.call_soon_threadsafe(*completion)
            except RuntimeError:
                # The loop is closed: no caller waits.
                continue


# The last field: whether this call is the last one.
_FileCall = tuple[
    asyncio.AbstractEventLoop,
    "asyncio.Future[Any]",
    Callable[..., Any],
    tuple[Any, ...],
    bool,
]


class _Fill:
    """Keeps zeros behind the end of a file, so that the next appends do not make it longer:
    their sync writes only data and no new length."""

    def __init__(self, ahead: int, reserved: int) -> None:
        self._ahead = ahead
        # Writes zeros only into blocks that are reserved already, so it cannot fill the disk.
        self._reserved = reserved
        self._to = 0

    def follow(self, descriptor: int, end: int) -> None:
        """Notes that the file's own content now ends at `end`."""
        if end < self._to or not self._ahead:
            return
        self._to = min(end + self._ahead, self._reserved)
        if end < self._to:
            # Missing zeros cost only time, so an error is ignored.
            with contextlib.suppress(OSError):
                os.pwrite(descriptor, bytes(self._to - end), end)

    def cut(self) -> None:
        self._to = 0


class _File:
    def __init__(
        self,
        path: str,
        descriptor: int,
        size: int,
        thread: _FileThread,
        fill: _Fill,
        registry: dict[_File, None],
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size = size
        self._thread = thread
        self._fill = fill
        self._registry = registry
        self._poison: str = ""
        self._closed = False

    @property
    def size(self) -> int:
        return self._size

    @property
    def poisoned(self) -> bool:
        return bool(self._poison)

    # Each call is queued when it is made, not when it is awaited, so that all keep their order.

    def append(self, data: bytes) -> Awaitable[None]:
        return self._thread.call(self._append, data)

    def sync(self) -> Awaitable[None]:
        return self._thread.call(self._sync)

    def append_and_sync(self, data: bytes) -> Awaitable[None]:
        return self._thread.call(self._append_and_sync, data)

    def truncate(self, size: int) -> Awaitable[None]:
        return self._thread.call(self._truncate, size)

    async def close(self) -> None:
        self._registry.pop(self, None)
        await asyncio.shield(self._thread.end(self._close))
        self._thread.join()

    # In its thread, one at a time.

    def _append(self, data: bytes) -> None:
        self._check()
        try:
            written = os.pwrite(self._descriptor, data, self._size)
            while written < len(data):
                rest = memoryview(data)[written:]
                written += os.pwrite(self._descriptor, rest, self._size + written)
        except OSError as error:
            self._undo(error)
            raise
        self._size += written
        self._fill.follow(self._descriptor, self._size)

    def _append_and_sync(self, data: bytes) -> None:
        self._append(data)
        self._make_durable()

    def _undo(self, cause: OSError) -> None:
        """Removes the part of a failed append that was written."""
        self._fill.cut()
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            self._poison = f"an append failed halfway ({cause})"

    def _sync(self) -> None:
        self._check()
        self._make_durable()

    def _make_durable(self) -> None:
        try:
            _flush(self._descriptor)
        except OSError as error:
            self._poison = f"a sync failed ({error})"
            raise

    def _truncate(self, size: int) -> None:
        self._check()
        if size > self._size:
            raise OSError(errno.EINVAL, f"holds {self._size} bytes, not {size}", self._path)
        self._fill.cut()
        os.ftruncate(self._descriptor, size)
        self._size = size

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def _check(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "is closed", self._path)
        if self._poison:
            raise OSError(errno.EIO, f"its content is unknown: {self._poison}", self._path)


class _Lock:
    def __init__(self, descriptor: int, registry: dict[_Lock, None]) -> None:
        self._descriptor = descriptor
        self._registry = registry

    def release(self) -> None:
        if self in self._registry:
            del self._registry[self]
            os.close(self._descriptor)


def _open(path: Path, preallocate: int) -> tuple[int, int, int]:
    """The descriptor, the size, and the end of the reserved blocks."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        reserved = preallocate > size and _reserve(descriptor, preallocate)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, size, preallocate if reserved else 0


def _reserve(descriptor: int, size: int) -> bool:
    """Reserves the blocks and keeps the length, so that appends go to the same place
    (`os.posix_fallocate` would move the end). False: the file system cannot do this."""
    if not sys.platform.startswith("linux"):
        return False
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, size) != 0:
        number = ctypes.get_errno()
        if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise OSError(number, f"cannot reserve {size} bytes: {os.strerror(number)}")
        return False
    return True


def _nothing() -> None:
    return None


def _close_unseen(opening: asyncio.Future[tuple[int, int, int]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result()[0])


def _read(path: Path, offset: int, size: int | None) -> bytes:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        if size is None:
            return file.readall()
        parts: list[bytes] = []
        while size > 0 and (part := file.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _write_atomic(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{OWN_PREFIX}partial-{path.name}")
    try:
        with partial.open("wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            _flush(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    _sync_directory(path.parent)


def _list(path: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(path) if not name.startswith(OWN_PREFIX))
    except FileNotFoundError:
        return []


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    """Syncs to the medium. On macOS only F_FULLFSYNC reaches past the drive's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        fcntl.fcntl(descriptor, full)
    else:
        os.fdatasync(descriptor)
