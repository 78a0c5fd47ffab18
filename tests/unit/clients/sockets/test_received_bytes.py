"""What Redis and TCP connections make of bytes, whatever pieces they come in."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from squall.api.errors import TransportError
from squall.api.protocols.tcp import LengthPrefix, Until
from squall.clients.calls.payload import SentData
from squall.clients.http import HTTPShared
from squall.clients.redis.connection import CommandConnection, RedisCall
from squall.clients.tcp.connection import TCPConnection

SEEDS = range(40)


class Wire:
    """A transport that keeps what is sent."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def abort(self) -> None:
        self.is_aborted = True

    close = abort


def pieces(data: bytes, random_: random.Random) -> list[bytes]:
    cuts = sorted(random_.randrange(len(data) + 1) for _ in range(random_.randrange(6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def redis_connection() -> tuple[CommandConnection, Wire]:
    shared = HTTPShared()
    conn, wire = CommandConnection(shared, shared.address("redis://h")), Wire()
    conn.connection_made(wire)  # pyright: ignore[reportArgumentType]
    return conn, wire


def tcp_connection() -> tuple[TCPConnection, Wire]:
    shared = HTTPShared(most_bytes=10_000)
    conn, wire = TCPConnection(shared, shared.address("tcp://h:1")), Wire()
    conn.connection_made(wire)  # pyright: ignore[reportArgumentType]
    return conn, wire


REPLIES: list[tuple[bytes, Any]] = [
    (b"+OK\r\n", b"OK"),
    (b"$5\r\nhe\r\no\r\n", b"he\r\no"),
    (b"$-1\r\n", None),
    (b":-7\r\n", -7),
    (b"#f\r\n", False),
    (b"_\r\n", None),
    (b"*2\r\n:1\r\n$1\r\na\r\n", [1, b"a"]),
    (b"%1\r\n+k\r\n*0\r\n", {b"k": []}),
    (b"~1\r\n:1\r\n", [1]),
]
PUSH = b">2\r\n+invalidate\r\n*0\r\n"


@pytest.mark.parametrize("seed", SEEDS)
def test_replies_of_redis_in_any_pieces(seed: int) -> None:
    async def body() -> None:
        random_ = random.Random(seed)
        conn, _ = redis_connection()
        for _ in range(10):
            wanted = [random_.choice(REPLIES) for _ in range(random_.choice([1, 1, 1, 3]))]
            # Messages that nobody asked for may come in front of any reply, and behind the last.
            wire = b"".join(PUSH * random_.randrange(2) + raw for raw, _ in wanted)
            wire += PUSH * random_.randrange(2)
            call = RedisCall(conn.address, ())
            future = conn.send(b"x", call, len(wanted), 9.0, 1.0)
            parts = pieces(wire, random_)
            for part in parts:
                conn.data_received(part)
            response = await future
            values = [value for _, value in wanted]
            assert response.value == (values if len(values) > 1 else values[0])
            assert response.value.__class__ is (list if len(values) > 1 else values[0].__class__)
            assert 0 < response.first_byte <= response.ended
            assert response.exchanges == len(wanted)
            if len(parts) == 1:
                assert response.bytes_received == len(wire)

    asyncio.run(body())


@pytest.mark.parametrize("seed", SEEDS)
def test_invented_bytes_of_redis_end_the_connection_or_nothing(seed: int) -> None:
    async def body() -> None:
        random_ = random.Random(seed)
        conn, wire = redis_connection()
        future = conn.send(b"x", RedisCall(conn.address, ()), 1, 9.0, 1.0)
        data = random_.randbytes(random_.randrange(1, 60))
        if seed % 2:
            raw = bytearray(b"".join(raw for raw, _ in REPLIES))
            raw[random_.randrange(len(raw))] = random_.randrange(256)
            data = bytes(raw)
        for part in pieces(data, random_):
            conn.data_received(part)
        if future.done() and future.exception() is not None:
            assert wire.is_aborted
        conn.fail("over", 2.0)
        if not future.done():
            future.cancel()

    asyncio.run(body())


def test_bytes_that_are_no_reply_fail_the_call() -> None:
    async def body() -> None:
        conn, wire = redis_connection()
        future = conn.send(b"x", RedisCall(conn.address, ()), 1, 9.0, 1.0)
        conn.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(TransportError, match=r"^not a Redis reply$"):
            await future
        assert wire.is_aborted and not conn.is_open

    asyncio.run(body())


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_of_tcp_in_any_pieces(seed: int) -> None:
    async def body() -> None:
        random_ = random.Random(seed)
        conn, _ = tcp_connection()
        untils: list[Until] = [b"\r\n", 7, LengthPrefix(2), LengthPrefix(3, "little", True)]
        plan: list[tuple[Until, bytes, bytes]] = []
        for _ in range(12):
            until = random_.choice(untils)
            content = (
                random_.randbytes(random_.randrange(20)).replace(b"\r", b"").replace(b"\n", b"")
            )
            if isinstance(until, bytes):
                # A piece of the delimiter is none.
                content = content + b"\r" * random_.randrange(2) + until
                wire = content
            elif isinstance(until, int):
                wire = content = content[:7].ljust(until, b".")
            else:
                wire = until.pack(content)
            plan.append((until, content, wire))
        stream = pieces(b"".join(wire for *_, wire in plan), random_)
        for until, content, _ in plan:
            future = conn.wait(SentData(conn.address, "receive", b""), until, 9.0, 1.0)
            while not future.done():
                conn.data_received(stream.pop(0))
            assert (await future).body == content
        assert not any(stream)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("data", "until", "reason"),
    [
        (
            b"\x00\x01",
            LengthPrefix(2, includes_itself=True),
            "length prefix 1 is smaller than itself",
        ),
        (b"\xff\xff", LengthPrefix(2), "answer larger than 0 MiB"),
        (b"x" * 10_001, b"\n", "answer larger than 0 MiB"),
    ],
)
def test_answers_that_cannot_be_fail_the_call(data: bytes, until: Until, reason: str) -> None:
    async def body() -> None:
        conn, wire = tcp_connection()
        future = conn.ask(SentData(conn.address, "", b""), b"x", until, 9.0, 1.0)
        conn.data_received(data)
        with pytest.raises(TransportError, match=f"^{reason}$"):
            await future
        assert wire.is_aborted

    asyncio.run(body())
