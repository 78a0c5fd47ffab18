"""MySQL and MariaDB by asyncmy."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.output_error import OutputError
from squall.reporting.outputs.relational.reporter import RelationalReporter, with_json_text
from squall.reporting.outputs.relational.schema import PREFIX, Dialect, Existing, insert
from squall.reporting.outputs.rows.from_document import Row
from squall.reporting.outputs.rows.model import Table
from squall.reporting.outputs.targets import Secret

DIALECT = Dialect(
    types={
        "text": "LONGTEXT",
        "integer": "BIGINT",
        "real": "DOUBLE",
        "flag": "BOOLEAN",
        "time": "DATETIME(6)",
        "json": "JSON",
    },
    key_text="VARCHAR(190)",
    quote=lambda name: f"`{name}`",
    mark=lambda _: "%s",
)


@dataclass(frozen=True)
class MySQLConfig:
    """A missing option comes from the URL."""

    url: str = field(default="", repr=False)
    """`mysql://user@host:3306/database`"""
    host: str = ""
    port: int = 0
    database: str = ""
    username: str = ""
    password: Annotated[str, Secret("MYSQL_PWD")] = field(default="", repr=False)
    tls: bool = False
    """Encrypts the connection and checks the server's certificate."""
    timeout_s: float = 60.0


def mysql(config: MySQLConfig) -> RelationalReporter:
    return RelationalReporter(_MySQL(config), config.timeout_s)


class _MySQL:
    dialect = DIALECT

    def __init__(self, config: MySQLConfig) -> None:
        self._config = config
        self._connection: Any = None
        url = urlsplit(config.url)
        if config.url and url.scheme not in ("mysql", "mariadb"):
            raise ValueError("write mysql://user@host:3306/database")
        self._database = config.database or unquote(url.path.strip("/"))
        if not self._database:
            raise ValueError("name a database: mysql://user@host:3306/database")
        self._host = config.host or url.hostname or "127.0.0.1"
        self._port = config.port or url.port or 3306
        self._username = config.username or unquote(url.username or "")
        self._password = config.password or unquote(url.password or "")

    async def open(self) -> None:
        import ssl

        asyncmy = library("asyncmy")

        self._connection = await asyncmy.connect(
            host=self._host,
            port=self._port,
            user=self._username,
            password=self._password,
            db=self._database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=self._config.timeout_s,
            ssl=ssl.create_default_context() if self._config.tls else None,
        )
        # A value that does not fit is an error, never cut off.
        await self.execute("SET SESSION sql_mode = 'TRADITIONAL', time_zone = '+00:00'")

    async def close(self) -> None:
        if self._connection is not None:
            # Without a goodbye, which a hanging server would not answer.
            self._connection.close()

    @asynccontextmanager
    async def transaction(self, lock: str) -> AsyncGenerator[None]:
        # One for all: InnoDB locks the gaps between rows too, so writers of different runs could
        # meet in a deadlock. Names of locks belong to the whole server and are short.
        name = f"squall {hashlib.sha256(self._database.encode()).hexdigest()[:40]}"
        wait_s = max(1, round(self._config.timeout_s))
        if await self._read("SELECT GET_LOCK(%s, %s)", name, wait_s) != [(1,)]:
            raise OutputError(f"another writer held the lock of the tables for {wait_s} s")
        try:
            await self._connection.begin()
            yield
            await self._connection.commit()
            await self._read("SELECT RELEASE_LOCK(%s)", name)
        except BaseException:
            # The server undoes everything and frees the lock; one that hangs would not answer.
            self._connection.close()
            raise

    async def existing(self) -> Existing:
        tables: dict[str, set[str]] = {}
        found = await self._read(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND LEFT(table_name, %s) = %s",
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
        async with self._connection.cursor() as cursor:
            await cursor.executemany(
                insert(self.dialect, table),
                [tuple(map(_in_utc, row)) for row in with_json_text(table, rows)],
            )

    async def _read(self, statement: str, *values: Any) -> list[Any]:
        async with self._connection.cursor() as cursor:
            await cursor.execute(statement, values or None)
            return list(await cursor.fetchall())


def _in_utc(value: Any) -> Any:
    # A DATETIME has no zone: all are UTC.
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
