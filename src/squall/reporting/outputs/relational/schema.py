"""The statements that create, migrate and fill the tables of the row model. Pure.

A table is called `squall_` and its name in the model. A migration only adds the tables and columns
that the database lacks. So it can be repeated after a crash, also in MySQL, which commits each
change of a table by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from squall.reporting.outputs.rows.model import TABLES, Column, ColumnKind, Table

VERSION = 1
"""Of the schema; rises with each table or column that the model gains."""
PREFIX = "squall_"
VERSION_TABLE = f"{PREFIX}schema"

Existing = Mapping[str, set[str]]
"""The columns of each table of ours that the database has."""


@dataclass(frozen=True)
class Dialect:
    types: Mapping[ColumnKind, str]
    key_text: str
    """The type of a text that is part of a primary key."""
    quote: Callable[[str], str]
    mark: Callable[[int], str]
    """The placeholder of the n-th value, from 1."""

    def name(self, table: Table) -> str:
        return self.quote(PREFIX + table.name)


def migration(dialect: Dialect, existing: Existing) -> Iterator[str]:
    """The statements that turn the existing tables into those of the model."""
    if VERSION_TABLE not in existing:
        yield (
            f"CREATE TABLE {dialect.quote(VERSION_TABLE)} "
            f"({dialect.quote('version')} {dialect.types['integer']} PRIMARY KEY, "
            f"{dialect.quote('written_by')} {dialect.types['text']} NOT NULL)"
        )
    for table in TABLES:
        has = existing.get(PREFIX + table.name)
        if has is None:
            yield _create(dialect, table)
            continue
        for column in table.columns:
            if column.name not in has:
                # The rows that are there have no value for it.
                kind = dialect.types[column.kind]
                yield f"ALTER TABLE {dialect.name(table)} ADD {dialect.quote(column.name)} {kind}"


def _create(dialect: Dialect, table: Table) -> str:
    keys = primary_key(table)
    columns = [_column(dialect, column, column.name in keys) for column in table.columns]
    columns.append(f"PRIMARY KEY ({', '.join(map(dialect.quote, keys))})")
    return f"CREATE TABLE {dialect.name(table)} ({', '.join(columns)})"


def primary_key(table: Table) -> tuple[str, ...]:
    # A hypertable of TimescaleDB wants the time in each of its keys.
    return (*table.key, "at") if "at" in table.names else table.key


def _column(dialect: Dialect, column: Column, is_key: bool) -> str:
    kind = dialect.key_text if is_key and column.kind == "text" else dialect.types[column.kind]
    return f"{dialect.quote(column.name)} {kind}{'' if column.is_optional else ' NOT NULL'}"


def read_version(dialect: Dialect) -> str:
    return f"SELECT max({dialect.quote('version')}) FROM {dialect.quote(VERSION_TABLE)}"


def write_version(dialect: Dialect) -> str:
    """Stores the version of the tables, and the Squall version that wrote them, as values."""
    names = ", ".join(map(dialect.quote, ("version", "written_by")))
    table = dialect.quote(VERSION_TABLE)
    return f"INSERT INTO {table} ({names}) VALUES ({dialect.mark(1)}, {dialect.mark(2)})"


def delete_run(dialect: Dialect, table: Table) -> str:
    """Deletes the rows of a run, whose id is the value."""
    return f"DELETE FROM {dialect.name(table)} WHERE {dialect.quote('run_id')} = {dialect.mark(1)}"


def insert(dialect: Dialect, table: Table) -> str:
    names = ", ".join(map(dialect.quote, table.names))
    marks = ", ".join(map(dialect.mark, range(1, len(table.names) + 1)))
    return f"INSERT INTO {dialect.name(table)} ({names}) VALUES ({marks})"


def double_quoted(name: str) -> str:
    return f'"{name}"'
