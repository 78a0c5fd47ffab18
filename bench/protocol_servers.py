"""Servers for the protocol bench, on core 0: nginx and nghttpd with HTTP/2, a WebSocket echo and a
stream of events."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from nginx_target import NEW_CERTIFICATE

CORE = "0"
START_TIMEOUT_S = 20.0
EVENT = b'id: 1\nevent: tick\ndata: {"n": 1, "price": 12.5}\n\n'
# Events of one chunk: what a busy server has ready at once.
EVENTS_AT_ONCE = 100
_NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    ssl_certificate {folder}/server.pem;
    ssl_certificate_key {folder}/server.key;
    server {{
        listen 127.0.0.1:{plain} http2;
        listen 127.0.0.1:{tls} ssl http2;
        location / {{ default_type text/plain; return 200 "hello world\\n"; }}
    }}
}}
"""


class Servers(NamedTuple):
    """Where each server listens."""

    nginx: int
    nginx_tls: int
    nghttpd: int
    nghttpd_tls: int
    websocket: int
    events: int


@contextmanager
def running() -> Iterator[Servers]:
    folder = Path(tempfile.mkdtemp(prefix="squall-bench-"))
    ports = Servers(*(_free_port() for _ in Servers._fields))
    subprocess.run(
        [*NEW_CERTIFICATE, "-out", "server.pem", "-keyout", "server.key"],
        cwd=folder,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, plain=ports.nginx, tls=ports.nginx_tls))
    (folder / "index.html").write_text("hello world\n")
    commands = [
        ["nginx", "-p", str(folder), "-c", str(config)],
        ["nghttpd", "--no-tls", "-d", str(folder), str(ports.nghttpd)],
        ["nghttpd", "-d", str(folder), str(ports.nghttpd_tls), "server.key", "server.pem"],
        [sys.executable, __file__, "websocket", str(ports.websocket)],
        [sys.executable, __file__, "events", str(ports.events)],
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += [
            subprocess.Popen(
                ["taskset", "-c", CORE, *command],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for command in commands
        ]
        for port in ports:
            _wait_for(port)
        yield ports
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no server listens on port {port}") from error
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _websocket(port: int) -> None:
    from websockets.asyncio.server import ServerConnection, serve

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async with serve(echo, "127.0.0.1", port, compression=None) as server:
        await server.serve_forever()


async def _events(port: int) -> None:
    block = EVENT * EVENTS_AT_ONCE
    chunk = b"%x\r\n%b\r\n" % (len(block), block)

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
            while not writer.is_closing():
                writer.write(chunk)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(stream, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run({"websocket": _websocket, "events": _events}[sys.argv[1]](int(sys.argv[2])))
