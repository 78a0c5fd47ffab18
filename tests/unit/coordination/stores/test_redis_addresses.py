"""What a Redis store says about an address that is wrong, and about a port that is no Redis."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trustme

from squall.coordination.stores.redis.connection import (
    RedisAddress,
    RedisConnection,
    RedisConnectionLost,
)
from squall.runtime.real.runtime import RealClock


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("ssl_foo=1", "unknown option ssl_foo"),
        ("db=x", "db"),
        ("socket_timeout=x", "socket_timeout"),
        ("ssl_cert_reqs=maybe", "maybe"),
        ("ssl_keyfile=some.key", r"some\.key is the key of which certificate"),
    ],
)
def test_an_option_that_is_wrong_is_named(query: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RedisAddress.of(f"rediss://localhost/0?{query}")


async def refusal(url: str) -> str:
    connection = RedisConnection(RedisAddress.of(url), RealClock(), 30.0)
    try:
        with pytest.raises(RedisConnectionLost) as caught:
            await connection.call(connection.packed("PING"))
        return str(caught.value)
    finally:
        connection.close()


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ends every connection, as a port that speaks TLS does with one that begins otherwise."""
    await reader.read(100)
    writer.close()


async def not_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"-ERR unknown command\r\n")
    writer.close()


@asynccontextmanager
async def served(handler: object, tls: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=tls)  # type: ignore[arg-type]
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def test_a_port_that_closes_a_plain_connection_may_speak_tls() -> None:
    async def run() -> str:
        async with served(closing) as port:
            return await refusal(f"redis://127.0.0.1:{port}/0")

    assert asyncio.run(run()) == (
        "the server closed the connection without a reply; if it speaks TLS, write rediss://"
    )


def test_a_port_without_tls_is_said() -> None:
    async def run() -> str:
        async with served(not_tls) as port:
            return await refusal(f"rediss://127.0.0.1:{port}/0")

    assert asyncio.run(run()) == "it does not speak TLS; write redis:// for plain connections"


def test_an_authority_that_is_not_trusted_names_the_option() -> None:
    async def run() -> str:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
        async with served(closing, tls) as port:
            return await refusal(f"rediss://127.0.0.1:{port}/0")

    said = asyncio.run(run())
    assert said.startswith("TLS: certificate verify failed: ")
    assert said.endswith("; name its authority in the URL: ?ssl_ca_certs=FILE")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("unix:///nowhere/redis.sock", "no such file or directory"),
    ],
)
def test_a_place_without_a_server(url: str, said: str) -> None:

    found = asyncio.run(refusal(url))
    assert re.search(said, found), found
    assert "Errno" not in found
