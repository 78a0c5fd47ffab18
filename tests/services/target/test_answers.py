"""Each behaviour and each shop path, seen through a plain HTTP client."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.target import TargetHandle, running_target


@pytest.fixture(scope="module")
def server() -> Iterator[TargetHandle]:
    with running_target(["--seed", "1", "--count-field", "user"]) as handle:
        yield handle


@pytest.fixture
def fresh(server: TargetHandle) -> TargetHandle:
    server.reset()
    return server


@pytest.fixture
def client(fresh: TargetHandle) -> Iterator[http.client.HTTPConnection]:
    connection = fresh.connect()
    yield connection
    connection.close()


def ask(
    client: http.client.HTTPConnection,
    path: str,
    method: str = "GET",
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[http.client.HTTPResponse, bytes]:
    client.request(method, path, body, headers or {})
    response = client.getresponse()
    return response, response.read()


def raw(server: TargetHandle, data: bytes) -> bytes:
    """Everything that comes back until the server hangs up."""
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        connection.sendall(data)
        parts: list[bytes] = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_the_root_says_hello_in_twelve_bytes(client: http.client.HTTPConnection) -> None:
    response, body = ask(client, "/")
    assert (response.status, body) == (200, b"hello world\n")


def test_any_path_answers_200_and_missing_404(client: http.client.HTTPConnection) -> None:
    assert ask(client, "/no/such/thing?really=1")[0].status == 200
    assert ask(client, "/missing")[0].status == 404


def test_head_has_the_header_of_get_and_the_connection_goes_on(
    client: http.client.HTTPConnection,
) -> None:
    response, body = ask(client, "/", "HEAD")
    assert (response.getheader("Content-Length"), body) == ("12", b"")
    assert ask(client, "/")[1] == b"hello world\n"


@pytest.mark.parametrize("status", [200, 204, 302, 404, 429, 500, 503])
def test_a_status_is_forced(client: http.client.HTTPConnection, status: int) -> None:
    assert ask(client, f"/a?status={status}")[0].status == status


def test_statuses_and_errors_come_in_their_shares(
    fresh: TargetHandle, client: http.client.HTTPConnection
) -> None:
    seen = [ask(client, "/a?status=200:1,503:1")[0].status for _ in range(400)]
    assert 120 < seen.count(503) < 280
    assert fresh.counts()["statuses"] == {
        "200": seen.count(200),
        "503": seen.count(503),
    }
    seen = [ask(client, "/b?errors=0.5")[0].status for _ in range(400)]
    assert 120 < seen.count(500) < 280


def test_a_delay_is_at_least_as_long_as_asked_within_the_timer_grid(
    fresh: TargetHandle, client: http.client.HTTPConnection
) -> None:
    started = time.perf_counter()
    ask(client, "/slow?delay=80ms")
    took_ms = (time.perf_counter() - started) * 1000
    told = fresh.counts()["delays"]["/slow"]
    # Timers of the loop have a resolution of 1 ms.
    assert 78 <= told["min_ms"] <= took_ms


@pytest.mark.parametrize("size", [0, 1, 1000, 70_000, 1_000_000])
def test_a_size_is_exact(client: http.client.HTTPConnection, size: int) -> None:
    response, body = ask(client, f"/a?size={size}")
    assert len(body) == size and response.getheader("Content-Length") == str(size)


def test_chunked_and_gzip_bodies_decode_to_the_same_bytes(
    client: http.client.HTTPConnection,
) -> None:
    plain = ask(client, "/a?size=5000")[1]
    response, body = ask(client, "/a?size=5000&chunked=7")
    assert response.getheader("Transfer-Encoding") == "chunked" and body == plain
    response, body = ask(client, "/a?size=5000&gzip=1")
    assert response.getheader("Content-Encoding") == "gzip" and gzip.decompress(body) == plain
    response, body = ask(client, "/a?size=5000&gzip=1&chunked=1")
    assert gzip.decompress(body) == plain


def test_close_ends_the_connection_after_the_answer(fresh: TargetHandle) -> None:
    answer = raw(fresh, b"GET /?close=1 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"Connection: close\r\n" in answer and answer.endswith(b"hello world\n")
    assert fresh.counts()["connections"]["open"] == 0


def test_a_client_that_asks_for_the_end_gets_it(fresh: TargetHandle) -> None:
    answer = raw(fresh, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"hello world\n")
    assert raw(fresh, b"GET / HTTP/1.0\r\n\r\n").endswith(b"hello world\n")


def test_a_cut_body_is_shorter_than_announced(
    fresh: TargetHandle, client: http.client.HTTPConnection
) -> None:
    with pytest.raises(http.client.IncompleteRead) as error:
        ask(client, "/a?size=1000&cut=1")
    assert len(error.value.partial) == 500
    told = fresh.counts()
    assert told["unanswered"] == {"cut": 1} and told["statuses"] == {}


def test_a_reset_ends_the_connection_without_an_answer(
    fresh: TargetHandle, client: http.client.HTTPConnection
) -> None:
    with pytest.raises(ConnectionResetError):
        ask(client, "/a?resets=1")
    told = fresh.counts()
    assert told["unanswered"] == {"reset": 1} and told["total"] == 1


def test_hang_never_answers_and_is_counted_when_the_client_leaves(fresh: TargetHandle) -> None:
    connection = fresh.connect()
    connection.timeout = 0.2
    with pytest.raises(TimeoutError):
        ask(connection, "/a?hang=1")
    assert fresh.counts()["unanswered"] == {}
    connection.close()
    wait_until(lambda: fresh.counts()["unanswered"] == {"hang": 1})


def test_a_client_that_leaves_during_a_delay_is_counted_as_gone(fresh: TargetHandle) -> None:
    connection = fresh.connect()
    connection.request("GET", "/a?delay=30s")
    wait_until(lambda: fresh.counts()["total"] == 1)
    connection.close()
    wait_until(lambda: fresh.counts()["unanswered"] == {"gone": 1})
    assert fresh.counts()["connections"]["open"] == 0


def test_a_redirect_points_where_it_was_told(client: http.client.HTTPConnection) -> None:
    response, _ = ask(client, "/a?redirect=/x")
    assert (response.status, response.getheader("Location")) == (302, "/x")


def test_a_chain_of_redirects_ends_after_its_hops(
    fresh: TargetHandle, client: http.client.HTTPConnection
) -> None:
    path, hops = "/chain?redirects=3", 0
    while True:
        response, body = ask(client, path)
        if response.status == 200:
            break
        path, hops = str(response.getheader("Location")), hops + 1
    assert (hops, body) == (3, b"ok\n")
    assert fresh.counts()["paths"] == {"/chain": 4}


def test_cookies_and_headers_are_added(client: http.client.HTTPConnection) -> None:
    response, _ = ask(client, "/a?cookie=a:1&cookie=b:2&header=X-Time:12")
    assert response.headers.get_all("Set-Cookie") == ["a=1; Path=/", "b=2; Path=/"]
    assert response.getheader("X-Time") == "12"


def test_slow_headers_send_the_status_line_first(fresh: TargetHandle) -> None:
    def is_seen() -> bool:
        with socket.create_connection((fresh.host, fresh.port), timeout=60) as connection:
            connection.sendall(b"GET /?slow_headers=400ms HTTP/1.1\r\nHost: a\r\n\r\n")
            line, first = connection.recv(65536), time.perf_counter()
            rest = connection.recv(65536)
            later_s = time.perf_counter() - first
        assert (line + rest).endswith(b"\r\n\r\nhello world\n")
        return line == b"HTTP/1.1 200 OK\r\n" and later_s > 0.1

    # A client that stands still meanwhile finds all of it at once.
    assert any(is_seen() for _ in range(5))


def test_a_bad_parameter_is_answered_with_400_and_a_reason(
    client: http.client.HTTPConnection,
) -> None:
    response, body = ask(client, "/a?delay=soon")
    assert response.status == 400
    assert body.startswith(b"squall target: delay=soon: ")


def test_echo_tells_what_came_in(client: http.client.HTTPConnection) -> None:
    _, body = ask(client, "/echo?a=1", "PUT", "text", {"X-One": "1"})
    told = json.loads(body)
    assert (told["method"], told["path"], told["query"]) == ("PUT", "/echo", "a=1")
    assert (told["body"], told["headers"]["X-One"]) == ("text", "1")
    assert json.loads(ask(client, "/headers", headers={"X-Two": "2"})[1])["headers"]["X-Two"] == "2"


def test_chunked_request_bodies_are_joined(client: http.client.HTTPConnection) -> None:
    _, body = ask(client, "/echo", "POST", iter([b"one,", b"two"]))
    told = json.loads(body)
    assert (told["body"], told["body_bytes"]) == ("one,two", 7)


def test_an_upload_is_counted_to_the_last_byte(client: http.client.HTTPConnection) -> None:
    assert json.loads(ask(client, "/files", "POST", b"x" * 3_000_001)[1]) == {"bytes": 3_000_001}


def test_pipelined_requests_are_answered_in_order(fresh: TargetHandle) -> None:
    answer = raw(
        fresh,
        b"GET /?delay=30ms HTTP/1.1\r\nHost: a\r\n\r\n"
        b"GET /echo?n=2 HTTP/1.1\r\nHost: a\r\n\r\n"
        b"GET /missing?close=1 HTTP/1.1\r\nHost: a\r\n\r\n",
    )
    assert answer.index(b"hello world") < answer.index(b"n=2") < answer.index(b"404 Not Found")
    told = fresh.counts()
    assert told["paths"] == {"/": 1, "/echo": 1, "/missing": 1}
    assert told["max_concurrent_requests"] == 3


def test_a_long_pipeline_behind_a_delay_is_answered_completely(fresh: TargetHandle) -> None:
    one = b"GET /p HTTP/1.1\r\nHost: a\r\n\r\n"
    slow = b"GET /p?delay=20ms HTTP/1.1\r\nHost: a\r\n\r\n"
    last = b"GET /p?close=1 HTTP/1.1\r\nHost: a\r\n\r\n"
    answer = raw(fresh, slow + one * 3000 + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 3002
    assert fresh.counts()["total"] == 3002


def test_a_request_in_small_pieces_is_one_request(fresh: TargetHandle) -> None:
    with socket.create_connection((fresh.host, fresh.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"POST /echo?close=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc":
            connection.sendall(bytes([byte]))
            time.sleep(0.0005)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b'"body":"abc"' in answer
    assert fresh.counts()["methods"] == {"POST /echo": 1}


def test_whoever_expects_100_continue_gets_it(fresh: TargetHandle) -> None:
    with socket.create_connection((fresh.host, fresh.port), timeout=60) as connection:
        connection.sendall(
            b"POST /files HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"ab")
        assert connection.recv(65536).endswith(b'{"bytes":2}\n')


def test_nonsense_is_refused_and_not_counted_as_a_request(fresh: TargetHandle) -> None:
    assert raw(fresh, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    told = fresh.counts()
    assert (told["total"], told["unanswered"]) == (0, {"malformed": 1})


def test_an_offer_to_upgrade_is_answered_without_it(fresh: TargetHandle) -> None:
    answer = raw(
        fresh,
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(b"hello world\n")


# The shop.


def test_the_shop_has_what_the_journeys_need(client: http.client.HTTPConnection) -> None:
    items = json.loads(ask(client, "/search?q=shoes")[1])["items"]
    item = json.loads(ask(client, f"/items/{items[0]['id']}")[1])
    assert item["id"] == items[0]["id"] and item["price"] > 0 and items[0]["sku"]
    for path in ("/cart", "/offers", "/list?page=3"):
        assert isinstance(json.loads(ask(client, path)[1]), list)
    for path in ("/pay", "/buy", "/logout"):
        assert ask(client, path, "POST", "{}")[0].status == 200


def test_a_login_is_unique_and_opens_the_strict_inbox(client: http.client.HTTPConnection) -> None:
    one, two = (json.loads(ask(client, "/login", "POST", "{}")[1]) for _ in range(2))
    assert one["token"] != two["token"] and one["id"] != two["id"]
    assert ask(client, "/inbox")[0].status == 200
    assert ask(client, "/inbox?strict=1")[0].status == 401
    assert ask(client, "/inbox?strict=1", headers={"X-Token": "1-made-up"})[0].status == 401
    assert ask(client, "/inbox?strict=1", headers={"X-Token": one["token"]})[0].status == 200


def test_the_session_cookie_comes_back(client: http.client.HTTPConnection) -> None:
    response, _ = ask(client, "/login", "POST")
    cookie = str(response.getheader("Set-Cookie")).partition(";")[0]
    told = json.loads(ask(client, "/session", headers={"Cookie": cookie})[1])
    assert told == {"session": cookie.partition("=")[2], "known": True}
    assert ask(client, "/inbox?strict=1", headers={"Cookie": cookie})[0].status == 200
    assert json.loads(ask(client, "/session")[1]) == {"session": None, "known": False}


def test_tenants_and_orders_are_made_and_removed(client: http.client.HTTPConnection) -> None:
    response, body = ask(client, "/tenants", "POST")
    assert response.status == 201
    assert ask(client, f"/tenants/{json.loads(body)['id']}", "DELETE")[0].status == 204
    first, second = (ask(client, "/orders", "POST", "{}") for _ in range(2))
    assert first[0].status == 201 and float(str(first[0].getheader("X-Time"))) >= 0
    assert json.loads(first[1])["id"] != json.loads(second[1])["id"]


def wait_until(condition: Any) -> None:
    """Polls until the condition holds; the time limit of the test ends a vain wait."""
    while not condition():
        time.sleep(0.01)
