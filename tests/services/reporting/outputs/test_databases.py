"""Runs in real PostgreSQL, MariaDB and Redis servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest

from squall.reporting.outputs.relational.postgres import PostgresConfig
from squall.reporting.outputs.relational.postgres import postgres as make_postgres
from squall.reporting.outputs.rows.model import TABLES
from tests.lab.databases import DatabaseServer
from tests.services.reporting.lab.contract import check_rows, delivered, one_run, shorter

Rows = dict[str, list[dict[str, Any]]]


def delivered_together(documents: Sequence[dict[str, Any]], output: str) -> list[str]:
    with ThreadPoolExecutor(len(documents)) as threads:
        lines = threads.map(lambda document: delivered(document, output), documents)
        return [line for each in lines for line in each]


async def postgres_query(server: DatabaseServer, database: str, statement: str) -> list[Any]:
    import asyncpg

    connection = await asyncpg.connect(
        host="127.0.0.1",
        port=server.port,
        user=server.username,
        password=server.password,
        database=database,
        timeout=60.0,
    )
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()


def postgres_rows(server: DatabaseServer, database: str, run_id: str) -> Rows:
    async def read() -> Rows:
        return {
            table.name: [
                dict(each)
                for each in await postgres_query(
                    server,
                    database,
                    f"SELECT * FROM squall_{table.name} WHERE run_id = '{run_id}'",
                )
            ]
            for table in TABLES
        }

    return asyncio.run(read())


def in_postgres(server: DatabaseServer, database: str) -> str:
    asyncio.run(postgres_query(server, "postgres", f"CREATE DATABASE {database}"))
    user = f"{server.username}:{quote(server.password, safe='')}"
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}"


def test_postgres_has_each_run_once(postgres: DatabaseServer) -> None:
    url = in_postgres(postgres, "twice")
    first = one_run()
    assert delivered(first, f"postgres={url}") == []
    check_rows(first, postgres_rows(postgres, "twice", "01J9Z4"))
    # Two clusters deliver other runs meanwhile, and the same one again.
    documents = (shorter(first), shorter(first), one_run("other"))
    assert delivered_together(documents, f"postgres={url}") == []
    check_rows(shorter(first), postgres_rows(postgres, "twice", "01J9Z4"))
    check_rows(one_run("other"), postgres_rows(postgres, "twice", "other"))


def test_writers_create_the_tables_of_postgres_together(postgres: DatabaseServer) -> None:
    url = in_postgres(postgres, "together")

    async def write(number: int) -> None:
        reporter = make_postgres(PostgresConfig(url))
        await reporter.connect()
        await reporter.submit(one_run(f"run {number}"))
        await reporter.close()

    async def write_all() -> None:
        await asyncio.gather(*(write(number % 3) for number in range(6)))

    asyncio.run(write_all())
    for number in range(3):
        check_rows(one_run(f"run {number}"), postgres_rows(postgres, "together", f"run {number}"))


def test_a_wrong_password_is_one_line_without_it(postgres: DatabaseServer) -> None:
    (line,) = delivered(
        one_run(),
        f"postgres=postgresql://squall@127.0.0.1:{postgres.port}/postgres,password=wrong-geheim",
    )
    assert "password authentication failed" in line
    assert "geheim" not in line


def test_the_windows_of_timescaledb_are_a_hypertable(postgres: DatabaseServer) -> None:
    """The extension is not there, so its function is: it notes what it was asked for."""
    url = in_postgres(postgres, "timescale")

    async def prepare() -> None:
        for statement in (
            "CREATE TABLE asked (relation text, by text)",
            "CREATE FUNCTION create_hypertable(relation regclass, by name) RETURNS void "
            "LANGUAGE sql AS 'INSERT INTO asked VALUES (relation::text, by)'",
        ):
            await postgres_query(postgres, "timescale", statement)

    asyncio.run(prepare())
    for _ in range(2):
        assert delivered(one_run(), f"timescaledb={url}") == []
    check_rows(one_run(), postgres_rows(postgres, "timescale", "01J9Z4"))
    asked = asyncio.run(postgres_query(postgres, "timescale", "SELECT * FROM asked"))
    assert [tuple(each) for each in asked] == [("squall_windows", "at")]


def mariadb_rows(server: DatabaseServer, run_id: str) -> Rows:
    import pymysql.cursors

    connection = pymysql.connect(
        host="127.0.0.1",
        port=server.port,
        user=server.username,
        password=server.password,
        database="results",
        cursorclass=pymysql.cursors.DictCursor,
    )
    with connection, connection.cursor() as cursor:
        rows: Rows = {}
        for table in TABLES:
            cursor.execute(f"SELECT * FROM squall_{table.name} WHERE run_id = %s", (run_id,))
            rows[table.name] = list(cursor.fetchall())
        return rows


def test_mariadb_has_each_run_once(
    mariadb: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_PWD", mariadb.password)
    output = f"mariadb=mariadb://squall@127.0.0.1:{mariadb.port}/results"
    first = one_run()
    assert delivered_together((first, first, one_run("other")), output) == []
    check_rows(first, mariadb_rows(mariadb, "01J9Z4"))
    assert delivered(shorter(first), output) == []
    check_rows(shorter(first), mariadb_rows(mariadb, "01J9Z4"))
    check_rows(one_run("other"), mariadb_rows(mariadb, "other"))


def test_redis_has_each_run_once(redis_url: str) -> None:
    import redis

    client = redis.Redis.from_url(redis_url, decode_responses=True)
    prefix = f"squall-tests-{id(client)}"
    try:
        for document in (one_run(), shorter(one_run()), one_run("other")):
            output = f"redis={redis_url},prefix={prefix},expire=1h"
            assert delivered(document, output) == []
        key = f"{prefix}:run:01J9Z4"
        stored = {name: json.loads(text) for name, text in client.hgetall(key).items()}
        check_rows(shorter(one_run()), {name: own for name, own in stored.items() if own})
        assert client.zrange(f"{prefix}:runs", 0, -1) == ["01J9Z4", "other"]
        assert client.ttl(key) > 0
    finally:
        for key in client.scan_iter(f"{prefix}:*"):
            client.delete(key)
        client.close()
