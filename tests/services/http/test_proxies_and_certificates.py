"""Requests through a proxy, and to servers that ask for a certificate."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from squall.api.errors import ConfigError, TransportError
from squall.clients.http import HTTPShared
from squall.clients.ping import ping
from squall.clients.shared import tls_transport
from squall.engine.connection_options import connection_options
from squall.engine.run_options import CLIENT_CERTIFICATE, PROXY_AUTH
from tests.lab.ports import free_ports
from tests.services.http.lab.servers import Nginx, on_uvloop, prepared, swept

ACCESS = b"Proxy-Authorization: Basic " + base64.b64encode(b"ada:pw")


class ScriptedProxy:
    """Forwards plain requests and tunnels; keeps the heads that it received."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.heads: list[bytes] = []
        self.url = ""
        self.tasks: set[asyncio.Task[None]] = set()
        self._refuses = refuses

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            method, target, _ = head.split(b"\r\n", 1)[0].split(b" ")
            if self._refuses:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                await writer.drain()
            elif method == b"CONNECT":
                await self._forward(target, reader, writer)
            else:
                place = target.split(b"/")[2]
                path = target.split(place, 1)[1]
                await self._forward(place, reader, writer, head.replace(target, path, 1))
        writer.close()

    async def _forward(
        self,
        place: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first: bytes = b"",
    ) -> None:
        host, _, port = place.decode().rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        if first:
            far_writer.write(first)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()


@asynccontextmanager
async def proxy(*, refuses: bool = False) -> AsyncGenerator[ScriptedProxy]:
    scripted = ScriptedProxy(refuses=refuses)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        server.close()
        # The client has closed its connections, so that every handler ends.
        await asyncio.gather(*scripted.tasks)


@on_uvloop
async def test_plain_requests_name_the_whole_address(nginx: Nginx) -> None:
    async with proxy() as scripted:
        shared = HTTPShared(proxy=scripted.url, proxy_auth="ada:pw")
        async with swept(shared) as client:
            url = await prepared(shared, nginx.url + "/moved")
            # The second one follows the redirect on the same connection.
            assert (await client.get(url)).text == "landed\n"
        assert scripted.heads[0].startswith(f"GET {nginx.url}/moved HTTP/1.1\r\n".encode())
        assert ACCESS in scripted.heads[0]


@on_uvloop
async def test_tls_goes_through_a_tunnel_and_the_target_sees_no_proxy_headers(
    nginx: Nginx,
) -> None:
    async with proxy() as scripted:
        shared = HTTPShared(proxy=scripted.url, proxy_auth="ada:pw", ca_file=nginx.ca_file)
        async with swept(shared) as client:
            for _ in range(3):
                assert (await client.get(nginx.tls_url + "/")).text == "hello world\n"
        assert len(scripted.heads) == 1
        assert scripted.heads[0].startswith(b"CONNECT localhost:%d HTTP/1.1" % nginx.tls_port)
        assert ACCESS in scripted.heads[0]
        known = await prepared(shared, nginx.tls_url + "/")
        assert b"Proxy-Authorization" not in known.get_raw  # type: ignore[attr-defined]


@on_uvloop
async def test_a_proxy_that_refuses_is_named(nginx: Nginx) -> None:
    async with proxy(refuses=True) as scripted:
        shared = HTTPShared(proxy=scripted.url, ca_file=nginx.ca_file)
        async with swept(shared) as client:
            with pytest.raises(TransportError, match="proxy refused the tunnel: 407 Proxy"):
                await client.get(nginx.tls_url + "/")
        assert shared.counters.failed == shared.counters.unsent == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
@on_uvloop
async def test_a_proxy_that_does_not_listen_is_named_and_not_the_target(scheme: str) -> None:
    (port,) = free_ports(1)
    async with swept(HTTPShared(proxy=f"http://127.0.0.1:{port}")) as client:
        with pytest.raises(TransportError) as failure:
            await client.get(f"{scheme}://shop.test:8080/")
    assert str(failure.value) == f"connection refused: proxy 127.0.0.1:{port}"


@pytest.mark.parametrize("has_certificate", [True, False])
@on_uvloop
async def test_a_server_that_asks_for_a_certificate(tmp_path: Path, has_certificate: bool) -> None:
    authority = trustme.CA()
    ca_file, pem = str(tmp_path / "ca.pem"), tmp_path / "client.pem"
    authority.cert_pem.write_to_path(ca_file)
    authority.issue_cert("client.test").private_key_and_cert_chain_pem.write_to_path(str(pem))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca_file)
    authority.issue_cert("localhost").configure_cert(context)
    context.verify_mode = ssl.CERT_REQUIRED

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}/"
    certificate = pem.read_text(encoding="ascii") if has_certificate else ""
    result = await ping(url, ca_file=ca_file, certificate=certificate)
    server.close()
    assert result.ok == has_certificate
    if has_certificate:
        assert result.response is not None and result.response.body == b"ok"


def serve_tls(context: ssl.SSLContext, listener: socket.socket) -> None:
    """Answers one connection. A blocking socket, because asyncio's servers close a connection whose
    handshake failed without sending the alert."""
    with (
        listener,
        context.wrap_socket(
            listener.accept()[0], server_side=True, do_handshake_on_connect=False
        ) as tls,
    ):
        try:
            tls.do_handshake()
        except ssl.SSLError:
            # From here on the socket is plain. Unread bytes would make the kernel reset the
            # connection, and the alert would be lost.
            tls.shutdown(socket.SHUT_WR)
            while tls.recv(65536):
                pass


WANTED = "TLS: the server wants a client certificate; use --cert FILE"
REFUSED = "TLS: the server refuses the client certificate of --cert"


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        (ssl.TLSVersion.TLSv1_3, "none", WANTED),
        (ssl.TLSVersion.TLSv1_3, "foreign", f"{REFUSED}: unknown authority"),
        (ssl.TLSVersion.TLSv1_3, "old", f"{REFUSED}: it has expired"),
        (ssl.TLSVersion.TLSv1_2, "none", "if it wants a client certificate, use --cert FILE"),
        (ssl.TLSVersion.TLSv1_2, "foreign", f"{REFUSED}: unknown authority"),
        (ssl.TLSVersion.TLSv1_2, "old", f"{REFUSED}: it has expired"),
    ],
)
@on_uvloop
async def test_a_server_that_refuses_for_the_certificate_is_understood(
    version: ssl.TLSVersion,
    given: str,
    expected: str,
    is_fast: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_fast:
        monkeypatch.setattr(tls_transport, "fast_transports", lambda: None)
    authority, ca_file = trustme.CA(), str(tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(ca_file)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca_file)
    context.minimum_version = context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("localhost").configure_cert(context)
    certificate = ""
    if given == "foreign":
        issued = trustme.CA().issue_cert("client.test")
        certificate = issued.private_key_and_cert_chain_pem.bytes().decode()
    elif given == "old":
        issued = authority.issue_cert("client.test", not_after=datetime(2020, 1, 1, tzinfo=UTC))
        certificate = issued.private_key_and_cert_chain_pem.bytes().decode()
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"https://localhost:{listener.getsockname()[1]}/"
    serving = asyncio.get_running_loop().run_in_executor(None, serve_tls, context, listener)
    result = await ping(url, ca_file=ca_file, certificate=certificate)
    await serving
    assert not result.ok and expected in result.error


@on_uvloop
async def test_a_certificate_that_cannot_be_used_is_refused_before_the_run() -> None:
    shared = HTTPShared(certificate="-----BEGIN CERTIFICATE-----\nnone\n")
    with pytest.raises(ConfigError, match="cannot use the client certificate"):
        await prepared(shared, "https://127.0.0.1:1/")


def test_credentials_and_keys_become_secrets(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    issued = trustme.CA().issue_cert("me.test")
    issued.private_key_and_cert_chain_pem.write_to_path(both)
    found = connection_options(str, proxy="ada:pw@proxy.test:3128", cert=str(both))
    assert found.proxy == "http://proxy.test:3128"
    assert found.secrets[PROXY_AUTH] == "ada:pw"
    assert "-----BEGIN CERTIFICATE-----" in found.secrets[CLIENT_CERTIFICATE]
