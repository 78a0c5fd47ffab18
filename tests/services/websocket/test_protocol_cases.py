"""The client against a server of scripted frames, in the manner of the Autobahn test suite: what
the author receives, how the session ends, and what the client answers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from typing import NamedTuple

import pytest
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from squall.api.errors import TransportError
from squall.api.websocket import WebsocketResponse, WebsocketSession
from squall.clients.http import HTTPShared
from squall.clients.websocket import WebsocketClient
from tests.services.http.lab.servers import Peer, on_uvloop, serve, swept

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
WIDE = "κόσμε".encode()


def raw(kind: int, payload: bytes = b"", *, fin: bool = True, bits: int = 0) -> bytes:
    """A frame of a server."""
    first = (0x80 if fin else 0) | bits | kind
    size = len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 1 << 16:
        return struct.pack(">BBH", first, 126, size) + payload
    return struct.pack(">BBQ", first, 127, size) + payload


def goodbye(code: int, reason: bytes = b"") -> bytes:
    return raw(CLOSE, struct.pack(">H", code) + reason)


class Case(NamedTuple):
    """`sends` are the packets of the server."""

    sends: list[bytes]
    messages: list[bytes]
    reason: str = "closed by the server: 1000 normal"
    code: int = 1000
    pongs: tuple[bytes, ...] = ()

    @property
    def packets(self) -> list[bytes]:
        """With a goodbye, if nothing else ends the session. What is sent to a socket that the
        client has closed could destroy the client's last words."""
        ends = any(len(each) > 1 and each[0] == 0x88 for each in self.sends)
        alive = not ends and not self.reason.startswith("WebSocket protocol")
        return [*self.sends, goodbye(1000)] if alive else self.sends


def broken(what: str, *sends: bytes, code: int = 1002, messages: tuple[bytes, ...] = ()) -> Case:
    return Case(list(sends), list(messages), f"WebSocket protocol: {what}", code)


BYTES = [bytes([byte]) for byte in raw(TEXT, WIDE)]
SIZES = [0, 1, 125, 126, 127, 128, 65_535, 65_536, 65_537]
CASES: dict[str, Case] = {
    # 1: framing.
    **{f"text of {n}": Case([raw(TEXT, b"*" * n)], [b"*" * n]) for n in SIZES},
    **{f"binary of {n}": Case([raw(BINARY, b"\xfe" * n)], [b"\xfe" * n]) for n in SIZES},
    "byte by byte": Case(BYTES, [WIDE]),
    "a length that is longer than needed": Case([b"\x81\x7e\x00\x05hello"], [b"hello"]),
    # 2: pings and pongs.
    "an empty ping": Case([raw(PING)], [], pongs=(b"",)),
    "a ping of 125": Case([raw(PING, b"p" * 125)], [], pongs=(b"p" * 125,)),
    "a binary ping": Case([raw(PING, b"\x00\xff\xfe")], [], pongs=(b"\x00\xff\xfe",)),
    "ten pings": Case(
        [raw(PING, b"%d" % n) for n in range(10)], [], pongs=tuple(b"%d" % n for n in range(10))
    ),
    "ten pings in a packet": Case(
        [b"".join(raw(PING, b"%d" % n) for n in range(10))],
        [],
        pongs=tuple(b"%d" % n for n in range(10)),
    ),
    "a pong without a ping": Case([raw(PONG, b"x"), raw(TEXT, b"a")], [b"a"]),
    "a ping of 126": broken("a wrong control frame", raw(PING, b"p" * 126)),
    # 3: reserved bits.
    "RSV1": broken("a reserved bit", raw(TEXT, b"a", bits=0x40)),
    "RSV2 after a message": broken(
        "a reserved bit", raw(TEXT, b"a"), raw(TEXT, b"b", bits=0x20), messages=(b"a",)
    ),
    "RSV3 of a ping": broken("a reserved bit", raw(PING, b"a", bits=0x10)),
    "all bits of a goodbye": broken("a reserved bit", raw(CLOSE, bits=0x70)),
    # 4: opcodes.
    **{
        f"opcode {kind}": broken("an unknown kind of frame", raw(kind, b"a"))
        for kind in range(3, 8)
    },
    **{f"opcode {kind}": broken("a wrong control frame", raw(kind)) for kind in range(11, 16)},
    # 5: fragments.
    "two fragments": Case([raw(TEXT, b"a", fin=False), raw(CONT, b"b")], [b"ab"]),
    "fragments in a packet": Case([raw(TEXT, b"a", fin=False) + raw(CONT, b"b")], [b"ab"]),
    "empty fragments": Case(
        [raw(BINARY, fin=False), raw(CONT, b"m", fin=False), raw(CONT)], [b"m"]
    ),
    "a ping between fragments": Case(
        [raw(TEXT, b"a", fin=False), raw(PING, b"p"), raw(CONT, b"b")], [b"ab"], pongs=(b"p",)
    ),
    "a pong between fragments": Case(
        [raw(TEXT, b"a", fin=False), raw(PONG, b"p"), raw(CONT, b"b")], [b"ab"]
    ),
    "a ping in fragments": broken("a wrong control frame", raw(PING, b"a", fin=False)),
    "a continuation of nothing": broken("a fragment in the wrong place", raw(CONT, b"a")),
    "a continuation after the end": broken(
        "a fragment in the wrong place",
        raw(TEXT, b"a", fin=False),
        raw(CONT, b"b"),
        raw(CONT, b"c"),
        messages=(b"ab",),
    ),
    "a message inside another": broken(
        "a fragment in the wrong place", raw(TEXT, b"a", fin=False), raw(TEXT, b"b")
    ),
    # 6: UTF-8.
    "text split inside a character": Case(
        [raw(TEXT, WIDE[:3], fin=False), raw(CONT, WIDE[3:])], [WIDE]
    ),
    "text of single bytes": Case(
        [
            raw(TEXT, fin=False),
            *[raw(CONT, bytes([byte]), fin=False) for byte in WIDE],
            raw(CONT),
        ],
        [WIDE],
    ),
    "four bytes": Case([raw(TEXT, "𝄞".encode())], ["𝄞".encode()]),
    "a noncharacter is text": Case([raw(TEXT, b"\xef\xbf\xbf")], [b"\xef\xbf\xbf"]),
    "bytes that are no text": Case([raw(BINARY, b"\xff\xfe")], [b"\xff\xfe"]),
    **{
        f"not UTF-8: {wrong.hex()}": broken("text that is not UTF-8", raw(TEXT, wrong), code=1007)
        for wrong in (
            *(b"\xff", b"\x80", b"\xc0\x80", b"\xce", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
            *(b"a\xe2\x82", b"\xf8\x88\x80\x80\x80"),
        )
    },
    "not UTF-8 in fragments": broken(
        "text that is not UTF-8", raw(TEXT, b"\xce", fin=False), raw(CONT, b"\xce"), code=1007
    ),
    # 7: goodbyes.
    "a goodbye without a code": Case([raw(CLOSE)], [], "closed by the server: 1005 no code"),
    "a message after the goodbye": Case([goodbye(1000) + raw(TEXT, b"late")], []),
    "a ping after the goodbye": Case([goodbye(1000) + raw(PING, b"late")], []),
    "a goodbye between fragments": Case([raw(TEXT, b"a", fin=False), goodbye(1000)], []),
    **{
        f"code {code}": Case([goodbye(code)], [], f"closed by the server: {code}", code)
        for code in (1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 3000, 3999, 4000, 4999)
    },
    **{
        f"code {code} is none": broken("a wrong close code", goodbye(code))
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)
    },
    "half a code": broken("a wrong close code", raw(CLOSE, b"\x03")),
    "a reason": Case([goodbye(1001, WIDE)], [], "closed by the server: 1001 going away", 1001),
    "a reason of 123": Case([goodbye(1000, b"x" * 123)], []),
    "a reason of 124": broken("a wrong control frame", goodbye(1000, b"x" * 124)),
    "a reason that is not UTF-8": broken(
        "a close reason that is not UTF-8", goodbye(1000, b"\xff"), code=1007
    ),
    # In one packet.
    "a message before a fault": Case(
        [raw(TEXT, b"a") + raw(PING, b"p") + raw(3)],
        [b"a"],
        "WebSocket protocol: an unknown kind of frame",
        1002,
        (b"p",),
    ),
    "a fault after the goodbye": Case([goodbye(1000) + raw(3)], []),
    # Beyond Autobahn.
    "a masked frame": broken("a masked frame", b"\x81\x81\0\0\0\0a"),
    "a message over the limit": broken(
        "a message over 1 MiB", raw(BINARY, b"x" * ((1 << 20) + 1))[:10], code=1009
    ),
    "fragments over the limit": broken(
        "a message over 1 MiB",
        raw(BINARY, b"x" * (1 << 20), fin=False),
        raw(CONT, b"x"),
        code=1009,
    ),
    "a length of 63 bits": broken("a message over 1 MiB", b"\x82\x7f" + b"\x7f" * 8, code=1009),
}


class Script:
    """The server of one case; `heard` are the frames of the client."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.heard: list[Frame] = []
        self.done = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        try:
            await self._run(peer)
        finally:
            self.done.set()

    async def _run(self, peer: Peer) -> None:
        request = await peer.request()
        key = request.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        await peer.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % base64.b64encode(digest)
        )
        for packet in self.case.packets:
            await peer.send(packet)
            # So that most packets arrive one by one; no case depends on it.
            await asyncio.sleep(0.001)
        data = await peer.reader.read()
        reader = StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        while not _at_end(reader):
            parsing = Frame.parse(reader.read_exact, mask=True)
            try:
                next(parsing)
            except StopIteration as ended:
                self.heard.append(ended.value)
            else:
                break


def _at_end(reader: StreamReader) -> bool:
    try:
        next(reader.at_eof())
    except StopIteration as ended:
        return bool(ended.value)
    return False


async def _received(session: WebsocketSession, received: list[WebsocketResponse]) -> str:
    """Receives until the session ends; returns why it did."""
    try:
        while True:
            received.append(await session.receive())
    except TransportError as error:
        return error.reason


@on_uvloop
@pytest.mark.parametrize("name", CASES)
async def test_case(name: str) -> None:
    case = CASES[name]
    script = Script(case)
    received: list[WebsocketResponse] = []
    async with serve(script) as server:
        async with swept(HTTPShared(timeout_s=60.0, most_bytes=1 << 20)) as http:
            async with WebsocketClient(http).open(server.url) as session:
                reason = await _received(session, received)
        async with asyncio.timeout(60):
            await script.done.wait()
    assert [message.body for message in received] == case.messages
    assert reason.startswith(case.reason)
    pongs = tuple(each.data for each in script.heard if each.opcode is Opcode.PONG)
    codes = [each.data[:2] for each in script.heard if each.opcode is Opcode.CLOSE]
    assert pongs == case.pongs
    assert codes == [struct.pack(">H", case.code)]
