"""The HTTP/2 client against Caddy and Hypercorn."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from squall.clients.http import HTTPShared
from squall.clients.ping import ping
from tests.lab.caddy import BIG, Caddy, running_caddy
from tests.lab.ports import free_ports
from tests.services.http.lab.servers import on_uvloop, prepared
from tests.services.http2.lab.servers import http2, wait_for_port

APP = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    path = scope["path"]
    headers = [(b"x-size", b"%d" % size), (b"x-version", scope["http_version"].encode())]
    body = b"hello world"
    if path == "/big.bin":
        body = bytes(range(256)) * 8000
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["method"] == "HEAD":
        body = b""
    await send({"type": "http.response.body", "body": body})
"""


class Hypercorn:
    """`url` has TLS, `plain_url` has none."""

    def __init__(self, directory: Path) -> None:
        (directory / "asgi_app.py").write_text(APP)
        self.ca_file = str(directory / "ca.pem")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        issued = authority.issue_cert("localhost")
        issued.private_key_pem.write_to_path(str(directory / "key.pem"))
        issued.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
        port, plain_port = free_ports(2)
        self.url, self.plain_url = f"https://localhost:{port}", f"http://127.0.0.1:{plain_port}"
        command = [sys.executable, "-m", "hypercorn", "asgi_app:app"]
        command += ["--bind", f"127.0.0.1:{port}", "--insecure-bind", f"127.0.0.1:{plain_port}"]
        command += ["--certfile", "cert.pem", "--keyfile", "key.pem"]
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(directory)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for each in (port, plain_port):
            wait_for_port(each)


@pytest.fixture(scope="module")
def caddy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caddy]:
    with running_caddy(tmp_path_factory.mktemp("caddy")) as running:
        yield running


@pytest.fixture(scope="module")
def hypercorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hypercorn]:
    running = Hypercorn(tmp_path_factory.mktemp("hypercorn"))
    yield running
    running.process.terminate()
    running.process.wait()


@pytest.mark.parametrize("server", ["caddy", "hypercorn"])
@pytest.mark.parametrize("way", ["url", "plain_url"])
@on_uvloop
async def test_calls_of_all_sizes(
    caddy: Caddy, hypercorn: Hypercorn, server: str, way: str
) -> None:
    peer = caddy if server == "caddy" else hypercorn
    base = getattr(peer, way)
    big = "/files/big.bin" if server == "caddy" else "/big.bin"
    shared = HTTPShared(ca_file=peer.ca_file)
    async with http2(shared) as client:
        url = await prepared(shared, base + "/")
        for _ in range(20):
            response = await client.get(url)
            assert (response.status_code, response.body) == (200, b"hello world")
            assert response.head.version == "HTTP/2"
        assert (await client.get(base + big)).body == BIG
        posted = await client.post(url, data=b"x" * 300_000)
        assert posted.ok
        if server == "hypercorn":
            assert posted.headers["x-size"] == "300000"
            assert posted.headers["x-version"] == "2"
        assert (await client.head(url)).body == b""
        together = await asyncio.gather(*(client.get(url) for _ in range(60)))
        assert {response.body for response in together} == {b"hello world"}
    counters = shared.counters_of("http2")
    assert (counters.failed, counters.answered) == (0, 83)


@on_uvloop
async def test_both_sides_count_the_same(caddy: Caddy) -> None:
    shared = HTTPShared(ca_file=caddy.ca_file)
    async with http2(shared) as client:
        url = await prepared(shared, caddy.url + "/count2")
        await asyncio.gather(*(client.get(url) for _ in range(500)))
    counters = shared.counters_of("http2")
    # Streams that are opened before the settings of the server arrive may be refused: sent again.
    assert (counters.answered, counters.sent - counters.reconnects) == (500, 500)
    assert caddy.logged("/count2", 500) == ["HTTP/2.0"] * 500


@on_uvloop
async def test_ping(hypercorn: Hypercorn) -> None:
    found = await ping(hypercorn.url + "/", http2=True, ca_file=hypercorn.ca_file)
    assert found.render().startswith("200 OK  HTTP/2  11 B  from 127.0.0.1:")
