"""Header blocks: ours are understood by the package `hpack`, and its blocks by us."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.clients.http.encode import NO_OPENING
from squall.clients.http.origin import Origin
from squall.clients.http.request import Request
from squall.clients.http2.frames import FIRST_TABLE_BYTES
from squall.clients.http2.header_blocks import cookie_block, integer, request_block
from squall.clients.http2.header_states import (
    MOST_BLOCKS,
    HeaderBlock,
    HeaderError,
    HeaderStates,
    decode_block,
)

NAMES = st.sampled_from([b"server", b"x-id", b"date", b"content-type", b"set-cookie", b"a"])
VALUES = st.one_of(st.sampled_from([b"", b"nginx", b"200"]), st.binary(max_size=60))
HEADERS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=8)


def request(method: str, target: bytes, fields: list[tuple[str, bytes]]) -> Request:
    return Request(method, Origin("https", "shop.test", 443), target, NO_OPENING, fields, b"", b"")


def test_a_request_is_understood_by_the_oracle() -> None:
    sent = request(
        "POST",
        b"/orders/7?x=1",
        [
            ("host", b"Host: other.test\r\n"),
            ("accept", b"Accept: */*\r\n"),
            ("connection", b"Connection: close\r\n"),
            ("te", b"TE: gzip\r\n"),
            ("x-long", b"X-Long: " + b"v" * 5000 + b"\r\n"),
            ("content-length", b"Content-Length: 7\r\n"),
        ],
    )
    block = request_block(sent) + cookie_block(b"a=1; b=2")
    assert hpack.Decoder().decode(block, raw=True) == [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":authority", b"other.test"),
        (b":path", b"/orders/7?x=1"),
        (b"accept", b"*/*"),
        (b"te", b"trailers"),
        (b"x-long", b"v" * 5000),
        (b"content-length", b"7"),
        (b"cookie", b"a=1"),
        (b"cookie", b"b=2"),
    ]


@given(st.integers(0, 1 << 28), st.integers(1, 7))
def test_numbers_of_any_size(value: int, bits: int) -> None:
    encoded = integer(value, bits, 0)
    assert hpack.hpack.decode_integer(encoded, bits) == (value, len(encoded))


@given(st.lists(st.tuples(HEADERS, st.sampled_from([None, None, 0, 100, 4096])), max_size=12))
def test_blocks_of_the_oracle_with_a_table_that_changes_its_size(
    plan: list[tuple[list[tuple[bytes, bytes, bool]], int | None]],
) -> None:
    encoder, oracle = hpack.Encoder(), hpack.Decoder()
    entries: tuple[tuple[bytes, bytes], ...] = ()
    limit = FIRST_TABLE_BYTES
    for headers, size in plan:
        if size is not None:
            encoder.header_table_size = size
        given_headers = [
            hpack.NeverIndexedHeaderTuple(name, value) if secret else (name, value)
            for name, value, secret in headers
        ]
        block = encoder.encode(given_headers)
        pairs, entries, limit = decode_block(block, entries, limit)
        assert list(pairs) == oracle.decode(block, raw=True)
        assert entries == tuple(oracle.header_table.dynamic_entries)


@given(st.lists(HEADERS, max_size=6), st.binary(max_size=40))
def test_any_bytes_mean_the_same_to_us_and_to_the_oracle(
    before: list[list[tuple[bytes, bytes, bool]]], block: bytes
) -> None:
    encoder, oracle = hpack.Encoder(), hpack.Decoder()
    entries: tuple[tuple[bytes, bytes], ...] = ()
    limit = FIRST_TABLE_BYTES
    for headers in before:
        known = encoder.encode([(name, value) for name, value, _ in headers])
        oracle.decode(known, raw=True)
        _, entries, limit = decode_block(known, entries, limit)
    try:
        ours = list(decode_block(block, entries, limit)[0])
    except HeaderError:
        ours = None
    try:
        theirs = [tuple(pair) for pair in oracle.decode(block, raw=True)]
    except hpack.HPACKError:
        theirs = None
    assert ours == theirs


def test_equal_answers_on_all_connections_are_decoded_once() -> None:
    states = HeaderStates()
    blocks: list[list[bytes]] = []
    for _ in range(3):
        encoder = hpack.Encoder()
        answer = [(b":status", b"200"), (b"server", b"nginx"), (b"x-id", b"1")]
        blocks.append([encoder.encode(answer) for _ in range(200)])
    found: set[HeaderBlock] = set()
    for each in blocks:
        state = states.first
        for block in each:
            meaning, state = states.decode(state, block)
            found.add(meaning)
    # The first answer fills the table, the second refers to it, all others are like the second.
    assert len(found) == 2


def test_a_server_with_a_new_value_in_every_answer_does_not_fill_the_memory() -> None:
    states, encoder = HeaderStates(), hpack.Encoder()
    state = states.first
    for number in range(MOST_BLOCKS * 2 + 10):
        block = encoder.encode([(b":status", b"200"), (b"x-id", b"%d" % number)])
        meaning, state = states.decode(state, block)
        assert meaning.pairs[1] == (b"x-id", b"%d" % number)
    assert len(states._states) <= MOST_BLOCKS  # pyright: ignore[reportPrivateUsage]


def test_a_small_block_that_means_a_huge_head_is_refused() -> None:
    big = (b"x" * 2000, b"y" * 2000)
    with pytest.raises(HeaderError, match="a head larger than 1 MiB"):
        decode_block(b"\xbe" * 300, (big,), FIRST_TABLE_BYTES)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(b"server", b"x")],
        [(b":status", b"20")],
        [(b":status", b"099")],
        [(b":status", b"200"), (b":status", b"200")],
        [(b":status", b"200"), (b":path", b"/")],
        [(b"server", b"x"), (b":status", b"200")],
        [(b":status", b"200"), (b"Server", b"x")],
        [(b":status", b"200"), (b"", b"x")],
        [(b":status", b"200"), (b"a", b"x\r\ny: z")],
        [(b":status", b"200"), (b"a", b" x")],
        [(b":status", b"200"), (b"connection", b"close")],
        [(b":status", b"200"), (b"transfer-encoding", b"chunked")],
        [(b":status", b"200"), (b"content-length", b"1"), (b"content-length", b"2")],
        [(b":status", b"200"), (b"content-length", b"-1")],
    ],
)
def test_a_head_that_http2_forbids(pairs: list[tuple[bytes, bytes]]) -> None:
    assert HeaderBlock(tuple(pairs)).head is None


def test_a_head_reads_like_one_of_http1() -> None:
    pairs = ((b":status", b"302"), (b"location", b"/x"), (b"content-length", b"5"))
    head = HeaderBlock(pairs).head
    assert head is not None
    assert head.raw == b"HTTP/2 302\r\nlocation: /x\r\ncontent-length: 5\r\n\r\n"
    assert (head.status, head.length, head.special, head.version) == (302, 5, True, "HTTP/2")
    assert not HeaderBlock(pairs).is_trailer
    assert HeaderBlock(pairs[1:]).is_trailer
