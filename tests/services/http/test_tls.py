"""The client over TLS, once per way of opening such a connection: aiofastnet and the event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from squall.api.errors import TransportError
from squall.clients.http import HTTPShared
from squall.clients.shared import tls_transport
from tests.services.http.lab.servers import (
    BIG_BYTES,
    Handler,
    Nginx,
    Peer,
    RawServer,
    on_uvloop,
    prepared,
    serve,
    swept,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(params=["aiofastnet", "loop"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "loop":
        monkeypatch.setattr(tls_transport, "fast_transports", lambda: None)
    else:
        assert tls_transport.fast_transports() is not None


@asynccontextmanager
async def serve_tls(handler: Handler, folder: Path) -> AsyncGenerator[RawServer]:
    """`serve`, with a certificate for 127.0.0.1 whose authority is in `folder`/ca.pem."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with serve(handler, context) as server:
        yield server


@on_uvloop
async def test_tls_with_a_private_authority(nginx: Nginx) -> None:
    shared = HTTPShared(ca_file=nginx.ca_file)
    async with swept(shared) as client:
        url = await prepared(shared, nginx.tls_url + "/")
        first = await client.get(url)
        assert first.body == b"hello world\n"
        assert first.timings.connect_s > 0 and first.timings.tls_s > 0
        again = await client.get(url)
        assert again.timings.connect_s == again.timings.tls_s == 0
        assert len((await client.get(nginx.tls_url + "/files/big.bin")).body) >= BIG_BYTES
    assert len(shared.counters.connect_samples) == len(shared.counters.tls_samples) == 1
    assert shared.counters.connections == 1


@on_uvloop
async def test_an_unknown_authority_is_refused_unless_told_otherwise(nginx: Nginx) -> None:
    shared = HTTPShared()
    async with swept(shared) as client:
        with pytest.raises(TransportError, match=r"^TLS: certificate verify failed: "):
            await client.get(nginx.tls_url + "/")
    assert (shared.counters.sent, shared.counters.failed, shared.counters.unsent) == (0, 1, 1)
    trusting = HTTPShared(verify=False)
    async with swept(trusting) as client:
        assert (await client.get(nginx.tls_url + "/")).ok


@on_uvloop
async def test_a_certificate_for_another_name_is_refused(nginx: Nginx) -> None:
    shared = HTTPShared(
        ca_file=nginx.ca_file, resolve={("other.test", nginx.tls_port): "127.0.0.1"}
    )
    async with swept(shared) as client:
        with pytest.raises(TransportError, match=r"Hostname mismatch.* 'other.test'"):
            await client.get(f"https://other.test:{nginx.tls_port}/")


@on_uvloop
async def test_plain_http_to_a_tls_port_and_back(nginx: Nginx) -> None:
    shared = HTTPShared()
    async with swept(shared) as client:
        answer = await client.get(f"http://127.0.0.1:{nginx.tls_port}/")
        assert answer.status_code == 400
        with pytest.raises(TransportError, match=r"^TLS: "):
            await client.get(nginx.url.replace("http", "https") + "/")


@on_uvloop
async def test_a_wrong_address_in_a_certificate_is_named(nginx: Nginx) -> None:
    shared = HTTPShared(ca_file=nginx.ca_file)
    async with swept(shared) as client:
        with pytest.raises(TransportError, match=r"IP address mismatch.* '127.0.0.1'"):
            await client.get(f"https://127.0.0.1:{nginx.tls_port}/")


@on_uvloop
async def test_a_handshake_that_never_ends_is_a_timeout() -> None:
    async def silent(peer: Peer) -> None:
        await asyncio.sleep(60)

    shared = HTTPShared(verify=False, timeout_s=0.2)
    async with serve(silent) as server, swept(shared) as client:
        with pytest.raises(TransportError, match=r"^timeout after 0.2 s$"):
            await client.get(f"https://127.0.0.1:{server.port}/")
    assert shared.counters.unsent == 1


@on_uvloop
async def test_a_cancelled_handshake_leaves_nothing_behind() -> None:
    closed = asyncio.Event()

    async def silent(peer: Peer) -> None:
        await peer.reader.read()
        closed.set()

    shared = HTTPShared(verify=False)
    async with serve(silent) as server, swept(shared) as client:
        call = asyncio.ensure_future(client.get(f"https://127.0.0.1:{server.port}/"))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not shared.live
        await asyncio.wait_for(closed.wait(), 10)


@on_uvloop
async def test_a_response_cut_off_by_the_end_of_the_connection(tmp_path: Path) -> None:
    async def cut(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")

    shared = HTTPShared(verify=False)
    async with serve_tls(cut, tmp_path) as server, swept(shared) as client:
        with pytest.raises(TransportError, match=r"^response cut off$"):
            await client.get(f"https://127.0.0.1:{server.port}/")


@on_uvloop
async def test_a_reset_is_counted_under_its_reason(tmp_path: Path) -> None:
    async def reset(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await asyncio.sleep(0.05)
        peer.reset()

    shared = HTTPShared(verify=False)
    async with serve_tls(reset, tmp_path) as server, swept(shared) as client:
        with pytest.raises(TransportError, match=r"^connection reset$"):
            await client.get(f"https://127.0.0.1:{server.port}/")


@on_uvloop
async def test_the_server_may_close_an_idle_connection(tmp_path: Path) -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)

    shared = HTTPShared(ca_file=str(tmp_path / "ca.pem"))
    async with serve_tls(once, tmp_path) as server, swept(shared) as client:
        for _ in range(3):
            assert (await client.get(f"https://127.0.0.1:{server.port}/")).body == b"ok"
            await asyncio.sleep(0.05)
        assert server.connections == 3


@on_uvloop
async def test_a_cancelled_call_closes_its_connection(tmp_path: Path) -> None:
    async def slow(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(60)

    shared = HTTPShared(verify=False)
    async with serve_tls(slow, tmp_path) as server, swept(shared) as client:
        url = f"https://127.0.0.1:{server.port}/"
        call = asyncio.ensure_future(client.get(url))
        while not server.requests:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert shared.counters.cancelled == 1
        await asyncio.sleep(0.05)
        assert not shared.live
