"""Frames out of a byte stream, and the bounds on what they make us hold."""

from __future__ import annotations

import pytest

from squall.cluster.wire.links.frames import BufferBudget, FrameDecoder, with_prefix


def feed_all(decoder: FrameDecoder, pieces: list[bytes]) -> list[bytes]:
    return [frame for piece in pieces for frame in decoder.feed(piece)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 1000])
def test_any_fragmentation_gives_the_sent_frames_in_order(size: int) -> None:
    frames = [b"", b"a", b"bc" * 9, b"", b"d" * 300]
    stream = b"".join(map(with_prefix, frames))
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert feed_all(FrameDecoder(300), pieces) == frames


def test_a_frame_over_the_cap_is_refused_by_its_prefix_alone() -> None:
    decoder = FrameDecoder(10)
    assert decoder.feed(with_prefix(b"x" * 10)) == [b"x" * 10]
    assert decoder.broken is None
    assert decoder.feed((11).to_bytes(4, "big")) == []
    assert decoder.broken is not None
    assert decoder.buffered == 0


def test_what_came_before_an_oversized_frame_is_still_delivered() -> None:
    decoder = FrameDecoder(10)
    assert decoder.feed(with_prefix(b"good") + with_prefix(b"x" * 11)) == [b"good"]
    assert decoder.broken is not None


def test_the_cap_may_rise_between_two_frames_of_one_piece() -> None:
    decoder = FrameDecoder(4)
    data = with_prefix(b"last") + with_prefix(b"x" * 50)
    assert decoder.feed(data, 1) == [b"last"]
    decoder.cap = 50
    assert decoder.feed(b"") == [b"x" * 50]


def test_unfinished_frames_of_all_connections_share_one_budget() -> None:
    budget = BufferBudget(100)
    one, other = FrameDecoder(1000, budget), FrameDecoder(1000, budget)
    half = with_prefix(b"x" * 200)[:60]
    one.feed(half)
    assert one.broken is None
    other.feed(half)
    assert other.broken is not None
    other.discard()
    one.discard()
    assert budget.held == 0


def test_a_finished_frame_gives_its_share_of_the_budget_back() -> None:
    budget = BufferBudget(1000)
    decoder = FrameDecoder(500, budget)
    stream = with_prefix(b"x" * 500)
    decoder.feed(stream[:400])
    assert budget.held == 400
    decoder.feed(stream[400:])
    assert budget.held == 0
