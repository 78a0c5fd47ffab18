"""PostgreSQL by asyncpg, and TimescaleDB, where the windows are a hypertable."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.relational.reporter import RelationalReporter, with_json_text
from squall.reporting.outputs.relational.schema import PREFIX, Dialect, Existing, double_quoted
from squall.reporting.outputs.rows.from_document import Row
from squall.reporting.outputs.rows.model import WINDOWS, Table
from squall.reporting.outputs.targets import Secret

DIALECT = Dialect(
    types={
        "text": "TEXT",
        "integer": "BIGINT",
        "real": "DOUBLE PRECISION",
        "flag": "BOOLEAN",
        "time": "TIMESTAMPTZ",
        "json": "JSONB",
    },
    key_text="TEXT",
    quote=double_quoted,
    mark=lambda number: f"${number}",
)


@dataclass(frozen=True)
class PostgresConfig:
    """A missing option comes from the URL, or from the variables of libpq, such as `PGHOST`."""

    url: str = field(default="", repr=False)
    """`postgresql://user@host:5432/database?sslmode=require`"""
    host: str = ""
    port: int = 0
    database: str = ""
    username: str = ""
    password: Annotated[str, Secret("PGPASSWORD")] = field(default="", repr=False)
    timeout_s: float = 60.0


@dataclass(frozen=True)
class TimescaleDBConfig(PostgresConfig):
    """The same options as PostgreSQL's."""


def postgres(config: PostgresConfig) -> RelationalReporter:
    return RelationalReporter(_Postgres(config), config.timeout_s)


def timescaledb(config: TimescaleDBConfig) -> RelationalReporter:
    return RelationalReporter(_Timescale(config), config.timeout_s)


class _Postgres:
    dialect = DIALECT

    def __init__(self, config: PostgresConfig) -> None:
        self._config = config
        self._connection: Any = None

    async def open(self) -> None:
        asyncpg = library("asyncpg")

        config = self._config
        self._connection = await asyncpg.connect(
            config.url or None,
            host=config.host or None,
            port=config.port or None,
            database=config.database or None,
            user=config.username or None,
            password=config.password or None,
            timeout=config.timeout_s,
        )

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    @asynccontextmanager
    async def transaction(self, lock: str) -> AsyncGenerator[None]:
        transaction = self._connection.transaction()
        try:
            await transaction.start()
            await self.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", lock)
            yield
            await transaction.commit()
        except BaseException:
            # The server undoes everything; a server that hangs would not answer a ROLLBACK.
            self._connection.terminate()
            raise

    async def existing(self) -> Existing:
        found = await self._connection.fetch(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = current_schema() AND starts_with(table_name, $1)",
            PREFIX,
        )
        tables: dict[str, set[str]] = {}
        for table, column in found:
            tables.setdefault(table, set()).add(column)
        return tables

    async def value(self, statement: str) -> Any:
        return await self._connection.fetchval(statement)

    async def execute(self, statement: str, *values: Any) -> None:
        await self._connection.execute(statement, *values)

    async def insert(self, table: Table, rows: Sequence[Row]) -> None:
        await self._connection.copy_records_to_table(
            PREFIX + table.name, records=with_json_text(table, rows), columns=table.names
        )


class _Timescale(_Postgres):
    """Makes the table of windows a hypertable when it creates it, if the database can."""

    async def execute(self, statement: str, *values: Any) -> None:
        await super().execute(statement, *values)
        windows = self.dialect.name(WINDOWS)
        if statement.startswith(f"CREATE TABLE {windows} ") and await self._has_hypertables():
            await super().execute(f"SELECT create_hypertable('{windows}', 'at')")

    async def _has_hypertables(self) -> bool:
        return await self.value(
            "SELECT EXISTS (SELECT FROM pg_proc WHERE proname = 'create_hypertable')"
        )
