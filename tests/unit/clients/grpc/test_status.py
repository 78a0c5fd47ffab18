"""The status of an answer, from whatever a server sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.api.http import ResponseHead
from squall.api.protocols.grpc import STATUSES, status_of
from squall.clients.grpc.calls import timeout_value

PAIRS = st.lists(
    st.tuples(
        st.sampled_from([b"grpc-status", b"grpc-message", b"grpc-status-details-bin", b"x"]),
        st.one_of(
            st.binary(max_size=12), st.sampled_from([b"0", b"5", b"16", b"17", b"-1", b"%E2%82%AC"])
        ),
    ),
    max_size=4,
)


def head(status: int, *lines: str) -> ResponseHead:
    text = "".join(f"{line}\r\n" for line in (f"HTTP/2 {status}", *lines, ""))
    return ResponseHead(text.encode(), status, -1, special=False)


GRPC = "content-type: application/grpc+proto"


@given(PAIRS)
def test_any_trailers_are_a_status(pairs: list[tuple[bytes, bytes]]) -> None:
    code, text = status_of(head(200, GRPC), tuple(pairs))
    assert 0 <= code < len(STATUSES)
    assert isinstance(text, str)
    if not code:
        assert int(dict(pairs)[b"grpc-status"]) == 0


@pytest.mark.parametrize("code", range(17))
def test_a_status_in_the_only_head_is_that_in_trailers(code: int) -> None:
    """Trailers-only: an answer without a message has one head."""
    pairs = ((b"grpc-status", b"%d" % code), (b"grpc-message", b"it%20was%0Aordered"))
    alone = head(200, GRPC, f"grpc-status: {code}", "grpc-message: it%20was%0Aordered")
    assert status_of(alone, ()) == status_of(head(200, GRPC), pairs) == (code, "it was\nordered")


@pytest.mark.parametrize(
    ("answer", "trailers", "name", "text"),
    [
        (head(200, GRPC), (), "UNKNOWN", "the server sent no status"),
        (head(200, GRPC), ((b"x", b"1"),), "UNKNOWN", "the server sent no status"),
        (head(200, GRPC), ((b"grpc-status", b"17"),), "UNKNOWN", "status 17"),
        (head(200, "content-type: text/html"), (), "UNKNOWN", "the answer is not one of"),
        (head(200, "grpc-status: 0"), (), "UNKNOWN", "the answer is not one of"),
        # As gRPC maps them (http-grpc-status-mapping.md).
        (head(400), (), "INTERNAL", "HTTP status 400"),
        (head(401), (), "UNAUTHENTICATED", "HTTP status 401"),
        (head(403), (), "PERMISSION_DENIED", "HTTP status 403"),
        (head(404), (), "UNIMPLEMENTED", "HTTP status 404"),
        (head(429), (), "UNAVAILABLE", "HTTP status 429"),
        (head(503), ((b"grpc-status", b"0"),), "UNAVAILABLE", "HTTP status 503"),
        (head(500), (), "UNKNOWN", "HTTP status 500"),
    ],
)
def test_an_answer_without_a_status_of_grpc(
    answer: ResponseHead, trailers: tuple[tuple[bytes, bytes], ...], name: str, text: str
) -> None:
    code, message = status_of(answer, trailers)
    assert STATUSES[code] == name
    assert text in message


@pytest.mark.parametrize(
    ("seconds", "value"),
    [
        (0.0, b"1m"),
        (0.0004, b"1m"),
        (0.25, b"250m"),
        (60.0, b"60000m"),
        (99_999.999, b"99999999m"),
        (100_000.0, b"100000S"),
        (1e12, b"99999999S"),
    ],
)
def test_the_deadline_has_at_most_eight_digits(seconds: float, value: bytes) -> None:
    assert timeout_value(seconds) == value
