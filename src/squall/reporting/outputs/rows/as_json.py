"""The rows as JSON objects, for document stores, queues and functions.

An object has the columns of its row and the row's identity: `schema`, `table` and `id`. The id is
the same in every delivery of the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from squall.reporting.outputs.rows.from_document import Row, RunRows
from squall.reporting.outputs.rows.model import RUNS, SCHEMA, Table


def row_id(table: Table, row: Row) -> str:
    """`01J9Z4:steps:3`; a table with one row per run has no number."""
    return ":".join((row[0], table.name, *map(str, row[1 : len(table.key)])))


def object_of(table: Table, row: Row) -> dict[str, Any]:
    """The row with its identity; times are datetimes still."""
    own = dict(zip(table.names, row, strict=True))
    return {"schema": SCHEMA, "table": table.name, "id": row_id(table, row), **own}


def objects_of(rows: RunRows) -> Iterator[tuple[Table, dict[str, Any]]]:
    """All rows as plain JSON values. The row of the run is the last one; its `rows` has the number
    of rows of each table, so that a reader can check whether it has all of them."""
    for table, own in rows.all():
        for row in own:
            made = plain(object_of(table, row))
            yield table, (made | {"rows": rows.counts} if table is RUNS else made)


def plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: iso(value) for name, value in values.items()}


def iso(value: Any) -> Any:
    """A datetime as text, `2026-11-15T20:01:24.113Z`; anything else as it is."""
    if not isinstance(value, datetime):
        return value
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def batches(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(items), most):
        yield items[first : first + most]
