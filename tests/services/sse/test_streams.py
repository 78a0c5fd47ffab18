"""The client for server-sent events against real and scripted servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.api.errors import CallError, TransportError
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.sse import SSEClient
from tests.lab.sse_server import running_event_server
from tests.services.http.lab.servers import Peer, on_uvloop, prepared, serve, swept

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@on_uvloop
async def test_events_until_there_are_enough() -> None:
    with running_event_server() as server:
        shared = HTTPShared(host=server.url)
        async with swept(shared) as http:
            client = SSEClient(http)
            url = await prepared(shared, "/events")
            response = await client.listen(url, events=5)
            assert [event.json()["n"] for event in response.events] == [1, 2, 3, 4, 5]
            assert {event.event for event in response.events} == {"tick"}
            assert response.events[-1].id == "5"
            assert 0 < response.first_event_s < response.ended - response.started
            assert len(response.gaps) == 4 and min(response.gaps) >= 0 and sum(response.gaps) > 0
            assert http.last is response
            found = await client.listen(url, until=lambda event: event.json()["n"] == 3)
            assert len(found.events) == 3
            while_listening = await client.listen(url, timeout="100ms")
            assert while_listening.events
        assert server.accepted[0] == "text/event-stream"
        counters = shared.counters_of("sse")
        assert counters.sent == counters.answered == server.paths["/events"] == 3


@on_uvloop
async def test_a_stream_that_ends_is_continued_after_its_last_event() -> None:
    with running_event_server() as server:
        shared = HTTPShared(host=server.url)
        async with swept(shared) as http:
            client = SSEClient(http)
            response = await client.listen("/short", events=8)
            assert [event.id for event in response.events] == [str(n) for n in range(1, 9)]
            assert response.connections == 3
            assert server.last_ids == ["3", "6"]
            once = await client.listen("/once", events=8)
            assert [event.id for event in once.events] == ["1", "2", "3"]
            with pytest.raises(TransportError, match="stream ended by the server"):
                await client.listen("/short", events=8, reconnect=False)
        counters = shared.counters_of("sse")
        assert (counters.sent, counters.reconnects, counters.failed) == (6, 3, 1)
        assert sum(server.paths.values()) == 6


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/missing", "not an event stream: 404 Not Found"),
        ("/page", "not an event stream"),
        ("/events", "timeout after 0.2 s"),
    ],
)
@on_uvloop
async def test_a_failure_has_its_reason(path: str, reason: str) -> None:
    with running_event_server() as server:
        shared = HTTPShared(timeout_s=0.2)
        async with swept(shared) as http:
            client = SSEClient(http)
            with pytest.raises(TransportError) as caught:
                await client.listen(server.url + path, events=1_000_000)
            assert caught.value.reason == reason
            assert caught.value.request == f"SSE {server.url}{path}"
        assert (shared.counters_of("sse").sent, shared.counters_of("sse").failed) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "connection closed before a response"),
        (b"nonsense\r\n\r\n", "not an HTTP response"),
        (STREAM + b"data: half", "stream ended by the server"),
        (STREAM + b"data: " + b"x" * (5 << 20), "event larger than 4 MiB"),
    ],
)
@on_uvloop
async def test_servers_that_die_and_talk_nonsense(answer: bytes, reason: str) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            with pytest.raises(TransportError) as caught:
                await SSEClient(http).listen(server.url, events=1, reconnect=False)
            assert caught.value.reason == reason


@on_uvloop
async def test_a_stream_without_chunks_and_a_cancelled_call() -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(
            b"HTTP/1.1 103 Early Hints\r\n\r\n" + STREAM + b"data: 1\r\n\r\ndata: 2\r\r"
        )
        await asyncio.sleep(60)

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = SSEClient(http)
            response = await client.listen(server.url, events=2)
            assert [event.data for event in response.events] == ["1", "2"]
            waiting = asyncio.ensure_future(client.listen(server.url, events=3))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert shared.counters_of("sse").cancelled == 1


@on_uvloop
async def test_many_users_and_wrong_options() -> None:
    with running_event_server() as server:
        shared = HTTPShared(host=server.url)
        async with swept(shared) as http:
            calls = [
                SSEClient(HTTPClient(shared, index)).listen("/events", events=3)
                for index in range(20)
            ]
            answers = await asyncio.gather(*calls)
            assert {len(answer.events) for answer in answers} == {3}
            client = SSEClient(http)
            wrong: Any = {"count": 3}
            with pytest.raises(TypeError, match="listen\\(\\) takes no count=; it takes auth"):
                await client.listen("/events", **wrong)
            wrong = {"events": 0}
            with pytest.raises(CallError, match="events=0 is not a number of events"):
                await client.listen("/events", **wrong)
            with pytest.raises(TransportError, match="connection refused"):
                await client.listen("http://127.0.0.1:1/")
        assert server.paths["/events"] == shared.counters_of("sse").answered == 20
