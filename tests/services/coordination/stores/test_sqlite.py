"""SQLite that fails for a while: disk full, file broken, or locked by another process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from squall.coordination.store_errors import (
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from squall.coordination.stores.interface import ABSENT, ANY, Changed, Put
from squall.coordination.stores.sqlite import store as sqlite
from squall.coordination.stores.sqlite.store import SqliteStore
from squall.runtime.real.runtime import RealClock

pytestmark = pytest.mark.asyncio
FOR_LONG_S = 600.0


def put(key: str, value: bytes = b"") -> Put:
    return Put(key, value, expect=ABSENT, ttl_s=60.0)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(tmp_path / "store.db", RealClock(), random.Random(1))
    yield made
    await made.close()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process is in the middle of a write."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def under_way(store: SqliteStore, writes: int) -> list[asyncio.Task[tuple[str, ...]]]:
    """So many writes, of which the first has begun and the others wait for it."""
    begun = threading.Event()
    transaction = store._transaction  # pyright: ignore[reportPrivateUsage]

    def noted(*arguments: Any) -> Any:
        begun.set()
        return transaction(*arguments)

    store._transaction = noted  # type: ignore[method-assign]
    calls = [asyncio.ensure_future(store.write(put(f"state/{n}"))) for n in range(writes)]
    assert await asyncio.to_thread(begun.wait, 30.0)
    return calls


@contextlib.contextmanager
def no_file_may_grow(beyond: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (beyond, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("kind", "code", "raised"),
    [
        (sqlite3.OperationalError, sqlite3.SQLITE_BUSY, StoreTimeoutError),
        (sqlite3.OperationalError, sqlite3.SQLITE_BUSY_SNAPSHOT, StoreTimeoutError),
        (sqlite3.OperationalError, sqlite3.SQLITE_LOCKED, StoreUnavailableError),
        (sqlite3.OperationalError, sqlite3.SQLITE_IOERR_WRITE, StoreUnavailableError),
        (sqlite3.OperationalError, sqlite3.SQLITE_FULL, StoreUnavailableError),
        (sqlite3.OperationalError, sqlite3.SQLITE_PROTOCOL, StoreUnavailableError),
        (sqlite3.OperationalError, sqlite3.SQLITE_INTERRUPT, StoreUnavailableError),
        (sqlite3.OperationalError, sqlite3.SQLITE_CANTOPEN, StoreUnavailableError),
        (sqlite3.OperationalError, sqlite3.SQLITE_READONLY, StoreError),
        (sqlite3.DatabaseError, sqlite3.SQLITE_CORRUPT, StoreError),
        (sqlite3.DatabaseError, sqlite3.SQLITE_NOTADB, StoreError),
        (sqlite3.IntegrityError, sqlite3.SQLITE_CONSTRAINT, StoreError),
        (sqlite3.InterfaceError, sqlite3.SQLITE_MISUSE, StoreError),
        (sqlite3.ProgrammingError, None, StoreError),
        (sqlite3.Error, None, StoreError),
    ],
)
async def test_what_passes_by_itself_is_worth_another_try_and_the_rest_is_not(
    store: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[sqlite3.Error],
    code: int | None,
    raised: type[StoreError],
) -> None:
    await store.now_ms()

    def fails(*_: object) -> None:
        error = kind("it failed")
        if code is not None:
            error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(sqlite.tables, "record", fails)
    monkeypatch.setattr(store, "_connect", fails)
    with pytest.raises(StoreError) as reading:
        await store.get("state/a")
    with pytest.raises(StoreError) as waiting:
        await store.wait(Changed("state/a"), timeout_s=60.0)
    assert (reading.type, waiting.type) == (raised, raised)
    monkeypatch.undo()
    assert await store.get("state/a") == (None,)


async def test_a_disk_that_refused_a_write_is_used_again_when_it_is_well(
    store: SqliteStore, tmp_path: Path
) -> None:
    await store.write(put("state/a"))
    with no_file_may_grow(os.path.getsize(tmp_path / "store.db-wal")):
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="disk"):
                await store.write(put("state/b"))
        assert (await store.get("state/a"))[0] is not None
    await store.write(put("state/b"))


async def test_a_full_database_is_used_again_when_there_is_room(store: SqliteStore) -> None:
    await store.write(put("state/a"))
    connection = store._connection  # pyright: ignore[reportPrivateUsage]
    assert connection is not None
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages + 1}")
    with pytest.raises(StoreUnavailableError, match="full"):
        await store.write(put("state/b"), put("state/c", b"x" * 100_000))
    assert await store.get("state/b", "state/c") == (None, None)
    connection.execute("PRAGMA max_page_count=1000000")
    await store.write(put("state/b"), put("state/c", b"x" * 100_000))


async def test_what_was_given_up_while_the_file_was_locked_is_not_done_later(
    store: SqliteStore, tmp_path: Path
) -> None:
    await store.now_ms()
    with locked(tmp_path / "store.db"):
        calls = await under_way(store, 20)
        for call in calls:
            call.cancel()
        ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    found = await store.get(*(f"state/{n}" for n in range(20)))
    # The first was under way.
    assert [record for record in found[1:] if record is not None] == []


async def test_a_store_is_closed_although_another_process_locks_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", FOR_LONG_S)
    monkeypatch.setattr(sqlite, "CLOSE_S", 0.1)
    store = SqliteStore(tmp_path / "store.db", RealClock(), random.Random(1))
    await store.now_ms()
    with locked(tmp_path / "store.db"):
        calls = await under_way(store, 3)
        async with asyncio.timeout(20.0):
            await store.close()
    first, *queued = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, tuple)
    assert all(isinstance(end, StoreUnavailableError) for end in queued)


async def test_a_store_that_was_closed_says_so_and_may_be_closed_again(store: SqliteStore) -> None:
    waiting = asyncio.ensure_future(store.wait(Changed("state/a"), timeout_s=60.0))
    await asyncio.sleep(0.1)
    await store.close()
    await store.close()
    for call in (store.now_ms(), store.write(Put("state/a", b"", expect=ANY, ttl_s=60.0)), waiting):
        with pytest.raises(StoreUnavailableError, match="closed"):
            await call


@pytest.mark.parametrize("name", ["a\0b.db", "loop.db"])
async def test_a_path_that_is_none_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop.db").symlink_to(tmp_path / "loop.db")
    store = SqliteStore(tmp_path / name, RealClock(), random.Random(1))
    with pytest.raises(StoreError, match="cannot be used") as refused:
        await store.now_ms()
    assert not isinstance(refused.value, StoreUnavailableError)
    await store.close()


async def test_many_that_open_a_new_file_at_the_same_moment_all_get_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(3)
    connect = SqliteStore._connect  # pyright: ignore[reportPrivateUsage]

    def connect_together(store: SqliteStore) -> sqlite3.Connection:
        connection = connect(store)
        barrier.wait(60.0)
        return connection

    monkeypatch.setattr(SqliteStore, "_connect", connect_together)
    for number in range(100):
        stores = [
            SqliteStore(tmp_path / f"{number}.db", RealClock(), random.Random(n)) for n in range(3)
        ]
        found = await asyncio.gather(*(store.get("state/x") for store in stores))
        assert found == [(None,)] * 3
        for store in stores:
            await store.close()
