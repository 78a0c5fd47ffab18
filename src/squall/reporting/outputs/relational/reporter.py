"""Writes a run into a database with tables, in one transaction.

It first deletes the rows of an earlier delivery of the same run, so a run written twice is stored
once, even if the second delivery has fewer rows. Writers of the same run wait for one another, as
do writers that find an empty database and create the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from squall.api.reporting import RunReporter
from squall.reporting.outputs.output_error import OutputError
from squall.reporting.outputs.relational.schema import (
    VERSION,
    VERSION_TABLE,
    Dialect,
    Existing,
    delete_run,
    migration,
    read_version,
    write_version,
)
from squall.reporting.outputs.rows.from_document import Row, RunRows
from squall.reporting.outputs.rows.model import TABLES, Table


class Database(Protocol):
    """A connection to one database."""

    dialect: Dialect

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Does nothing if it is not open."""
        ...

    def transaction(self, lock: str) -> AbstractAsyncContextManager[None]:
        """Commits at its end, or undoes everything after an exception. Waits for other
        transactions with a lock of the same name."""
        ...

    async def existing(self) -> Existing: ...

    async def value(self, statement: str) -> Any:
        """The only value of the answer."""
        ...

    async def execute(self, statement: str, *values: Any) -> None: ...

    async def insert(self, table: Table, rows: Sequence[Row]) -> None: ...


class RelationalReporter(RunReporter):
    def __init__(self, database: Database, timeout_s: float) -> None:
        self._database = database
        self.timeout_s = timeout_s

    async def connect(self) -> None:
        await self._database.open()
        async with self._database.transaction("squall schema"):
            await self._migrate()

    async def _migrate(self) -> None:
        database, existing = self._database, await self._database.existing()
        known: int | None = None
        if VERSION_TABLE in existing:
            known = await database.value(read_version(database.dialect))
        if known is not None and known > VERSION:
            raise OutputError(
                f"the tables of Squall there have version {known}, and this Squall writes "
                f"version {VERSION}: upgrade Squall, or use another database"
            )
        if known == VERSION:
            return
        for statement in migration(database.dialect, existing):
            await database.execute(statement)
        await database.execute(write_version(database.dialect), VERSION, _version_of_squall())

    async def submit(self, document: dict[str, Any]) -> None:
        rows = RunRows(document)
        database = self._database
        async with database.transaction(f"squall run {rows.run_id}"):
            for table in TABLES:
                await database.execute(delete_run(database.dialect, table), rows.run_id)
            for table, own in rows.all():
                if own:
                    await database.insert(table, own)

    async def close(self) -> None:
        await self._database.close()


def with_json_text(table: Table, rows: Iterable[Row]) -> list[Row]:
    """The rows with lists and objects as text."""
    places = [place for place, column in enumerate(table.columns) if column.kind == "json"]
    if not places:
        return list(rows)
    return [
        tuple(json.dumps(value) if place in places else value for place, value in enumerate(row))
        for row in rows
    ]


def _version_of_squall() -> str:
    from squall.engine.run.metadata import squall_version

    return squall_version()
