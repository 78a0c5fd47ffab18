"""Servers that hang, vanish, come back and have too few connections."""

from __future__ import annotations

import asyncio

import pytest

from squall.api.errors import TransportError
from squall.clients.http import HTTPClient
from squall.clients.registry import make_client
from tests.lab.tcp_proxy import TCPProxy
from tests.services.databases.lab.sql import SQLDatabase, user_of
from tests.services.http.lab.servers import on_uvloop


async def until_nothing_runs(database: SQLDatabase) -> None:
    while await asyncio.to_thread(database.ask, database.words.running):
        await asyncio.sleep(0.01)


@on_uvloop
async def test_a_statement_that_takes_too_long_ends_on_the_server_too(
    database: SQLDatabase,
) -> None:
    async with user_of(database) as user:
        for sql in (user.words.sleep, f"{user.words.sleep} "):
            with pytest.raises(TransportError, match=r"^timeout after 0.2 s$"):
                await user.query(sql, timeout="200ms")
            async with asyncio.timeout(8):
                await until_nothing_runs(database)
        # The limit of the step, on a connection that is open.
        await user.query("SELECT 1")
        await user.query("SELECT 1")
        assert (user.counters.failed, user.counters.replies) == (2, 2)


@on_uvloop
async def test_a_cancelled_call_ends_its_statement_and_leaves_no_connection(
    database: SQLDatabase,
) -> None:
    async with user_of(database) as user:
        await user.query("SELECT 1")
        call = asyncio.ensure_future(user.query(user.words.sleep))
        while not await asyncio.to_thread(database.ask, user.words.running):
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(8):
            await until_nothing_runs(database)
        assert (user.counters.cancelled, user.counters.failed) == (1, 0)


@on_uvloop
async def test_a_server_that_is_gone_fails_by_reason_and_works_when_it_is_back(
    database: SQLDatabase, proxy: TCPProxy
) -> None:
    where = f"127.0.0.1:{proxy.port}"
    async with user_of(database, database.behind(proxy.port)) as user:
        await user.insert(1)
        call = asyncio.ensure_future(user.query(user.words.sleep))
        while not await asyncio.to_thread(database.ask, user.words.running):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(proxy.cut)
        with pytest.raises(TransportError, match=r"^connection (closed before a response|reset)$"):
            await call
        with pytest.raises(TransportError, match=f"^connection refused: {where}$"):
            await user.insert(2)
        await asyncio.to_thread(proxy.restore)
        assert (await user.insert(3)).ok
        # A connection that ends while it is idle is replaced without a failure.
        await asyncio.to_thread(proxy.cut)
        await asyncio.to_thread(proxy.restore)
        while user.client._calls.idle(user.url) is not None:
            await asyncio.sleep(0.01)
        assert (await user.insert(4)).ok
        counters = user.counters
        assert (counters.failed, counters.unsent, counters.replies) == (2, 1, 3)
    assert database.rows == 3


@on_uvloop
async def test_a_server_that_is_silent_holds_no_user(
    database: SQLDatabase, proxy: TCPProxy
) -> None:
    async with user_of(database, database.behind(proxy.port), timeout_s=0.2) as user:
        await user.insert(1)
        await user.insert(2)
        proxy.silence(True)
        for number in (3, 4):
            # On an open connection, then while it logs in to a new one.
            with pytest.raises(TransportError, match=r"^timeout after 0.2 s$"):
                await user.insert(number)
        proxy.silence(False)
        user.http.timeout_s = 30.0
        assert (await user.insert(5)).ok


@on_uvloop
async def test_a_thousand_users_share_a_pool_within_its_limit(
    database: SQLDatabase, proxy: TCPProxy
) -> None:
    settings = {"connections": "shared", "pool_size": 12, "timeout_s": 60.0}
    async with user_of(database, database.behind(proxy.port), **settings) as user:
        clients = [
            make_client(user.words.name, HTTPClient(user.shared, number)) for number in range(1000)
        ]
        done = await asyncio.gather(
            *(
                client.query(user.url, user.words.insert, number, "shoe")
                for number, client in enumerate(clients)
            )
        )
        assert all(response.ok for response in done)
        assert (user.counters.connections, proxy.most_open) == (12, 12)
    assert database.rows == 1000


@on_uvloop
async def test_a_full_server_and_a_refused_login_fail_by_reason(database: SQLDatabase) -> None:
    head, _, name = database.url.rpartition("/")
    async with user_of(database, f"{head}/nowhere_{name}") as user:
        with pytest.raises(TransportError) as caught:
            await user.insert(1)
        expected = "invalid catalog name (3D000)", "unknown database (1049, 42000)"
        assert caught.value.reason.startswith(expected)
        assert user.counters.unsent == 1
