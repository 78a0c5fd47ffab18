"""Servers that die, stall, cut off, reset and break the protocol: failures by reason, nothing
left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from squall.api.errors import CallError, TransportError
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.http3 import HTTP3Client
from tests.lab.http3_server import HTTP3Server, running_http3_server
from tests.services.http.lab.servers import on_uvloop, prepared
from tests.services.http3.lab.clients import http3, silent_port


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HTTP3Server]:
    with running_http3_server(tmp_path_factory.mktemp("http3")) as server:
        yield server


@pytest.fixture
def server(running: HTTP3Server) -> HTTP3Server:
    running.paths.clear()
    running.connections = running.resets = 0
    return running


CASES = [
    ("/never", "timeout after 0.2 s"),
    ("/stalls", "timeout after 0.2 s"),
    ("/close", "connection closed before a response"),
    ("/cut", "response cut off"),
    ("/reset", "stream reset: H3_INTERNAL_ERROR"),
    ("/reset-in-body", "stream reset: H3_INTERNAL_ERROR"),
    ("/angry", "connection ended by the server: H3_EXCESSIVE_LOAD"),
    ("/short", "malformed response"),
    ("/bad-head", "malformed response"),
    # The end of the stream arrives together with its head.
    ("/bad-head-and-body", "malformed response"),
    ("/bad-headers", "HTTP/3 QPACK_DECOMPRESSION_FAILED"),
    (
        "/data-first",
        "HTTP/3 H3_FRAME_UNEXPECTED: data frame is not allowed in this state",
    ),
    (
        "/bad-control",
        "HTTP/3 H3_FRAME_UNEXPECTED: invalid frame type on control stream",
    ),
]


@pytest.mark.parametrize(("path", "reason"), CASES)
@on_uvloop
async def test_a_failure_has_its_reason(server: HTTP3Server, path: str, reason: str) -> None:
    timeout_s = 0.2 if "timeout" in reason else 20.0
    shared = HTTPShared(host=server.url, ca_file=server.ca_file, timeout_s=20.0)
    async with http3(shared) as client:
        for _ in range(2):
            with pytest.raises(TransportError) as caught:
                await client.post(path, timeout=timeout_s, data=b"x")
            assert caught.value.reason == reason
            assert caught.value.protocol == "http3"
            assert caught.value.request == f"POST {server.url}{path}"
        calls = [client.post(path, timeout=timeout_s) for _ in range(5)]
        failed = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, TransportError) for each in failed)
        assert (await client.get("/good")).ok
    assert shared.counters_of("http3").failed == 7


@on_uvloop
async def test_a_closed_port_is_refused() -> None:
    with silent_port() as port:
        pass
    shared = HTTPShared(verify=False)
    async with http3(shared) as client:
        with pytest.raises(TransportError, match=f"^connection refused: localhost:{port}$"):
            await client.get(f"https://localhost:{port}/")
    assert (shared.counters_of("http3").failed, shared.counters_of("http3").unsent) == (1, 1)


@on_uvloop
async def test_a_port_that_never_answers_times_out() -> None:
    with silent_port() as port:
        shared = HTTPShared(verify=False, timeout_s=0.3, connections="shared")
        async with http3(shared):
            users = [HTTP3Client(HTTPClient(shared, index)) for index in range(5)]
            calls = [user.get(f"https://127.0.0.1:{port}/") for user in users]
            failed = await asyncio.gather(*calls, return_exceptions=True)
            assert {getattr(each, "reason", "") for each in failed} == {"timeout after 0.3 s"}
    assert (shared.counters_of("http3").failed, shared.counters_of("http3").unsent) == (5, 5)


@on_uvloop
async def test_a_server_that_falls_silent_times_out_and_its_connection_is_left(
    server: HTTP3Server,
) -> None:
    shared = HTTPShared(host=server.url, ca_file=server.ca_file)
    async with http3(shared) as client:
        assert (await client.get("/good")).ok
        server.silent = True
        try:
            # A last datagram may have been on its way during the first of them.
            for _ in range(2):
                with pytest.raises(TransportError, match=r"timeout after 0\.2 s"):
                    await client.get("/good", timeout=0.2)
        finally:
            server.silent = False
        assert (await client.get("/good")).ok
    assert shared.counters_of("http3").connections == 2


@on_uvloop
async def test_a_server_that_dies_fails_its_calls_at_once(tmp_path: Path) -> None:
    with running_http3_server(tmp_path) as server:
        shared = HTTPShared(host=server.url, ca_file=server.ca_file, timeout_s=30.0)
        client = HTTP3Client(HTTPClient(shared, 0))
        assert (await client.get("/good")).ok
    # The client is still connected, and the kernel says that the port is closed.
    for _ in range(2):
        with pytest.raises(TransportError, match="connection refused"):
            await client.get("/good")
    await shared.close()
    assert not shared.live
    # The first of them went out on the old connection and was repeated.
    assert (shared.counters_of("http3").failed, shared.counters_of("http3").reconnects) == (2, 1)


@on_uvloop
async def test_another_protocol_in_the_handshake(tmp_path: Path) -> None:
    with running_http3_server(tmp_path, alpn="other") as server:
        shared = HTTPShared(ca_file=server.ca_file)
        async with http3(shared) as client:
            with pytest.raises(TransportError, match="the server does not speak HTTP/3"):
                await client.get(server.url + "/")


@on_uvloop
async def test_certificates_are_verified(server: HTTP3Server) -> None:
    failed = r"^TLS: certificate verify failed: .*; use --cacert FILE or --insecure$"
    for shared, url in (
        (HTTPShared(), server.url),
        # The certificate is for localhost.
        (HTTPShared(ca_file=server.ca_file), f"https://127.0.0.1:{server.port}"),
        (
            HTTPShared(ca_file=server.ca_file, resolve={("shop.test", server.port): "127.0.0.1"}),
            f"https://shop.test:{server.port}",
        ),
    ):
        async with http3(shared) as client:
            with pytest.raises(TransportError, match=failed):
                await client.get(url + "/")
    places = {("shop.test", server.port): "127.0.0.1"}
    async with http3(HTTPShared(verify=False, resolve=places)) as client:
        seen = (await client.get(f"https://shop.test:{server.port}/a")).json()
        assert seen["headers"][":authority"] == f"shop.test:{server.port}"


@on_uvloop
async def test_what_http3_cannot_do_is_one_line(server: HTTP3Server) -> None:
    async with http3(HTTPShared()) as client:
        with pytest.raises(CallError, match="HTTP/3 is always encrypted; write https://"):
            await client.get("http://127.0.0.1:1/")
    async with http3(HTTPShared(proxy="http://127.0.0.1:1")) as client:
        with pytest.raises(CallError, match="HTTP/3 does not go through a proxy"):
            await client.get(server.url + "/")
    with pytest.raises(CallError, match="cannot use the CA file"):
        async with http3(HTTPShared(ca_file="/nowhere.pem")) as client:
            await client.get(server.url + "/")


@on_uvloop
async def test_a_response_that_is_too_large_fails_and_the_connection_stays(
    server: HTTP3Server,
) -> None:
    shared = HTTPShared(host=server.url, ca_file=server.ca_file, most_bytes=1 << 20)
    async with http3(shared) as client:
        with pytest.raises(TransportError, match="response larger than 1 MiB"):
            await client.post("/echo", data=b"x" * (2 << 20))
        assert (await client.get("/good")).ok
    assert shared.counters_of("http3").connections == 1


@on_uvloop
async def test_refused_calls_are_repeated_also_posts(server: HTTP3Server) -> None:
    shared = HTTPShared(host=server.url, ca_file=server.ca_file)
    async with http3(shared) as client:
        for _ in range(4):
            assert (await client.post("/refused", data="once")).ok
        assert server.connections == 1
        for _ in range(3):
            assert (await client.post("/goaway", data="once")).ok
    assert server.paths == {"/refused": 4, "/goaway": 3}
    assert shared.counters_of("http3").failed == 0
    assert shared.counters_of("http3").reconnects == 7
    assert shared.counters_of("http3").connections == 4


@on_uvloop
async def test_a_get_on_a_connection_that_closes_is_repeated_once(server: HTTP3Server) -> None:
    shared = HTTPShared(host=server.url, ca_file=server.ca_file)
    async with http3(shared) as client:
        url = await prepared(shared, "/close")
        assert (await client.get("/good")).ok
        for _ in range(2):
            with pytest.raises(TransportError, match="connection closed before a response"):
                await client.get(url)
            assert (await client.get("/good")).ok
    assert server.paths["/close"] == 4
    assert (shared.counters_of("http3").reconnects, shared.counters_of("http3").failed) == (2, 2)


@on_uvloop
async def test_a_cancelled_call_resets_its_stream_and_the_connection_goes_on(
    server: HTTP3Server,
) -> None:
    shared = HTTPShared(host=server.url, ca_file=server.ca_file)
    async with http3(shared) as client:
        beside = asyncio.ensure_future(client.get("/slow"))
        task = asyncio.ensure_future(client.get("/stalls"))
        async with asyncio.timeout(30.0):
            while not server.paths["/stalls"]:
                await asyncio.sleep(0.005)
        assert (await beside).ok
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.get("/good")).ok
    assert server.connections == 1
    assert shared.counters_of("http3").cancelled == 1


@pytest.mark.parametrize("path", ["/close", "/cut", "/reset", "/bad-headers"])
@on_uvloop
async def test_failures_leave_nothing_behind(server: HTTP3Server, path: str) -> None:
    shared = HTTPShared(host=server.url, ca_file=server.ca_file)
    async with http3(shared) as client:
        gone: list[weakref.ref[BaseException]] = []
        gc.collect()
        gc.disable()
        try:
            url = await prepared(shared, path)
            for method in (client.get, client.post, client.get):
                gone.append(await _failure(method, url))
                client._http.last = None  # pyright: ignore[reportPrivateUsage]
            async with asyncio.timeout(30.0):
                while any(ref() is not None for ref in gone):
                    await asyncio.sleep(0.005)
        finally:
            gc.enable()


async def _failure(method: Any, url: Any) -> weakref.ref[BaseException]:
    try:
        await method(url)
    except TransportError as error:
        return weakref.ref(error)
    raise AssertionError("the call did not fail")


@on_uvloop
async def test_datagrams_that_are_no_quic_are_ignored(server: HTTP3Server) -> None:
    shared = HTTPShared(host=server.url, ca_file=server.ca_file)
    async with http3(shared) as client:
        assert (await client.get("/good")).ok
        (conn,) = client._connector.open.by_key.values()  # pyright: ignore[reportPrivateUsage]
        for garbage in (b"", b"\0" * 40, b"\xff" * 1500, b"\x40" + b"x" * 60):
            conn.datagram_received(garbage, ("127.0.0.1", server.port))
        assert (await client.get("/good")).ok
    assert shared.counters_of("http3").connections == 1
