"""Answers of servers that misbehave, byte by byte."""

from __future__ import annotations

import asyncio

import pytest

from squall.api.errors import TransportError
from squall.clients.http import HTTPShared
from tests.services.http.lab.servers import Peer, answering, on_uvloop, prepared, serve, swept

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def failure_of(response: bytes, *, then_close: bool = True) -> str:
    """Why a GET fails that is answered with these bytes and the end of the connection."""

    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(response)
        if not then_close:
            await peer.reader.read()

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            with pytest.raises(TransportError) as caught:
                await client.get(server.url + "/", timeout=5)
            assert client.last is caught.value
            assert caught.value.ended >= caught.value.started > 0
        assert (shared.counters.sent, shared.counters.answered) == (1, 0)
        assert shared.counters.failed == 1
    return caught.value.reason


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"", "connection closed before a response"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "response cut off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhal", "response cut off"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
            "response cut off",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "response cut off",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not an HTTP response"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "the port speaks TLS; write https://"),
        (b"HTTP/1.1 abc\r\n\r\n", "not an HTTP response"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot a chunk\r\n",
            "malformed response",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            "malformed response",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "response cut off"),
    ],
)
@on_uvloop
async def test_answers_that_are_none(response: bytes, reason: str) -> None:
    assert await failure_of(response) == reason


@on_uvloop
async def test_garbage_fails_at_once_and_does_not_wait_for_the_end() -> None:
    assert await failure_of(b"hello there\r\n", then_close=False) == "not an HTTP response"
    endless = b"HTTP/1.1 200 OK\r\n" + b"X-Long: 1\r\n" * 30000
    assert await failure_of(endless, then_close=False) == "response head larger than 256 KiB"


@on_uvloop
async def test_a_reset_is_named_and_not_repeated_on_a_new_connection() -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            with pytest.raises(TransportError, match="connection reset"):
                await client.get(server.url + "/")
        assert len(server.requests) == 1 and shared.counters.reconnects == 0


@on_uvloop
async def test_a_reset_in_the_body_is_named() -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhal")
        await asyncio.sleep(0.02)
        peer.reset()

    async with serve(handler) as server:
        async with swept(HTTPShared()) as client:
            with pytest.raises(TransportError, match="connection reset"):
                await client.get(server.url + "/")


@on_uvloop
async def test_interim_responses_are_skipped() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    async with serve(
        answering(b"HTTP/1.1 100 Continue\r\n\r\n" + early + OK, early + OK, OK)
    ) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            for _ in range(5):
                response = await client.get(server.url + "/")
                assert response.status_code == 200 and response.body == b"ok"
                assert "link" not in response.headers
        assert shared.counters.connections == 1 and shared.counters.answered == 5


@on_uvloop
async def test_bodies_of_every_framing() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    trailer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=1\r\nok\r\n0\r\nA: b\r\n\r\n"
    )
    async with serve(answering(OK, chunked, trailer, chunked, OK)) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            url = await prepared(shared, server.url + "/")
            for _ in range(8):
                assert (await client.get(url)).body == b"ok"
        assert shared.counters.connections == 1


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    ],
)
@on_uvloop
async def test_a_body_without_a_length_ends_with_the_connection(head: bytes) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(head + b"to the ")
        await asyncio.sleep(0.01)
        await peer.send(b"end")

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            for _ in range(2):
                response = await client.get(server.url + "/")
                assert response.body == b"to the end" and response.ended > response.first_byte
        assert shared.counters.answered == shared.counters.connections == 2


@pytest.mark.parametrize(
    ("response", "connections"),
    [
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 3),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 1),
        (b"HTTP/1.1 200 OK\r\nconnection: CLOSE\r\nContent-Length: 2\r\n\r\nok", 3),
        (OK + b"surplus", 3),
        (OK + OK, 3),
        (OK + b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", 3),
        (OK + b"\x00", 3),
    ],
)
@on_uvloop
async def test_which_connections_are_used_again(response: bytes, connections: int) -> None:
    async with serve(answering(response)) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            url = await prepared(shared, server.url + "/")
            for _ in range(3):
                assert (await client.get(url)).body == b"ok"
        assert shared.counters.connections == connections
        assert shared.counters.answered == 3 == len(server.requests)


@on_uvloop
async def test_bytes_that_nobody_asked_for_close_an_idle_connection() -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(0.02)
        await peer.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await peer.request()

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            url = await prepared(shared, server.url + "/")
            await client.get(url)
            while shared.live:
                await asyncio.sleep(0.005)
            assert (await client.get(url)).status_code == 200
        assert shared.counters.answered == 2 and shared.counters.reconnects == 0


@on_uvloop
async def test_a_banner_before_the_request_is_not_an_answer() -> None:
    async def handler(peer: Peer) -> None:
        await peer.send(b"220 mail.example ESMTP\r\n")
        await peer.request()

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            with pytest.raises(TransportError):
                await client.get(server.url + "/")
        assert shared.counters.answered == 0 and shared.counters.failed == 1


@on_uvloop
async def test_switching_protocols_is_an_answer_and_ends_the_connection() -> None:
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    async with serve(answering(upgrade + b"raw bytes")) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            for _ in range(2):
                assert (await client.get(server.url + "/")).status_code == 101
        assert shared.counters.connections == 2
