"""The real driver of Cassandra against a node that checks statements and values as the database
does, and keeps the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.rows.model import ColumnKind
from tests.services.reporting.lab.cassandra_server import CassandraServer, cassandra_server
from tests.services.reporting.lab.contract import check_rows, delivered, one_run, shorter

Node = tuple[CassandraServer, str]


@pytest.fixture
def node() -> Iterator[Node]:
    """The server and an output for it."""
    with cassandra_server("load", "ci", "s3cret") as (server, port):
        yield server, f"cassandra=127.0.0.1,port={port},keyspace=load,username=ci,password=s3cret"


def in_cassandra(kind: ColumnKind, value: Any) -> Any:
    if kind == "json":
        return json.dumps(value)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1e3)
    return value


def test_each_run_is_there_once(node: Node) -> None:
    server, output = node
    for document in (one_run(), one_run("other"), shorter(one_run())):
        assert delivered(document, output) == []
        assert server.keyspace.inserted[-1] == "squall_runs"
    for run, document in (("01J9Z4", shorter(one_run())), ("other", one_run("other"))):
        stored: dict[str, list[dict[str, Any]]] = {}
        for name in server.keyspace.tables:
            own = [row for row in server.keyspace.rows(name) if row.get("run_id") == run]
            if own:
                stored[name.removeprefix("squall_")] = own
        check_rows(document, stored)
        for table, rows in RunRows(document).all():
            kinds = [column.kind for column in table.columns]
            wanted = [
                dict(zip(table.names, map(in_cassandra, kinds, row), strict=True)) for row in rows
            ]
            assert stored.get(table.name, []) == wanted, table.name


def test_columns_that_are_missing_are_added(node: Node) -> None:
    server, output = node
    assert delivered(one_run(), output) == []
    keyspace = server.keyspace
    wanted = dict(keyspace.tables["squall_totals"].types)
    del keyspace.tables["squall_totals"].types["requests_sent"]
    keyspace.tables["squall_schema"].rows.clear()
    assert delivered(one_run(), output) == []
    assert keyspace.tables["squall_totals"].types == wanted
    assert [row["version"] for row in keyspace.rows("squall_schema")] == [1]


def test_tables_of_a_newer_squall_are_left_alone(node: Node) -> None:
    server, output = node
    assert delivered(one_run(), output) == []
    ((key, row),) = server.keyspace.tables["squall_schema"].rows.items()
    server.keyspace.tables["squall_schema"].rows[key] = row | {"version": 99}
    written = len(server.keyspace.inserted)
    (failure,) = delivered(one_run(), output)
    assert "version 99" in failure and "upgrade Squall, or use another keyspace" in failure
    assert len(server.keyspace.inserted) == written


def test_a_wrong_password_is_one_line_without_it(node: Node) -> None:
    _, output = node
    (failure,) = delivered(one_run(), output.replace("s3cret", "wr0ng"))
    assert "the username or the password is wrong" in failure
    assert "\n" not in failure and "wr0ng" not in failure
