"""Statements of PostgreSQL and MariaDB, compared with what the database itself counts."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from squall.api.errors import CallError, StatusError
from squall.clients.http import Exchange, HTTPShared
from squall.clients.ping import ping
from squall.clients.registry import make_client
from tests.services.databases.lab.sql import SQLDatabase, user_of
from tests.services.http.lab.servers import on_uvloop, swept


@on_uvloop
async def test_rows_columns_times_and_sizes_come_with_the_answer(database: SQLDatabase) -> None:
    async with user_of(database) as user:
        first = await user.query("SELECT 7 AS seven, 'shoe' AS item")
        second = await user.query("SELECT 7 AS seven, 'shoe' AS item")
    for response in (first, second):
        assert (response.ok, response.error, response.code) == (True, "", "")
        assert [tuple(row) for row in response.rows] == [(7, "shoe")]
        assert response.dicts == [{"seven": 7, "item": "shoe"}]
        assert (response.row_count, response.value) == (1, 7)
        assert 0 < response.timings.first_byte_s <= response.timings.total_s
        assert response.bytes_received > 0 and response.bytes_sent > 0
    # Connecting and preparing are the first call's, and not in its latency.
    assert first.timings.connect_s > 0 and first.prepare_s > 0
    assert (second.timings.connect_s, second.prepare_s) == (0, 0)
    assert user.counters.connections == 1
    assert user.counters.bytes_sent == first.bytes_sent + second.bytes_sent


@on_uvloop
async def test_each_connection_prepares_a_statement_once(database: SQLDatabase) -> None:
    async with user_of(database) as user:
        prepared = [bool((await user.insert(number)).prepare_s) for number in range(20)]
        assert prepared == [True] + [False] * 19
        assert database.rows == 20
        assert (user.counters.sent, user.counters.replies) == (20, 20)


@on_uvloop
async def test_a_refused_statement_is_a_response_with_its_reason(database: SQLDatabase) -> None:
    async with user_of(database) as user:
        assert (await user.insert(1)).row_count == 1
        again = await user.insert(1)
        missing = await user.query("SELECT * FROM nowhere")
        script = await user.client.execute(user.url, "DELETE FROM nowhere")
        assert (again.failure, again.code) == database.words.duplicate
        assert (missing.failure, missing.code) == database.words.no_table
        assert (script.failure, script.code) == database.words.no_table
        assert "nowhere" in missing.message and not missing.ok
        with pytest.raises(StatusError, match=missing.code):
            missing.raise_for_status()
        # The connection is as good as before.
        assert (await user.insert(2)).ok
        assert user.counters.connections == 1
    assert database.rows == 2


@on_uvloop
async def test_a_value_that_cannot_be_sent_is_the_authors_mistake(database: SQLDatabase) -> None:
    async with user_of(database) as user:
        with pytest.raises(CallError):
            await user.query(user.words.insert, 1)
        with pytest.raises(CallError, match="statement must be text, not int"):
            await user.client.query(user.url, 7)
    assert database.rows == 0


@on_uvloop
async def test_a_transaction_commits_all_or_nothing(database: SQLDatabase) -> None:
    insert = database.words.insert
    async with user_of(database) as user:
        async with user.client.transaction(user.url) as orders:
            assert (await orders.many(insert, [(1, "shoe"), (2, "hat")])).row_count == 2
            assert (await orders.query("SELECT count(*) FROM orders")).value == 2
            assert database.rows == 0
        assert database.rows == 2
        with suppress(ZeroDivisionError):
            async with user.client.transaction(user.url) as orders:
                assert (await orders.query(insert, 3, "sock")).ok
                raise ZeroDivisionError
        assert database.rows == 2
        async with user.client.transaction(user.url) as orders:
            await orders.query(insert, 4, "sock")
            assert (await orders.query(insert, 1, "shoe")).code == database.words.duplicate[1]
    assert database.rows == 2


@on_uvloop
async def test_many_inserts_all_sets_of_values_or_none(database: SQLDatabase) -> None:
    insert = database.words.insert
    async with user_of(database) as user:
        done = await user.client.many(user.url, insert, [(n, "shoe") for n in range(50)])
        assert (done.row_count, database.rows, user.counters.sent) == (50, 50, 1)
        refused = await user.client.many(user.url, insert, [(90, "a"), (91, "b"), (1, "c")])
        assert (refused.failure, refused.code) == database.words.duplicate
        assert database.rows == 50
        # Values whose types differ from row to row.
        assert (await user.client.many(user.url, insert, [(60, "a"), (61, None)])).ok
        assert (await user.client.many(user.url, insert, [])).row_count == 0
    assert database.rows == 52


@on_uvloop
async def test_execute_without_values_may_be_several_statements(database: SQLDatabase) -> None:
    async with user_of(database) as user:
        script = "DELETE FROM orders; INSERT INTO orders VALUES (1, 'a'), (2, 'b')"
        assert (await user.client.execute(user.url, script)).ok
        assert (await user.query("SELECT item FROM orders ORDER BY id")).value == "a"
        changed = await user.client.execute(user.url, "UPDATE orders SET item = 'c'")
        assert changed.row_count == 2


@on_uvloop
async def test_once_and_ping_show_the_exchange_without_the_password(
    database: SQLDatabase,
) -> None:
    seen: list[Exchange] = []
    shared = HTTPShared()
    shared.on_exchange = seen.append
    name = database.words.name
    async with swept(shared) as http:
        await make_client(name, http).query(database.url, "SELECT 7 AS seven")
        http.close()
    (shown,) = seen
    assert (shown.method, shown.request) == (name.upper(), b"SELECT 7 AS seven")
    assert shown.outcome.text == "seven\n(7,)\n1 row"
    found = await ping(database.url)
    assert found.ok and found.render().startswith(("PostgreSQL 1", "MariaDB 1"))
    parts = urlsplit(database.url)
    url = f"{parts.scheme}://{parts.username}:geheimnis@127.0.0.1:{parts.port}/nowhere_geheim"
    wrong = await ping(url)
    assert not wrong.ok and "geheimnis" not in wrong.render()
    assert "127.0.0.1" in wrong.error


@on_uvloop
async def test_a_wrong_option_of_the_address_is_one_line(database: SQLDatabase) -> None:
    async with user_of(database, f"{database.url}?sslmode=maybe") as user:
        with pytest.raises(CallError, match="sslmode=maybe in the address is not known"):
            await user.insert(1)
