"""The HTTP/2 client against nginx, nghttpd and the package `h2`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.api.errors import TransportError
from squall.api.http import HTTP2Response
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.http2 import HTTP2Client, NegotiatingClient
from squall.clients.http2.stream import NOT_HTTP2
from squall.clients.ping import ping
from tests.lab.http2_server import running_http2_server
from tests.services.http.lab.servers import on_uvloop, prepared
from tests.services.http2.lab.servers import BIG, RealServers, http2


@pytest.mark.parametrize("server", ["nginx", "nginx_tls", "nghttpd", "nghttpd_tls"])
@on_uvloop
async def test_calls_of_all_sizes(real: RealServers, server: str) -> None:
    base = getattr(real, server)
    shared = HTTPShared(ca_file=real.ca_file)
    folder = "/files" if "nginx" in server else ""
    async with http2(shared) as client:
        url = await prepared(shared, base + "/")
        for _ in range(50):
            response = await client.get(url)
            assert (response.status_code, response.body) == (200, b"hello world\n")
            assert response.head.version == "HTTP/2"
            assert response.started < response.first_byte <= response.ended
        assert (await client.get(f"{base}{folder}/big.bin")).body == BIG
        assert (await client.post(url, data=b"x" * 300_000)).ok
        head = await client.head(url)
        assert head.body == b""
        assert head.headers["content-length"] == "12"
        together = await asyncio.gather(*(client.get(url) for _ in range(60)))
        assert {response.body for response in together} == {b"hello world\n"}
    assert shared.counters_of("http2").connections == 1
    assert shared.counters_of("http2").answered == shared.counters_of("http2").sent == 113


@on_uvloop
async def test_both_sides_count_the_same(real: RealServers) -> None:
    shared = HTTPShared(connections="shared", streams=10)
    async with http2(shared):
        url = await prepared(shared, real.nginx + "/count")

        async def user(index: int) -> None:
            client = HTTP2Client(HTTPClient(shared, index))
            for _ in range(20):
                assert (await client.get(url)).ok

        await asyncio.gather(*(user(index) for index in range(50)))
    assert shared.counters_of("http2").answered == shared.counters_of("http2").sent == 1000
    assert real.logged("/count", 1000) == 1000
    # The client of the context is the first of 51 users.
    assert shared.counters_of("http2").connections == 6


@pytest.mark.parametrize(
    ("connections", "opened"), [("vu", 1), ("iteration", 3), ("request", 6), ("shared", 1)]
)
@on_uvloop
async def test_policies_of_connections(real: RealServers, connections: Any, opened: int) -> None:
    shared = HTTPShared(connections=connections)
    async with http2(shared) as client:
        http: HTTPClient = client._http  # pyright: ignore[reportPrivateUsage]
        for _ in range(3):
            if http.dirty:
                http.begin_iteration()
            await client.get(real.nginx + "/")
            assert (await client.get(real.nginx + "/nothing")).status_code == 204
        http.close()
    assert shared.counters_of("http2").connections == opened


@on_uvloop
async def test_cookies_redirects_and_names_are_those_of_http(real: RealServers) -> None:
    shared = HTTPShared(host=real.nginx)
    named: list[tuple[str, Any]] = []
    shared.on_named = lambda name, outcome: named.append((name, outcome))
    async with http2(shared) as client:
        url = await prepared(shared, "/cookie")
        assert (await client.get(url)).cookies == {"sid": "7"}
        assert (await client.get("/seen", cookies={"a": "b"})).text == "a=b; sid=7"
        landed = await client.get(await prepared(shared, "/moved"), name="landing")
        assert (landed.hops, landed.url) == (2, real.nginx + "/landed?a=1")
        assert isinstance(landed, HTTP2Response)
        assert named == [("landing", landed)]
        assert (await client.get("/moved", redirects=0)).status_code == 301
        busy = await client.request("PURGE", "/unavailable", headers={"Connection": "close"})
        assert busy.status_text == "503 Service Unavailable"


@on_uvloop
async def test_a_server_that_closes_after_three_requests_loses_none(real: RealServers) -> None:
    shared = HTTPShared()
    async with http2(shared) as client:
        url = await prepared(shared, real.few + "/")
        for _ in range(10):
            assert (await client.get(url)).body == b"ok"
        together = await asyncio.gather(*(client.post(url, data=b"x") for _ in range(8)))
        assert {response.status_code for response in together} == {200}
    assert shared.counters_of("http2").failed == 0
    assert shared.counters_of("http2").connections >= 6


@on_uvloop
async def test_the_oracle_sees_what_was_sent() -> None:
    with running_http2_server() as server:
        shared = HTTPShared(host=server.url)
        async with http2(shared) as client:
            url = await prepared(shared, "/items?a=1")
            seen = (await client.post(url, json={"b": "ü"}, headers={"X-A": "1"})).json()
            assert seen["headers"] == {
                ":method": "POST",
                ":scheme": "http",
                ":authority": f"localhost:{server.port}",
                ":path": "/items?a=1",
                "user-agent": "squall",
                "accept": "*/*",
                "x-a": "1",
                "content-type": "application/json",
                "content-length": "10",
            }
            assert seen["body"] == '{"b":"ü"}'.encode().decode("latin-1")
            assert (await client.get("/trailers")).trailers["x-sum"] == "42"
            big = "x" * 500_000
            assert (await client.post("/big", data=big)).json()["body"] == big
            # Every second stream is refused; none of the calls notices.
            for _ in range(4):
                assert (await client.post("/refused", data="once")).ok
        assert server.requests == 7
        assert shared.counters_of("http2").reconnects == 4


@on_uvloop
async def test_more_calls_than_the_server_allows_at_once_wait() -> None:
    """The package `h2` allows 100 streams, and treats one more as a broken protocol."""
    with running_http2_server() as server:
        shared = HTTPShared(host=server.url)
        async with http2(shared) as client:
            assert (await client.get("/first")).ok
            answers = await asyncio.gather(*(client.get("/slow") for _ in range(250)))
            assert all(answer.ok for answer in answers)
            silent = await asyncio.gather(
                *(client.get("/never", timeout=0.01) for _ in range(150)), return_exceptions=True
            )
            assert {str(error) for error in silent} == {"timeout after 0.01 s"}
            assert (await client.get("/last")).ok
        assert not server.errors
        # The connection was silent since these calls began, so the last call did not trust it. On
        # a slow machine a call that waited for a stream comes to the same conclusion before.
        assert 2 <= server.connections <= 3


@on_uvloop
async def test_a_client_that_negotiates(real: RealServers) -> None:
    shared = HTTPShared(ca_file=real.ca_file, negotiates=True)
    async with http2(shared):
        user = NegotiatingClient(shared, 1)
        for _ in range(3):
            new = await user.get(await prepared(shared, real.nginx_tls + "/"))
            assert (type(new), new.head.version) == (HTTP2Response, "HTTP/2")
            old = await user.get(await prepared(shared, real.old + "/"))
            assert (old.protocol, old.head.version, old.body) == ("http", "HTTP/1.1", b"old")
        assert (await user.post(real.nginx_tls + "/", data=b"x")).head.version == "HTTP/2"
        assert (await user.post(real.old + "/", data=b"x")).head.version == "HTTP/1.1"
        assert shared.total("connections") == 2
        with pytest.raises(TransportError, match="connection refused"):
            await user.get("https://127.0.0.1:1/")
        user.close()
    assert shared.total("sent") == shared.total("answered") == 8


@on_uvloop
async def test_a_server_without_http2(real: RealServers) -> None:
    shared = HTTPShared(ca_file=real.ca_file)
    async with http2(shared) as client:
        with pytest.raises(TransportError) as caught:
            await client.get(real.old + "/")
    assert caught.value.reason in (NOT_HTTP2, "TLS: tlsv1 alert no application protocol")


@on_uvloop
async def test_ping(real: RealServers) -> None:
    found = await ping(real.nghttpd_tls + "/", http2=True, ca_file=real.ca_file)
    assert found.render().startswith("200 OK  HTTP/2  12 B  from 127.0.0.1:")
    refused = await ping("http://127.0.0.1:1/", http2=True)
    assert refused.render() == "http://127.0.0.1:1/: connection refused: 127.0.0.1:1"
