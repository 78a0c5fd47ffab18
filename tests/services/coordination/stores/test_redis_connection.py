"""The one connection that all commands of a process share."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from squall.coordination.store_errors import StoreError
from squall.coordination.stores.interface import ANY, Put
from squall.coordination.stores.open import make_store
from squall.coordination.stores.redis import connection as redis_connection
from squall.coordination.stores.redis.connection import (
    RedisAddress,
    RedisConnection,
    RedisConnectionLost,
    RedisErrorReply,
)
from squall.runtime.real.runtime import RealClock
from tests.lab.machine import factor
from tests.services.coordination.lab.redis_servers import RedisServer, own_redis

__all__ = ["own_redis"]
pytestmark = pytest.mark.asyncio
CLOCK = RealClock()
LIMIT_S = 30.0


@contextmanager
def opened(url: str, answer_s: float = LIMIT_S) -> Iterator[RedisConnection]:
    connection = RedisConnection(RedisAddress.of(url), CLOCK, answer_s)
    try:
        yield connection
    finally:
        connection.close()


async def connections(connection: RedisConnection) -> int:
    found: bytes = await connection.call(connection.packed("CLIENT", "LIST", "TYPE", "normal"))
    return len(found.splitlines())


def protocols_of(connection: RedisConnection) -> int:
    return len(connection._open_protocols)  # pyright: ignore[reportPrivateUsage]


def strike(server: RedisServer, number: signal.Signals) -> None:
    process = server._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    os.kill(process.pid, number)
    # A signal may reach a process that runs after this call has returned.
    while number == signal.SIGSTOP and state_of(process.pid) != "T":
        time.sleep(0.001)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0]


async def test_many_commands_share_one_connection_and_get_their_own_answers(own_redis: Any) -> None:
    with opened(own_redis().url) as connection:
        answers = await asyncio.gather(
            *(connection.call(connection.packed("ECHO", str(number))) for number in range(500))
        )
        assert answers == [str(number).encode() for number in range(500)]
        assert await connections(connection) == 1


async def test_a_cancelled_caller_disturbs_no_other(own_redis: Any) -> None:
    with opened(own_redis().url) as connection:
        calls = [
            asyncio.ensure_future(connection.call(connection.packed("ECHO", str(number))))
            for number in range(100)
        ]
        await asyncio.sleep(0)
        for call in calls[::3]:
            call.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for number, answer in enumerate(answers):
            if number % 3:
                assert answer == str(number).encode()
            else:
                assert isinstance(answer, asyncio.CancelledError)
        assert await connections(connection) == 1


async def test_an_error_is_the_answer_to_one_command_only(own_redis: Any) -> None:
    with opened(own_redis().url) as connection:
        good, bad, again = await asyncio.gather(
            connection.call(connection.packed("ECHO", "a")),
            connection.call(connection.packed("EVALSHA", "0" * 40, 0)),
            connection.call(connection.packed("ECHO", "b")),
            return_exceptions=True,
        )
        assert (good, again) == (b"a", b"b")
        assert isinstance(bad, RedisErrorReply) and bad.code == "NOSCRIPT"


async def test_a_server_that_stands_still_is_given_up_and_found_again(own_redis: Any) -> None:
    server = own_redis()
    with opened(server.url, answer_s=3.0 * factor()) as connection:
        assert await connection.call(connection.packed("PING")) == b"PONG"
        strike(server, signal.SIGSTOP)
        try:
            calls = [connection.call(connection.packed("PING")) for _ in range(3)]
            failed = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            strike(server, signal.SIGCONT)
        assert all(isinstance(each, RedisConnectionLost) for each in failed)
    with opened(server.url) as connection:
        assert await connection.call(connection.packed("PING")) == b"PONG"


async def test_a_caller_that_gave_up_gets_a_new_connection(
    own_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_connection, "DISTRUST_AFTER_S", 0.05)
    server = own_redis()
    with opened(server.url) as connection:
        await connection.call(connection.packed("PING"))
        strike(server, signal.SIGSTOP)
        try:
            patient = asyncio.ensure_future(connection.call(connection.packed("ECHO", "late")))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await connection.call(connection.packed("PING"))
        finally:
            strike(server, signal.SIGCONT)
        assert await connection.call(connection.packed("PING")) == b"PONG"
        assert await patient == b"late"


async def test_a_connection_that_was_given_up_is_closed_when_it_has_answered(
    own_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_connection, "DISTRUST_AFTER_S", 0.05)
    server = own_redis()
    with opened(server.url) as connection:
        for _ in range(3):
            await connection.call(connection.packed("PING"))
            strike(server, signal.SIGSTOP)
            try:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await connection.call(connection.packed("PING"))
            finally:
                strike(server, signal.SIGCONT)
        async with asyncio.timeout(LIMIT_S):
            while await connections(connection) > 1:
                await asyncio.sleep(0.05)
        assert protocols_of(connection) == 1


async def test_a_connection_that_never_came_to_be_leaves_nothing(own_redis: Any) -> None:
    silent = own_redis().url.replace("redis://", "rediss://")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"-ERR this is not TLS\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        refusing = f"rediss://127.0.0.1:{port}/0"
        for url in (silent, refusing, "redis://127.0.0.1:1/0"):
            with opened(url, answer_s=0.5) as connection:
                for _ in range(3):
                    with pytest.raises(RedisConnectionLost):
                        await connection.call(connection.packed("PING"))
                assert protocols_of(connection) == 0


async def test_a_line_that_was_closed_opens_nothing_any_more(own_redis: Any) -> None:
    with opened(own_redis().url) as connection:
        opening = asyncio.ensure_future(connection.call(connection.packed("PING")))
        await asyncio.sleep(0)
        connection.close()
        for call in (opening, connection.call(connection.packed("PING"))):
            with pytest.raises(RedisConnectionLost, match="closed"):
                await call
        assert protocols_of(connection) == 0


async def test_passwords_databases_and_sockets(own_redis: Any, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    server = own_redis("--unixsocket", str(path))
    with (
        opened(server.url.replace("/0", "/3")) as connection,
        opened(f"unix://{path}?db=3") as other,
    ):
        await connection.call(connection.packed("SET", "a", b"1"))
        assert await other.call(other.packed("GET", "a")) == b"1"
        await connection.call(connection.packed("CONFIG", "SET", "requirepass", "hush"))
    secret = server.url.replace("redis://", "redis://:hush@")
    with opened(secret) as connection:
        assert await connection.call(connection.packed("GET", "a")) is None
    for url in (server.url, secret.replace("hush", "psst")):
        store = make_store(url, CLOCK, random.Random(1))
        with pytest.raises(StoreError, match="refuses the credentials") as refused:
            await store.get("leader")
        assert "psst" not in str(refused.value) and "hush" not in repr(RedisAddress.of(secret))
        await store.close()


async def test_a_large_record_does_not_hold_up_the_others(own_redis: Any) -> None:
    server = own_redis()
    store = make_store(server.url, CLOCK, random.Random(1))
    large = b"x" * 4_000_000
    await asyncio.gather(
        store.write(Put("plan/large", large, expect=ANY, ttl_s=60.0)),
        *(store.write(Put(f"plan/{n}", b"1", expect=ANY, ttl_s=60.0)) for n in range(20)),
    )
    (found,) = await store.get("plan/large")
    assert found is not None and found.value == large
    with opened(server.url) as connection:
        assert await connections(connection) == 3
    await store.close()
