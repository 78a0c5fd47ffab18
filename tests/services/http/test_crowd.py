"""Many connections: a turn of the loop handles some of their answers, the next turns the others."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from squall.api.errors import TransportError
from squall.clients.http import HTTPClient, HTTPShared, backlog, connect
from squall.clients.http.backlog import CrowdConnection
from tests.services.http.lab.servers import Peer, answering, on_uvloop, serve, swept

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
TURN_MAX = 3


@pytest.fixture(autouse=True)
def _crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection belongs to a crowd, and three answers are a whole turn."""
    monkeypatch.setattr(connect, "CROWD_MIN", 0)
    monkeypatch.setattr(backlog, "TURN_MAX", TURN_MAX)


async def users(shared: HTTPShared, url: str, count: int, calls: int) -> list[float]:
    """Makes calls beside each other; returns the latencies."""
    took: list[float] = []

    async def user(index: int) -> None:
        client = HTTPClient(shared, index)
        prepared = shared.url(url)
        for _ in range(calls):
            response = await client.get(prepared)
            assert response.body == b"ok"
            took.append(response.ended - response.started)
        client.close()

    await asyncio.gather(*(user(index) for index in range(count)))
    return took


@pytest.mark.parametrize("answer", [OK, CLOSING])
@on_uvloop
async def test_every_answer_is_delivered_once(answer: bytes) -> None:
    shared = HTTPShared()
    async with serve(answering(answer)) as server, swept(shared):
        assert len(await users(shared, server.url + "/", 40, 10)) == 400
    assert (shared.counters.sent, shared.counters.answered) == (400, 400)
    assert shared.counters.reconnects == shared.counters.failed == 0
    assert len(server.requests) == 400


@on_uvloop
async def test_a_turn_wakes_only_so_many_users() -> None:
    gate = asyncio.Event()

    async def together(peer: Peer) -> None:
        await peer.request()
        await gate.wait()
        await peer.send(OK)
        await asyncio.sleep(60)

    shared = HTTPShared()
    woken: list[int] = []
    async with serve(together) as server, swept(shared):
        calls = [
            asyncio.ensure_future(HTTPClient(shared, index).get(server.url + "/"))
            for index in range(30)
        ]
        while len(server.requests) < 30:
            await asyncio.sleep(0.01)
        gate.set()
        while not all(call.done() for call in calls):
            woken.append(sum(call.done() for call in calls))
            await asyncio.sleep(0)
    steps = [after - before for before, after in pairwise(woken)]
    assert max(steps) <= 2 * TURN_MAX, "the rest of a turn and the beginning of the next"


@on_uvloop
async def test_an_answer_in_pieces_keeps_its_order() -> None:
    async def pieces(peer: Peer) -> None:
        while await peer.request():
            for piece in (b"HTTP/1.1 200 OK\r\nContent-", b"Length: 2\r\n\r\n", b"o", b"k"):
                await peer.send(piece)
                await asyncio.sleep(0)

    shared = HTTPShared()
    async with serve(pieces) as server, swept(shared):
        assert len(await users(shared, server.url + "/", 20, 3)) == 60
    assert shared.counters.answered == 60


@on_uvloop
async def test_an_answer_that_waits_is_no_timeout_and_has_the_stamp_of_its_arrival() -> None:
    shared = HTTPShared(timeout_s=5.0)
    async with serve(answering(OK)) as server, swept(shared) as client:
        url = shared.url(server.url + "/")
        await client.get(url)
        conn = client.pool.idle
        assert isinstance(conn, CrowdConnection)
        call = asyncio.ensure_future(client.get(url))
        await asyncio.sleep(0)
        shared.backlog.taken = TURN_MAX
        conn.data_received(OK)
        assert conn.waiting is not None
        arrived = conn.waiting[0][1]
        conn.fail("timeout after 5 s", arrived + 5.0)
        response = await call
        assert response.ended == arrived and response.body == b"ok"
    assert shared.counters.failed == 0


@on_uvloop
async def test_a_connection_that_ends_after_its_answer_has_answered() -> None:
    shared = HTTPShared()
    async with serve(answering(OK)) as server, swept(shared) as client:
        url = shared.url(server.url + "/")
        await client.get(url)
        conn = client.pool.idle
        assert isinstance(conn, CrowdConnection)
        call = asyncio.ensure_future(client.get(url))
        await asyncio.sleep(0)
        shared.backlog.taken = TURN_MAX
        conn.data_received(OK)
        transport = conn.transport
        conn.connection_lost(ConnectionResetError())
        assert (await call).body == b"ok"
        transport.abort()


@on_uvloop
async def test_a_timeout_without_an_answer_is_one() -> None:
    async def silent(peer: Peer) -> None:
        await asyncio.sleep(60)

    shared = HTTPShared(timeout_s=0.1)
    async with serve(silent) as server, swept(shared) as client:
        with pytest.raises(TransportError, match=r"^timeout after 0.1 s$"):
            await client.get(server.url + "/")
