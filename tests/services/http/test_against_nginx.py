"""The client against a real nginx."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from squall.api.errors import StatusError, TransportError
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.ping import ping
from tests.services.http.lab.servers import (
    BIG_BYTES,
    Nginx,
    assert_balanced,
    on_uvloop,
    prepared,
    swept,
)


@on_uvloop
async def test_one_connection_serves_many_requests_and_both_sides_count_the_same(
    nginx: Nginx,
) -> None:
    shared = HTTPShared()
    before = nginx.settled()
    async with swept(shared) as client:
        url = await prepared(shared, nginx.url + "/")
        for _ in range(200):
            response = await client.get(url)
            assert response.status_code == 200 and response.body == b"hello world\n"
            assert response.started < response.ended == response.first_byte
        await client.post(url, json={"a": 1})
        await client.head(url)
    assert shared.counters.connections == 1
    assert shared.counters.sent == shared.counters.answered == 202
    assert nginx.requests(before + 202) - before == 202


@on_uvloop
async def test_many_users_share_the_counters(nginx: Nginx) -> None:
    shared = HTTPShared()
    before = nginx.settled()
    async with swept(shared):
        url = await prepared(shared, nginx.url + "/")

        async def user(index: int) -> None:
            client = HTTPClient(shared, index)
            for _ in range(20):
                assert (await client.get(url)).ok
            client.close()

        await asyncio.gather(*[user(index) for index in range(50)])
    assert shared.counters.connections == 50
    assert shared.counters.answered == nginx.requests(before + 1000) - before == 1000


@on_uvloop
async def test_unique_heads_turn_the_head_cache_off_and_nothing_else(nginx: Nginx) -> None:
    shared = HTTPShared()
    async with swept(shared) as client:
        url = await prepared(shared, nginx.url + "/unique")
        identities: set[str] = set()
        for _ in range(2100):
            response = await client.get(url)
            assert response.body == b"unique\n"
            identities.add(response.headers["x-id"])
        assert len(identities) == 2100
        assert not shared.caching
        # Also without the cache.
        assert (await client.get(await prepared(shared, nginx.url + "/"))).text == "hello world\n"
    assert shared.counters.connections == 1


@on_uvloop
async def test_a_status_that_is_not_ok_is_a_response(nginx: Nginx) -> None:
    shared = HTTPShared()
    async with swept(shared) as client:
        response = await client.get(nginx.url + "/unavailable")
        assert not response.ok and response.status_text == "503 Service Unavailable"
        with pytest.raises(StatusError, match="503 Service Unavailable") as caught:
            response.raise_for_status()
        assert caught.value.response is response
        assert client.last is response


@on_uvloop
async def test_redirects_are_followed_and_counted(nginx: Nginx) -> None:
    shared = HTTPShared()
    before = nginx.settled()
    async with swept(shared) as client:
        url = await prepared(shared, nginx.url + "/moved")
        for _ in range(3):
            response = await client.get(url)
            assert response.body == b"landed\n" and response.hops == 2
            assert response.url == nginx.url + "/landed?a=1"
        unfollowed = await client.get(url, redirects=0)
        assert unfollowed.status_code == 301
        with pytest.raises(TransportError, match="more than 10 redirects"):
            await client.get(nginx.url + "/loop")
        assert isinstance(client.last, TransportError)
    assert shared.counters.redirects == 13
    assert shared.counters.sent == nginx.requests(before + 18) - before == 6 + 1 + 11
    assert shared.counters.failed == 0


@on_uvloop
async def test_cookies_are_kept_and_sent(nginx: Nginx) -> None:
    shared = HTTPShared()
    async with swept(shared) as client:
        seen = await prepared(shared, nginx.url + "/seen")
        assert (await client.get(seen)).text == ""
        await client.get(nginx.url + "/cookie")
        assert (await client.get(seen)).text == "sid=7"
        assert (await client.get(seen, cookies={"a": "b"})).text == "a=b; sid=7"
        assert client.dirty
        client.begin_iteration()
        assert not client.dirty
        assert (await client.get(seen)).text == ""
        await client.get(nginx.url + "/cookie")
        client.remember()
        client.begin_iteration()
        assert (await client.get(seen)).text == "sid=7"


@on_uvloop
async def test_bodies_that_need_no_bytes(nginx: Nginx) -> None:
    shared = HTTPShared()
    async with swept(shared) as client:
        assert (await client.get(nginx.url + "/nothing")).status_code == 204
        head = await client.head(nginx.url + "/files/big.bin")
        assert head.status_code == 200 and head.body == b""
        assert int(head.headers["content-length"]) >= BIG_BYTES
        tag = head.headers["etag"]
        cached = await client.get(nginx.url + "/files/big.bin", headers={"If-None-Match": tag})
        assert cached.status_code == 304 and cached.body == b""
    assert shared.counters.connections == 1


@on_uvloop
async def test_large_and_compressed_bodies(nginx: Nginx) -> None:
    shared = HTTPShared()
    async with swept(shared) as client:
        big = await client.get(nginx.url + "/files/big.bin")
        assert len(big.body) >= BIG_BYTES
        assert big.body[:256] == big.body[-256:] == bytes(range(256))
        assert big.ended > big.first_byte > big.started
        for _ in range(3):
            page = await client.get(
                nginx.url + "/files/page.txt", headers={"Accept-Encoding": "gzip"}
            )
            assert page.headers["content-encoding"] == "gzip"
            assert page.headers["transfer-encoding"] == "chunked"
            assert page.body == gzip.decompress(page.raw_body)
            assert page.text.startswith("a line of text")
        plain = await client.get(nginx.url + "/files/page.txt")
        assert plain.text.startswith("a line of text")
        assert "content-encoding" not in plain.headers
    assert shared.counters.connections == 1


@on_uvloop
async def test_a_response_over_the_cap_fails(nginx: Nginx) -> None:
    shared = HTTPShared(most_bytes=1 << 20)
    async with swept(shared) as client:
        with pytest.raises(TransportError, match="response larger than 1 MiB"):
            await client.get(nginx.url + "/files/big.bin")
        assert (await client.get(nginx.url + "/")).ok
    assert shared.counters.failed == 1


@on_uvloop
async def test_a_connection_closed_while_idle_is_replaced_silently(nginx: Nginx) -> None:
    shared = HTTPShared()
    async with swept(shared) as client:
        url = await prepared(shared, nginx.short_url + "/")
        await client.get(url)
        while shared.live:
            await asyncio.sleep(0.02)
        assert (await client.get(url)).ok
    assert shared.counters.connections == 2
    assert shared.counters.reconnects == shared.counters.failed == 0


@on_uvloop
async def test_connection_close_is_obeyed(nginx: Nginx) -> None:
    shared = HTTPShared()
    async with swept(shared) as client:
        url = await prepared(shared, nginx.few_url + "/")
        for _ in range(9):
            assert (await client.get(url)).ok
    assert shared.counters.connections == 3
    assert shared.counters.reconnects == 0


@pytest.mark.parametrize(
    ("policy", "connections"), [("vu", 2), ("iteration", 6), ("request", 12), ("shared", 1)]
)
@on_uvloop
async def test_connection_policies(nginx: Nginx, policy: str, connections: int) -> None:
    shared = HTTPShared(connections=policy)  # type: ignore[arg-type]
    async with swept(shared) as first:
        url = await prepared(shared, nginx.url + "/")
        for client in (first, HTTPClient(shared, 1)):
            for _ in range(3):
                if client.dirty:
                    client.begin_iteration()
                assert (await client.get(url)).ok
                assert (await client.post(url)).ok
            client.close()
    assert shared.counters.connections == connections
    assert shared.counters.answered == 12


@on_uvloop
async def test_names_are_resolved_by_the_given_map(nginx: Nginx) -> None:
    port = int(nginx.url.rpartition(":")[2])
    shared = HTTPShared(host=f"http://shop.test:{port}", resolve={("shop.test", port): "127.0.0.1"})
    async with swept(shared) as client:
        response = await client.get("/landed")
        assert response.url == f"http://shop.test:{port}/landed" and response.ok
    assert_balanced(shared)


@on_uvloop
async def test_ping_shows_an_exchange(nginx: Nginx) -> None:
    result = await ping(nginx.url + "/")
    lines = result.render().splitlines()
    assert lines[0].startswith("200 OK  HTTP/1.1  12 B  from 127.0.0.1:")
    assert lines[1].startswith("dns -  connect ") and "  tls -  first byte " in lines[1]
    assert lines[2:] == ["Content-Type: text/plain", "hello world"]
    secure = await ping(nginx.tls_url + "/moved", ca_file=nginx.ca_file)
    assert secure.ok and "Location: " in secure.render() and "tls -" not in secure.render()
    refused = await ping("http://127.0.0.1:1/")
    assert not refused.ok and refused.render() == (
        "http://127.0.0.1:1/: connection refused: 127.0.0.1:1"
    )
