"""Answers whose frames and header blocks the connection knows, and takes without a detour."""

from __future__ import annotations

import pytest

from squall.clients.http2 import frames
from tests.unit.clients.http2.lab.pair import Pair, run


@pytest.mark.parametrize("padded", [False, True])
def test_answers_whose_frames_are_mixed_in_one_packet(padded: bool) -> None:
    """Streams 1, 3 and 5, and once more, when the blocks are known."""
    # 200 and content-length 3, without an entry in the table; then a trailer.
    head, trailer = b"\x88\x0f\x0d\x013", b"\0\1a\1b"

    def part(stream_id: int, ends: int, content: bytes) -> bytes:
        if padded:
            return frames.frame(
                frames.DATA, ends | frames.PADDED, stream_id, b"\2" + content + b"\0\0"
            )
        return frames.frame(frames.DATA, ends, stream_id, content)

    async def body() -> None:
        pair = Pair()
        for one, two, six in ((1, 3, 5), (7, 9, 11)):
            futures = [pair.send()[1] for _ in range(3)]
            pair.events()
            pair.raw(
                frames.frame(frames.HEADERS, 4, one, head),
                frames.frame(frames.HEADERS, 4, two, head),
                part(two, 0, b"two"),
                frames.frame(frames.HEADERS, 4, six, head),
                part(six, 0, b"s"),
                frames.frame(frames.HEADERS, 5, two, trailer),
                part(six, 1, b"ix"),
                part(one, 1, b"one"),
            )
            answers = [future.result() for future in futures]
            assert [each.body for each in answers] == [b"one", b"two", b"six"]
            assert [dict(each.trailers) for each in answers] == [{}, {"a": "b"}, {}]
        assert not pair.conn.streams
        counters = pair.shared.counters_of("http2")
        assert (counters.answered, counters.failed) == (6, 0)

    run(body)


def test_known_blocks_change_the_table_of_every_connection() -> None:
    async def body() -> None:
        first = Pair()
        for pair in (first, Pair(shared=first.shared)):
            futures = [pair.send()[1] for _ in range(2)]
            pair.events()
            # "a: b" is added to the table in the head, "c: d" in the trailers.
            pair.raw(
                frames.frame(frames.HEADERS, 4, 1, b"\x88\x40\1a\1b"),
                frames.frame(frames.HEADERS, 5, 1, b"\x40\1c\1d"),
                frames.frame(frames.HEADERS, 4, 3, b"\x88\xbf"),
                frames.frame(frames.HEADERS, 5, 3, b"\xbe"),
            )
            for future in futures:
                assert dict(future.result().headers) == {"a": "b"}
                assert dict(future.result().trailers) == {"c": "d"}

    run(body)


def test_no_known_head_may_stand_inside_another() -> None:
    async def body() -> None:
        pair = Pair()
        for _ in range(2):
            pair.send()
        pair.events()
        pair.raw(frames.frame(frames.HEADERS, 4, 1, b"\x88"))
        pair.raw(frames.frame(frames.HEADERS, 1, 3, b"\x88"))
        assert not pair.wire.closed
        pair.raw(frames.frame(frames.HEADERS, 4, 3, b"\x88"))
        assert pair.wire.closed

    run(body)
