"""Calls on a connection that is already open, which a verb sends itself: what happens to their
answers must not differ from the first call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.api.errors import TransportError
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.http.url import PreparedURL
from tests.services.http.lab.servers import Peer, RawServer, answering, on_uvloop, serve, swept

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
COOKIE = b"HTTP/1.1 200 OK\r\nSet-Cookie: sid=7; Path=/\r\nContent-Length: 0\r\n\r\n"
JSON = {"json": {"a": 1}, "headers": {"X-A": "1"}}


def moved(status: int) -> bytes:
    return b"HTTP/1.1 %d Moved\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n" % status


async def opened(client: HTTPClient, server: RawServer) -> PreparedURL:
    """A URL whose connection is open and idle."""
    url = client.shared.url(f"{server.url}/here")
    assert (await client.get(url)).ok
    return url


def heads(server: RawServer) -> list[bytes]:
    return [request.partition(b" HTTP/1.1")[0] for request in server.requests]


@pytest.mark.parametrize(
    ("status", "next_head", "body"),
    [(303, b"GET /there", b""), (302, b"GET /there", b""), (307, b"POST /there", b'{"a":1}')],
)
@on_uvloop
async def test_a_post_is_redirected_and_never_sent_again(
    status: int, next_head: bytes, body: bytes
) -> None:
    shared = HTTPShared()
    async with serve(answering(OK, moved(status), OK)) as server, swept(shared) as client:
        url = await opened(client, server)
        response = await client.post(url, **JSON)
        assert (response.status_code, response.hops) == (200, 2)
        assert response.request == f"{next_head[:-7].decode()} {server.url}/there"
        assert heads(server) == [b"GET /here", b"POST /here", next_head]
        assert server.requests[2].partition(b"\r\n\r\n")[2] == body
        assert client.last is response
    assert (shared.counters.sent, shared.counters.redirects) == (3, 1)


@on_uvloop
async def test_a_cookie_of_a_post_is_stored_and_sent_with_the_next() -> None:
    shared = HTTPShared()
    async with serve(answering(OK, COOKIE, OK)) as server, swept(shared) as client:
        url = await opened(client, server)
        await client.put(url, **JSON)
        await client.patch(url, **JSON)
        assert b"Cookie: sid=7\r\n" in server.requests[2]
        assert server.requests[2].endswith(b'{"a":1}')


async def lost_on_the_second(peer: Peer) -> None:
    await peer.request()
    await peer.send(OK)
    await peer.request()
    if peer.number > 1:
        await peer.send(OK)


@pytest.mark.parametrize("method", ["post", "patch"])
@on_uvloop
async def test_a_call_without_an_answer_that_may_not_be_repeated_fails(method: str) -> None:
    shared = HTTPShared()
    async with serve(lost_on_the_second) as server, swept(shared) as client:
        url = await opened(client, server)
        with pytest.raises(TransportError, match=r"^connection closed before a response$") as seen:
            await getattr(client, method)(url, **JSON)
        assert seen.value.request == f"{method.upper()} {server.url}/here"
        assert 0 < seen.value.started < seen.value.ended
        assert client.last is seen.value
    assert (shared.counters.sent, shared.counters.failed, shared.counters.reconnects) == (2, 1, 0)
    assert len(server.requests) == 2


@pytest.mark.parametrize("options", [JSON, {"data": b"x"}, {"headers": {"X-A": "1"}}])
@on_uvloop
async def test_a_put_without_an_answer_is_repeated_once(options: dict[str, Any]) -> None:
    async def lost_once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if await peer.request() and peer.number > 1:
            await peer.send(OK)

    shared = HTTPShared()
    async with serve(lost_once) as server, swept(shared) as client:
        url = await opened(client, server)
        assert (await client.put(url, **options)).body == b"ok"
        assert server.requests[1] == server.requests[2]
    assert (shared.counters.sent, shared.counters.reconnects) == (3, 1)


@on_uvloop
async def test_a_timeout_names_the_request() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(60)

    shared = HTTPShared(timeout_s=0.2)
    async with serve(silent) as server, swept(shared) as client:
        url = await opened(client, server)
        with pytest.raises(TransportError, match=r"^timeout after 0.2 s$") as seen:
            await client.delete(url)
        assert seen.value.request == f"DELETE {server.url}/here"
    assert shared.counters.failed == 1


@on_uvloop
async def test_a_cancelled_call_closes_its_connection() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(60)

    shared = HTTPShared()
    async with serve(silent) as server, swept(shared) as client:
        url = await opened(client, server)
        call = asyncio.ensure_future(client.post(url, **JSON))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0.05)
        assert not shared.live and client.pool.idle is None
    assert shared.counters.cancelled == 1


@on_uvloop
async def test_placeholders_parameters_and_named_calls_on_an_open_connection() -> None:
    shared = HTTPShared()
    rows: list[str] = []
    shared.on_named = lambda name, outcome: rows.append(name)
    async with serve(answering(OK)) as server, swept(shared) as client:
        await opened(client, server)
        item = shared.url(f"{server.url}/items/{{id}}")
        response = await client.get(item, path={"id": 7}, params={"q": "a b"})
        assert response.url == f"{server.url}/items/7?q=a+b"
        assert (await client.post(item, path={"id": 8}, name="buy", json=[1])).ok
        assert heads(server)[1:] == [b"GET /items/7?q=a+b", b"POST /items/8"]
    assert rows == ["buy"] and shared.counters.connections == 1


@on_uvloop
async def test_an_unknown_option_is_refused_on_an_open_connection() -> None:
    shared = HTTPShared()
    async with serve(answering(OK)) as server, swept(shared) as client:
        url = await opened(client, server)
        with pytest.raises(TypeError, match=r"post\(\) takes no body=; did you mean data="):
            await client.post(url, body=b"x")  # type: ignore[call-arg]
        assert (await client.post(url, **JSON)).ok
    assert shared.counters.connections == 1


def test_a_verb_that_is_not_awaited_has_its_name() -> None:
    coroutine = HTTPClient(HTTPShared(), 0).post("http://127.0.0.1/")
    assert coroutine.__qualname__ == "HTTPClient.post"
    coroutine.close()
