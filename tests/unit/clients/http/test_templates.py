"""Templates: a call that is filled in sends the bytes of a call that is composed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.api.errors import CallError
from squall.clients.http import HTTPShared
from squall.clients.http.call import build, filled
from squall.clients.http.encode import headers_of
from squall.clients.http.url import PreparedURL

HOST = "http://shop.example"

NAMES = st.sampled_from(
    [
        "X-A",
        "x-a",
        "X-%b",
        "Accept",
        "Host",
        "User-Agent",
        "Content-Type",
        "Authorization",
        "Cookie",
        "Content-Length",
        "content-encoding",
        "Connection",
    ]
)
VALUES = st.one_of(
    st.sampled_from(["", "1", "100%", "%b%d", "Bearer t", "a\tb", "größe", "日本"]),
    st.integers(0, 9),
    st.booleans(),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
)
URLS = st.sampled_from(["/", "/a%20b?c=%b", "/path?x=1", "http://ada:secret@shop.example/in"])
BODIES = st.one_of(
    st.none(), st.dictionaries(st.text(max_size=3), st.integers(), max_size=3), st.just([])
)


def both(
    shared: HTTPShared, method: str, url: PreparedURL, options: dict[str, Any]
) -> tuple[bytes | None, bytes]:
    """What the template sends (None if there is none), and what is composed."""
    composed = build(shared, method, url, **options).raw
    sendable = filled(method, url, options)  # type: ignore[arg-type]
    return sendable and sendable[0], composed


@given(
    st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE"]),
    URLS,
    st.dictionaries(NAMES, VALUES, max_size=4),
    st.dictionaries(NAMES, VALUES, max_size=4),
    BODIES,
    st.booleans(),
)
def test_a_template_sends_what_is_composed(
    method: str, text: str, first: Any, second: Any, body: Any, prepared: bool
) -> None:
    shared = HTTPShared(host=HOST)
    url = shared.url(text)
    for headers in (first, second, first):
        given_headers = headers_of(headers) if prepared else dict(headers)
        options = {"headers": given_headers} | ({} if body is None else {"json": body})
        from_template, composed = both(shared, method, url, options)
        assert from_template is None or from_template == composed
        # What follows a redirect or a lost connection is made from the same options.
        assert build(shared, method, url, **options).raw == composed


@pytest.mark.parametrize(
    "options",
    [
        {"json": {"a": 1}},
        {"headers": {"Authorization": "Bearer t", "X-A": "1"}},
        {"headers": {"Content-Type": "application/vnd.shop+json"}, "json": {"a": 1}},
        {"headers": headers_of({"X-A": "1"}), "json": {"a": 1}},
    ],
)
def test_one_template_serves_all_calls_with_its_header_names(options: dict[str, Any]) -> None:
    shared = HTTPShared(host=HOST)
    url = shared.url("/orders")
    first = filled("POST", url, dict(options))  # type: ignore[arg-type]
    again = filled("POST", url, dict(options))  # type: ignore[arg-type]
    assert first and again and first[1] is again[1]
    assert first[1].address == "http://shop.example/orders" and first[1].method == "POST"


@pytest.mark.parametrize(
    "options",
    [
        {"json": {"a": 1}, "timeout": "1s"},
        {"json": {"a": 1}, "data": b"x"},
        {"json": {"a": 1}, "headers": {"Cookie": "a=1"}},
        {"headers": {"X-A": "ä"}},
        {"headers": {"X-A": 1}},
        {"headers": [("X-A", "1")]},
        {"path": {"id": 1}},
    ],
)
def test_other_calls_have_no_template(options: dict[str, Any]) -> None:
    assert filled("POST", HTTPShared(host=HOST).url("/"), options) is None  # type: ignore[arg-type]


def test_a_url_with_placeholders_has_no_template() -> None:
    assert filled("POST", HTTPShared(host=HOST).url("/{id}"), {"json": {}}) is None


@pytest.mark.parametrize("name", ["X A", "X:A", "Transfer-Encoding", 7])
def test_a_wrong_header_name_is_refused(name: Any) -> None:
    with pytest.raises(CallError, match="header"):
        filled("POST", HTTPShared(host=HOST).url("/"), {"headers": {name: "1"}})


def test_a_line_break_in_a_value_is_refused() -> None:
    shared = HTTPShared(host=HOST)
    url = shared.url("/")
    assert filled("GET", url, {"headers": {"X-A": "1"}}) is not None
    options = {"headers": {"X-A": "1\r\nX-B: 2"}}
    assert filled("GET", url, options) is None  # type: ignore[arg-type]
    with pytest.raises(CallError, match="line break"):
        build(shared, "GET", url, **options)


def test_computed_header_names_do_not_fill_the_memory() -> None:
    url = HTTPShared(host=HOST).url("/")
    for number in range(1000):
        assert filled("GET", url, {"headers": {f"X-{number}": "1"}}) is not None
    assert len(url.templates) <= 64
