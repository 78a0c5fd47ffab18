"""Messages in any pieces, compared with a plain reading of whole bodies; invented bytes."""

from __future__ import annotations

import gzip
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.clients.grpc.framing import FramingError, MessageDecoder, framed, single

MOST_BYTES = 1 << 20
COMPRESS = {"gzip": gzip.compress, "deflate": zlib.compress}


def decoder(encoding: str = "", most_bytes: int = MOST_BYTES) -> MessageDecoder:
    made = MessageDecoder(most_bytes)
    made.encoding = encoding
    return made


def gunzip(packed: bytes) -> bytes:
    if not packed:
        # Python takes it for an empty text; it lacks the head that gzip begins with.
        raise EOFError
    return gzip.decompress(packed)


DECOMPRESS = {"gzip": gunzip, "deflate": zlib.decompress}


def by_the_standard(body: bytes, encoding: str) -> tuple[list[bytes], bytes]:
    """(Messages, what is left over) of a whole body (gRPC, PROTOCOL-HTTP2.md). Raises what the
    library that decompresses raises."""
    messages: list[bytes] = []
    while len(body) >= 5:
        flag, size = body[0], int.from_bytes(body[1:5], "big")
        if len(body) < 5 + size:
            break
        message, body = body[5 : 5 + size], body[5 + size :]
        messages.append(DECOMPRESS[encoding](message) if flag else message)
    return messages, body


def in_pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    for cut in cuts:
        pieces.append(body[:cut])
        body = body[cut:]
    return [*pieces, body]


def sent(message: bytes, encoding: str | None) -> bytes:
    """A message as a server sends it, compressed by the standard library."""
    if encoding is None:
        return struct.pack(">BI", 0, len(message)) + message
    packed = COMPRESS[encoding](message)
    return struct.pack(">BI", 1, len(packed)) + packed


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=12),
    st.sampled_from(["gzip", "deflate"]),
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(0, 6),
)
def test_messages_in_any_pieces(
    messages: list[tuple[bytes, bool]], encoding: str, cuts: list[int], missing: int
) -> None:
    body = b"".join(sent(each, encoding if packed else None) for each, packed in messages)
    body = body[: len(body) - missing] if missing <= len(body) else body
    wanted, rest = by_the_standard(body, encoding)
    reader = decoder(encoding)
    found = [message for piece in in_pieces(body, cuts) for message in reader.feed(piece)]
    assert found == wanted
    assert reader.is_between == (not rest)


@given(st.binary(max_size=2000), st.sampled_from(["", "gzip", "deflate"]))
def test_what_we_send_is_what_the_standard_reads(message: bytes, encoding: str) -> None:
    assert by_the_standard(framed(message, encoding), encoding) == ([message], b"")
    assert single(framed(message, encoding)) == (None if encoding else message)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(
                lambda flag, size, data: bytes([flag]) + size.to_bytes(4, "big") + data,
                st.sampled_from([0, 0, 1, 2, 255]),
                st.integers(0, 30),
                st.binary(max_size=30),
            ),
        ),
        max_size=8,
    ),
    st.sampled_from(["", "identity", "gzip", "deflate", "br"]),
    st.lists(st.integers(0, 9), max_size=60),
)
def test_invented_bytes_are_messages_or_a_refusal(
    parts: list[bytes], encoding: str, cuts: list[int]
) -> None:
    body = b"".join(parts)
    try:
        wanted = by_the_standard(body, encoding)
    except (KeyError, OSError, EOFError, zlib.error):
        wanted = None
    reader = decoder(encoding, most_bytes=1 << 33)
    try:
        found = [message for piece in in_pieces(body, cuts) for message in reader.feed(piece)]
    except FramingError:
        assert wanted is None
        return
    assert wanted == (found, wanted[1] if wanted else b"")
    assert reader.is_between == (not wanted[1])


@pytest.mark.parametrize("encoding", COMPRESS)
def test_a_compressed_message_that_lacks_its_end_is_refused(encoding: str) -> None:
    packed = COMPRESS[encoding](b"x" * 500)
    for cut in (1, 4, len(packed) // 2):
        body = struct.pack(">BI", 1, len(packed) - cut) + packed[:-cut]
        with pytest.raises(FramingError, match=f"a message that is not {encoding}"):
            decoder(encoding).feed(body)
    body = struct.pack(">BI", 1, len(packed) + 3) + packed + b"abc"
    with pytest.raises(FramingError, match=f"a message that is not {encoding}"):
        decoder(encoding).feed(body)


@pytest.mark.parametrize("encoding", COMPRESS)
def test_a_message_may_not_grow_over_the_limit(encoding: str) -> None:
    fits, large = bytes(MOST_BYTES), bytes(MOST_BYTES + 1)
    assert decoder(encoding).feed(sent(fits, encoding)) == [fits]
    with pytest.raises(FramingError, match="message larger than 1 MiB"):
        decoder(encoding).feed(sent(large, encoding))
    with pytest.raises(FramingError, match="message larger than 1 MiB"):
        decoder().feed(sent(large, None)[:5])


def test_a_large_message_in_small_pieces_is_joined_once() -> None:
    """Pieces of an incomplete message are kept as they came: the time grows with the bytes."""
    body = sent(bytes(200_000), None)
    reader = decoder()
    for start in range(0, len(body) - 1, 50):
        assert reader.feed(body[start : min(start + 50, len(body) - 1)]) == []
    assert reader._have == len(body) - 1 and len(reader._rest) > 1000
    assert reader.feed(body[-1:]) == [bytes(200_000)]
