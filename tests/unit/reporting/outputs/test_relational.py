"""A database has each run once and whole, with tables that Squall creates and migrates."""

from __future__ import annotations

import asyncio
import copy
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from squall.api.errors import UsageError
from squall.reporting.document.build import build_document
from squall.reporting.outputs.delivery import deliver, parse_output, prepare
from squall.reporting.outputs.relational import reporter as reporter_module
from squall.reporting.outputs.relational import schema
from squall.reporting.outputs.relational.schema import VERSION, migration
from squall.reporting.outputs.relational.sqlite import DIALECT, SQLiteConfig, SQLiteReporter
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.rows.model import STEPS, TABLES, Column, Table

COLUMNS_OF_VERSION = {1: 178}
"""How many columns the tables of each version have: whoever adds one raises `VERSION`."""


@pytest.fixture
def document(make_outcome: Any) -> dict[str, Any]:
    return json.loads(json.dumps(build_document(make_outcome())))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results.db"


AGAIN = "; to write it again: squall report kept.json -o sqlite=..."


def written(path: Path, document: dict[str, Any]) -> list[str]:
    lines = deliver(document, prepare([parse_output(f"sqlite={path}")]), saved="kept.json")
    return [line.removesuffix(AGAIN) for line in lines]


def read(path: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def stored(path: Path) -> dict[str, int]:
    return {
        table.name: read(path, f"SELECT count(*) FROM squall_{table.name}")[0][0]
        for table in TABLES
    }


def shorter(document: dict[str, Any]) -> dict[str, Any]:
    """The same run with fewer rows."""
    less = copy.deepcopy(document)
    del less["workflows"][0]["steps"][1]
    less["checks"] = []
    return less


def test_all_rows_are_there(path: Path, document: dict[str, Any]) -> None:
    assert written(path, document) == []
    assert stored(path) == RunRows(document).counts
    ((sent, passed),) = read(path, "SELECT requests_sent, checks_passed FROM squall_totals")
    assert (sent, passed) == (1030, 470)
    ((began,),) = read(path, "SELECT started_at FROM squall_runs")
    assert began == "2026-11-15T20:01:24.113Z"


def test_the_same_run_written_twice_is_one_run_without_surplus_rows(
    path: Path, document: dict[str, Any]
) -> None:
    other = copy.deepcopy(document)
    other["run"]["id"] = "01J9Z5"
    for each in (document, other, shorter(document)):
        assert written(path, each) == []
    first, second = RunRows(shorter(document)).counts, RunRows(other).counts
    assert stored(path) == {name: first[name] + second[name] for name in first}


def test_a_delivery_that_fails_leaves_the_former_one(path: Path, document: dict[str, Any]) -> None:
    assert written(path, document) == []
    before = stored(path)
    broken = shorter(document)
    # No integer of SQLite is so large, and the totals are among the last rows.
    broken["workflows"][0]["requests"]["bytes_sent"] = 2**70
    (line,) = written(path, broken)
    assert line.startswith("-o sqlite: OverflowError")
    assert stored(path) == before


def test_writers_at_the_same_time_lose_nothing(path: Path, document: dict[str, Any]) -> None:
    """All of them find no tables, half of them write the same run."""

    async def write(number: int) -> None:
        own = copy.deepcopy(document)
        own["run"]["id"] = f"run {number // 2}"
        reporter = SQLiteReporter(SQLiteConfig(str(path)))
        await reporter.connect()
        await reporter.submit(own)
        await reporter.close()

    async def write_all() -> None:
        await asyncio.gather(*(write(number) for number in range(8)))

    asyncio.run(write_all())
    assert stored(path) == {name: 4 * count for name, count in RunRows(document).counts.items()}


def test_tables_of_an_earlier_version_get_what_they_lack(
    path: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(path, document) == []
    steps = Table("steps", "", STEPS.key, (*STEPS.columns, Column("apdex", "real", "", True)))
    added = Table("notes", "", ("run_id",), (Column("run_id", "text", ""),))
    tables = (*(steps if table is STEPS else table for table in TABLES), added)
    monkeypatch.setattr(schema, "TABLES", tables)
    for module in (schema, reporter_module):
        monkeypatch.setattr(module, "VERSION", VERSION + 1)
    assert written(path, document) == []
    assert read(path, "SELECT max(version) FROM squall_schema") == [(VERSION + 1,)]
    assert read(path, "SELECT apdex FROM squall_steps LIMIT 1") == [(None,)]
    assert read(path, "SELECT count(*) FROM squall_notes") == [(0,)]


def test_a_migration_that_was_cut_off_goes_on(path: Path) -> None:
    """MySQL commits each statement by itself."""
    statements = list(migration(DIALECT, {}))
    done = statements[:4]
    connection = sqlite3.connect(path)
    for statement in done:
        connection.execute(statement)
    existing: dict[str, set[str]] = {}
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
        columns = connection.execute(f"SELECT name FROM pragma_table_info('{name}')")
        existing[name] = {column for (column,) in columns}
    connection.close()
    assert list(migration(DIALECT, existing)) == statements[4:]


def test_tables_of_a_later_version_are_refused_in_one_line(
    path: Path, document: dict[str, Any]
) -> None:
    assert written(path, document) == []
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO squall_schema VALUES (7, '9.9')")
    connection.close()
    assert written(path, document) == [
        "-o sqlite: the tables of Squall there have version 7, and this Squall writes version "
        f"{VERSION}: upgrade Squall, or use another database"
    ]


def test_a_place_that_cannot_be_written_is_found_before_the_run(path: Path) -> None:
    with pytest.raises(UsageError, match=r"^-o sqlite no/such/file.*there is no directory"):
        prepare([parse_output("sqlite=no/such/file")])


def test_a_file_that_is_no_database_is_one_line(path: Path, document: dict[str, Any]) -> None:
    path.write_text("not a database, but longer than its header would be: " * 20)
    (line,) = written(path, document)
    assert line == "-o sqlite: DatabaseError: file is not a database"


def test_a_new_column_raises_the_version() -> None:
    assert COLUMNS_OF_VERSION[VERSION] == sum(len(table.columns) for table in TABLES)


def test_postgres_and_mysql_get_the_same_tables() -> None:
    from squall.reporting.outputs.relational import mysql, postgres

    for dialect in (postgres.DIALECT, mysql.DIALECT):
        statements = list(migration(dialect, {}))
        assert len(statements) == 1 + len(TABLES)
        for table, statement in zip(TABLES, statements[1:], strict=True):
            assert statement.startswith(f"CREATE TABLE {dialect.name(table)} (")
            assert all(dialect.quote(name) in statement for name in table.names)
