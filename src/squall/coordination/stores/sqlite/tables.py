"""The tables of the SQLite store, and the queries that read them.

Each function runs inside a transaction that its caller began."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from squall.coordination.stores.interface import (
    Changed,
    Claim,
    Depth,
    Item,
    Listed,
    Page,
    Record,
    Takeable,
    Watch,
    kind_of,
)
from squall.coordination.stores.recent_takes import TAKE_REMEMBERED_MS

# A wait reads the tables this often even if the file's change counter did not move.
RECHECK_MS = 5000
_TABLES = """
CREATE TABLE IF NOT EXISTS records (
    prefix TEXT, key TEXT, kind TEXT, value BLOB, version TEXT, epoch INTEGER,
    modified_ms INTEGER, expires_ms INTEGER, PRIMARY KEY (prefix, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS records_by_age ON records (prefix, kind, modified_ms, key);
CREATE TABLE IF NOT EXISTS streams (
    prefix TEXT, name TEXT, birth TEXT, last INTEGER, expires_ms INTEGER,
    PRIMARY KEY (prefix, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
    prefix TEXT, stream TEXT, number INTEGER, id TEXT, value BLOB, appended_ms INTEGER,
    claim TEXT, attempt INTEGER, until_ms INTEGER, removed_ms INTEGER,
    PRIMARY KEY (prefix, stream, number)) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS items_by_id ON items (prefix, stream, id);
CREATE INDEX IF NOT EXISTS items_open ON items (prefix, stream, number) WHERE removed_ms IS NULL;
CREATE TABLE IF NOT EXISTS taken (
    prefix TEXT, stream TEXT, owner TEXT, request TEXT, claims TEXT, taken_ms INTEGER,
    PRIMARY KEY (prefix, stream, owner)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS taken_by_age ON taken (prefix, stream, taken_ms);
DROP TABLE IF EXISTS takes;
CREATE TABLE IF NOT EXISTS times (boot TEXT PRIMARY KEY, offset_ms INTEGER) WITHOUT ROWID;
"""


def create_tables(db: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";"):
        if statement.strip():
            db.execute(statement)


def time_offset_ms(db: sqlite3.Connection, boot: str, wall_s: float, boot_time_s: float) -> int:
    """What to add to CLOCK_BOOTTIME to get store time. The first process after a boot of the
    machine decides it. Store time must not go back: it begins after the last write of the former
    boot, whatever the wall clock says."""
    known = db.execute("SELECT offset_ms FROM times WHERE boot = ?", (boot,)).fetchone()
    if known is not None:
        return int(known[0])
    last = db.execute("SELECT max(modified_ms) FROM records").fetchone()[0] or 0
    offset_ms = max(int(wall_s * 1000.0), last + 1) - int(boot_time_s * 1000.0)
    db.execute("DELETE FROM times")
    db.execute("INSERT INTO times VALUES (?, ?)", (boot, offset_ms))
    return offset_ms


def record(db: sqlite3.Connection, prefix: str, key: str, now_ms: int) -> Record | None:
    found = db.execute(
        "SELECT value, version, epoch, modified_ms, expires_ms FROM records"
        " WHERE prefix = ? AND key = ? AND (expires_ms IS NULL OR expires_ms > ?)",
        (prefix, key, now_ms),
    ).fetchone()
    if found is None:
        return None
    value, version, epoch, modified_ms, expires_ms = found
    return Record(
        key=key,
        value=bytes(value),
        version=version,
        epoch=epoch,
        modified_ms=modified_ms,
        read_ms=now_ms,
        expires_ms=expires_ms,
    )


def page(
    db: sqlite3.Connection,
    prefix: str,
    kind: str,
    idle_ms: int,
    after: str,
    limit: int,
    now_ms: int,
) -> Page:
    begin_ms, _, begin_key = after.partition(":")
    found = db.execute(
        "SELECT modified_ms, key FROM records WHERE prefix = ? AND kind = ? AND modified_ms <= ?"
        " AND (modified_ms, key) > (?, ?) ORDER BY modified_ms, key LIMIT ?",
        (prefix, kind, now_ms - idle_ms, int(begin_ms or -1), begin_key, limit + 1),
    ).fetchall()
    shown = found[:limit]
    return Page(
        entries=tuple(
            Listed(key=key, modified_ms=modified_ms, idle_ms=now_ms - modified_ms)
            for modified_ms, key in shown
        ),
        after=f"{shown[-1][0]}:{shown[-1][1]}" if len(found) > limit else "",
    )


def sweep(db: sqlite3.Connection, prefix: str, kind: str, limit: int, now_ms: int) -> int:
    removed = db.execute(
        "DELETE FROM records WHERE prefix = ? AND key IN (SELECT key FROM records"
        " WHERE prefix = ? AND kind = ? AND expires_ms <= ? LIMIT ?)",
        (prefix, prefix, kind, now_ms, limit),
    ).rowcount
    expired = db.execute(
        "SELECT name FROM streams WHERE prefix = ? AND expires_ms <= ?", (prefix, now_ms)
    ).fetchall()
    over = [name for (name,) in expired if kind_of(name) == kind][: limit - removed]
    for name in over:
        forget_stream(db, prefix, name)
    return removed + len(over)


def forget_stream(db: sqlite3.Connection, prefix: str, name: str) -> None:
    for table, column in (("items", "stream"), ("taken", "stream"), ("streams", "name")):
        db.execute(f"DELETE FROM {table} WHERE prefix = ? AND {column} = ?", (prefix, name))


def count(db: sqlite3.Connection, prefix: str, now_ms: int) -> dict[str, int]:
    counts: dict[str, int] = dict(
        db.execute(
            "SELECT kind, count(*) FROM records WHERE prefix = ? GROUP BY kind", (prefix,)
        ).fetchall()
    )
    for (name,) in db.execute(
        "SELECT name FROM streams WHERE prefix = ? AND expires_ms > ?", (prefix, now_ms)
    ):
        counts[kind_of(name)] = counts.get(kind_of(name), 0) + 1
    return counts


def birth_of(db: sqlite3.Connection, prefix: str, stream: str, now_ms: int) -> str | None:
    found = db.execute(
        "SELECT birth FROM streams WHERE prefix = ? AND name = ? AND expires_ms > ?",
        (prefix, stream, now_ms),
    ).fetchone()
    return None if found is None else found[0]


def number_of(cursor: str, birth: str) -> int:
    """The place in this stream; 0 for a cursor of an earlier stream of the same name."""
    cursor_birth, _, number = cursor.rpartition(".")
    return int(number) if cursor and cursor_birth == birth else 0


def read(
    db: sqlite3.Connection, prefix: str, stream: str, after: str, limit: int, now_ms: int
) -> tuple[Item, ...]:
    birth = birth_of(db, prefix, stream, now_ms)
    if birth is None:
        return ()
    found = db.execute(
        "SELECT number, id, value, appended_ms FROM items WHERE prefix = ? AND stream = ?"
        " AND number > ? AND removed_ms IS NULL ORDER BY number LIMIT ?",
        (prefix, stream, number_of(after, birth), limit),
    )
    return tuple(_item(birth, row, now_ms) for row in found)


def take(
    db: sqlite3.Connection,
    prefix: str,
    stream: str,
    owner: str,
    lease_ms: int,
    limit: int,
    request: str,
    now_ms: int,
) -> tuple[Claim, ...]:
    birth = birth_of(db, prefix, stream, now_ms)
    if birth is None:
        return ()
    known = db.execute(
        "SELECT claims FROM taken WHERE prefix = ? AND stream = ? AND owner = ?"
        " AND request = ? AND taken_ms > ?",
        (prefix, stream, owner, request, now_ms - TAKE_REMEMBERED_MS),
    ).fetchone()
    if known is not None:
        return _claims(db, prefix, stream, birth, known[0].split(), now_ms)
    free = db.execute(
        "SELECT number, attempt FROM items WHERE prefix = ? AND stream = ? AND removed_ms IS NULL"
        " AND until_ms <= ? ORDER BY number LIMIT ?",
        (prefix, stream, now_ms, limit),
    ).fetchall()
    names = [f"{owner}:{attempt + 1}:{number}" for number, attempt in free]
    for name, (number, attempt) in zip(names, free, strict=True):
        db.execute(
            "UPDATE items SET claim = ?, attempt = ?, until_ms = ?"
            " WHERE prefix = ? AND stream = ? AND number = ?",
            (name, attempt + 1, now_ms + lease_ms, prefix, stream, number),
        )
    if request and names:
        db.execute(
            "INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?, ?, ?)",
            (prefix, stream, owner, request, " ".join(names), now_ms),
        )
        db.execute(
            "DELETE FROM taken WHERE prefix = ? AND stream = ? AND taken_ms <= ?",
            (prefix, stream, now_ms - TAKE_REMEMBERED_MS),
        )
    return _claims(db, prefix, stream, birth, names, now_ms)


def depth(db: sqlite3.Connection, prefix: str, stream: str, now_ms: int) -> Depth:
    if birth_of(db, prefix, stream, now_ms) is None:
        return Depth(items=0, held=0, oldest_ms=0)
    items, held, oldest_ms = db.execute(
        "SELECT count(*), coalesce(sum(until_ms > ?), 0), min(appended_ms) FROM items"
        " WHERE prefix = ? AND stream = ? AND removed_ms IS NULL",
        (now_ms, prefix, stream),
    ).fetchone()
    return Depth(items=items, held=held, oldest_ms=0 if oldest_ms is None else now_ms - oldest_ms)


def holding(
    db: sqlite3.Connection, prefix: str, watches: Sequence[Watch], now_ms: int
) -> tuple[frozenset[Watch], int]:
    """The watches that hold, and after how many ms to check again without a write."""
    held: set[Watch] = set()
    due_ms = RECHECK_MS
    for watch in watches:
        if isinstance(watch, Changed):
            found = record(db, prefix, watch.key, now_ms)
            holds = ("" if found is None else found.version) != watch.version
        elif isinstance(watch, Takeable):
            at_ms = _takeable_at_ms(db, prefix, watch.stream, now_ms)
            holds = at_ms is not None and at_ms <= now_ms
            if at_ms is not None:
                due_ms = min(due_ms, max(1, at_ms - now_ms))
        else:
            holds = bool(read(db, prefix, watch.stream, watch.after, 1, now_ms))
        if holds:
            held.add(watch)
    return frozenset(held), due_ms


def _takeable_at_ms(db: sqlite3.Connection, prefix: str, stream: str, now_ms: int) -> int | None:
    if birth_of(db, prefix, stream, now_ms) is None:
        return None
    return db.execute(
        "SELECT min(until_ms) FROM items WHERE prefix = ? AND stream = ? AND removed_ms IS NULL",
        (prefix, stream),
    ).fetchone()[0]


def _claims(
    db: sqlite3.Connection,
    prefix: str,
    stream: str,
    birth: str,
    names: Sequence[str],
    now_ms: int,
) -> tuple[Claim, ...]:
    claims: list[Claim] = []
    for name in names:
        row = db.execute(
            "SELECT number, id, value, appended_ms, attempt, until_ms FROM items WHERE prefix = ?"
            " AND stream = ? AND number = ? AND claim = ? AND removed_ms IS NULL",
            (prefix, stream, int(name.rpartition(":")[2]), name),
        ).fetchone()
        if row is not None:
            item = _item(birth, row[:4], now_ms)
            claims.append(Claim(item=item, claim=name, attempt=row[4], until_ms=row[5]))
    return tuple(claims)


def _item(birth: str, row: tuple[int, str, bytes, int], now_ms: int) -> Item:
    number, item_id, value, appended_ms = row
    return Item(
        cursor=f"{birth}.{number}",
        id=item_id,
        value=bytes(value),
        appended_ms=appended_ms,
        read_ms=now_ms,
    )
