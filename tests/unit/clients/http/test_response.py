"""What an author reads from a response."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass

import pytest

from squall.api.errors import CallError, StatusError
from squall.api.http import HTTPResponse, ResponseHead
from squall.clients.http.encode import NO_OPENING
from squall.clients.http.origin import Origin
from squall.clients.http.request import Request

SOURCE = Request("GET", Origin("https", "a.example", 443), b"/x?y=1", NO_OPENING, [], b"", b"")


def response(*lines: str, status: str = "200 OK", body: bytes = b"") -> HTTPResponse:
    raw = "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")
    code = int(status[:3])
    return HTTPResponse(
        code, ResponseHead(raw, code, len(body), False), body, SOURCE, 1.0, 1.5, 2.0
    )


def test_headers_know_no_case_and_the_last_value_counts() -> None:
    headers = response("X-A: 1", "x-a:  2 ", "B:", "Set-Cookie: a=1", "Set-Cookie: b=2").headers
    assert headers["x-A"] == "2" and headers.get_all("X-a") == ["1", "2"]
    assert headers.get("b") == "" and headers.get("c") is None and "c" not in headers
    assert list(headers) == ["X-A", "B", "Set-Cookie"] and len(headers) == 3
    with pytest.raises(KeyError):
        headers["c"]


def test_status() -> None:
    assert response().ok and response(status="399 Odd").ok and not response(status="400 No").ok
    assert response(status="503 Ich mag nicht").status_text == "503 Service Unavailable"
    assert response(status="503 Ich mag nicht").reason == "Ich mag nicht"
    assert response(status="599 Own Words").status_text == "599 Own Words"
    assert response(status="599").status_text == "599"
    response(status="302 Found").raise_for_status()
    with pytest.raises(StatusError) as caught:
        response(status="404 Not Found").raise_for_status()
    assert caught.value.reason == str(caught.value) == "404 Not Found"


def test_url_and_timings() -> None:
    answer = response()
    assert answer.url == "https://a.example/x?y=1"
    assert answer.timings == (0.0, 0.0, 0.0, 0.5, 1.0)
    answer.setup = (0.1, 0.2, 0.3)
    assert answer.timings.tls_s == 0.3 and answer.timings.total_s == 1.0
    assert repr(answer) == "<HTTPResponse 200 OK, 0 B, https://a.example/x?y=1>"


def test_text_follows_the_charset() -> None:
    assert response("Content-Type: text/plain; charset=latin-1", body=b"\xe4").text == "ä"
    assert response('Content-Type: text/plain; charset="UTF-8"', body="ä".encode()).text == "ä"
    assert response("Content-Type: text/plain; charset=nonsense", body="ä".encode()).text == "ä"
    assert response(body=b"\xff").text == "\ufffd"


def test_json() -> None:
    assert response(body=b'\xef\xbb\xbf{"a": [1, 2.5, null]}').json() == {"a": [1, 2.5, None]}
    with pytest.raises(ValueError):
        response(body=b"<html>").json()


RAW_DEFLATE = zlib.compress(b"hello")[2:-4]


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"hello")),
        ("GZIP", gzip.compress(b"hel") + gzip.compress(b"lo")),
        ("deflate", zlib.compress(b"hello")),
        ("deflate", RAW_DEFLATE),
        ("deflate, gzip", gzip.compress(zlib.compress(b"hello"))),
        ("identity", b"hello"),
        ("", b"hello"),
    ],
)
def test_compressed_bodies_are_decoded_on_access(encoding: str, body: bytes) -> None:
    answer = response(f"Content-Encoding: {encoding}", body=body)
    assert answer.body == b"hello" and answer.text == "hello" and answer.raw_body == body
    assert answer.body is answer.body


@pytest.mark.parametrize(
    ("encoding", "complaint"),
    [
        ("gzip", "response body is not valid gzip"),
        ("deflate", "response body is not valid deflate"),
        ("rot13", 'response body has the unknown encoding "rot13"'),
    ],
)
def test_bodies_that_cannot_be_decoded(encoding: str, complaint: str) -> None:
    with pytest.raises(CallError) as caught:
        _ = response(f"Content-Encoding: {encoding}", body=b"hello").body
    assert caught.value.reason == complaint
    assert response(f"Content-Encoding: {encoding}").body == b""


def test_a_cut_gzip_stream_is_an_error() -> None:
    with pytest.raises(CallError, match="not valid gzip"):
        _ = response("Content-Encoding: gzip", body=gzip.compress(b"hello" * 99)[:-9]).body


def test_cookies_set_by_a_response() -> None:
    answer = response("Set-Cookie: a=1; Path=/", "Set-Cookie: b=x=y", "Set-Cookie: bad")
    assert answer.cookies == {"a": "1", "b": "x=y"}


def test_a_response_is_small() -> None:
    assert HTTPResponse.__basicsize__ <= 120
    assert not hasattr(response(), "__dict__")


@dataclass
class Item:
    id: int
    name: str


def test_json_is_decoded_once() -> None:
    answer = response(body=b'{"id": 1, "name": "a"}')
    assert answer.json() is answer.json()
    assert answer.json(type=Item) is answer.json(type=Item)
    assert answer.json() == {"id": 1, "name": "a"}


def test_json_of_a_type() -> None:
    assert response(body=b'{"id": 1, "name": "a"}').json(type=Item) == Item(1, "a")
    assert response(body=b'[{"id": 1, "name": "a"}]').json(type=list[Item]) == [Item(1, "a")]


def test_json_of_another_type_says_where() -> None:
    with pytest.raises(
        ValueError, match=r"^Expected `int`, got `str` - at `\$\.id`\n.*starts with"
    ):
        response(body=b'{"id": "x", "name": "a"}').json(type=Item)
