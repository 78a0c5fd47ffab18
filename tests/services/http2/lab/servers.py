"""A real nginx and a real nghttpd that speak HTTP/2, in clear and with TLS; scripted peers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from squall.clients.http import HTTPShared
from squall.clients.http2 import HTTP2Client, frames
from tests.lab.ports import free_ports
from tests.services.http.lab.servers import Peer, swept

BIG = bytes(range(256)) * 8000
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
    listen 127.0.0.1:{port} http2; listen 127.0.0.1:{tls_port} ssl http2;
    location / {{ return 200 "hello world\\n"; }}
    location /unavailable {{ return 503 "busy\\n"; }}
    location /moved {{ return 301 /landed?a=1; }}
    location /cookie {{ add_header Set-Cookie "sid=7; Path=/"; return 200 "set\\n"; }}
    location /seen {{ return 200 "$http_cookie"; }}
    location /nothing {{ return 204; }}
    location /unique {{ add_header X-Id $request_id; return 200 "unique\\n"; }}
    location /files/ {{ alias {dir}/files/; }}
  }}
  server {{
    listen 127.0.0.1:{few_port} http2; keepalive_requests 3; location / {{ return 200 "ok"; }}
  }}
  server {{ listen 127.0.0.1:{old_port} ssl; location / {{ return 200 "old"; }} }}
}}
"""


class RealServers:
    """Addresses: `nginx` and `nghttpd` in clear, `*_tls` with TLS, `few` closes a connection after
    three requests, `old` has TLS without HTTP/2."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ports = free_ports(6)
        self.nginx, self.few, self.nghttpd = (f"http://127.0.0.1:{ports[n]}" for n in (0, 2, 4))
        self.nginx_tls, self.old, self.nghttpd_tls = (
            f"https://localhost:{ports[n]}" for n in (1, 3, 5)
        )
        self.ca_file = str(directory / "ca.pem")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        issued = authority.issue_cert("localhost")
        issued.private_key_and_cert_chain_pem.write_to_path(str(directory / "server.pem"))
        issued.private_key_pem.write_to_path(str(directory / "key.pem"))
        issued.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
        files = directory / "files"
        files.mkdir()
        (files / "big.bin").write_bytes(BIG)
        (files / "index.html").write_text("hello world\n")
        config = directory / "nginx.conf"
        names = ("port", "tls_port", "few_port", "old_port")
        config.write_text(_CONFIG.format(dir=directory, **dict(zip(names, ports, strict=False))))
        keys = [str(directory / "key.pem"), str(directory / "cert.pem")]
        commands = [
            [_program("nginx"), "-p", str(directory), "-c", str(config)],
            [_program("nghttpd"), "--no-tls", "-d", str(files), str(ports[4])],
            [_program("nghttpd"), "-d", str(files), str(ports[5]), *keys],
        ]
        self._processes = [
            subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for words in commands
        ]
        for port in ports:
            wait_for_port(port)

    def logged(self, path: str, at_least: int) -> int:
        """How many requests for a path nginx has counted itself."""
        log = self.directory / "access.log"
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            counted = log.read_text().count(f" {path} HTTP/2.0")
            if counted >= at_least or time.monotonic() > until:
                return counted
            time.sleep(0.02)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
            process.wait()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServers]:
    missing = [name for name in ("nginx", "nghttpd") if not _program(name)]
    if missing:
        text = f"{' and '.join(missing)} not installed"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    servers = RealServers(tmp_path_factory.mktemp("http2"))
    yield servers
    servers.stop()


@asynccontextmanager
async def http2(shared: HTTPShared) -> AsyncGenerator[HTTP2Client]:
    """A client whose timeouts are swept; at the end no call and no connection may be left."""
    async with swept(shared) as http:
        yield HTTP2Client(http)


async def greeted(peer: Peer) -> int:
    """Reads what a client sends first, up to its first request, and answers with SETTINGS. Returns
    the stream of the request, 0 if the client closed."""
    await peer.reader.readexactly(len(frames.PREFACE))
    await peer.send(frames.settings_frame({}))
    return await next_request(peer)


async def next_request(peer: Peer) -> int:
    while True:
        try:
            head = await peer.reader.readexactly(frames.HEAD_BYTES)
            await peer.reader.readexactly(int.from_bytes(head[:3], "big"))
        except EOFError:
            return 0
        if head[3] == frames.HEADERS:
            return int.from_bytes(head[5:], "big")


def _program(name: str) -> str:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    return shutil.which(name, path=path) or ""


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
