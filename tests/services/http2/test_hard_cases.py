"""Servers that die, stall, cut off, reset and talk nonsense: failures by reason, nothing left."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from squall.api.errors import TransportError
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.http2 import HTTP2Client, frames
from tests.services.http.lab.servers import Peer, on_uvloop, prepared, serve
from tests.services.http2.lab.servers import greeted, http2, next_request

OK = b"\x88"


def head(stream_id: int, *, ends: bool = True) -> bytes:
    return frames.frame(frames.HEADERS, 5 if ends else 4, stream_id, OK)


async def hang_up(peer: Peer) -> None:
    """Closes only one direction: bytes that still come would turn a close into a reset."""
    peer.writer.write_eof()
    await peer.reader.read()


async def dies(peer: Peer) -> None:
    await greeted(peer)
    await hang_up(peer)


async def resets(peer: Peer) -> None:
    await greeted(peer)
    peer.reset()


async def stalls(peer: Peer) -> None:
    await greeted(peer)
    await asyncio.sleep(60)


async def stalls_in_the_body(peer: Peer) -> None:
    stream = await greeted(peer)
    await peer.send(head(stream, ends=False) + frames.frame(frames.DATA, 0, stream, b"part"))
    await asyncio.sleep(60)


async def cuts_off(peer: Peer) -> None:
    stream = await greeted(peer)
    await peer.send(head(stream, ends=False) + frames.frame(frames.DATA, 0, stream, b"part"))
    await hang_up(peer)


async def resets_the_stream(peer: Peer) -> None:
    stream = await greeted(peer)
    await peer.send(frames.reset(stream, frames.INTERNAL_ERROR))
    await next_request(peer)


async def talks_nonsense(peer: Peer) -> None:
    await peer.reader.readexactly(10)
    await peer.send(b"\x01\x02nonsense, and more of it")


async def is_angry(peer: Peer) -> None:
    stream = await greeted(peer)
    await peer.send(frames.frame(frames.GOAWAY, 0, 0, frames.pack_id(stream) + frames.pack_id(11)))
    await hang_up(peer)


async def breaks_headers(peer: Peer) -> None:
    stream = await greeted(peer)
    await peer.send(frames.frame(frames.HEADERS, 5, stream, b"\xff\xff\xff\xff"))
    await next_request(peer)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (dies, "connection closed before a response"),
        (resets, "connection reset"),
        (stalls, "timeout after 0.2 s"),
        (stalls_in_the_body, "timeout after 0.2 s"),
        (cuts_off, "response cut off"),
        (resets_the_stream, "stream reset: INTERNAL_ERROR"),
        (talks_nonsense, "the server does not speak HTTP/2; use self.client.http"),
        (is_angry, "connection ended by the server: ENHANCE_YOUR_CALM"),
        (breaks_headers, "HTTP/2 COMPRESSION_ERROR: a block that is cut off"),
    ],
)
@on_uvloop
async def test_a_failure_has_its_reason(
    handler: Callable[[Peer], Awaitable[None]], reason: str
) -> None:
    async with serve(handler) as server:
        shared = HTTPShared(timeout_s=0.2)
        async with http2(shared) as client:
            for _ in range(3):
                with pytest.raises(TransportError) as caught:
                    await client.get(server.url + "/")
                assert caught.value.reason == reason
                assert caught.value.request == f"GET {server.url}/"
            calls = [client.get(server.url + "/") for _ in range(5)]
            failed = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(each, TransportError) for each in failed)
        assert shared.counters_of("http2").failed == 8


@on_uvloop
async def test_a_get_on_a_connection_that_dies_is_repeated_once_and_a_post_never() -> None:
    async def one_then_death(peer: Peer) -> None:
        stream = await greeted(peer)
        await peer.send(head(stream))
        await next_request(peer)
        await hang_up(peer)

    async with serve(one_then_death) as server:
        shared = HTTPShared()
        async with http2(shared) as client:
            url = await prepared(shared, server.url + "/")
            for _ in range(3):
                assert (await client.get(url)).ok
            assert shared.counters_of("http2").reconnects == 2
            with pytest.raises(TransportError, match="connection closed before a response"):
                await client.post(url, data=b"x")
            assert (await client.put(url, data=b"x")).ok


@on_uvloop
async def test_a_refused_call_is_repeated_until_it_is_hopeless() -> None:
    async def refuses(peer: Peer) -> None:
        stream = await greeted(peer)
        while stream:
            await peer.send(frames.reset(stream, frames.REFUSED_STREAM))
            stream = await next_request(peer)

    async with serve(refuses) as server:
        shared = HTTPShared()
        async with http2(shared) as client:
            with pytest.raises(TransportError, match="stream reset: REFUSED_STREAM"):
                await client.post(server.url + "/", data=b"x")
        assert (shared.counters_of("http2").sent, shared.counters_of("http2").failed) == (11, 1)
        assert server.connections == 1


@on_uvloop
async def test_users_that_share_a_connection_which_cannot_be_opened() -> None:
    shared = HTTPShared(connections="shared", streams=10)
    async with http2(shared):
        users = [HTTP2Client(HTTPClient(shared, index)) for index in range(10)]
        calls = [user.get("http://127.0.0.1:1/") for user in users]
        failed = await asyncio.gather(*calls, return_exceptions=True)
        assert {getattr(each, "reason", "") for each in failed} == {
            "connection refused: 127.0.0.1:1"
        }
    assert (shared.counters_of("http2").failed, shared.counters_of("http2").unsent) == (10, 10)


@on_uvloop
async def test_a_cancelled_call_resets_its_stream_and_the_connection_goes_on() -> None:
    seen: list[bytes] = []

    async def slow(peer: Peer) -> None:
        await greeted(peer)
        await peer.send(frames.frame(frames.PING, 0, 0, b"12345678"))
        while True:
            opening = await peer.reader.readexactly(frames.HEAD_BYTES)
            await peer.reader.readexactly(int.from_bytes(opening[:3], "big"))
            seen.append(opening)
            if opening[3] == frames.HEADERS:
                await peer.send(head(int.from_bytes(opening[5:], "big")))

    async with serve(slow) as server:
        shared = HTTPShared()
        async with http2(shared) as client:
            task = asyncio.ensure_future(client.get(server.url + "/"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.get(server.url + "/")).ok
        assert frames.RST_STREAM in [opening[3] for opening in seen]
        assert server.connections == 1
        assert shared.counters_of("http2").cancelled == 1


@pytest.mark.parametrize("handler", [dies, cuts_off, resets_the_stream, talks_nonsense])
@on_uvloop
async def test_failures_leave_nothing_behind(handler: Callable[[Peer], Awaitable[None]]) -> None:
    async with serve(handler) as server:
        shared = HTTPShared()
        async with http2(shared) as client:
            gone: list[weakref.ref[BaseException]] = []
            gc.collect()
            gc.disable()
            try:
                url = await prepared(shared, server.url + "/")
                for method in (client.get, client.post, client.get):
                    gone.append(await _failure(method, url))
                    client._http.last = None  # pyright: ignore[reportPrivateUsage]
                async with asyncio.timeout(30.0):
                    while any(ref() is not None for ref in gone):
                        await asyncio.sleep(0.005)
            finally:
                gc.enable()


async def _failure(method: Any, url: Any) -> weakref.ref[BaseException]:
    try:
        await method(url)
    except TransportError as error:
        return weakref.ref(error)
    raise AssertionError("the call did not fail")
