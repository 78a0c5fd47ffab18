"""The store in one file, for several processes of one machine.

SQLite in WAL mode. Each operation is one transaction, run in the store's own thread. Writes begin
with `BEGIN IMMEDIATE`, which takes the write lock first: what a condition saw cannot change before
its write. The file survives `kill -9` of any process. A power loss may lose the last transactions,
but leaves none of them half done (`synchronous=NORMAL`).

Waits read the file's change counter every 50 ms, and the tables only when it moved. Network file
systems are refused, because their locks do not hold.

While another process keeps the file locked, each call takes the full `BUSY_S`. So a queued call is
not begun if its caller was cancelled or the store was closed meanwhile, and `close` waits only
`CLOSE_S` for the call that is running; the thread closes the file afterwards.

Store time is the machine's CLOCK_BOOTTIME plus an offset that the file keeps per boot of the
machine. It is the same for all processes, whatever happens to the wall clock.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from squall.coordination.store_errors import (
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
    UnsafeStoreError,
)
from squall.coordination.stores.interface import (
    DEFAULT_PREFIX,
    Capabilities,
    Check,
    Claim,
    Depth,
    Fence,
    Item,
    Page,
    Record,
    Takeable,
    Watch,
    Write,
    check_ids,
    check_prefix,
    make_key,
)
from squall.coordination.stores.probe import probe
from squall.coordination.stores.sqlite import tables
from squall.coordination.stores.sqlite.write_batch import WriteBatch
from squall.runtime.interfaces import Clock

T = TypeVar("T")
# How long SQLite waits for a lock. A process that is stopped in a write holds it for longer; then
# the call fails and is retried.
BUSY_S = 5.0
CLOSE_S = 1.0
TRANSIENT_RESULTS = frozenset(
    {
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
        *(sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT),
    }
)
"""Result codes that pass by themselves: the file is locked, or its disk is full."""
POLL_S = 0.05
TOKEN_BYTES = 12
NETWORK_FILE_SYSTEMS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "beegfs", "glusterfs"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.ceph"),
}
CAPABILITIES = Capabilities(
    transactions=True,
    blocking_wait=False,
    native_expiry=False,
    store_clock=True,
    conditional_delete=True,
    cross_process=True,
    cross_host=False,
)


class SqliteStore:
    """A store in a SQLite file; use `open_store`. Prefixes of one file are separate stores."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        source: random.Random,
        *,
        prefix: str = DEFAULT_PREFIX,
    ) -> None:
        self._path = path
        self._prefix = check_prefix(prefix)
        self._clock = clock
        self._random = source
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="squall-sqlite")
        # Waits have a thread and a connection of their own: a poll must not queue behind a write
        # that waits for the lock, and `data_version` only counts the writes of other connections.
        self._watch_thread = ThreadPoolExecutor(1, thread_name_prefix="squall-sqlite-look")
        self._connection: sqlite3.Connection | None = None
        self._watch_connection: sqlite3.Connection | None = None
        self._offset_ms = 0
        self._is_closed = False

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def now_ms(self) -> int:
        return await self._run(lambda _, now_ms: now_ms)

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        return await self._run(
            lambda db, now_ms: tuple(tables.record(db, self._prefix, key, now_ms) for key in keys)
        )

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        check_ids(writes)
        token = self._random.randbytes(TOKEN_BYTES).hex()

        def apply(db: sqlite3.Connection, now_ms: int) -> tuple[str, ...]:
            return WriteBatch(db, self._prefix, now_ms, token).apply(writes, fence)

        return await self._run(apply, writes=True)

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        make_key(kind)
        return await self._run(
            lambda db, now_ms: tables.page(db, self._prefix, kind, idle_ms, after, limit, now_ms)
        )

    async def sweep(self, kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        return await self._run(
            lambda db, now_ms: tables.sweep(db, self._prefix, kind, limit, now_ms), writes=True
        )

    async def count(self) -> Mapping[str, int]:
        return await self._run(lambda db, now_ms: tables.count(db, self._prefix, now_ms))

    async def read(self, stream: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        return await self._run(
            lambda db, now_ms: tables.read(db, self._prefix, stream, after, limit, now_ms)
        )

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
        make_key(owner)
        lease_ms = round(lease_s * 1000)

        def taken(db: sqlite3.Connection, now_ms: int) -> tuple[Claim, ...]:
            if provided is not None:
                WriteBatch(db, self._prefix, now_ms, "").check(provided)
            return tables.take(db, self._prefix, stream, owner, lease_ms, limit, request, now_ms)

        return await self._run(taken, writes=True)

    async def depth(self, stream: str) -> Depth:
        return await self._run(lambda db, now_ms: tables.depth(db, self._prefix, stream, now_ms))

    async def wait(self, *watches: Watch, timeout_s: float) -> frozenset[Watch]:
        deadline = self._clock.now() + timeout_s
        due_s = 0.0
        seen: int | None = None
        while True:
            changed = await self._changed()
            if changed != seen or self._clock.now() >= due_s:
                seen = changed
                holding, due_ms = await self._run(
                    lambda db, now_ms: tables.holding(db, self._prefix, watches, now_ms)
                )
                if holding:
                    return holding
                due_s = self._clock.now() + due_ms / 1000.0
            left_s = deadline - self._clock.now()
            if left_s <= 0.0:
                return frozenset()
            # A claim that runs out does not change the file, so its end is waited for as well.
            timed = any(isinstance(watch, Takeable) for watch in watches)
            pause_s = min(POLL_S, max(0.001, due_s - self._clock.now())) if timed else POLL_S
            await self._clock.sleep(min(left_s, pause_s))

    async def probe(self) -> None:
        await probe(self, scratch=self._random.randbytes(TOKEN_BYTES).hex())

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        last = [self._thread.submit(self._close), self._watch_thread.submit(self._close_watch)]
        self._thread.shutdown(wait=False)
        self._watch_thread.shutdown(wait=False)
        await asyncio.get_running_loop().run_in_executor(None, wait, last, CLOSE_S)

    async def _run(
        self, work: Callable[[sqlite3.Connection, int], T], *, writes: bool = False
    ) -> T:
        return await self._in(self._thread, lambda: self._transaction(work, writes))

    async def _in(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        """Runs work in a thread. If the caller is cancelled, work that has begun ends by itself."""

        def unless_closed() -> T:
            if self._is_closed:
                raise self._closed()
            try:
                return work()
            except sqlite3.Error as error:
                raise self._failure(error) from error

        if self._is_closed:
            raise self._closed()
        return await asyncio.get_running_loop().run_in_executor(thread, unless_closed)

    def _transaction(self, work: Callable[[sqlite3.Connection, int], T], writes: bool) -> T:
        db = self._connection or self._open()
        try:
            db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            now_ms = self._offset_ms + int(self._clock.boot_time() * 1000.0)
            result = work(db, now_ms)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                # Otherwise SQLite has rolled back by itself, as it does when the disk is full.
                db.execute("ROLLBACK")
            raise
        return result

    def _open(self) -> sqlite3.Connection:
        try:
            check_file_system(self._path)
        except (OSError, RuntimeError, ValueError) as error:
            what = getattr(error, "strerror", None) or error
            raise StoreError(f"{self.url} cannot be used: {what}") from error
        db = self._connect()
        try:
            self._use_wal(db)
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute("BEGIN IMMEDIATE")
            tables.create_tables(db)
            self._offset_ms = tables.time_offset_ms(
                db, machine_boot(), self._clock.wall(), self._clock.boot_time()
            )
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        self._connection = db
        return db

    def _use_wal(self, db: sqlite3.Connection) -> None:
        """If several processes open a new file at the same moment, SQLite refuses all but one: the
        switch to WAL does not wait as a transaction does. So this waits for a transaction of its
        own and tries again."""
        until = self._clock.now() + BUSY_S
        while True:
            try:
                db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or self._clock.now() >= until:
                    raise
            db.execute("BEGIN IMMEDIATE")
            db.execute("ROLLBACK")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )

    async def _changed(self) -> int:
        if self._connection is None:
            await self.now_ms()
        return await self._in(self._watch_thread, self._data_version)

    def _data_version(self) -> int:
        """A counter that changes when another connection writes; this connection never does."""
        if self._watch_connection is None:
            self._watch_connection = self._connect()
        return int(self._watch_connection.execute("PRAGMA data_version").fetchone()[0])

    def _failure(self, error: sqlite3.Error) -> StoreError:
        code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            return StoreTimeoutError(f"{self.url}: {error} for {BUSY_S:g} s")
        # The file was opened before, so it exists: the process has run out of file handles.
        cannot_reopen = code == sqlite3.SQLITE_CANTOPEN and self._connection is not None
        if code in TRANSIENT_RESULTS or cannot_reopen:
            return StoreUnavailableError(f"{self.url}: {error}")
        return StoreError(f"{self.url} cannot be used: {error}")

    def _closed(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"{self.url}: closed")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _close_watch(self) -> None:
        if self._watch_connection is not None:
            self._watch_connection.close()
            self._watch_connection = None


def machine_boot() -> str:
    """Identifies one boot of the machine; "" where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def has_tables(path: Path) -> bool:
    """Whether the file holds a store. Also true for a file that cannot be read: using it gives the
    better error."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'").fetchall())
    except (sqlite3.Error, OSError, RuntimeError, ValueError):
        return True


def check_file_system(path: Path) -> None:
    if not path.parent.is_dir():
        raise StoreError(f"sqlite:///{path} cannot be used: there is no directory {path.parent}")
    try:
        text = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    best, kind = "", ""
    for line in text.splitlines():
        _, point, found, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if path.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    if kind in NETWORK_FILE_SYSTEMS:
        raise UnsafeStoreError(
            f"sqlite:///{path} is on {kind}, a network file system, whose locks do not hold: "
            "use a local disk, or Redis or S3 for several machines"
        )
