from __future__ import annotations

import gzip
import json

import pytest

from squall.target.answers import apply, filler, render
from squall.target.behaviour import Behaviour, parse_query
from squall.target.counts import Counts
from squall.target.request import Answer, TargetRequest
from squall.target.shop import Shop


def wire(query: str, request: TargetRequest | None = None, body: bytes = b"hello world\n") -> bytes:
    behaviour = parse_query(query)
    answer = apply(Answer(body=body), behaviour, None, "/a")
    return render(answer, behaviour, request or TargetRequest("GET", "/a", [])).data


def shop() -> Shop:
    return Shop(Counts(), b"secret")


def test_the_plain_answer_is_short_and_complete() -> None:
    assert wire("") == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
        b"Content-Length: 12\r\n\r\nhello world\n"
    )


def test_head_keeps_the_length_and_drops_the_body() -> None:
    data = wire("", TargetRequest("HEAD", "/a", []))
    assert b"Content-Length: 12\r\n" in data
    assert data.endswith(b"\r\n\r\n")


def test_chunks_join_to_the_body() -> None:
    head, _, body = wire("chunked=1").partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head and b"Content-Length" not in head
    assert body == b"6\r\nhello \r\n6\r\nworld\n\r\n0\r\n\r\n"


def test_http_1_0_gets_no_chunks_but_a_keep_alive_header() -> None:
    data = wire("chunked=1", TargetRequest("GET", "/a", [], http10=True))
    assert b"Content-Length: 12" in data and b"Connection: keep-alive" in data


def test_gzip_is_declared_and_the_same_every_time() -> None:
    data = wire("gzip=1&size=500")
    assert b"Content-Encoding: gzip" in data
    assert gzip.decompress(data.partition(b"\r\n\r\n")[2]) == filler(500)
    assert wire("gzip=1&size=500") == data


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000, 100_000])
def test_the_filler_has_exactly_the_size_asked_for(size: int) -> None:
    assert len(filler(size)) == size


def test_a_forced_error_replaces_the_body_and_an_own_error_keeps_it() -> None:
    forced = apply(Answer(body=b"fine"), Behaviour(), 503, "/a")
    assert (forced.status, forced.body) == (503, b"503 Service Unavailable\n")
    own = apply(Answer(401, b"log in"), Behaviour(), None, "/a")
    assert (own.status, own.body) == (401, b"log in")


def test_a_bodiless_status_has_neither_body_nor_length() -> None:
    answer = apply(Answer(body=b"x"), Behaviour(), 204, "/a")
    data = render(answer, Behaviour(), TargetRequest("GET", "/a", [])).data
    assert data == b"HTTP/1.1 204 No Content\r\n\r\n"


def test_a_redirect_keeps_a_forced_3xx_and_is_302_otherwise() -> None:
    behaviour = parse_query("redirect=/x")
    assert apply(Answer(), behaviour, None, "/a").status == 302
    moved = apply(Answer(), behaviour, 307, "/a")
    assert moved.status == 307 and ("Location", "/x") in moved.headers


def test_a_request_that_ends_the_connection_is_told_so() -> None:
    assert b"Connection: close\r\n" in wire("", TargetRequest("GET", "/a", [], keep_alive=False))
    assert b"Connection: close\r\n" in wire("close=1")


def test_an_absolute_target_is_reduced_to_path_and_query() -> None:
    request = TargetRequest("GET", "http://a.example/b/c?d=1", [])
    assert (request.path, request.query) == ("/b/c", "d=1")


def test_cookies_are_found_in_any_cookie_header() -> None:
    request = TargetRequest("GET", "/", [("Cookie", "a=1; session=x"), ("cookie", "b=2")])
    assert (request.cookie("session"), request.cookie("b")) == ("x", "2")
    assert request.cookie("c") is None


def test_body_fields_come_from_forms_and_json_objects_only() -> None:
    form = [("Content-Type", "application/x-www-form-urlencoded")]
    as_json = [("Content-Type", "application/json; charset=utf-8")]
    assert TargetRequest("POST", "/", form, b"user=ada&n=1").body_fields() == {
        "user": "ada",
        "n": "1",
    }
    assert TargetRequest("POST", "/", as_json, b'{"user":"ada","n":1}').body_fields() == {
        "user": "ada",
        "n": "1",
    }
    assert TargetRequest("POST", "/", as_json, b"[1]").body_fields() == {}
    assert TargetRequest("POST", "/", as_json, b"{broken").body_fields() == {}
    assert TargetRequest("POST", "/", [], b"user=ada").body_fields() == {}


def test_tokens_are_known_only_to_the_shop_that_gave_them() -> None:
    mine, other = shop(), Shop(Counts(), b"another")
    answer = mine.live("/login")(TargetRequest("POST", "/login", []), Behaviour(), 0.0)
    token = json.loads(answer.body)["token"]
    assert mine.knows(token)
    assert not other.knows(token)
    for wrong in (None, "", "1", "1-0", token + "0", "é-1", "9" * 5000):
        assert not mine.knows(wrong)


def test_processes_of_one_target_never_issue_the_same_identity() -> None:
    issued: list[int] = []
    for worker in range(3):
        part = Shop(Counts(), b"secret", worker, 3)
        for _ in range(100):
            answer = part.live("/login")(TargetRequest("POST", "/login", []), Behaviour(), 0.0)
            issued.append(json.loads(answer.body)["id"])
    assert len(set(issued)) == 300


def test_an_item_has_the_same_price_in_every_process() -> None:
    first, second = shop().fixed("GET", "/items/7"), shop().fixed("GET", "/items/7")
    assert first is not None and second is not None
    assert json.loads(first.body) == json.loads(second.body)
    assert json.loads(first.body)["id"] == 7
