"""Errors that Redis answers: temporary ones are retried, permanent ones are not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from squall.coordination.store_errors import StoreError, StoreUnavailableError
from squall.coordination.stores.interface import ANY, Changed, Put
from squall.coordination.stores.open import make_store
from squall.coordination.stores.redis.store import RedisStore
from squall.runtime.real.runtime import RealClock

pytestmark = pytest.mark.asyncio
OLD_SCRIPT = "ERR Error running script (call to f_1): @user_script:9: @user_script: 9:"
NOT_NOW = (
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN The cluster is down",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script.",
    "NOREPLICAS Not enough good replicas to write.",
    "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.",
    "UNBLOCKED force unblock from blocking operation, instance state changed",
    "ERR max number of clients reached",
    "ERR max number of clients + cluster connections reached",
    f"{OLD_SCRIPT} -READONLY You can't write against a read only replica. ",
    f"{OLD_SCRIPT} -OOM command not allowed when used memory > 'maxmemory'. ",
    f"{OLD_SCRIPT} -MISCONF Errors writing to the AOF file: No space left on device ",
)
MISTAKES = (
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "DENIED Redis is running in protected mode",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "ERR unknown command 'EVALSHA'",
    f"{OLD_SCRIPT} The user executing the script can't run this command or subcommand ",
    f"{OLD_SCRIPT} WRONGTYPE Operation against a key holding the wrong kind of value ",
)


class Answers(asyncio.Protocol):
    """The side of a server that says the same to everything."""

    def __init__(self, text: str, connections: list[asyncio.Transport]) -> None:
        self._text = text
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connections.append(transport)

    def data_received(self, data: bytes) -> None:
        self._connections[-1].write(f"-{self._text}\r\n".encode())


@asynccontextmanager
async def answering(text: str) -> AsyncIterator[RedisStore]:
    connections: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answers(text, connections), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = make_store(f"redis://127.0.0.1:{port}/0", RealClock(), random.Random(1))
    assert isinstance(store, RedisStore)
    try:
        yield store
    finally:
        await store.close()
        server.close()
        for connection in connections:
            connection.abort()
        await asyncio.sleep(0)


async def errors_of(store: RedisStore) -> set[type[Exception]]:
    """The errors of a write, a read, and a wait, which uses another connection."""
    found: set[type[Exception]] = set()
    for call in (
        store.write(Put("state/a", b"", expect=ANY, ttl_s=60.0)),
        store.now_ms(),
        store.wait(Changed("state/a"), timeout_s=60.0),
    ):
        with pytest.raises(StoreError) as caught:
            await call
        found.add(caught.type)
    return found


@pytest.mark.parametrize("text", NOT_NOW)
async def test_a_redis_that_cannot_do_it_now_is_worth_another_try(text: str) -> None:
    async with answering(text) as store:
        assert await errors_of(store) == {StoreUnavailableError}


@pytest.mark.parametrize("text", MISTAKES)
async def test_a_redis_that_will_never_do_it_is_not(text: str) -> None:
    async with answering(text) as store:
        assert await errors_of(store) == {StoreError}


@pytest.mark.parametrize(
    "url",
    [
        f"redis://{'a' * 70}:1/0",
        "redis://127.0.0.1:1/0?color=red",
        "redis://127.0.0.1:1/0?protocol=9",
        "redis://127.0.0.1:99999/0",
        "rediss://127.0.0.1:1/0?ssl_ca_certs=/no/such/file",
        "rediss://127.0.0.1:1/0?ssl_certfile=/etc/hostname&ssl_keyfile=/etc/hostname",
        "rediss://127.0.0.1:1/0?ssl_cert_reqs=perhaps",
    ],
)
async def test_an_address_that_is_none_is_a_mistake(url: str) -> None:
    with pytest.raises(StoreError, match="is not the address of a Redis") as refused:
        make_store(url, RealClock(), random.Random(1))
    assert not isinstance(refused.value, StoreUnavailableError)
