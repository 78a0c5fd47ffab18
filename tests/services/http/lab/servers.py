"""A real nginx and scripted raw servers for the HTTP client, each on a port of its own.

`nginx` is one process for the whole session (`Nginx.url`, `.tls_url`, `.short_url` closes
idle connections after a second, `.few_url` after three requests). `serve(handler)` runs
a handler per connection that reads and writes raw bytes. Both count what they were asked.
An async test is marked with `@on_uvloop`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import socket
import ssl
import struct
import subprocess
import time
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec

import pytest
import trustme

from squall.api.arguments import Prepared, argument_kinds
from squall.clients.calls.arrivals import ArrivalLoop
from squall.clients.http import HTTPClient, HTTPShared
from tests.lab.ports import free_ports

P = ParamSpec("P")

BIG_BYTES = 3_000_000
START_TIMEOUT_S = 20.0

_CONFIG = """
daemon off; master_process off; pid {dir}/nginx.pid; error_log {dir}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log {dir}/access.log;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fcgi;
  uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  keepalive_requests 1000000000; default_type text/plain;
  ssl_certificate {dir}/server.pem; ssl_certificate_key {dir}/server.pem;
  server {{
    listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl;
    location / {{ return 200 "hello world\\n"; }}
    location /unavailable {{ return 503 "busy\\n"; }}
    location /moved {{ return 301 /landed?a=1; }}
    location /landed {{ return 200 "landed\\n"; }}
    location /loop {{ return 302 /loop; }}
    location /cookie {{ add_header Set-Cookie "sid=7; Path=/"; return 200 "set\\n"; }}
    location /seen {{ return 200 "$http_cookie"; }}
    location /nothing {{ return 204; }}
    location /unique {{ add_header X-Id $request_id; return 200 "unique\\n"; }}
    location /files/ {{ alias {dir}/files/; gzip on; gzip_types text/plain; gzip_min_length 1; }}
  }}
  server {{
    listen 127.0.0.1:{short_port}; keepalive_timeout 1s; location / {{ return 200 "ok"; }}
  }}
  server {{
    listen 127.0.0.1:{few_port}; keepalive_requests 3; location / {{ return 200 "ok"; }}
  }}
}}
"""


class Nginx:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ports = free_ports(4)
        self.url, self.tls_url = f"http://127.0.0.1:{ports[0]}", f"https://localhost:{ports[1]}"
        self.short_url, self.few_url = (f"http://127.0.0.1:{port}" for port in ports[2:])
        self.tls_port = ports[1]
        self.ca_file = str(directory / "ca.pem")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
            str(directory / "server.pem")
        )
        files = directory / "files"
        files.mkdir()
        (files / "big.bin").write_bytes(bytes(range(256)) * (BIG_BYTES // 256 + 1))
        (files / "page.txt").write_text("a line of text that compresses\n" * 200)
        config = directory / "nginx.conf"
        names = ("port", "tls_port", "short_port", "few_port")
        config.write_text(_CONFIG.format(dir=directory, **dict(zip(names, ports, strict=True))))
        self._process = subprocess.Popen(
            [_binary(), "-p", str(directory), "-c", str(config)], stderr=subprocess.DEVNULL
        )
        _wait_for(ports[0])

    def requests(self, at_least: int = 0) -> int:
        """How many requests nginx itself has counted. It logs a request after it has sent the
        response, so the lines of the last ones may still be awaited."""
        log = self.directory / "access.log"
        until = time.monotonic() + START_TIMEOUT_S
        while (counted := len(log.read_bytes().splitlines())) < at_least:
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        return counted

    def settled(self) -> int:
        """The same, once all that was asked before is logged: there is one process, which logs in
        the order in which it answers."""
        mark = f"/mark-{time.monotonic_ns()}"
        urllib.request.urlopen(f"{self.url}{mark}", timeout=START_TIMEOUT_S).close()
        log = self.directory / "access.log"
        until = time.monotonic() + START_TIMEOUT_S
        while mark.encode() not in log.read_bytes():
            assert time.monotonic() < until, "nginx writes no log"
            time.sleep(0.02)
        return self.requests()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    if not _binary():
        if os.environ.get("CI"):
            pytest.fail("nginx is not installed")
        pytest.skip("nginx is not installed")
    server = Nginx(tmp_path_factory.mktemp("nginx"))
    yield server
    server.stop()


def on_uvloop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs an async test on the loop that a core process uses."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=ArrivalLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


class Peer:
    """One accepted connection of a scripted server."""

    def __init__(
        self, server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader, self.writer, self._server = reader, writer, server
        self.number = server.connections

    async def request(self) -> bytes:
        """The next request, head and body; empty if the client closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        whole = head + (await self.reader.readexactly(length) if length else b"")
        self._server.requests.append(whole)
        return whole

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Closes with RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Handler = Callable[[Peer], Awaitable[None]]


class RawServer:
    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def serve(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncGenerator[RawServer]:
    """Runs `handler(peer)` for every connection; what it leaves open is closed after it."""
    raw = RawServer()
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(Peer(raw, reader, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    raw.port = server.sockets[0].getsockname()[1]
    try:
        yield raw
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.sleep(0.01)


def answering(*responses: bytes) -> Handler:
    """Answers the requests of a connection in turn; the last response repeats."""

    async def handler(peer: Peer) -> None:
        index = 0
        while await peer.request():
            await peer.send(responses[min(index, len(responses) - 1)])
            index += 1

    return handler


async def prepared(shared: HTTPShared, url: str) -> Prepared:
    return await shared.prepare(argument_kinds()[0], url)


@asynccontextmanager
async def swept(shared: HTTPShared) -> AsyncGenerator[HTTPClient]:
    """A client whose timeouts are swept, as the engine does it."""

    async def sweeper() -> None:
        while True:
            shared.sweep(time.perf_counter())
            await asyncio.sleep(0.005)

    task = asyncio.ensure_future(sweeper())
    try:
        yield HTTPClient(shared, 0)
    finally:
        task.cancel()
        await shared.close()
        assert_balanced(shared)
        assert not shared.live


def assert_balanced(shared: HTTPShared) -> None:
    """Every exchange that was sent ended in exactly one way."""
    for c in shared.counters_by_protocol.values():
        assert c.sent == c.answered + (c.failed - c.unsent) + c.reconnects + c.cancelled


def _binary() -> str:
    found = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    return found or ""


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
