"""What RFC 9113 asks of a client, case by case: h2spec's list with the roles exchanged.

A raw peer answers the first request of a connection with the frames of a case. The table says what
becomes of the call, and with which error code the client ends the connection or the stream.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hpack import Encoder

from squall.api.errors import TransportError
from squall.clients.http import HTTPShared
from squall.clients.http2 import frames
from tests.services.http.lab.servers import Peer, on_uvloop, serve
from tests.services.http2.lab.servers import greeted, http2

OK = b"\x88"
END_STREAM, END_HEADERS, PADDED, PRIORITY_FLAG = 1, 4, 8, 32
PRIORITY = 2
CODES = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
]
MALFORMED = "malformed response"


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Independent of the client's own writer."""
    return (
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload
    )


def fields(*pairs: tuple[str, str]) -> bytes:
    return Encoder().encode(list(pairs))


def head(stream_id: int, *pairs: tuple[str, str], flags: int = END_STREAM) -> bytes:
    block = fields((":status", "200"), *pairs)
    return frame(frames.HEADERS, flags | END_HEADERS, stream_id, block)


def data(stream_id: int, body: bytes = b"body", flags: int = END_STREAM) -> bytes:
    return frame(frames.DATA, flags, stream_id, body)


def answer(stream_id: int, body: bytes = b"body") -> bytes:
    return head(stream_id, flags=0) + data(stream_id, body)


def settings(*pairs: tuple[int, int]) -> bytes:
    payload = b"".join(struct.pack(">HI", *pair) for pair in pairs)
    return frame(frames.SETTINGS, 0, 0, payload)


def block(stream_id: int, payload: bytes, flags: int = END_STREAM | END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, stream_id, payload)


@dataclass(frozen=True)
class Case:
    """`reason` is empty if the call is answered, with `body`. `code` is the error of the GOAWAY
    or RST_STREAM that the client has to send, None if it must send none."""

    name: str
    sends: Callable[[int], bytes]
    reason: str = ""
    code: str | None = None
    body: bytes = b"body"


def good(name: str, sends: Callable[[int], bytes], body: bytes = b"body") -> Case:
    return Case(name, sends, body=body)


def broken(name: str, code: str, sends: Callable[[int], bytes]) -> Case:
    """The connection ends."""
    return Case(name, sends, f"HTTP/2 {code}: ", code)


def malformed(name: str, sends: Callable[[int], bytes]) -> Case:
    return Case(name, sends, MALFORMED, "PROTOCOL_ERROR")


BLOCK = fields((":status", "200"), ("x-long", "a" * 100))
GOOD = [
    good("an unknown kind of frame", lambda s: frame(0xBE, 0xFF, s, b"any") + answer(s)),
    good("unknown flags", lambda s: frame(frames.PING, 0x16, 0, b"12345678") + answer(s)),
    good("the reserved bit of an id", lambda s: head(s, flags=0) + data(s | 1 << 31)),
    good("an empty frame of data", lambda s: head(s, flags=0) + data(s, b"", 0) + data(s)),
    good("the largest frame", lambda s: answer(s, b"x" * 16384), b"x" * 16384),
    good("padded data", lambda s: head(s, flags=0) + data(s, b"\x03body\0\0\0", PADDED | 1)),
    good(
        "data of padding only", lambda s: head(s, flags=0) + data(s, b"\x02\0\0", PADDED) + data(s)
    ),
    good("a padded head", lambda s: block(s, b"\x02" + OK + b"\0\0", 12) + data(s)),
    good(
        "a head with a priority",
        lambda s: block(s, b"\0\0\0\0\x10" + OK, END_HEADERS | PRIORITY_FLAG) + data(s),
    ),
    good(
        "a padded head with a priority",
        lambda s: (
            block(s, b"\x01\0\0\0\0\x10" + OK + b"\0", END_HEADERS | PADDED | PRIORITY_FLAG)
            + data(s)
        ),
    ),
    good("a priority", lambda s: frame(PRIORITY, 0, s, b"\0\0\0\0\x10") + answer(s)),
    good(
        "a priority of an unused stream", lambda s: frame(PRIORITY, 0, s + 8, bytes(5)) + answer(s)
    ),
    good(
        "a head in three frames",
        lambda s: (
            block(s, BLOCK[:3], 0)
            + frame(frames.CONTINUATION, 0, s, BLOCK[3:9])
            + frame(frames.CONTINUATION, END_HEADERS, s, BLOCK[9:])
            + data(s)
        ),
    ),
    good(
        "an empty continuation",
        lambda s: block(s, BLOCK, 0) + frame(frames.CONTINUATION, END_HEADERS, s) + data(s),
    ),
    good(
        "a head that ends the stream and continues",
        lambda s: block(s, OK[:0], END_STREAM) + frame(frames.CONTINUATION, END_HEADERS, s, OK),
        b"",
    ),
    good(
        "trailers", lambda s: head(s, flags=0) + data(s, flags=0) + block(s, fields(("x-a", "1")))
    ),
    good("interim responses", lambda s: 2 * block(s, fields((":status", "103")), 4) + answer(s)),
    good("an acknowledged PING", lambda s: frame(frames.PING, 1, 0, b"87654321") + answer(s)),
    good("unknown settings", lambda s: settings((0xF0, 1), (0x8, 1)) + answer(s)),
    good(
        "a table of headers that shrinks and grows",
        lambda s: settings((1, 0), (1, 4096)) + answer(s),
    ),
    good("a larger frame size", lambda s: settings((5, 1 << 20)) + answer(s)),
    good("no push", lambda s: settings((2, 0)) + answer(s)),
    good("windows", lambda s: frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\1") + answer(s)),
    good(
        "a window of a stream that sends no body",
        lambda s: frame(frames.WINDOW_UPDATE, 0, s, b"\x7f\xff\0\0") + answer(s),
    ),
    good(
        "a goodbye with this stream as the last",
        lambda s: frame(frames.GOAWAY, 0, 0, struct.pack(">II", s, 0)) + answer(s),
    ),
    good(
        "a goodbye in two steps",
        lambda s: (
            frame(frames.GOAWAY, 0, 0, struct.pack(">II", 0x7FFFFFFF, 0) + b"soon")
            + frame(frames.GOAWAY, 0, 0, struct.pack(">II", s, 0))
            + answer(s)
        ),
    ),
    good(
        "a reset after the answer",
        lambda s: answer(s) + frame(frames.RST_STREAM, 0, s, bytes(4)),
    ),
    good("a table size update first", lambda s: block(s, b"\x20\x3f\xe1\x1f" + OK, 4) + data(s)),
    good(
        "a field in many encodings",
        # Literals with indexing, without, never indexed; then the indexed one.
        lambda s: (
            block(s, OK + b"\x40\x01a\x01b" + b"\x00\x01c\x01d" + b"\x10\x01e\x01f" + b"\xbe", 4)
            + data(s)
        ),
    ),
]
BROKEN = [
    broken("data on stream 0", "PROTOCOL_ERROR", lambda s: data(0)),
    broken("data of a stream that was never opened", "PROTOCOL_ERROR", lambda s: data(s + 2)),
    broken(
        "more padding than data",
        "PROTOCOL_ERROR",
        lambda s: head(s, flags=0) + data(s, b"\x05body", 9),
    ),
    broken("a head on stream 0", "PROTOCOL_ERROR", lambda s: block(0, OK)),
    broken("a head of a server's stream", "PROTOCOL_ERROR", lambda s: block(s + 1, OK)),
    broken("a head of a later stream", "PROTOCOL_ERROR", lambda s: block(s + 2, OK)),
    broken("more padding than head", "PROTOCOL_ERROR", lambda s: block(s, b"\x09" + OK, 12)),
    broken("data inside a head", "PROTOCOL_ERROR", lambda s: block(s, BLOCK[:3], 0) + data(s)),
    broken(
        "an unknown frame inside a head",
        "PROTOCOL_ERROR",
        lambda s: block(s, BLOCK[:3], 0) + frame(0xBE, 0, 0),
    ),
    broken(
        "a continuation of another stream",
        "PROTOCOL_ERROR",
        lambda s: block(s, BLOCK[:3], 0) + frame(frames.CONTINUATION, 4, s + 2, BLOCK[3:]),
    ),
    broken("a lone continuation", "PROTOCOL_ERROR", lambda s: frame(frames.CONTINUATION, 4, s, OK)),
    broken(
        "a continuation after the end of a head",
        "PROTOCOL_ERROR",
        lambda s: head(s, flags=0) + frame(frames.CONTINUATION, 4, s, OK),
    ),
    broken("a head larger than a frame", "FRAME_SIZE_ERROR", lambda s: block(s, bytes(16385))),
    broken("data larger than a frame", "FRAME_SIZE_ERROR", lambda s: data(s, bytes(16385))),
    broken("a priority on stream 0", "PROTOCOL_ERROR", lambda s: frame(PRIORITY, 0, 0, bytes(5))),
    broken(
        "a priority of a wrong size", "FRAME_SIZE_ERROR", lambda s: frame(PRIORITY, 0, s, bytes(4))
    ),
    broken(
        "a reset of stream 0", "PROTOCOL_ERROR", lambda s: frame(frames.RST_STREAM, 0, 0, bytes(4))
    ),
    broken(
        "a reset of a stream that was never opened",
        "PROTOCOL_ERROR",
        lambda s: frame(frames.RST_STREAM, 0, s + 2, bytes(4)),
    ),
    broken(
        "a reset of a wrong size",
        "FRAME_SIZE_ERROR",
        lambda s: frame(frames.RST_STREAM, 0, s, bytes(3)),
    ),
    broken("settings of a stream", "PROTOCOL_ERROR", lambda s: frame(frames.SETTINGS, 0, s)),
    broken(
        "settings of a wrong size",
        "FRAME_SIZE_ERROR",
        lambda s: frame(frames.SETTINGS, 0, 0, bytes(3)),
    ),
    broken(
        "acknowledged settings with content",
        "FRAME_SIZE_ERROR",
        lambda s: frame(frames.SETTINGS, 1, 0, bytes(6)),
    ),
    broken("a server that announces pushes", "PROTOCOL_ERROR", lambda s: settings((2, 1))),
    broken("a window that is too large", "FLOW_CONTROL_ERROR", lambda s: settings((4, 1 << 31))),
    broken("a frame size that is too small", "PROTOCOL_ERROR", lambda s: settings((5, 16383))),
    broken("a frame size that is too large", "PROTOCOL_ERROR", lambda s: settings((5, 1 << 24))),
    broken(
        "a promise",
        "PROTOCOL_ERROR",
        lambda s: frame(5, 4, s, struct.pack(">I", 2) + fields((":method", "GET"))),
    ),
    broken("a PING of a stream", "PROTOCOL_ERROR", lambda s: frame(frames.PING, 0, s, bytes(8))),
    broken(
        "a PING of a wrong size", "FRAME_SIZE_ERROR", lambda s: frame(frames.PING, 0, 0, bytes(6))
    ),
    broken(
        "a goodbye of a stream", "PROTOCOL_ERROR", lambda s: frame(frames.GOAWAY, 0, s, bytes(8))
    ),
    broken(
        "a goodbye of a wrong size",
        "FRAME_SIZE_ERROR",
        lambda s: frame(frames.GOAWAY, 0, 0, bytes(7)),
    ),
    broken(
        "an empty window", "PROTOCOL_ERROR", lambda s: frame(frames.WINDOW_UPDATE, 0, 0, bytes(4))
    ),
    broken(
        "a window of the connection that overflows",
        "FLOW_CONTROL_ERROR",
        lambda s: frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"),
    ),
    broken(
        "a window of a wrong size",
        "FRAME_SIZE_ERROR",
        lambda s: frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)),
    ),
    broken(
        "a window of a stream that was never opened",
        "PROTOCOL_ERROR",
        lambda s: frame(frames.WINDOW_UPDATE, 0, s + 2, b"\0\0\0\1"),
    ),
    broken(
        "windows of streams that overflow by a setting",
        "FLOW_CONTROL_ERROR",
        lambda s: frame(frames.WINDOW_UPDATE, 0, s, b"\x7f\xff\0\0") + settings((4, 1 << 30)),
    ),
    broken("index 0", "COMPRESSION_ERROR", lambda s: block(s, OK + b"\x80")),
    broken("an index beyond the table", "COMPRESSION_ERROR", lambda s: block(s, OK + b"\xbe")),
    broken("a head that is cut off", "COMPRESSION_ERROR", lambda s: block(s, OK + b"\x40\x09a")),
    broken(
        "a table larger than announced",
        "COMPRESSION_ERROR",
        lambda s: block(s, b"\x3f\xe2\x1f" + OK),
    ),
    broken(
        "a table size update after a field", "COMPRESSION_ERROR", lambda s: block(s, OK + b"\x20")
    ),
    broken("a number without an end", "COMPRESSION_ERROR", lambda s: block(s, b"\xff" * 12)),
    broken(
        "a Huffman code with its end",
        "COMPRESSION_ERROR",
        lambda s: block(s, OK + b"\0\x01a\x84\xff\xff\xff\xff"),
    ),
    broken(
        "a Huffman code padded with zeros",
        "COMPRESSION_ERROR",
        lambda s: block(s, OK + b"\0\x01a\x81\x18"),
    ),
]
STREAMS = [
    *(
        Case(
            f"a reset with {name}",
            lambda s, code=code: frame(frames.RST_STREAM, 0, s, struct.pack(">I", code)),
            f"stream reset: {name}",
        )
        for code, name in enumerate(CODES)
        if name != "REFUSED_STREAM"
    ),
    Case(
        "a reset with an unknown code",
        lambda s: frame(frames.RST_STREAM, 0, s, struct.pack(">I", 0xF0)),
        "stream reset: ",
    ),
    Case(
        "a reset in the body",
        lambda s: (
            head(s, flags=0) + data(s, flags=0) + frame(frames.RST_STREAM, 0, s, bytes(3) + b"\2")
        ),
        "stream reset: INTERNAL_ERROR",
    ),
    Case(
        "a window of the stream that overflows",
        lambda s: 2 * frame(frames.WINDOW_UPDATE, 0, s, b"\x7f\xff\xff\xff"),
        "HTTP/2 FLOW_CONTROL_ERROR: ",
        "FLOW_CONTROL_ERROR",
    ),
    Case(
        "an empty window of the stream",
        lambda s: frame(frames.WINDOW_UPDATE, 0, s, bytes(4)),
        "HTTP/2 PROTOCOL_ERROR: ",
        "PROTOCOL_ERROR",
    ),
    malformed("data before a head", data),
    malformed("a head without a status", lambda s: block(s, fields(("x-a", "1")))),
    malformed("two statuses", lambda s: block(s, OK + OK)),
    malformed("a status that is none", lambda s: block(s, fields((":status", "2000")))),
    malformed(
        "a status after a field", lambda s: block(s, fields(("x-a", "1"), (":status", "200")))
    ),
    malformed("an unknown pseudo-header", lambda s: head(s, (":what", "1"))),
    malformed("a pseudo-header of requests", lambda s: head(s, (":path", "/"))),
    malformed("a name in capitals", lambda s: block(s, OK + b"\0\x03X-A\x011")),
    malformed("an empty name", lambda s: block(s, OK + b"\0\0\x011")),
    malformed("a line break in a value", lambda s: head(s, ("x-a", "1\r\nx-b: 2"))),
    *(
        malformed(f"the header {name}", lambda s, name=name: head(s, (name, "a")))
        for name in ("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade")
    ),
    malformed("an interim response that ends", lambda s: block(s, fields((":status", "100")))),
    malformed("an upgrade", lambda s: block(s, fields((":status", "101")), 4)),
    malformed(
        "trailers that do not end", lambda s: head(s, flags=0) + block(s, fields(("x-a", "1")), 4)
    ),
    malformed("a second head", lambda s: head(s, flags=0) + head(s)),
    malformed(
        "less data than announced", lambda s: head(s, ("content-length", "5"), flags=0) + data(s)
    ),
    malformed(
        "more data than announced", lambda s: head(s, ("content-length", "3"), flags=0) + data(s)
    ),
    malformed("no data where some is announced", lambda s: head(s, ("content-length", "3"))),
    malformed("two lengths", lambda s: head(s, ("content-length", "3"), ("content-length", "4"))),
]


@pytest.mark.parametrize("case", [*GOOD, *BROKEN, *STREAMS], ids=lambda case: case.name)
@on_uvloop
async def test_case(case: Case) -> None:
    seen: list[tuple[int, int, bytes]] = []
    ended = asyncio.Event()

    async def peer_of_case(peer: Peer) -> None:
        stream_id = await greeted(peer)
        if stream_id:
            # The client answers the PING behind the case, if it still reads.
            await peer.send(case.sends(stream_id) + frame(frames.PING, 0, 0, b"the end."))
            seen.extend(await _frames_until_the_end(peer))
            ended.set()

    async with serve(peer_of_case) as server:
        shared = HTTPShared()
        async with http2(shared) as client:
            if case.reason:
                with pytest.raises(TransportError) as caught:
                    await client.post(server.url + "/")
                assert caught.value.reason.startswith(case.reason)
            else:
                response = await client.post(server.url + "/")
                assert (response.status_code, response.body) == (200, case.body)
            await asyncio.wait_for(ended.wait(), 30)
        assert server.connections == 1
    codes = [
        CODES[struct.unpack(">I", payload[-4:])[0]]
        for kind, _, payload in seen
        if kind in (frames.GOAWAY, frames.RST_STREAM)
    ]
    assert codes == ([] if case.code is None else [case.code])
    if case.reason.startswith("HTTP/2") and case not in STREAMS:
        assert seen[-1][0] == frames.GOAWAY


async def _frames_until_the_end(peer: Peer) -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []
    while True:
        try:
            opening = await peer.reader.readexactly(9)
            payload = await peer.reader.readexactly(int.from_bytes(opening[:3], "big"))
        except (EOFError, ConnectionError):
            return found
        found.append((opening[3], opening[4], payload))
        if (opening[3], payload) == (frames.PING, b"the end."):
            return found
