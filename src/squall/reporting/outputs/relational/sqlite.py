"""SQLite, a file that needs no server."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from squall.reporting.output_files import check_writable
from squall.reporting.outputs.blocking_calls import in_thread
from squall.reporting.outputs.relational.reporter import RelationalReporter, with_json_text
from squall.reporting.outputs.relational.schema import (
    PREFIX,
    Dialect,
    Existing,
    double_quoted,
    insert,
)
from squall.reporting.outputs.rows.as_json import iso
from squall.reporting.outputs.rows.from_document import Row
from squall.reporting.outputs.rows.model import Table

DIALECT = Dialect(
    types={
        "text": "TEXT",
        "integer": "INTEGER",
        "real": "REAL",
        "flag": "INTEGER",
        "time": "TEXT",
        "json": "TEXT",
    },
    key_text="TEXT",
    quote=double_quoted,
    mark=lambda _: "?",
)


@dataclass(frozen=True)
class SQLiteConfig:
    path: str
    """The file; it is created."""
    timeout_s: float = 60.0


def sqlite(config: SQLiteConfig, flag: str) -> SQLiteReporter:
    check_writable(config.path, flag)
    return SQLiteReporter(config)


class SQLiteReporter(RelationalReporter):
    def __init__(self, config: SQLiteConfig) -> None:
        super().__init__(_SQLite(config), config.timeout_s)
        self.places = (config.path,)


class _SQLite:
    """A connection whose calls run in threads, one after the other."""

    dialect = DIALECT

    def __init__(self, config: SQLiteConfig) -> None:
        self._config = config
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        self._connection = await in_thread(
            sqlite3.connect,
            self._config.path,
            # A writer waits for another one so long.
            timeout=self._config.timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )

    async def close(self) -> None:
        if self._connection is not None:
            await in_thread(self._connection.close)

    @asynccontextmanager
    async def transaction(self, lock: str) -> AsyncGenerator[None]:
        # One writer at a time, whatever it writes.
        await self.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            await self.execute("ROLLBACK")
            raise
        await self.execute("COMMIT")

    async def existing(self) -> Existing:
        tables: dict[str, set[str]] = {}
        found = await self._read(
            "SELECT tables.name, columns.name FROM sqlite_master AS tables, "
            "pragma_table_info(tables.name) AS columns "
            "WHERE tables.type = 'table' AND substr(tables.name, 1, ?) = ?",
            *(len(PREFIX), PREFIX),
        )
        for table, column in found:
            tables.setdefault(table, set()).add(column)
        return tables

    async def value(self, statement: str) -> Any:
        ((value,),) = await self._read(statement)
        return value

    async def execute(self, statement: str, *values: Any) -> None:
        await self._read(statement, *values)

    async def insert(self, table: Table, rows: Sequence[Row]) -> None:
        assert self._connection is not None
        await in_thread(
            self._connection.executemany,
            insert(self.dialect, table),
            [tuple(map(iso, row)) for row in with_json_text(table, rows)],
        )

    async def _read(self, statement: str, *values: Any) -> list[Any]:
        connection = self._connection
        assert connection is not None
        return await in_thread(lambda: connection.execute(statement, values).fetchall())
