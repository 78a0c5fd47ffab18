"""What RFC 9113 and RFC 7541 ask of a client over several frames: windows, goodbyes, tables."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hpack import Encoder

from squall.clients.http import HTTPShared
from squall.clients.http2 import frames
from tests.services.http.lab.servers import Peer, on_uvloop, serve
from tests.services.http2.lab.servers import greeted, http2, next_request

OK = b"\x88"
ANSWER_FLAGS = 5


async def read_frame(peer: Peer) -> tuple[int, int, bytes]:
    opening = await peer.reader.readexactly(9)
    payload = await peer.reader.readexactly(int.from_bytes(opening[:3], "big"))
    return opening[3], opening[4], payload


async def read_body(peer: Peer, size: int) -> tuple[bytes, bool]:
    """At least that many bytes of the only body that is sent, and whether it has ended."""
    body, ended = b"", False
    while len(body) < size and not ended:
        kind, flags, payload = await read_frame(peer)
        if kind == frames.DATA:
            body += payload
            ended = bool(flags & 1)
    return body, ended


async def read_acknowledgment(peer: Peer) -> int:
    """Waits until the client acknowledges settings; returns how much data came before."""
    came = 0
    while True:
        kind, flags, payload = await read_frame(peer)
        if kind == frames.DATA:
            came += len(payload)
        elif kind == frames.SETTINGS and flags & frames.ACK:
            return came


@on_uvloop
async def test_a_window_that_becomes_negative_is_filled_before_more_is_sent() -> None:
    body = bytes(range(256)) * 400
    window = frames.FIRST_WINDOW
    received: list[bytes] = []
    early: list[int] = []

    async def shrinks(peer: Peer) -> None:
        stream = await greeted(peer)
        first, ended = await read_body(peer, window)
        assert (len(first), ended) == (window, False)
        # 65,535 bytes are sent, 1,000 are allowed: the window is -64,535.
        settings = frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 1000})
        more = frames.window_update(0, 1 << 20) + frames.window_update(stream, window - 1000)
        await peer.send(settings + more)
        # One for the empty settings of the greeting, which may have been acknowledged before.
        early.append(await read_acknowledgment(peer))
        await peer.send(frames.frame(frames.PING, 0, 0, b"12345678"))
        while (await read_frame(peer))[0] != frames.PING:
            pass
        await peer.send(frames.window_update(stream, len(body)))
        rest, ended = await read_body(peer, len(body) - window)
        assert ended
        received.append(first + rest)
        await peer.send(frames.frame(frames.HEADERS, ANSWER_FLAGS, stream, OK))
        await next_request(peer)

    async with serve(shrinks) as server:
        async with http2(HTTPShared(timeout_s=30.0)) as client:
            assert (await client.post(server.url + "/", data=body)).ok
    assert received == [body]
    assert early == [0]


@pytest.mark.parametrize("size", [1, 16_384, 65_535, 65_536, 200_000])
@on_uvloop
async def test_a_body_arrives_through_small_windows_and_frames(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    received: list[bytes] = []

    async def sips(peer: Peer) -> None:
        stream = await greeted(peer)
        whole, ended = b"", False
        while not ended:
            kind, flags, payload = await read_frame(peer)
            if kind == frames.DATA:
                assert len(payload) <= 16_384
                whole, ended = whole + payload, bool(flags & 1)
                more = frames.window_update(0, len(payload)) if payload else b""
                if payload and not ended:
                    more += frames.window_update(stream, len(payload))
                await peer.send(more)
        received.append(whole)
        await peer.send(frames.frame(frames.HEADERS, ANSWER_FLAGS, stream, OK))
        await next_request(peer)

    async with serve(sips) as server:
        async with http2(HTTPShared(timeout_s=30.0)) as client:
            assert (await client.post(server.url + "/", data=body)).ok
    assert received == [body]


@on_uvloop
async def test_windows_of_former_streams_do_not_add_up() -> None:
    """A server may enlarge the window of a stream that sends no body."""

    async def generous(peer: Peer) -> None:
        stream = await greeted(peer)
        while stream:
            update = frames.window_update(stream, 1 << 30)
            await peer.send(update + frames.frame(frames.HEADERS, ANSWER_FLAGS, stream, OK))
            stream = await next_request(peer)

    async with serve(generous) as server:
        async with http2(HTTPShared()) as client:
            for _ in range(5):
                assert (await client.get(server.url + "/")).ok


@pytest.mark.parametrize("code", [frames.NO_ERROR, 11])
@on_uvloop
async def test_a_goodbye_before_this_stream_sends_it_again_elsewhere(code: int) -> None:
    async def refuses_once(peer: Peer) -> None:
        stream = await greeted(peer)
        if peer.number == 1:
            await peer.send(frames.frame(frames.GOAWAY, 0, 0, struct.pack(">II", stream - 1, code)))
            # It must not be used again, but it may be closed.
            assert await next_request(peer) == 0
        else:
            await peer.send(frames.frame(frames.HEADERS, ANSWER_FLAGS, stream, OK))
            await next_request(peer)

    async with serve(refuses_once) as server:
        shared = HTTPShared()
        async with http2(shared) as client:
            assert (await client.post(server.url + "/", data=b"x")).ok
        assert server.connections == 2
    assert (shared.counters_of("http2").reconnects, shared.counters_of("http2").failed) == (1, 0)


@on_uvloop
async def test_a_server_that_resizes_its_header_table_is_understood() -> None:
    """The package `hpack` writes the heads, with every change of its table's size."""
    sizes = [4096, 0, 100, 4096, 64, 200, 0, 4096]

    async def resizes(peer: Peer) -> None:
        encoder = Encoder()
        stream = await greeted(peer)
        number = 0
        while stream:
            if number % 3 == 0:
                encoder.header_table_size = sizes[number // 3 % len(sizes)]
            pairs = [(":status", "200"), ("x-same", "a" * 40), ("x-number", str(number))]
            pairs += [("x-some", str(number % 2)), ("cache-control", "no-store")]
            block = encoder.encode(pairs)
            await peer.send(frames.frame(frames.HEADERS, ANSWER_FLAGS, stream, block))
            number += 1
            stream = await next_request(peer)

    async with serve(resizes) as server:
        async with http2(HTTPShared()) as client:
            for number in range(3 * len(sizes)):
                headers = (await client.get(server.url + "/")).headers
                assert headers["x-same"] == "a" * 40
                assert (headers["x-number"], headers["x-some"]) == (str(number), str(number % 2))
        assert server.connections == 1


@on_uvloop
async def test_a_client_whose_table_shrinks_says_so() -> None:
    """RFC 7541, 4.2: the next block begins with the new size."""
    blocks: list[bytes] = []

    async def shrinks(peer: Peer) -> None:
        stream = await greeted(peer)
        while stream:
            settings = frames.settings_frame({frames.HEADER_TABLE_SIZE: 0}) if not blocks else b""
            await peer.send(settings + frames.frame(frames.HEADERS, ANSWER_FLAGS, stream, OK))
            stream = 0
            try:
                while not stream:
                    opening = await peer.reader.readexactly(9)
                    payload = await peer.reader.readexactly(int.from_bytes(opening[:3], "big"))
                    if opening[3] == frames.HEADERS:
                        blocks.append(payload)
                        stream = int.from_bytes(opening[5:], "big")
            except asyncio.IncompleteReadError:
                return

    async with serve(shrinks) as server:
        async with http2(HTTPShared()) as client:
            for _ in range(3):
                assert (await client.get(server.url + "/")).ok
    assert [block[:1] == b"\x20" for block in blocks] == [True, False]


@on_uvloop
async def test_fewer_streams_allowed_while_calls_run() -> None:
    open_now: set[int] = set()
    most: list[int] = []

    async def strict(peer: Peer) -> None:
        stream = await greeted(peer)
        settings = frames.settings_frame({frames.MAX_CONCURRENT_STREAMS: 2})
        await peer.send(settings + frames.frame(frames.HEADERS, ANSWER_FLAGS, stream, OK))
        while stream := await next_request(peer):
            open_now.add(stream)
            most.append(len(open_now))
            if len(open_now) == 2:
                for each in sorted(open_now):
                    open_now.discard(each)
                    await peer.send(frames.frame(frames.HEADERS, ANSWER_FLAGS, each, OK))

    async with serve(strict) as server:
        async with http2(HTTPShared(timeout_s=30.0)) as client:
            assert (await client.get(server.url + "/")).ok
            answers = await asyncio.gather(*(client.get(server.url + "/") for _ in range(10)))
            assert all(answer.ok for answer in answers)
    assert max(most) == 2
