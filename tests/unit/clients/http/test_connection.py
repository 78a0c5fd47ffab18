"""One connection without a network: bytes in, responses out, limits swept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.api.errors import TransportError
from squall.clients.http import HTTPShared
from squall.clients.http.connection import (
    MISSES_TO_STOP,
    MOST_HEADS,
    ConnectionPool,
    HTTPConnection,
)
from squall.clients.http.encode import NO_OPENING
from squall.clients.http.origin import Origin
from squall.clients.http.request import Request

ORIGIN = Origin("http", "a", 80)
REQUEST = Request("GET", ORIGIN, b"/", NO_OPENING, [], b"", b"")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ANSWERS = [
    OK,
    OK.replace(b"2\r\n\r\nok", b"0\r\n\r\n"),
    OK.replace(b"200 OK", b"404 Not Found"),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK,
    b"HTTP/1.1 204 No Content\r\n\r\n",
]
BODIES = [b"ok", b"", b"ok", b"ok", b"ok", b""]


class Wire:
    """A fake transport that stores the written bytes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close


def connected(shared: HTTPShared) -> tuple[HTTPConnection, Wire]:
    wire = Wire()
    conn = HTTPConnection(shared, ConnectionPool(), ORIGIN)
    conn.connection_made(cast("asyncio.Transport", wire))
    return conn, wire


def run(body: Callable[[], Awaitable[Any]]) -> None:
    async def main() -> None:
        await body()

    asyncio.run(main())


@given(
    st.lists(
        st.tuples(st.integers(0, len(ANSWERS) - 1), st.lists(st.integers(0, 500), max_size=3)),
        max_size=12,
    )
)
def test_a_row_of_responses_in_any_packets_with_a_warm_cache(
    plan: list[tuple[int, list[int]]],
) -> None:
    async def body() -> None:
        shared = HTTPShared()
        conn, wire = connected(shared)
        total = 0
        for index, places in plan:
            data = ANSWERS[index]
            total += len(data)
            future = conn.send(b"x", REQUEST, 60.0, 0.0)
            assert conn.pool.idle is None or conn.pool.idle is conn
            marks = [0, *sorted(place % len(data) for place in places), len(data)]
            for start, end in pairwise(marks):
                assert not future.done()
                if start != end:
                    conn.data_received(data[start:end])
            response = future.result()
            assert response.raw_body == BODIES[index] and conn.pool.idle is conn
            assert response.started <= response.first_byte <= response.ended
            assert response.status_code == (404 if index == 2 else 204 if index == 5 else 200)
            conn.pool.idle = None
        assert not wire.closed and len(wire.written) == len(plan)
        assert shared.counters.answered == shared.counters.sent == len(plan)
        assert shared.counters.bytes_received == total

    run(body)


def test_equal_heads_share_one_parsed_head_and_the_cache_stays_small() -> None:
    async def body() -> None:
        shared = HTTPShared()
        conn, _ = connected(shared)

        def answered(data: bytes) -> Any:
            future = conn.send(b"x", REQUEST, 60.0, 0.0)
            conn.pool.idle = None
            conn.data_received(data)
            return future.result()

        first, second, third = answered(OK), answered(OK), answered(OK)
        assert second.head is third.head is first.head
        assert second.headers is third.headers
        for number in range(MOST_HEADS * 2):
            answered(OK.replace(b"\r\n\r\n", b"\r\nX: %d\r\n\r\n" % number))
            assert len(shared.heads) <= MOST_HEADS
        assert shared.caching

    run(body)


def test_heads_that_are_all_different_end_the_caching() -> None:
    async def body() -> None:
        shared = HTTPShared()
        conn, _ = connected(shared)
        for number in range(MISSES_TO_STOP + 10):
            future = conn.send(b"x", REQUEST, 60.0, 0.0)
            conn.pool.idle = None
            conn.data_received(OK.replace(b"\r\n\r\n", b"\r\nX: %d\r\n\r\n" % number))
            assert future.result().headers["x"] == str(number)
        assert not shared.caching and not shared.heads

    run(body)


def test_the_same_head_with_another_length_of_body_is_not_taken_for_whole() -> None:
    async def body() -> None:
        shared = HTTPShared()
        conn, wire = connected(shared)
        for _ in range(2):
            future = conn.send(b"x", REQUEST, 60.0, 0.0)
            conn.pool.idle = None
            conn.data_received(OK)
            future.result()
        future = conn.send(b"x", REQUEST, 60.0, 0.0)
        conn.data_received(OK + b"more")
        assert future.result().raw_body == b"ok" and wire.closed and conn.pool.idle is None

    run(body)


def test_an_answer_for_a_cancelled_call_is_not_counted() -> None:
    async def body() -> None:
        shared = HTTPShared()
        conn, wire = connected(shared)
        for split in (len(OK), 5):
            future = conn.send(b"x", REQUEST, 60.0, 0.0)
            future.cancel()
            conn.data_received(OK[:split])
            assert conn.pool.idle is None
        conn.abandon(future)
        assert wire.closed and shared.counters.cancelled == 1 and shared.counters.answered == 0

    run(body)


def test_limits_are_found_by_sweeping_and_not_before_they_are_due() -> None:
    async def body() -> None:
        shared = HTTPShared(timeout_s=60.0)
        conns = [connected(shared)[0] for _ in range(3)]
        shared.sweep(0.0)
        long, short, used = [conn.send(b"x", REQUEST, 60.0, 0.0) for conn in conns]
        conns[0].started = conns[1].started = conns[2].started = now = 1000.0
        conns[1].timeout_s = 5.0
        shared.expect_timeout(5.0, now + 5.0)
        # Half of its time went by before this exchange began.
        conns[2].spent_s = 30.0
        shared.expect_timeout(60.0, now + 30.0)
        seen: list[tuple[float, int]] = []
        for tick in range(0, 700):
            at = now + tick / 10
            shared.sweep(at)
            done = sum(future.done() for future in (long, short, used))
            if not seen or seen[-1][1] != done:
                seen.append((at, done))
        assert seen == [(1000.0, 0), (1005.0, 1), (1030.0, 2), (1060.0, 3)]
        with pytest.raises(TransportError, match="timeout after 5 s"):
            short.result()
        for future in (long, used):
            with pytest.raises(TransportError, match="timeout after 60 s") as caught:
                future.result()
            assert caught.value.started == 1000.0
        assert shared.counters.failed == 3

    run(body)


def test_an_idle_connection_is_never_swept() -> None:
    async def body() -> None:
        shared = HTTPShared(timeout_s=1.0)
        conn, wire = connected(shared)
        future = conn.send(b"x", REQUEST, 1.0, 0.0)
        conn.data_received(OK)
        shared.sweep(conn.started + 100.0)
        assert future.result().ok and not wire.closed and shared.counters.failed == 0

    run(body)
