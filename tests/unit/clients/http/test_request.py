"""The bytes that are sent for given arguments."""

from __future__ import annotations

import asyncio
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.api.arguments import Prepared, argument_kinds
from squall.api.errors import CallError, ConfigError
from squall.api.http import BodyOptions, CallOptions, HTTPResponse, ResponseHead
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.http.call import build
from squall.clients.http.encode import headers_of
from squall.clients.http.exchange import call
from squall.clients.http.request import Request, redirected

URL, HEADERS, PARAMS, COOKIES, DATA, FORM, AUTH, FILE = argument_kinds()[:8]
HOST = "http://shop.example"


def sent(
    method: str = "GET", url: str = "/", shared: HTTPShared | None = None, **arguments: Any
) -> Request:
    shared = shared or HTTPShared(host=HOST)
    return build(shared, method, shared.url(url), **arguments)


def lines(request: Request) -> dict[str, str]:
    head = request.raw.partition(b"\r\n\r\n")[0].decode()
    return dict(line.split(": ", 1) for line in head.split("\r\n")[1:])


def prepare(kind: type[Prepared], value: Any, **settings: Any) -> Prepared:
    return asyncio.run(HTTPShared(host=HOST, **settings).prepare(kind, value))


def test_a_plain_get() -> None:
    assert sent(url="/a?b=c").raw == (
        b"GET /a?b=c HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: squall\r\nAccept: */*\r\n\r\n"
    )


def test_every_kind_of_argument() -> None:
    request = sent(
        "POST",
        "/s?x=1",
        headers={"Accept": "text/html", "X-A": "1"},
        params={"q": "a b&c", "n": 20, "f": 1.5, "on": True, "many": ["1", "2"]},
        cookies={"lang": "en", "b": "2"},
        auth=("ada", "secret"),
        json={"sku": 7},
    )
    assert request.target == b"/s?x=1&q=a+b%26c&n=20&f=1.5&on=true&many=1&many=2"
    assert lines(request) == {
        "Host": "shop.example",
        "User-Agent": "squall",
        "Accept": "text/html",
        "X-A": "1",
        "Authorization": "Basic YWRhOnNlY3JldA==",
        "Content-Type": "application/json",
        "Content-Length": "9",
        "Cookie": "lang=en; b=2",
    }
    assert request.raw.endswith(b'\r\n\r\n{"sku":7}')


def test_prepared_arguments_send_the_same_bytes_and_are_put_together_once() -> None:
    shared = HTTPShared(host="http://127.0.0.1")
    plain: dict[str, Any] = {
        "headers": {"A": "1"},
        "params": {"q": 1},
        "cookies": {"c": "2"},
        "auth": "Bearer x",
        "data": {"a": [1]},
    }

    async def prepared() -> dict[str, Any]:
        kinds = (HEADERS, PARAMS, COOKIES, AUTH, DATA)
        pairs = zip(plain, kinds, strict=True)
        return {name: await shared.prepare(kind, plain[name]) for name, kind in pairs}

    ready = asyncio.run(prepared())
    first = sent("PUT", "/x", shared, **ready)
    assert first.raw == sent("PUT", "/x", shared, **plain).raw
    assert sent("PUT", "/x", shared, **ready) is first
    assert sent("POST", "/x", shared, **ready) is not first


@pytest.mark.parametrize(
    ("arguments", "content_type", "body"),
    [
        ({"data": {"a": 1}}, "application/json", b'{"a":1}'),
        ({"data": [1, None]}, "application/json", b"[1,null]"),
        ({"data": "text"}, "text/plain; charset=utf-8", b"text"),
        ({"data": b"\x00\x01"}, "application/octet-stream", b"\x00\x01"),
        ({"json": "text"}, "application/json", b'"text"'),
        ({"json": 0}, "application/json", b"0"),
        ({"form": {"a": "b c", "n": 1}}, "application/x-www-form-urlencoded", b"a=b+c&n=1"),
    ],
)
def test_bodies(arguments: dict[str, Any], content_type: str, body: bytes) -> None:
    request = sent("POST", **arguments)
    assert lines(request)["Content-Type"] == content_type
    assert lines(request)["Content-Length"] == str(len(body))
    assert request.body == body


def test_a_post_without_a_body_says_so_and_a_get_does_not() -> None:
    assert lines(sent("POST"))["Content-Length"] == "0"
    assert "Content-Length" not in lines(sent("DELETE")) | lines(sent("GET"))


def test_the_author_overrides_defaults_but_not_the_length() -> None:
    request = sent(
        "POST",
        headers={
            "host": "other",
            "USER-AGENT": "me",
            "content-type": "text/csv",
            "Content-Length": "5",
            "Cookie": "a=1",
        },
        cookies={"b": "2"},
        data="x",
    )
    assert lines(request) == {
        "Accept": "*/*",
        "host": "other",
        "USER-AGENT": "me",
        "content-type": "text/csv",
        "Content-Length": "1",
        "Cookie": "b=2; a=1",
    }


def test_files_are_multipart_and_relative_to_the_authors_file(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG")
    shared = HTTPShared(host=HOST, base_dir=tmp_path)
    request = sent("POST", "/f", shared, files={"picture": "cat.png"}, form={"name": "Tom"})
    kind, _, boundary = lines(request)["Content-Type"].partition("; boundary=")
    assert kind == "multipart/form-data"
    assert (
        request.body
        == (
            f'--{boundary}\r\nContent-Disposition: form-data; name="name"\r\n\r\nTom\r\n'
            f"--{boundary}\r\n"
            'Content-Disposition: form-data; name="picture"; filename="cat.png"\r\n'
            "Content-Type: image/png\r\n\r\n"
        ).encode()
        + b"\x89PNG\r\n"
        + f"--{boundary}--\r\n".encode()
    )
    with pytest.raises(ConfigError, match=r"cannot read .*dog\.png: No such file"):
        asyncio.run(shared.prepare(FILE, "dog.png"))


def test_a_file_in_memory_has_a_name_and_a_type() -> None:
    request = sent("POST", "/f", files={"report": ("a.csv", "user\n1\n", "text/csv")})
    boundary = lines(request)["Content-Type"].partition("; boundary=")[2]
    assert (
        request.body
        == (
            f"--{boundary}\r\n"
            'Content-Disposition: form-data; name="report"; filename="a.csv"\r\n'
            "Content-Type: text/csv\r\n\r\n"
            f"user\n1\n\r\n--{boundary}--\r\n"
        ).encode()
    )


def test_a_file_is_a_body_with_its_type(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG")
    shared = HTTPShared(host=HOST, base_dir=tmp_path)
    picture = asyncio.run(shared.prepare(FILE, "cat.png"))
    request = sent("PUT", "/f", shared, data=picture)
    assert request.body == b"\x89PNG"
    assert lines(request)["Content-Type"] == "image/png"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"data": b"a", "json": 1}, "a call takes only one of data=, json= and form="),
        ({"headers": {"A": "b\nc"}}, 'header "A" has a line break'),
        ({"headers": {"A:": "b"}}, "header name 'A:'"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "Transfer-Encoding"),
        ({"headers": ["A"]}, "headers must be a mapping"),
        ({"cookies": {"a": "b;c"}}, 'cookie "a" has a control character'),
        ({"auth": "token"}, '"Scheme credentials", not str without a scheme'),
        ({"auth": ("a", 1)}, "not tuple (str, int)"),
        ({"auth": 3}, 'auth must be ("user", "password") or "Scheme credentials", not int'),
        ({"auth": ("a:b", "c")}, "user name"),
        ({"json": {1: object()}}, "json= got a dict: it takes what JSON can hold (object cannot"),
        ({"data": {1, object()}}, "data= got a set: it takes text, bytes or what JSON can hold"),
        (
            {"data": headers_of({"A": "b"})},
            "data= got an argument of kind Headers; annotate it as Data",
        ),
        ({"form": "a=b"}, "form must be a mapping"),
        (
            {"files": "cat.png"},
            'files must be a mapping such as {"picture": "cat.png"}, not str',
        ),
        ({"url": "/items/{id}"}, 'url "/items/{id}" needs path={"id": ...}'),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CallError) as caught:
        sent("POST", **arguments)
    assert complaint in caught.value.reason


def test_a_secret_is_not_repeated_in_a_complaint() -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(AUTH, "hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://EXAMPLE.com", "http://example.com/"),
        ("http://example.com:80/a#frag", "http://example.com/a"),
        ("https://example.com:443/?a=1#b?c", "https://example.com/?a=1"),
        ("https://example.com:8443/x", "https://example.com:8443/x"),
        ("http://[::1]:8080/", "http://[::1]:8080/"),
        ("http://bücher.example/ü?ä=ö", "http://xn--bcher-kva.example/%C3%BC?%C3%A4=%C3%B6"),
        ("http://a/b c%20d%zz", "http://a/b%20c%20d%25zz"),
        ("http://u:p@a/x", "http://a/x"),
        ('http://a/?f={"a":1}', "http://a/?f=%7B%22a%22:1%7D"),
        ("/relative", HOST + "/relative"),
        ("//cdn.example/x", "http://cdn.example/x"),
        ("http://a?x=1", "http://a/?x=1"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    url = HTTPShared(host=HOST).url(text)
    assert url.address == address and str(url) == text


def test_credentials_in_a_url_are_basic_auth_and_yield_to_the_argument() -> None:
    assert lines(sent(url="http://a%20b:c%3Ad@h/"))["Authorization"] == "Basic YSBiOmM6ZA=="
    assert lines(sent(url="http://a:b@h/", auth="Bearer t"))["Authorization"] == "Bearer t"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gopher://a/", "must start with http:// or https://"),
        ("localhost:8080/", "must start with http:// or https://"),
        ("http:///x", "no fixed host name"),
        ("http://{host}/x", "no fixed host name"),
        ("http://a:99999/", "is not a URL"),
        ("http://a:0/", "there is no port 0"),
        ("http://a b/", "contains a blank"),
        (7, "a URL must be text, not int"),
    ],
)
def test_texts_that_are_no_urls(text: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        prepare(URL, text)


def test_a_relative_url_needs_a_host() -> None:
    shared = HTTPShared()
    with pytest.raises(ConfigError, match="there is no host: set host = "):
        asyncio.run(shared.prepare(URL, "/x"))


@given(st.text(), st.one_of(st.text(), st.integers(), st.floats(allow_nan=False)))
def test_placeholders_take_any_value_as_one_segment(before: str, value: str | float) -> None:
    request = sent(url="/items/{id}/x?q={q}", path={"id": value, "q": before})
    path, _, query = request.target.decode("ascii").partition("?")
    assert path.count("/") == 3 and request.raw.count(b"\r\n\r\n") == 1
    assert unquote(path.split("/")[2]) == str(value)
    assert unquote(query.removeprefix("q=")) == before


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_params_arrive_as_they_were_given(pairs: dict[str, str]) -> None:
    query = sent(params=pairs).target.decode("ascii").partition("?")[2]
    assert parse_qsl(query, keep_blank_values=True) == list(pairs.items())


@given(st.text())
def test_no_text_in_a_header_can_start_another_line(value: str) -> None:
    try:
        request = sent(headers={"X-A": value}, cookies={"c": "1"})
    except CallError:
        assert any(c in value for c in "\r\n\0")
    else:
        assert request.raw.count(b"\n") == request.raw.count(b"\r\n") == 7


def moved(request: Request, status: int, location: str) -> Request:
    shared = HTTPShared()
    # The origin must be the one object that both requests know.
    shared.origins._known[("http", "shop.example", 80)] = request.origin  # pyright: ignore[reportPrivateUsage]
    head = ResponseHead(b"", status, 0, True)
    response = HTTPResponse(status, head, b"", request, 0.0, 0.0, 0.0)
    return redirected(request, response, shared.url(location))


@pytest.mark.parametrize(
    ("status", "method", "becomes"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (307, "POST", "POST"),
        (308, "POST", "POST"),
        (301, "PUT", "PUT"),
        (302, "DELETE", "DELETE"),
        (301, "HEAD", "HEAD"),
    ],
)
def test_the_method_after_a_redirect(status: int, method: str, becomes: str) -> None:
    first = sent(method, data="body", headers={"X-A": "1"}, auth="Bearer t")
    then = moved(first, status, HOST + "/next")
    assert then.method == becomes and then.target == b"/next"
    kept = method == becomes
    assert then.body == (b"body" if kept else b"")
    assert ("Content-Type" in lines(then)) == ("Content-Length" in lines(then)) == kept
    assert lines(then)["Authorization"] == "Bearer t" and lines(then)["X-A"] == "1"


def test_another_origin_gets_no_credentials() -> None:
    first = sent(headers={"Host": "v", "X-A": "1"}, auth="Bearer t", cookies={"a": "1"})
    same = moved(first, 302, HOST + "/x")
    assert lines(same)["Host"] == "v" and lines(same)["Cookie"] == "a=1"
    for address in ("https://shop.example/", "http://shop.example:81/", "http://evil.example/"):
        other = lines(moved(first, 302, address))
        assert "Authorization" not in other and "Cookie" not in other
        assert other["Host"] == address.split("/")[2] and other["X-A"] == "1"


def test_stored_cookies_yield_to_those_of_the_call() -> None:
    request = sent(cookies={"a": "mine"})
    assert b"\r\nCookie: a=mine; b=2\r\n\r\n" in request.with_cookies(b"a=stored; b=2")
    assert b"\r\nCookie: a=stored\r\n\r\n" in sent().with_cookies(b"a=stored")


def test_preparing_twice_changes_nothing() -> None:
    shared = HTTPShared(host="http://127.0.0.1")

    async def twice() -> None:
        first = await shared.prepare(URL, "/x")
        assert await shared.prepare(URL, first) is first
        assert await shared.prepare(URL, "/x") is first

    asyncio.run(twice())


def test_every_option_of_the_api_reaches_the_call() -> None:
    own = {"client", "method", "url", "via", "unknown"}
    of_the_call = signature(call).parameters.keys() - own
    assert of_the_call == BodyOptions.__optional_keys__
    assert CallOptions.__optional_keys__ < BodyOptions.__optional_keys__


@pytest.mark.parametrize("verb", ["get", "head", "options"])
def test_a_verb_without_a_body_refuses_the_options_of_one(verb: str) -> None:
    client = HTTPClient(HTTPShared(host=HOST), 0)
    with pytest.raises(TypeError, match=rf"^{verb}\(\) sends no body and takes no data=; request"):
        asyncio.run(getattr(client, verb)("/", data=b"x"))


@pytest.mark.parametrize("verb", ["get", "head", "options", "post", "put", "patch", "delete"])
def test_an_option_that_does_not_exist_is_refused(verb: str) -> None:
    client = HTTPClient(HTTPShared(host=HOST), 0)
    with pytest.raises(TypeError, match=rf"{verb}\(\) takes no heders=; did you mean headers=\?"):
        asyncio.run(getattr(client, verb)("/", heders={}))
