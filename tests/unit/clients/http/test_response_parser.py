"""Putting responses together: any split of the bytes gives the same response, as h11 reads it."""

from __future__ import annotations

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.api.http import HTTPResponse
from squall.clients.http.encode import NO_OPENING
from squall.clients.http.origin import Origin
from squall.clients.http.request import Request
from squall.clients.http.response_parser import ResponseParser

SOURCE = Request("GET", Origin("http", "a", 80), b"/", NO_OPENING, [], b"", b"")
MOST_BYTES = 1 << 20

names = st.sampled_from(["X-A", "Server", "date", "Set-Cookie", "Via", "ETag", "X-Long-Name"])
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
bodies = st.binary(max_size=300)
statuses = st.sampled_from([200, 201, 204, 301, 304, 404, 500, 599])


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, int, bytes, bool]:
    """Bytes of a response, its status and body, and whether its end shows."""
    status = draw(statuses)
    body = b"" if status in (204, 304) else draw(bodies)
    lines = [f"HTTP/1.1 {status} {draw(st.sampled_from(['OK', '', 'Not Found']))}"]
    lines += [f"{n}: {v}" for n, v in draw(st.lists(st.tuples(names, values), max_size=5))]
    framing = draw(st.sampled_from(["length", "chunked", "eof"]))
    payload = body
    if status in (204, 304):
        framing = "none"
    elif framing == "length":
        lines.append(f"content-LENGTH: {len(body)}")
    elif framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
        size = draw(st.integers(1, 50))
        pieces = [body[i : i + size] for i in range(0, len(body), size)]
        payload = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
    if draw(st.booleans()):
        lines.append("Connection: close")
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    whole = interim + "\r\n".join(lines).encode() + b"\r\n\r\n" + payload
    return whole, status, body, framing != "eof"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % len(data) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(marks) if a != b]


def taken(packets: list[bytes], *, exact: bool = True) -> tuple[HTTPResponse, bool]:
    intake = ResponseParser()
    for packet in packets:
        assert not intake.complete and not intake.error
        intake.feed(packet, 1.0, MOST_BYTES)
    assert not intake.error
    if not intake.complete:
        assert intake.end_of_stream()
    keep_alive = intake.keep_alive
    return intake.take(SOURCE, 0.5, 2.0, exact), keep_alive


@given(responses(), st.lists(st.integers(0, 10_000), max_size=6), st.booleans())
def test_any_split_gives_the_same_response(
    drawn: tuple[bytes, int, bytes, bool], places: list[int], exact: bool
) -> None:
    data, status, body, _ = drawn
    whole, keep_whole = taken([data])
    parts, keep_parts = taken(cut(data, places), exact=exact)
    for response in (whole, parts):
        assert (response.status_code, response.raw_body) == (status, body)
        assert response.started == 0.5 and response.first_byte == 1.0 and response.ended == 2.0
    assert whole.head.raw == parts.head.raw
    assert dict(whole.headers) == dict(parts.headers)
    assert whole.head.special == parts.head.special
    assert keep_whole == keep_parts


@given(responses())
def test_status_headers_body_and_keep_alive_agree_with_h11(
    drawn: tuple[bytes, int, bytes, bool],
) -> None:
    data, _, _, ends = drawn
    response, keep_alive = taken([data])
    peer = h11.Connection(h11.CLIENT)
    peer.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    peer.send(h11.EndOfMessage())
    peer.receive_data(data)
    if not ends:
        peer.receive_data(b"")
    body = b""
    while not isinstance(event := peer.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            assert event.status_code == response.status_code
            theirs = [(n.decode(), v.decode("latin-1")) for n, v in event.headers]
            for name, _ in theirs:
                values = [value for other, value in theirs if other == name]
                # h11 joins nothing but lowers the value of Transfer-Encoding.
                assert [v.lower() for v in response.headers.get_all(name)] == [
                    v.lower() for v in values
                ]
        elif isinstance(event, h11.Data):
            body += event.data
    assert body == response.raw_body
    # Where the end of the connection is the end of the body, h11 has nothing more to say.
    assert keep_alive == (ends and peer.their_state is h11.DONE)


@given(responses(), st.lists(st.integers(0, 10_000), max_size=4))
def test_a_head_that_tells_a_length_is_always_right_about_it(
    drawn: tuple[bytes, int, bytes, bool], places: list[int]
) -> None:
    data, _, body, _ = drawn
    response, keep_alive = taken(cut(data, places))
    head = response.head
    if head.length >= 0:
        assert keep_alive and head.length == len(body)
        assert data.endswith(head.received + body)


@given(responses(), st.lists(st.integers(0, 10_000), max_size=4), st.data())
def test_a_prefix_is_never_taken_for_a_whole(
    drawn: tuple[bytes, int, bytes, bool], places: list[int], data: st.DataObject
) -> None:
    whole, _, _, ends = drawn
    if not ends:
        return
    prefix = whole[: data.draw(st.integers(1, len(whole) - 1))]
    intake = ResponseParser()
    for packet in cut(prefix, places):
        intake.feed(packet, 1.0, MOST_BYTES)
    assert not intake.complete and not intake.error
    # A head alone with a length or chunks does not end with the connection either.
    if b"\r\n\r\n" not in prefix.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"):
        assert not intake.end_of_stream()


@given(responses(), st.binary(min_size=1, max_size=40))
def test_bytes_behind_a_response_end_its_connection(
    drawn: tuple[bytes, int, bytes, bool], surplus: bytes
) -> None:
    data, status, body, ends = drawn
    if not ends or surplus.strip(b"\r\n") == b"":
        return
    response, keep_alive = taken([data + surplus])
    assert (response.status_code, response.raw_body) == (status, body)
    assert not keep_alive and response.head.length == -1


def test_one_intake_takes_many_responses() -> None:
    intake = ResponseParser()
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
    plain = b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\nb"
    for data, status, body in [(chunked, 200, b"a"), (plain, 404, b"b")] * 3:
        for packet in (data[:10], data[10:]):
            intake.feed(packet, 1.0, MOST_BYTES)
        response = intake.take(SOURCE, 0.0, 1.0, True)
        assert (response.status_code, response.body) == (status, body)


@pytest.mark.parametrize("split", [1, 20, 60])
def test_an_answer_to_head_has_no_body_whatever_its_length_says(split: int) -> None:
    data = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"
    intake = ResponseParser()
    intake.head_only = True
    intake.feed(data[:split], 1.0, MOST_BYTES)
    intake.feed(data[split:], 1.0, MOST_BYTES)
    assert intake.complete and intake.keep_alive
    response = intake.take(SOURCE, 0.0, 1.0, True)
    assert response.status_code == 200 and response.raw_body == b"" and response.head.length == -1
    assert not intake.head_only


def test_a_folded_header_is_one_value() -> None:
    data = b"HTTP/1.1 200 OK\r\nX-A: one\r\nContent-Length: 0\r\n\r\n"
    response, _ = taken([data])
    response.head.received = data.replace(b"X-A: one", b"X-A: one\r\n two")
    assert response.headers["x-a"] == "one two"
