"""Frames in both directions, compared with the package `websockets`; broken and invented bytes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from squall.clients.websocket import frames
from squall.clients.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Decoder,
    FrameError,
    KeptFrames,
    code_text,
    frame,
    masked,
    read_close,
)

MASK = b"\x01\x02\x03\x04"


def server_frame(kind: int, payload: bytes, *, fin: bool = True) -> bytes:
    """What the package `websockets` sends as a server."""
    return Frame(Opcode(kind), payload, fin=fin).serialize(mask=False)


@given(st.sampled_from([TEXT, BINARY, PING]), st.integers(0, 70_000), st.binary(max_size=20))
def test_the_oracle_reads_what_we_send(kind: int, size: int, seed: bytes) -> None:
    payload = (seed * (size // max(len(seed), 1) + 1))[: size if kind != PING else 125]
    reader = StreamReader()
    reader.feed_data(frame(kind, payload, MASK))
    parsing = Frame.parse(reader.read_exact, mask=True)
    try:
        next(parsing)
        raise AssertionError("the frame is not complete")
    except StopIteration as ended:
        read = ended.value
    assert (read.opcode, read.data, read.fin) == (kind, payload, True)


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
def test_masking_twice_gives_the_message_back(payload: bytes, mask: bytes) -> None:
    assert masked(payload, mask) == bytes(
        byte ^ mask[index % 4] for index, byte in enumerate(payload)
    )
    assert masked(masked(payload, mask), mask) == payload


@given(
    st.lists(st.tuples(st.sampled_from([TEXT, BINARY]), st.integers(0, 70_000)), max_size=5),
    st.lists(st.integers(1, 5000), max_size=20),
)
def test_messages_in_any_packets(plan: list[tuple[int, int]], sizes: list[int]) -> None:
    data = b"".join(server_frame(kind, b"x" * size) for kind, size in plan)
    decoder, found = Decoder(1 << 20), list[tuple[int, bytes]]()
    for size in sizes:
        found += decoder.feed(data[:size])
        data = data[size:]
    found += decoder.feed(data)
    assert found == [(kind, b"x" * size) for kind, size in plan]


def test_fragments_with_a_ping_between_them() -> None:
    decoder = Decoder(1 << 20)
    text = "grüße".encode()
    data = (
        server_frame(TEXT, text[:3], fin=False)
        + server_frame(PING, b"p")
        + server_frame(CONTINUATION, b"", fin=False)
        + server_frame(CONTINUATION, text[3:])
        + server_frame(BINARY, b"next")
    )
    assert decoder.feed(data) == [(PING, b"p"), (TEXT, text), (BINARY, b"next")]


@pytest.mark.parametrize(
    ("data", "code", "what"),
    [
        (b"\x81\x81\0\0\0\0a", 1002, "a masked frame"),
        (b"\xc1\x00", 1002, "a reserved bit"),
        (b"\x83\x00", 1002, "an unknown kind of frame"),
        (b"\x8b\x00", 1002, "a wrong control frame"),
        (b"\x09\x00", 1002, "a wrong control frame"),
        (b"\x89\x7e\x00\x7e" + b"x" * 126, 1002, "a wrong control frame"),
        (server_frame(CONTINUATION, b"x"), 1002, "a fragment in the wrong place"),
        (
            server_frame(TEXT, b"x", fin=False) + server_frame(TEXT, b"y"),
            1002,
            "a fragment in the wrong place",
        ),
        (server_frame(TEXT, b"\xff"), 1007, "text that is not UTF-8"),
        (b"\x82\x7f\x00\x00\x00\x00\x00\x20\x00\x00", 1009, "a message over 1 MiB"),
        (
            (server_frame(BINARY, b"x" * 600_000, fin=False))
            + server_frame(CONTINUATION, b"x" * 600_000),
            1009,
            "a message over 1 MiB",
        ),
    ],
)
def test_what_a_server_must_not_send(data: bytes, code: int, what: str) -> None:
    with pytest.raises(FrameError, match=what) as caught:
        Decoder(1 << 20).feed(data)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", (1005, "")),
        (b"\x03\xe8", (1000, "")),
        (b"\x03\xf3bad", (1011, "bad")),
        (b"\x0f\xa0own", (4000, "own")),
    ],
)
def test_goodbyes(payload: bytes, expected: tuple[int, str]) -> None:
    assert read_close(payload) == expected


@pytest.mark.parametrize(
    "payload", [b"\x03", b"\x00\x00", b"\x03\xed", b"\x03\xee", b"\x07\xd0", b"\x03\xe8\xff"]
)
def test_wrong_goodbyes(payload: bytes) -> None:
    with pytest.raises(FrameError):
        read_close(payload)


def test_a_message_that_is_sent_again_is_masked_once() -> None:
    kept = KeptFrames()
    assert kept.get(TEXT, b"hello") is kept.get(TEXT, b"hello")
    large = b"x" * (frames.KEPT_BYTES + 1)
    assert kept.get(TEXT, large) is not kept.get(TEXT, large)
    for number in range(3000):
        kept.get(BINARY, b"%d" % number)
    assert len(kept._kept) <= 1024  # pyright: ignore[reportPrivateUsage]


def test_codes_have_words() -> None:
    assert code_text(1011) == "1011 server error"
    assert code_text(4001) == "4001"


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_invented_bytes_give_messages_or_an_error(parts: list[bytes]) -> None:
    decoder = Decoder(1 << 16)
    with suppress(FrameError):
        for part in parts:
            for kind, _ in decoder.feed(part):
                assert kind in (TEXT, BINARY, CLOSE, PING, PONG)
