"""The HTTP/3 client against Caddy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from squall.api.errors import TransportError
from squall.api.http import HTTP3Response
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.http3 import HTTP3Client
from squall.clients.ping import ping
from tests.lab.caddy import BIG, Caddy, running_caddy
from tests.services.http.lab.servers import on_uvloop, prepared
from tests.services.http3.lab.clients import http3


@pytest.fixture(scope="module")
def caddy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caddy]:
    with running_caddy(tmp_path_factory.mktemp("caddy")) as running:
        yield running


@on_uvloop
async def test_calls_of_all_sizes(caddy: Caddy) -> None:
    shared = HTTPShared(ca_file=caddy.ca_file)
    async with http3(shared) as client:
        url = await prepared(shared, caddy.url + "/")
        for number in range(50):
            response = await client.get(url)
            assert (response.status_code, response.body) == (200, b"hello world")
            assert (type(response), response.head.version) == (HTTP3Response, "HTTP/3")
            assert response.started < response.first_byte <= response.ended
            timings = response.timings
            assert (timings.connect_s, timings.tls_s > 0) == (0.0, number == 0)
        assert (await client.get(caddy.url + "/files/big.bin")).body == BIG
        assert (await client.post(url, data=b"x" * 300_000)).ok
        head = await client.head(caddy.url + "/files/big.bin")
        assert head.body == b""
        assert head.headers["content-length"] == str(len(BIG))
        # More than the 100 streams that it allows at once.
        together = await asyncio.gather(*(client.get(url) for _ in range(250)))
        assert {response.body for response in together} == {b"hello world"}
    assert shared.counters_of("http3").connections == 1
    assert shared.counters_of("http3").answered == shared.counters_of("http3").sent == 303


@on_uvloop
async def test_both_sides_count_the_same(caddy: Caddy) -> None:
    shared = HTTPShared(connections="shared", streams=10, ca_file=caddy.ca_file)
    async with http3(shared):
        url = await prepared(shared, caddy.url + "/count")

        async def user(index: int) -> None:
            client = HTTP3Client(HTTPClient(shared, index))
            for _ in range(20):
                assert (await client.get(url)).ok

        await asyncio.gather(*(user(index) for index in range(50)))
    assert shared.counters_of("http3").answered == shared.counters_of("http3").sent == 1000
    assert caddy.logged("/count", 1000) == ["HTTP/3.0"] * 1000
    # The client of the context is the first of 51 users.
    assert shared.counters_of("http3").connections == 6


@pytest.mark.parametrize(
    ("connections", "opened"), [("vu", 1), ("iteration", 3), ("request", 6), ("shared", 1)]
)
@on_uvloop
async def test_policies_of_connections(caddy: Caddy, connections: Any, opened: int) -> None:
    shared = HTTPShared(connections=connections, ca_file=caddy.ca_file)
    async with http3(shared) as client:
        http: HTTPClient = client._http  # pyright: ignore[reportPrivateUsage]
        for _ in range(3):
            if http.dirty:
                http.begin_iteration()
            await client.get(caddy.url + "/")
            assert (await client.get(caddy.url + "/nothing")).status_code == 204
        http.close()
    assert shared.counters_of("http3").connections == opened


@on_uvloop
async def test_cookies_redirects_and_names_are_those_of_http(caddy: Caddy) -> None:
    shared = HTTPShared(host=caddy.url, ca_file=caddy.ca_file)
    named: list[tuple[str, Any]] = []
    shared.on_named = lambda name, outcome: named.append((name, outcome))
    async with http3(shared) as client:
        url = await prepared(shared, "/cookie")
        assert (await client.get(url)).cookies == {"sid": "7"}
        assert (await client.get("/seen", cookies={"a": "b"})).text == "a=b; sid=7"
        landed = await client.get(await prepared(shared, "/moved"), name="landing")
        assert (landed.hops, landed.url) == (2, caddy.url + "/landed?a=1")
        assert named == [("landing", landed)]
        assert (await client.get("/moved", redirects=0)).status_code == 301
        busy = await client.request("PURGE", "/unavailable", headers={"Connection": "close"})
        assert busy.status_text == "503 Service Unavailable"


@on_uvloop
async def test_a_client_shows_its_certificate(caddy: Caddy) -> None:
    async with http3(HTTPShared(ca_file=caddy.ca_file, certificate=caddy.client_pem)) as client:
        assert (await client.get(caddy.mutual_url + "/")).ok
    async with http3(HTTPShared(ca_file=caddy.ca_file)) as client:
        with pytest.raises(TransportError, match=r"^TLS: "):
            await client.get(caddy.mutual_url + "/")


@on_uvloop
async def test_ping(caddy: Caddy) -> None:
    address = caddy.url.replace("https://", "h3://")
    found = await ping(address + "/", ca_file=caddy.ca_file)
    assert found.render().startswith("200 OK  HTTP/3  11 B  from 127.0.0.1:")
    unknown = await ping(address + "/")
    assert "TLS: certificate verify failed" in unknown.render()
    refused = await ping("h3://127.0.0.1:1/", insecure=True)
    assert refused.render() == "h3://127.0.0.1:1/: connection refused: 127.0.0.1:1"


@on_uvloop
async def test_a_server_that_is_stopped_ends_its_connections(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_caddy(tmp_path_factory.mktemp("stopped")) as caddy:
        shared = HTTPShared(ca_file=caddy.ca_file)
        client = HTTP3Client(HTTPClient(shared, 0))
        assert (await client.get(caddy.url + "/")).ok
        caddy.process.kill()
        caddy.process.wait()
        with pytest.raises(TransportError, match="connection refused"):
            await client.get(caddy.url + "/")
    await shared.close()
    assert not shared.live
